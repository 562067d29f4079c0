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

// listing is what to list: the records of one kind on the subjects that match
// filter.
type listing[T any] struct {
	stream, filter string
	// but are subjects that are left out, unread; nil for none.
	but func(subject string) bool
	// decode reads a record; nil leaves it out.
	decode func(*message) (*T, error)
	// seq is a record's stream sequence, by which they are sorted.
	seq func(*T) uint64
}

// listBound is how much a listing reads.
type listBound struct {
	records int
	bytes   int64
}

// records lists the subjects and reads what stands there from the leader. What
// disappears in between is left out; what cannot be read is an error beside the
// others.
func (l listing[T]) records(ctx context.Context, b *Bus, bound listBound) ([]T, error) {
	subjects, truncated, err := b.subjectList(ctx, l.stream, l.filter, l.but, bound.records)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", l.filter, err)
	}
	found := make([]*T, len(subjects))
	broken := make([]error, len(subjects))
	var size atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(listParallel)
	for i, subject := range subjects {
		if size.Load() >= bound.bytes {
			truncated = true
			break
		}
		group.Go(func() error {
			m, err := b.leaderGet(ctx, l.stream, getQuery{Last: subject})
			switch {
			case err == nil:
				size.Add(int64(len(m.Data)))
				found[i], broken[i] = l.decode(m)
			case !errors.Is(err, ErrNoRecord):
				broken[i] = fmt.Errorf("%s: %w", subject, err)
			}
			return context.Cause(ctx)
		})
	}
	waitErr := group.Wait()
	found = slices.DeleteFunc(found, func(record *T) bool { return record == nil })
	slices.SortFunc(found, func(a, b *T) int { return cmp.Compare(l.seq(a), l.seq(b)) })
	list := make([]T, len(found))
	for i, record := range found {
		list[i] = *record
	}
	err = errors.Join(unreadable(broken), waitErr)
	if truncated {
		err = errors.Join(err, fmt.Errorf("list %s: %w (%d records, about %d bytes)", l.filter, ErrTruncated, bound.records, bound.bytes))
	}
	return list, err
}

// listAll is records within the bounds of every listing.
func (l listing[T]) listAll(ctx context.Context, b *Bus) ([]T, error) {
	return l.records(ctx, b, listBound{records: MaxList, bytes: MaxListBytes})
}

// unreadable joins errors to one of bounded length.
func unreadable(broken []error) error {
	broken = slices.DeleteFunc(broken, func(err error) bool { return err == nil })
	if more := len(broken) - maxUnreadable; more > 0 {
		broken = append(broken[:maxUnreadable], fmt.Errorf("and %d more that cannot be read", more))
	}
	return errors.Join(broken...)
}
