package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sallyport/sallyport/internal/wire"
)

// DeadLetters are the job messages that could not be run.
type DeadLetters struct{ bus *Bus }

// Dead are the dead letters.
func (b *Bus) Dead() *DeadLetters { return &DeadLetters{bus: b} }

// StoredDeadLetter is a dead letter as it stands at the leader.
type StoredDeadLetter struct {
	Letter wire.DeadLetter
	Seq    uint64
	Time   time.Time
}

// Put stores a dead letter, acknowledged; one per job subject, the newest stays.
// A body that does not fit into one message is cut and marked (BodyCut). Errors:
// ErrStreamFull, ErrNoStream, ErrUnknown (putting it again is safe).
func (d *DeadLetters) Put(ctx context.Context, letter wire.DeadLetter) error {
	job := wire.Job{Tenant: letter.Tenant, Queue: letter.Queue, ID: letter.ID}
	w := write{subject: d.bus.subjects.Dead(job), stream: d.bus.streams.Dead}
	for {
		data, err := wire.EncodeDeadLetter(&letter)
		if err != nil && letter.Headers != nil {
			letter.Headers = nil // headers alone can be beyond every bound
			continue
		}
		if err != nil {
			return fmt.Errorf("dead letter of %s: %w", job.Key(), err)
		}
		w.data = data
		_, err = d.bus.publish(ctx, w)
		if err == nil {
			return nil
		}
		if !errors.Is(err, ErrRecordTooBig) || len(letter.Body) == 0 && letter.Headers == nil {
			return err
		}
		// Half at a time ends after some twenty rounds at most; headers go last.
		if len(letter.Body) > 0 {
			letter.Body, letter.BodyCut = letter.Body[:len(letter.Body)/2], true
		} else {
			letter.Headers = nil
		}
	}
}

// Get reads the dead letter of one job; ErrNoRecord when there is none.
func (d *DeadLetters) Get(ctx context.Context, job wire.Job) (*StoredDeadLetter, error) {
	subject := d.bus.subjects.Dead(job)
	if subject == "" {
		return nil, fmt.Errorf("dead letter of %q.%q.%q: not a valid token", job.Tenant, job.Queue, job.ID)
	}
	m, err := d.bus.leaderGet(ctx, d.bus.streams.Dead, getQuery{Last: subject})
	if err != nil {
		return nil, err
	}
	return storedDeadLetter(m)
}

func storedDeadLetter(m *message) (*StoredDeadLetter, error) {
	letter, err := wire.DecodeDeadLetter(m.Data)
	if err != nil {
		return nil, fmt.Errorf("dead letter %s: %w", m.Subject, err)
	}
	return &StoredDeadLetter{Letter: *letter, Seq: m.Seq, Time: m.Time}, nil
}

// List reads all dead letters, oldest first, at most MaxList (ErrTruncated
// beside them when there are more). One that cannot be read is an error beside
// the others.
func (d *DeadLetters) List(ctx context.Context) ([]StoredDeadLetter, error) {
	return listing[StoredDeadLetter]{
		stream: d.bus.streams.Dead, filter: d.bus.subjects.AllDead(), decode: storedDeadLetter,
		seq: func(l *StoredDeadLetter) uint64 { return l.Seq },
	}.listAll(ctx, d.bus)
}
