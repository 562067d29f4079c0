package local

import "time"

const (
	// forceTime is what the stub has to see everything killed and to report.
	forceTime = 300 * time.Millisecond
	// hammerTime is what the kernel has to end a killed stub's namespace, before
	// the control group is killed, and killed again.
	hammerTime = 500 * time.Millisecond
)

// rung is what to do next to end a run.
type rung int

const (
	rungNone   rung = iota
	rungAsk         // SIGTERM to every process
	rungForce       // SIGKILL to every process, by the stub, which then reports
	rungHammer      // SIGKILL to the stub: the kernel ends its namespace
	rungGroup       // SIGKILL through the control group
)

// ladder is the way to end a run, harder with every rung. The zero value has not
// been stepped on.
type ladder struct {
	last rung
	// next is when the next rung is due; zero before the first.
	next time.Time
	// grace is the time between asking and force.
	grace time.Duration
}

// begin steps on the ladder, or brings the force nearer. Without a grace, nobody
// is asked.
func (l *ladder) begin(now time.Time, grace time.Duration) {
	switch {
	case l.next.IsZero():
		l.next, l.grace = now, grace
	case l.last == rungNone:
		l.grace = min(l.grace, grace)
	case l.last == rungAsk && now.Add(grace).Before(l.next):
		l.next = now.Add(grace)
	}
	if l.last == rungNone && l.grace <= 0 {
		l.last = rungAsk
	}
}

// beginHard steps on the rung that needs nobody inside.
func (l *ladder) beginHard(now time.Time) {
	if l.last < rungForce {
		l.last, l.next = rungForce, now
	}
}

// step returns the rung that is due, if one is, and notes it.
func (l *ladder) step(now time.Time) rung {
	if l.next.IsZero() || now.Before(l.next) {
		return rungNone
	}
	switch l.last {
	case rungNone:
		l.last, l.next = rungAsk, now.Add(l.grace)
	case rungAsk:
		l.last, l.next = rungForce, now.Add(forceTime)
	case rungForce:
		l.last, l.next = rungHammer, now.Add(hammerTime)
	case rungHammer, rungGroup:
		l.last, l.next = rungGroup, now.Add(hammerTime)
	}
	return l.last
}
