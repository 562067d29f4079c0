package createos_test

import (
	"flag"
	"testing"

	"go.uber.org/goleak"

	_ "github.com/sallyport/sallyport/internal/sandbox/createos/createostest/guest" // takes over where it is a sandbox's first process
)

func TestMain(m *testing.M) {
	// Some tests wait for what takes its time, and run beside others: more of them than
	// there are processors. The flag -parallel rules.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}
