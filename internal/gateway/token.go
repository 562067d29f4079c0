package gateway

import "github.com/oklog/ulid/v2"

// newToken is unique and hard to guess: it tells our own record from another's
// after an answer was lost.
func newToken() string { return ulid.Make().String() }
