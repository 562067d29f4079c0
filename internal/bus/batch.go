package bus

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// The headers of an atomic batch (NATS ADR-50).
const (
	headerBatchID     = "Nats-Batch-Id"
	headerBatchSeq    = "Nats-Batch-Sequence"
	headerBatchCommit = "Nats-Batch-Commit"
)

// unread is a read without an answer about the record. passing: for a reason that
// passes, as a leader's election or a broken line.
type unread struct {
	error
	passing bool
}

func (u unread) Unwrap() error { return u.error }

// look reads what stands on a subject from the leader; nil when nothing does, and
// an unread error without an answer.
func (b *Bus) look(ctx context.Context, stream, subject string) (*message, error) {
	m, err := b.leaderGet(ctx, stream, getQuery{Last: subject})
	switch {
	case errors.Is(err, ErrNoRecord):
		return nil, nil //nolint:nilnil // nothing there is an answer
	case err != nil:
		var refused *jetstream.APIError
		lasting := errors.Is(err, nats.ErrNoResponders) || errors.As(err, &refused) && !hasCode(err, codeClusterNotAvail)
		return nil, unread{error: fmt.Errorf("%s: %w", subject, offline(err)), passing: !lasting}
	}
	return m, nil
}

// settle brings several records of one stream to a wanted state at once. plan
// reads them from the leader and says which writes are missing, none when all is
// as wanted, each of them against the sequence that it has read; or it says that
// they can no longer come to that state (ErrConflict), or are not ours to judge.
// After a refusal or a lost answer it is asked again: what stands at the leader
// decides, not what was answered.
//
// It stays with it until the outcome is known or ctx ends: then ErrUnknown if the
// writes may have happened.
func (b *Bus) settle(ctx context.Context, plan func(context.Context) ([]write, error)) error {
	doubt := false
	for {
		err := b.settleOnce(ctx, plan)
		var noAnswer unread
		switch {
		case err == nil:
			return nil
		case errors.As(err, &noAnswer):
			if !noAnswer.passing && !doubt {
				return err
			}
		case errors.Is(err, errLostRace), errors.Is(err, errInFlight):
		case errors.Is(err, ErrUnknown):
			doubt = true
		case errors.Is(err, errNotSent):
		case doubt && (errors.Is(err, ErrNoStream) || errors.Is(err, ErrStreamFull)):
			// About this try alone; the one in doubt may still have its way.
		default:
			return err
		}
		if waitErr := pause(ctx, retryPause); waitErr != nil {
			if doubt || errors.Is(err, errLostRace) || errors.Is(err, errInFlight) {
				return fmt.Errorf("%w: %w: %w", ErrUnknown, err, waitErr)
			}
			return err
		}
	}
}

// errLostRace is a refused compare-and-set whose records have to be looked at
// again: they may stand as wanted.
var errLostRace = errors.New("the records changed meanwhile")

func (b *Bus) settleOnce(ctx context.Context, plan func(context.Context) ([]write, error)) error {
	writes, err := plan(ctx)
	switch {
	case err != nil:
		return err
	case len(writes) == 0:
		return nil
	case len(writes) == 1:
		_, err = b.publish(ctx, writes[0])
	default:
		err = b.publishBatch(ctx, writes)
	}
	if errors.Is(err, ErrConflict) {
		return fmt.Errorf("%w: %s", errLostRace, err.Error())
	}
	return err
}

// publishBatch writes all of writes or none, in one stream, as one try. Errors are
// publish's, and ErrNoBatch. A try without its commit leaves nothing, so that all
// but the commit's own lost answer are errNotSent.
//
// Each message but the last is answered too: a refusal of it would otherwise come
// as an incomplete batch, without its reason.
func (b *Bus) publishBatch(ctx context.Context, writes []write) error {
	id, last := rand.Text(), len(writes)-1
	for i, w := range writes {
		msg, err := b.message(w)
		if err != nil {
			return err
		}
		msg.Header[headerBatchID] = []string{id}
		msg.Header[headerBatchSeq] = []string{strconv.Itoa(i + 1)}
		if i == last {
			msg.Header[headerBatchCommit] = []string{"1"}
		}
		answer, err := b.ask(ctx, msg)
		if err != nil {
			err = publishError(w, err)
			if i < last && errors.Is(err, ErrUnknown) {
				return fmt.Errorf("%w: %s", errNotSent, err.Error())
			}
			return err
		}
		if i < last {
			err = staged(w, answer)
		} else {
			err = committed(w, answer, len(writes))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// staged reads the answer to a message that a batch goes on after: an empty one.
func staged(w write, answer *nats.Msg) error {
	if len(answer.Data) == 0 {
		return nil
	}
	var ack struct {
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(answer.Data, &ack); err != nil {
		return fmt.Errorf("%s: %w: answer: %w", w.subject, errNotSent, err)
	}
	if ack.Error != nil {
		return refusal(w, ack.Error)
	}
	// Whoever acknowledges it as a message of its own knows no batches.
	return fmt.Errorf("%s: %w", w.subject, ErrNoBatch)
}

// committed reads the answer to a batch's last message.
func committed(w write, answer *nats.Msg, count int) error {
	var ack struct {
		Stream string              `json:"stream"`
		Seq    uint64              `json:"seq"`
		Count  int                 `json:"count"`
		Error  *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(answer.Data, &ack); err != nil {
		return fmt.Errorf("%s: %w: answer: %w", w.subject, ErrUnknown, err)
	}
	if ack.Error != nil {
		return refusal(w, ack.Error)
	}
	if ack.Stream != w.stream || ack.Seq == 0 || ack.Count != count {
		return fmt.Errorf("%s: %w: %d messages acknowledged by stream %q, not %d by %s", w.subject, ErrUnknown, ack.Count, ack.Stream, count, w.stream)
	}
	return nil
}
