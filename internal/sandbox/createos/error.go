package createos

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/sallyport/sallyport/internal/sandbox"
)

// effect is what a call does to the service, which decides what is in doubt when its
// answer is lost.
type effect int

const (
	// looks: it changes nothing.
	looks effect = iota + 1
	// changes: it changes something that is there.
	changes
	// founds: it makes a sandbox.
	founds
)

// callError is what is known of a call that did not bring what it should. It holds no
// byte of the answer's body, and no URL.
type callError struct {
	// what is the call, in fixed words.
	what   string
	effect effect
	// status of the answer; 0 when there is none.
	status int
	// sent says that bytes may have left.
	sent bool
	// malformed says that there is an answer, which makes no sense.
	malformed bool
	// retryAfter is when the service wants to be asked again; 0 when it does not say.
	retryAfter time.Duration
	// err is why, in fixed words, or the cause of the context's end; nil with a status.
	err error
}

func (e *callError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("CreateOS answered HTTP %d to the %s", e.status, e.what)
	}
	return fmt.Sprintf("CreateOS %s: %v", e.what, e.err)
}

func (e *callError) Unwrap() error { return e.err }

// kind is the one place in which the service's answers become the contract's kinds.
//
// A 5xx or no answer to a call that changes something is doubt, 503 included, which the
// vendor calls surely not processed: a proxy says 503, too. So is 408. Other 4xx and 3xx
// are answers of someone who did nothing.
func (e *callError) kind() sandbox.Kind {
	doubt := sandbox.Ambiguous
	if e.effect == looks {
		doubt = sandbox.Unavailable
	}
	switch {
	case !e.sent:
		return sandbox.Unavailable
	case e.malformed:
		return sandbox.Protocol
	case e.status == 0 || e.status >= 500 || e.status == http.StatusRequestTimeout:
		return doubt
	}
	switch e.status {
	case http.StatusNotFound:
		if e.effect == founds { // there is no such service
			return sandbox.Unavailable
		}
		return sandbox.Gone
	case http.StatusGone:
		return sandbox.Gone
	case http.StatusConflict:
		if e.effect == founds { // the name is taken
			return sandbox.Refused
		}
		return sandbox.Busy
	case http.StatusTooManyRequests:
		return sandbox.Busy
	case http.StatusUnauthorized, http.StatusPaymentRequired, http.StatusForbidden:
		// Not the request's fault: another one would fare no better.
		return sandbox.Unavailable
	}
	if e.status >= 400 {
		return sandbox.Refused
	}
	return sandbox.Unavailable // a redirect, which is followed nowhere
}

// passes says that the same call may work if it is made again.
func (e *callError) passes() bool {
	switch {
	case e.malformed:
		return false
	case !e.sent || e.status == 0 || e.status >= 500:
		return true
	}
	return e.status == http.StatusTooManyRequests || e.status == http.StatusRequestTimeout
}

// statusOf is the HTTP status that err is about, or 0.
func statusOf(err error) int {
	if e, ok := errors.AsType[*callError](err); ok && !e.malformed {
		return e.status
	}
	return 0
}

// kindOf is the kind of an error of this package.
func kindOf(err error) sandbox.Kind {
	if e, ok := errors.AsType[*sandbox.Error](err); ok {
		return e.Kind
	}
	if e, ok := errors.AsType[*callError](err); ok {
		return e.kind()
	}
	if _, ok := errors.AsType[streamError](err); ok || errors.Is(err, errStreamError) || errors.Is(err, errJournal) || errors.Is(err, errNoExit) {
		return sandbox.Protocol
	}
	return sandbox.KindOf(err)
}

// passing says that the call that ended with err may work again.
func passing(err error) bool {
	e, ok := errors.AsType[*callError](err)
	return ok && e.passes()
}

// fail makes the contract's error of err.
func fail(op string, err error) error {
	return sandbox.Errorf(kindOf(err), op, "%w", err)
}

// The identities of what a run can end with, beside what a callError says.
var (
	errUnconfirmedProcess = errors.New("the creation of the process could not be confirmed: the sandbox must be destroyed")
	errUnconfirmedEnd     = errors.New("the termination of the process is unconfirmed: the sandbox must be destroyed")
	errNoExit             = errors.New("the output ended without an exit status")
	errConnection         = errors.New("the output connection failed")
	errEvicted            = errors.New("output was evicted before it could be read")
	errIncomplete         = errors.New("the output ended before all of it could be replayed")
	errStreamError        = errors.New("the process stream reported an error")
	errJournal            = errors.New("the process journal is invalid")
	errSandboxState       = errors.New("the sandbox is in the wrong state")
	errSandboxLost        = errors.New("the sandbox is gone or broken")
	errMarker             = errors.New("the sandbox is not the one that was left: its marker differs")
	errProcessGone        = errors.New("the process is gone and its exit status unknown")
	errClosed             = errors.New("the provider is closed")
	errDestroyed          = errors.New("the sandbox was destroyed")
	errIdle               = errors.New("the output stream is silent")
	errEnded              = errors.New("the run has ended")
	errTimeout            = errors.New("no answer in time")
)

// cleanup is a context for the end of something: it outlives the caller's, and is
// bounded by its own time.
func cleanup(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), d)
}
