// Package hostile runs programs that try to stay, to break out, to see others and
// to use up the host, as jobs in real local sandboxes, and looks at what is left.
package hostile

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
