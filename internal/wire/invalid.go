package wire

import (
	"errors"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Invalid says what is wrong with something that arrived, in words for the
// person who sent it. It is an error and also the material of a result with
// outcome invalid.
//
//nolint:errname // it is a judgement about a message first and an error second
type Invalid struct {
	// Reason is one of the reasons of outcome invalid.
	Reason Reason
	// Field is the path of the field at fault, for instance limits.wall_ms or
	// argv[2]; empty when the fault lies in the body as a whole.
	Field string
	// Message says what must be there instead, at most MaxMessageBytes.
	Message string
}

// Error is the field and the message.
func (i *Invalid) Error() string {
	if i.Field == "" {
		return i.Message
	}
	return i.Field + ": " + i.Message
}

// OtherVersion says whether err is about a document of a version that this build
// does not speak. A record of a newer version is not broken: whoever meets one
// leaves it as it is.
func OtherVersion(err error) bool {
	var bad *Invalid
	return errors.As(err, &bad) && bad.Reason == ReasonVersion
}

// invalid makes an Invalid whose message is cut to its bound.
func invalid(reason Reason, field, format string, args ...any) *Invalid {
	return &Invalid{Reason: reason, Field: field, Message: Message(format, args...)}
}

// maxQuoted bounds what an error message repeats of a sender's own words: enough
// to recognise them, too little to flood a log.
const maxQuoted = 64

// quoted is s in quotes with everything unprintable escaped, cut to maxQuoted.
func quoted(s string) string {
	if cut := truncate(s, maxQuoted); len(cut) < len(s) {
		return strconv.Quote(cut) + "…"
	}
	return strconv.Quote(s)
}

// member is the path of the named member of parent. A name that is not a plain
// word is quoted, so that a path never holds a sender's line breaks.
func member(parent, name string) string {
	if !plainWord(name) {
		return parent + "[" + quoted(name) + "]"
	}
	if parent == "" {
		return name
	}
	return parent + "." + name
}

// element is the path of the nth element of parent.
func element(parent string, n int) string {
	return parent + "[" + strconv.Itoa(n) + "]"
}

func plainWord(s string) bool {
	if s == "" || len(s) > maxQuoted {
		return false
	}
	return strings.IndexFunc(s, func(r rune) bool { return r >= utf8.RuneSelf || !tokenByte(byte(r)) }) < 0
}

// truncate is the longest prefix of s that has at most limit bytes and does not
// end in the middle of a rune.
func truncate(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}
