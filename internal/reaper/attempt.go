package reaper

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/wire"
)

var (
	errNoProof      = errors.New("the provider gave no proof that it is gone")
	errStillListed  = errors.New("the provider said that it is gone, and a later look found it")
	errMayYetAppear = errors.New("not found, but its create was ambiguous and may still go through")
)

// judge reads the record as it stands now, and does what it asks for.
func (s *source) judge(base, ctx context.Context, t task) verdict {
	if d := t.delivery; d != nil && d.Err != nil {
		return s.bad(t, d.Seq, d.Err)
	}
	provider, host, lease, err := s.r.books.Subjects().ParseQuarantine(t.subject)
	if err != nil {
		return s.bad(t, 0, err)
	}
	if d := t.delivery; d != nil && d.Record.State == wire.Gone && d.Record.Lease == lease {
		// Nothing is to be done, so nothing need be read: what came after it is another
		// delivery.
		s.ended(t.subject, d.Record)
		return verdict{settled: true}
	}
	stored, err := s.r.books.Quarantined(ctx, provider, host, lease)
	if errors.Is(err, bus.ErrNoRecord) {
		s.r.book.forget(t.subject)
		return verdict{settled: true}
	}
	if err != nil {
		if invalid := (*wire.Invalid)(nil); errors.As(err, &invalid) {
			return s.bad(t, 0, err)
		}
		if base.Err() != nil {
			return verdict{again: s.r.cfg.MinBackoff}
		}
		s.log.Warn().Err(err).Str("lease", lease).Msg("quarantine record cannot be read now")
		return verdict{again: s.r.cfg.backoff(max(1, t.deliveries()))}
	}
	rec := stored.Record
	if rec.Provider != provider || rec.Host != host || rec.Lease != lease {
		return s.bad(t, stored.Seq, fmt.Errorf("quarantine %s: the record is of %s on %s, lease %s", t.subject, rec.Provider, rec.Host, rec.Lease))
	}
	s.r.book.read(t.subject, stored)
	switch rec.State {
	case wire.Gone:
		s.ended(t.subject, rec)
		return verdict{settled: true}
	case wire.OnHold:
		return verdict{settled: true}
	case wire.InQuarantine:
		return s.reap(base, ctx, t, stored)
	}
	return s.bad(t, stored.Seq, fmt.Errorf("quarantine %s: unknown state %q", t.subject, rec.State))
}

// bad keeps a record that cannot be read: a newer reaper may know what to do, a
// person has to otherwise.
func (s *source) bad(t task, seq uint64, err error) verdict {
	_, _, lease, _ := s.r.books.Subjects().ParseQuarantine(t.subject) //nolint:errcheck // an empty lease is right then
	if s.r.book.bad(s, t.subject, lease, seq, err.Error()) {
		s.log.Error().Err(err).Str("lease", lease).Msg("quarantine record cannot be understood and is kept")
	}
	return verdict{again: jitter(s.r.cfg.MaxBackoff)}
}

// ended is for a record that says destroyed, whoever wrote it.
func (s *source) ended(subject string, rec wire.Quarantine) {
	s.r.book.forget(subject)
	s.r.cfg.OnGone(rec.Lease, Proof(rec))
}

// Proof is what a record that says destroyed holds of it; of any other it proves
// nothing.
func Proof(rec wire.Quarantine) sandbox.Proof {
	proof := sandbox.Proof{Proven: rec.State == wire.Gone}
	for _, e := range rec.Evidence {
		proof.Evidence = append(proof.Evidence, sandbox.Evidence{Kind: sandbox.EvidenceKind(e.Kind), Detail: e.Detail})
	}
	return proof
}

// reap is one try at one sandbox.
func (s *source) reap(base, ctx context.Context, t task, stored *bus.StoredQuarantine) verdict {
	rec := stored.Record
	provider := s.r.providers[rec.Provider]
	if provider == nil || provider.Capabilities().Host != rec.Host {
		s.log.Debug().Str("lease", rec.Lease).Str("host", rec.Host).Msg("quarantine record of a provider that is not here, left")
		return verdict{again: jitter(s.r.cfg.MaxBackoff)}
	}
	attempt := s.r.book.attempt(t.subject, t.deliveries())
	proof, err := s.destroy(base, ctx, provider, t.subject, stored)
	if err == nil {
		return s.resolve(ctx, t, stored, proof, attempt)
	}
	if base.Err() != nil {
		// Cut off because we stop: that says nothing about the sandbox.
		return verdict{again: s.r.cfg.MinBackoff}
	}
	level := zerolog.DebugLevel
	if s.r.book.failed(t.subject, err.Error()) {
		level = zerolog.WarnLevel
	}
	again := s.r.cfg.backoff(attempt)
	s.log.WithLevel(level).Err(err).Str("lease", rec.Lease).Int("attempts", attempt).Dur("again_in", again).
		Msg("quarantined lease not destroyed yet")
	return verdict{again: again}
}

// destroy ends the sandbox, and returns the proof once a second look agrees.
func (s *source) destroy(base, ctx context.Context, provider sandbox.Provider, subject string, stored *bus.StoredQuarantine) (sandbox.Proof, error) {
	rec := stored.Record
	handle := sandbox.Handle{Provider: rec.Provider, Lease: rec.Lease, Host: rec.Host, Detail: rec.Handle}
	proof, err := proveGone(ctx, provider, handle)
	if err != nil {
		return sandbox.Proof{}, err
	}
	if proof.Absence() && provider.Capabilities().OutlivesWorker && neverConfirmed(rec) &&
		s.r.book.stands(subject, stored.Seq) < s.r.cfg.CreateDeadline {
		return sandbox.Proof{}, errMayYetAppear
	}
	found, err := s.looker.look(base, ctx)
	if err != nil {
		return sandbox.Proof{}, err
	}
	if found[rec.Lease] {
		return sandbox.Proof{}, errStillListed
	}
	again, err := proveGone(ctx, provider, handle)
	if err != nil {
		return sandbox.Proof{}, fmt.Errorf("second look: %w", err)
	}
	proof.Evidence = append(proof.Evidence, sandbox.Evidence{
		Kind:   sandbox.EvidenceSecondLook,
		Detail: "not in the inventory, and destroying it again found: " + kinds(again),
	})
	return proof, nil
}

func proveGone(ctx context.Context, provider sandbox.Provider, handle sandbox.Handle) (sandbox.Proof, error) {
	proof, err := provider.Destroy(ctx, handle)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			err = fmt.Errorf("%w (%w)", err, cause)
		}
		return sandbox.Proof{}, err
	}
	if !proof.Proven || len(proof.Evidence) == 0 {
		return sandbox.Proof{}, errNoProof
	}
	return proof, nil
}

// neverConfirmed says that nobody has seen the sandbox exist, so that its create may
// still be on its way.
func neverConfirmed(rec wire.Quarantine) bool {
	return rec.Reason == wire.QuarantineAmbiguousMake || rec.Reason == wire.QuarantineStaleIntent || len(rec.Handle) == 0
}

func kinds(proof sandbox.Proof) string {
	var words []string
	for _, e := range proof.Evidence {
		words = append(words, string(e.Kind))
	}
	return strings.Join(words, ", ")
}

// maxRewrites bounds how often the end is written anew because the record changed
// meanwhile, as by an operator who holds it.
const maxRewrites = 5

// resolve writes the record's end. What was proven stays true when this fails:
// the next try finds the sandbox gone.
func (s *source) resolve(ctx context.Context, t task, stored *bus.StoredQuarantine, proof sandbox.Proof, attempt int) verdict {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	rec := stored.Record
	for range maxRewrites {
		end := ended(stored.Record, proof, attempt)
		err := s.r.books.Resolve(ctx, end, stored.Seq)
		if err == nil {
			s.r.book.destroyed()
			s.log.Info().Str("lease", rec.Lease).Str("tenant", rec.Tenant).Str("job", rec.Job).Str("host", rec.Host).
				Str("reason", string(rec.Reason)).Int("attempts", attempt).Dur("age", end.DestroyedAt.Sub(rec.FirstSeen)).
				Str("evidence", kinds(proof)).Msg("quarantined lease destroyed")
			s.ended(t.subject, end)
			return verdict{settled: true}
		}
		if !errors.Is(err, bus.ErrConflict) {
			if s.r.book.failed(t.subject, err.Error()) {
				s.log.Warn().Err(err).Str("lease", rec.Lease).Msg("lease is destroyed, its record not written yet")
			}
			return verdict{again: s.r.cfg.backoff(attempt)}
		}
		stored, err = s.r.books.Quarantined(ctx, rec.Provider, rec.Host, rec.Lease)
		switch {
		case errors.Is(err, bus.ErrNoRecord):
			s.r.book.forget(t.subject)
			return verdict{settled: true}
		case err != nil:
			return verdict{again: s.r.cfg.MinBackoff}
		case stored.Record.State == wire.Gone:
			s.log.Debug().Str("lease", rec.Lease).Msg("another was first")
			s.ended(t.subject, stored.Record)
			return verdict{settled: true}
		case !stored.Record.FirstSeen.Equal(rec.FirstSeen):
			// It was put into quarantine anew: the proof is of what was before.
			return verdict{again: s.r.cfg.MinBackoff}
		}
		// Held, released or to be tried at once, and gone all the same.
	}
	return verdict{again: s.r.cfg.MinBackoff}
}

// ended is the record with its end.
func ended(rec wire.Quarantine, proof sandbox.Proof, attempt int) wire.Quarantine {
	now := time.Now().UTC()
	rec.State, rec.Attempts, rec.DestroyedAt = wire.Gone, attempt, &now
	rec.Evidence = append(cut(rec.Evidence, wire.MaxEvidence-len(proof.Evidence)), evidence(proof)...)
	return rec
}

func evidence(proof sandbox.Proof) []wire.Evidence {
	var list []wire.Evidence
	for _, e := range cut(proof.Evidence, wire.MaxEvidence) {
		list = append(list, wire.Evidence{Kind: string(e.Kind), Detail: e.Detail})
	}
	return list
}

// cut is the first n of list, in an array of its own.
func cut[T any](list []T, n int) []T {
	return append([]T(nil), list[:min(len(list), max(0, n))]...)
}

// backoff is the wait after the nth try.
func (c *Config) backoff(n int) time.Duration {
	wait := c.MaxBackoff
	if doublings := max(n, 1) - 1; doublings < 40 {
		if w := c.MinBackoff << doublings; w > 0 && w>>doublings == c.MinBackoff {
			wait = min(w, wait)
		}
	}
	return jitter(wait)
}

// jitter takes up to a half off d, so that many waits do not end together.
func jitter(d time.Duration) time.Duration { return d - rand.N(d/2+1) }
