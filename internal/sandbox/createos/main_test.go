package createos_test

import (
	"testing"

	"go.uber.org/goleak"

	_ "github.com/sallyport/sallyport/internal/sandbox/createos/createostest/guest" // takes over where it is a sandbox's first process
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
