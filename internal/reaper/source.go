package reaper

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/wire"
)

const (
	// fetchWait is how long one pull waits at the server: long against the cost
	// of a pull, short against a change of leader.
	fetchWait = 5 * time.Second
	// firstWait is that of the first pull.
	firstWait = 10 * time.Millisecond
	// beats is how often in a delivery's ack wait it is said that we are at it.
	beats = 4
	// settleTimeout bounds writing a record's end and settling its delivery,
	// also after the reaper was told to stop.
	settleTimeout = 10 * time.Second
	// minPause and maxPause bound the wait before the consumer is opened again.
	minPause = 100 * time.Millisecond
	maxPause = 5 * time.Second
)

// source is the records of one provider and host.
type source struct {
	r              *Reaper
	provider, host string
	log            zerolog.Logger
	lanes          *lanes
	looker         *looker // nil for a provider that is not here
	// work counts the tries.
	work sync.WaitGroup

	mu    sync.Mutex
	fault error
}

func newSource(r *Reaper, provider, host string) *source {
	s := &source{
		r: r, provider: provider, host: host, lanes: newLanes(r.cfg),
		log:   r.log.With().Str("provider", provider).Logger(),
		fault: errors.New("not begun"),
	}
	if p := r.providers[provider]; p != nil {
		s.looker = &looker{provider: p, timeout: r.cfg.AttemptTimeout}
	}
	return s
}

func (s *source) ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fault != nil {
		return fmt.Errorf("reaper of %s on %s: %w", s.provider, s.host, s.fault)
	}
	return nil
}

// note keeps the fault for ready; nil clears it.
func (s *source) note(fault error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = fault
}

// run takes deliveries and makes listings until ctx ends and every try is over.
func (s *source) run(ctx context.Context) {
	var parts sync.WaitGroup
	parts.Go(func() { s.listen(ctx) })
	parts.Go(func() { s.survey(ctx) })
	if p := s.r.providers[s.provider]; p != nil && s.r.cfg.Sweep && p.Capabilities().OutlivesWorker {
		parts.Go(func() { newSweeper(s).run(ctx) })
	}
	parts.Wait()
	s.work.Wait()
}

// listen takes deliveries, and opens the consumer again when that fails.
func (s *source) listen(ctx context.Context) {
	wait, fault := minPause, ""
	for {
		begun := time.Now()
		err := s.pull(ctx, func() { fault = s.changed(fault, nil, "", "quarantine can be read again") })
		if ctx.Err() != nil {
			return
		}
		s.note(err)
		fault = s.changed(fault, err, "quarantine cannot be read", "")
		if time.Since(begun) > maxPause {
			wait = minPause
		}
		if pause(ctx, wait) != nil {
			return
		}
		wait = min(2*wait, maxPause)
	}
}

// changed logs a fault when it begins and when it ends, not each time that it is
// met, and returns what to call it with next.
func (s *source) changed(fault string, err error, broken, whole string) string {
	switch {
	case err == nil && fault != "":
		s.log.Info().Msg(whole)
		return ""
	case err != nil && fault == "":
		s.log.Warn().Err(err).Msg(broken)
		return err.Error()
	}
	return fault
}

// pull takes deliveries, each into a free place, until there is an error. It calls
// works after each answer of the server.
func (s *source) pull(ctx context.Context, works func()) error {
	queue, err := s.r.books.Queue(ctx, s.provider, s.host)
	if err != nil {
		return err
	}
	defer func() {
		if err := queue.Close(); err != nil {
			s.log.Warn().Err(err).Msg("quarantine consumer not closed")
		}
	}()
	// The first one is answered at once: only then is it known that we may pull.
	for wait := firstWait; ; wait = fetchWait {
		if err := s.lanes.enter(ctx); err != nil {
			return err
		}
		list, err := queue.Fetch(ctx, 1, wait)
		for _, d := range list { // one at most
			s.try(ctx, task{subject: d.Subject, delivery: d})
		}
		if len(list) == 0 {
			s.lanes.leave()
		}
		if ctx.Err() != nil {
			s.handBack(ctx, queue)
			return context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		s.note(nil)
		works()
	}
}

// handBack returns what arrived while the reaper stopped, so that another need
// not wait for the ack wait's end.
func (s *source) handBack(ctx context.Context, queue Queue) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	for range 2 { // the pull that was cut off, and this one's own
		list, err := queue.Fetch(ctx, 1, time.Millisecond)
		for _, d := range list {
			if err := d.NakDelay(ctx, s.r.cfg.MinBackoff); err != nil {
				s.log.Warn().Err(err).Msg("quarantine record not handed back")
			}
		}
		if err != nil || len(list) == 0 {
			return
		}
	}
}

// survey lists all records, now and from time to time.
func (s *source) survey(ctx context.Context) {
	fault := ""
	for {
		err := s.list(ctx)
		if ctx.Err() == nil {
			fault = s.changed(fault, err, "quarantine listing incomplete", "quarantine listing complete again")
		}
		if pause(ctx, jitter(s.r.cfg.ListInterval)) != nil {
			return
		}
	}
}

// list takes stock, and tries those whose delivery is overdue.
func (s *source) list(ctx context.Context) (err error) {
	begun, have := time.Now(), map[string]bool{}
	s.r.book.listing(s)
	defer func() { s.r.book.listed(s, err == nil, begun, have) }()
	records, err := s.r.books.QuarantinedOn(ctx, s.provider, s.host)
	for i := range records {
		rec := records[i].Record
		subject := s.r.books.Subjects().Quarantine(rec.Provider, rec.Host, rec.Lease)
		have[subject] = true
		switch rec.State {
		case wire.Gone:
			s.ended(subject, rec)
		case wire.InQuarantine, wire.OnHold:
			if !s.r.book.sighted(s, subject, &records[i], s.r.cfg.MaxBackoff, s.r.cfg.Overdue) {
				continue
			}
			if err := s.lanes.enter(ctx); err != nil {
				return err
			}
			s.log.Info().Str("lease", rec.Lease).Msg("overdue quarantine record taken from the listing")
			s.try(ctx, task{subject: subject})
		}
	}
	return err
}

// task is one record to look at.
type task struct {
	subject string
	// delivery is nil when a listing found the record.
	delivery *bus.Delivery
}

func (t task) deliveries() int {
	if t.delivery == nil {
		return 0
	}
	return t.delivery.Deliveries
}

// verdict is what becomes of a delivery: settled for good, or again after again.
type verdict struct {
	settled bool
	again   time.Duration
}

// try looks at a record, in the place that its caller entered.
func (s *source) try(base context.Context, t task) {
	s.work.Go(func() {
		s.lanes.run(base, func(ctx context.Context) {
			_, _, lease, err := s.r.books.Subjects().ParseQuarantine(t.subject)
			if err != nil {
				// The consumer's filter lets no such subject through.
				s.log.Error().Err(err).Msg("quarantine subject cannot be read")
				return
			}
			if !s.r.book.begin(s, t.subject, lease) {
				s.settle(base, t, verdict{again: s.r.cfg.MinBackoff})
				return
			}
			ctx, cancel := context.WithTimeout(ctx, s.r.cfg.AttemptTimeout)
			defer cancel()
			var v verdict
			s.keep(ctx, t, func() { v = s.judge(base, ctx, t) })
			s.r.book.end(t.subject, time.Now().Add(v.again))
			s.settle(base, t, v)
		})
	})
}

// keep keeps the delivery ours while f runs.
func (s *source) keep(ctx context.Context, t task, f func()) {
	if t.delivery == nil {
		f()
		return
	}
	every := t.delivery.AckWait / beats
	if every <= 0 {
		every = bus.DefaultReaperAckWait / beats
	}
	ctx, stop := context.WithCancel(ctx)
	var beat sync.WaitGroup
	beat.Go(func() {
		for pause(ctx, every) == nil {
			if err := t.delivery.InProgress(ctx); err != nil && ctx.Err() == nil {
				s.log.Warn().Err(err).Msg("quarantine delivery not prolonged")
			}
		}
	})
	f()
	stop()
	beat.Wait()
}

// settle acknowledges the delivery or asks for it again. What is lost here comes
// again after the ack wait, or by a listing.
func (s *source) settle(ctx context.Context, t task, v verdict) {
	if t.delivery == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	var err error
	if v.settled {
		err = t.delivery.Ack(ctx)
	} else {
		err = t.delivery.NakDelay(ctx, v.again)
	}
	if err != nil {
		s.log.Warn().Err(err).Msg("quarantine delivery not settled")
	}
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
