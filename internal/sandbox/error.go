package sandbox

import (
	"errors"
	"fmt"
)

// Kind classifies a provider's error: what the caller knows after it.
type Kind int

// The kinds, a closed set. The zero value is invalid.
const (
	// Refused: surely nothing happened; the request itself is at fault or cannot
	// be served here.
	Refused Kind = iota + 1
	// Ambiguous: it may have happened.
	Ambiguous
	// Gone: the sandbox or the run does not exist any more.
	Gone
	// Busy: surely nothing happened now; it may work later.
	Busy
	// Unavailable: the provider did not answer or cannot work; surely nothing
	// happened.
	Unavailable
	// Protocol: the answer makes no sense; treat like Ambiguous.
	Protocol
)

func (k Kind) String() string {
	switch k {
	case Refused:
		return "refused"
	case Ambiguous:
		return "ambiguous"
	case Gone:
		return "gone"
	case Busy:
		return "busy"
	case Unavailable:
		return "unavailable"
	case Protocol:
		return "protocol"
	}
	return fmt.Sprintf("Kind(%d)", int(k))
}

// Error is the one error type of providers.
type Error struct {
	Kind Kind
	// Op is the contract's call in lower case: create, prepare, open, wait, …
	Op  string
	Err error
}

func (e *Error) Error() string { return e.Op + ": " + e.Kind.String() + ": " + e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

// Errorf makes an Error; %w works as in fmt.Errorf.
func Errorf(kind Kind, op, format string, args ...any) *Error {
	return &Error{Kind: kind, Op: op, Err: fmt.Errorf(format, args...)}
}

// KindOf is the kind of err. An error that does not say is Ambiguous: doubt is
// never rounded.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) && e.Kind != 0 {
		return e.Kind
	}
	return Ambiguous
}
