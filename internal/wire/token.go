package wire

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// MaxTokenBytes is the greatest length of a tenant, a queue, an id, a worker
// name and every other word that becomes one token of a subject.
const MaxTokenBytes = 64

// ValidToken says whether s is a word that may stand as one token of a subject:
// 1 to MaxTokenBytes of A-Z, a-z, 0-9, '_' and '-'.
func ValidToken(s string) bool {
	if s == "" || len(s) > MaxTokenBytes {
		return false
	}
	for i := range len(s) {
		if !tokenByte(s[i]) {
			return false
		}
	}
	return true
}

func tokenByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '-'
}

// Token encodes an outside word, such as a host name, into one token. A word
// that is a token already stays as it is. Any other keeps what it can, so that
// people recognise it, and ends in '_' and 16 hex digits of its SHA-256, so that
// host.a and host-a stay apart. Token(Token(s)) is Token(s).
func Token(s string) string {
	if ValidToken(s) {
		return s
	}
	const digits = 16
	sum := sha256.Sum256([]byte(s))
	var b strings.Builder
	for i := 0; i < len(s) && b.Len() < MaxTokenBytes-digits-1; i++ {
		if tokenByte(s[i]) {
			b.WriteByte(s[i])
		} else {
			b.WriteByte('-')
		}
	}
	return b.String() + "_" + hex.EncodeToString(sum[:])[:digits]
}
