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
	if dir := os.Getenv(recycleEnv); dir != "" {
		asRecycler(dir)
	}
	if obstacle := os.Getenv(obstacleEnv); obstacle != "" {
		asProbe(obstacle)
	}
	goleak.VerifyTestMain(m)
}
