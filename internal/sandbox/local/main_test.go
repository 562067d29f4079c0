package local_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(workerEnv); dir != "" {
		asWorker(dir)
	}
	goleak.VerifyTestMain(m)
}
