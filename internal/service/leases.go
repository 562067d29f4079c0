package service

import (
	"context"

	"github.com/sallyport/sallyport/internal/wire"
)

// WorkerConfig is the configuration of a worker's service.
func WorkerConfig(version string, replies wire.ReplyRule) Config {
	return Config{Name: "sallyport-worker", Description: "runs jobs", Version: version, Replies: replies}
}

// Leases is a worker's endpoint that tells the leases which its pool holds. Each
// worker answers, so whoever asks collects answers for a while.
func Leases(subjects wire.Subjects, worker, host string, held func() []wire.HeldLease) Endpoint {
	return Endpoint{
		Name: "leases", Subject: subjects.WorkerLeases(), Everyone: true,
		Serve: func(_ context.Context, r *Request) {
			answer := wire.HeldLeases{Worker: worker, Host: host, Leases: held()}
			if more := len(answer.Leases) - wire.MaxHeldLeases; more > 0 {
				answer.Leases, answer.More = answer.Leases[:wire.MaxHeldLeases], more
			}
			if answer.Leases == nil {
				answer.Leases = []wire.HeldLease{}
			}
			r.Answer(answer)
		},
	}
}
