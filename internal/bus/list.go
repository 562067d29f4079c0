package bus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

const (
	// MaxList bounds a listing; a longer one is cut and says so (ErrTruncated).
	MaxList = 10_000
	// MaxListBytes bounds the stored bytes that one listing reads: as much as the
	// ledger and the dead letters have room for, unless the operator says otherwise.
	MaxListBytes = 64 << 20

	// listParallel is how many reads a listing keeps in flight: enough to hide the
	// round trip, too few to weigh on the leader.
	listParallel = 16
	// maxUnreadable is how many unreadable records a listing's error tells one by
	// one.
	maxUnreadable = 16
)

// listRecords lists a stream's subjects and reads each from the leader, in no
// order. One that disappears in between is left out, and so is one that decode
// makes nothing of.
func listRecords[T any](ctx context.Context, b *Bus, stream, filter string, decode func(*message) (*T, error)) ([]T, error) {
	subjects, truncated, err := b.subjectList(ctx, stream, filter, MaxList)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", filter, err)
	}
	found := make([]*T, len(subjects))
	broken := make([]error, len(subjects))
	var size atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(listParallel)
	for i, subject := range subjects {
		if size.Load() >= MaxListBytes {
			truncated = true
			break
		}
		group.Go(func() error {
			m, err := b.leaderGet(ctx, stream, getQuery{Last: subject})
			switch {
			case err == nil:
				size.Add(int64(len(m.Data)))
				found[i], broken[i] = decode(m)
			case !errors.Is(err, ErrNoRecord):
				broken[i] = fmt.Errorf("%s: %w", subject, err)
			}
			return context.Cause(ctx)
		})
	}
	waitErr := group.Wait()
	list := make([]T, 0, len(subjects))
	for _, record := range found {
		if record != nil {
			list = append(list, *record)
		}
	}
	err = errors.Join(unreadable(broken), waitErr)
	if truncated {
		err = errors.Join(err, fmt.Errorf("list %s: %w (%d records, about %d bytes)", filter, ErrTruncated, MaxList, int64(MaxListBytes)))
	}
	return list, err
}

// unreadable joins errors to one of bounded length.
func unreadable(broken []error) error {
	broken = slices.DeleteFunc(broken, func(err error) bool { return err == nil })
	if more := len(broken) - maxUnreadable; more > 0 {
		broken = append(broken[:maxUnreadable], fmt.Errorf("and %d more that cannot be read", more))
	}
	return errors.Join(broken...)
}

// oldestFirst sorts records by their stream sequence.
func oldestFirst[T any](list []T, seq func(*T) uint64) {
	slices.SortFunc(list, func(a, b T) int { return cmp.Compare(seq(&a), seq(&b)) })
}
