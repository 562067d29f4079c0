package local_test

import (
	"flag"
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(workerEnv); dir != "" {
		asWorker(dir)
	}
	if dir := os.Getenv(recycleEnv); dir != "" {
		asRecycler(dir)
	}
	if obstacle := os.Getenv(obstacleEnv); obstacle != "" {
		asProbe(obstacle)
	}
	// Some tests wait for what takes its time, and run beside others: more of them than
	// there are processors. The flag -parallel rules.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}
