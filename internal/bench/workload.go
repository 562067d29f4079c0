package bench

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"

	"github.com/sallyport/sallyport/internal/wire"
)

// workload is one kind of job.
type workload struct {
	name  string
	about string
	body  []byte
	// bytes is the output of one job, checked for each.
	bytes int64
	// jobs per measured cell, by concurrency.
	jobs func(concurrency int) int
}

// workloads are those of docs/performance.md.
func workloads(scale float64) ([]workload, error) {
	n := func(base int) func(int) int {
		return func(c int) int { return max(2*c, int(float64(base)*scale)) }
	}
	input := make([]byte, 1<<20)
	if _, err := rand.Read(input); err != nil {
		return nil, fmt.Errorf("random input: %w", err)
	}
	b64 := base64.StdEncoding.EncodeToString(input)
	flood := int64(128 << 20)
	list := []workload{
		{name: "J1", about: "/bin/true", jobs: n(600)},
		{name: "J2", about: "echo hello", bytes: 6, jobs: n(600)},
		{name: "J3", about: "cat of 1 MiB stdin", bytes: 1 << 20, jobs: n(60)},
		{name: "J4", about: "64 MiB to stdout", bytes: 64 << 20, jobs: func(c int) int { return min(c, 4) + 1 }},
	}
	requests := []wire.Request{
		{Argv: []string{"/bin/true"}},
		{Argv: []string{"echo", "hello"}},
		{Argv: []string{"cat"}, StdinBase64: &b64},
		{Argv: []string{"head", "-c", "64M", "/dev/zero"}, Limits: wire.Limits{OutputBytes: &flood}},
	}
	for i, r := range requests {
		r.V = wire.Version
		r.Output = wire.OutputReply
		body, err := json.Marshal(r)
		if err != nil {
			return nil, fmt.Errorf("workload %s: %w", list[i].name, err)
		}
		list[i].body = body
	}
	return list, nil
}
