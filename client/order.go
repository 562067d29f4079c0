package client

import "github.com/sallyport/sallyport/internal/wire"

// order puts the stored events of a job into their sequence. A worker that did
// not hear that an event was stored sends it and everything behind it again, so
// that the store may hold events twice, and some before an earlier one:
// 1 2 4 3 4 5. What is missing is waited for until it can come no more.
type order struct {
	// begun says that the store is read from its beginning: then what is missing
	// before the first event of the first attempt is missing too.
	begun   bool
	attempt int
	next    uint64 // sequence of the event to come; 0 when any may be the first
	held    []stored
	lost    []wire.LostRange
}

// holdEvents is how many events may stand between a missing one and its
// repetition: a worker has at most 256 of them unconfirmed.
const holdEvents = 256

// add takes one stored event and returns those that are now in order.
func (o *order) add(s stored) []stored {
	ev := s.event
	if ev.Attempt < o.attempt && ev.Type != wire.EventResult {
		return nil // of an attempt that was given up
	}
	if ev.Attempt > o.attempt {
		o.attempt, o.next, o.held, o.lost = ev.Attempt, 0, nil, nil
		if o.begun {
			o.next = 1
		}
		o.begun = true // a later attempt is read from its beginning in any case
	}
	switch {
	case ev.Type == wire.EventResult:
		// The result is stored after everything before it was: what is missing
		// now is lost. One without a sequence stands for itself.
		return append(o.giveUp(), o.end(s))
	case o.next == 0, ev.Seq == o.next:
		o.next, o.held = ev.Seq+1, nil // held ones are behind it once more
		return []stored{s}
	case ev.Seq < o.next:
		return nil
	}
	if o.held = append(o.held, s); len(o.held) < holdEvents {
		return nil
	}
	return o.giveUp()
}

// end declares lost what is missing right before a result.
func (o *order) end(result stored) stored {
	seq := result.event.Seq
	if result.event.Attempt == o.attempt && o.next > 0 && seq > o.next {
		o.lost = append(o.lost, wire.LostRange{From: o.next, To: seq - 1})
	}
	o.next = max(o.next, seq+1)
	return result
}

// giveUp declares what is missing lost and returns what was held behind it.
func (o *order) giveUp() []stored {
	var out []stored
	for _, s := range o.held {
		switch {
		case s.event.Seq < o.next:
			continue
		case s.event.Seq > o.next:
			o.lost = append(o.lost, wire.LostRange{From: o.next, To: s.event.Seq - 1})
		}
		o.next = s.event.Seq + 1
		out = append(out, s)
	}
	o.held = nil
	return out
}
