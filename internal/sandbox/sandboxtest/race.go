package sandboxtest

import (
	"sync"
	"sync/atomic"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox"
)

func raceTests() []namedTest {
	return []namedTest{
		{"ResetTwice", resetTwice},
		{"CollectTwice", collectTwice},
		{"OneLeaseIDAtOnceByMany", oneIDByMany},
		{"InventoryBesideCreateAndDestroy", inventoryBeside},
		{"DestroyBesideStart", destroyBesideStart},
		{"DestroyBesideReset", destroyBesideReset},
		{"TerminateBesideOpen", terminateBesideOpen},
	}
}

func resetTwice(s *suite) {
	if !s.p.Capabilities().Reset {
		return // LastJobIsInvisible tests the refusal
	}
	sb := s.create()
	s.run(sb, s.process(Touch("old")))
	for range 2 {
		require.NoError(s, sb.Reset(s.ctx()))
	}
	_, out, _ := s.run(sb, s.process(List()))
	require.Empty(s, out)
}

func collectTwice(s *suite) {
	if !s.files() {
		return
	}
	run := s.finished(s.create(), Put("a", "1"))
	for range 2 {
		lines, more := s.collected(run, plenty("*"))
		require.Equal(s, []string{"a=1"}, lines)
		require.Zero(s, more)
	}
}

// Of many calls with one lease id at most one makes a sandbox, and that one works.
func oneIDByMany(s *suite) {
	spec := s.spec()
	var all sync.WaitGroup
	made := make(chan sandbox.Sandbox, 4)
	for range cap(made) {
		all.Go(func() {
			if sb, err := s.p.Create(s.ctx(), spec); err == nil {
				made <- sb
			}
		})
	}
	all.Wait()
	require.Len(s, made, 1)
	sb := <-made
	_, out, _ := s.run(sb, s.process(Print("alive")))
	require.Equal(s, "alive\n", out)
	proof, err := sb.Destroy(s.ctx())
	require.NoError(s, err)
	requireProven(s, proof)
	require.False(s, s.listed(spec.Lease))
}

// What stays is listed by every look, while others come and go.
func inventoryBeside(s *suite) {
	stays := s.create().Handle().Lease
	var others, looker sync.WaitGroup
	var done atomic.Bool
	for range 2 {
		others.Go(func() {
			for range 3 {
				sb, err := s.p.Create(s.ctx(), s.spec())
				if err != nil {
					s.Errorf("create: %v", err)
					return
				}
				if proof, err := sb.Destroy(s.ctx()); err != nil || !proof.Proven {
					s.Errorf("destroy: %v, proof %+v", err, proof)
				}
			}
		})
	}
	looker.Go(func() {
		for !done.Load() {
			handles, err := s.p.Inventory(s.ctx())
			found := false
			for _, h := range handles {
				found = found || h.Lease == stays
			}
			if err != nil || !found {
				s.Errorf("inventory: %v, %s found: %v", err, stays, found)
				return
			}
		}
	})
	others.Wait()
	done.Store(true)
	looker.Wait()
}

// Whatever a start meets that a destroy comes into, nothing is left and every
// call returns.
func destroyBesideStart(s *suite) {
	for range 4 {
		sb := s.create()
		var all sync.WaitGroup
		var run sandbox.Run
		all.Go(func() {
			r, err := sb.Prepare(s.ctx(), s.process(IgnoreTerm(), Sleep(long)), &Sink{})
			if err != nil {
				return
			}
			run = r
			_ = r.Open(s.ctx()) //nolint:errcheck // both answers are right
		})
		all.Go(func() {
			if proof, err := sb.Destroy(s.ctx()); err != nil || !proof.Proven {
				s.Errorf("destroy: %v, proof %+v", err, proof)
			}
		})
		all.Wait()
		proof, err := sb.Destroy(s.ctx())
		require.NoError(s, err)
		requireProven(s, proof)
		require.False(s, s.listed(sb.Handle().Lease))
		if run != nil {
			s.wait(run)
		}
		_, err = sb.Prepare(s.ctx(), s.process(), &Sink{})
		require.Error(s, err)
	}
}

func destroyBesideReset(s *suite) {
	for range 4 {
		sb := s.create()
		s.run(sb, s.process(Touch("old")))
		var all sync.WaitGroup
		all.Go(func() { _ = sb.Reset(s.ctx()) }) //nolint:errcheck // both answers are right
		all.Go(func() {
			if proof, err := sb.Destroy(s.ctx()); err != nil || !proof.Proven {
				s.Errorf("destroy: %v, proof %+v", err, proof)
			}
		})
		all.Wait()
		require.False(s, s.listed(sb.Handle().Lease))
	}
}

// A start gate that opens while its run is terminated gives a run that did not
// start or was ended: never one that runs on.
func terminateBesideOpen(s *suite) {
	for range 4 {
		sink := &Sink{}
		run, err := s.create().Prepare(s.ctx(), s.process(IgnoreTerm(), Print("ran"), Sleep(long)), sink)
		require.NoError(s, err)
		var all sync.WaitGroup
		all.Go(func() { _ = run.Open(s.ctx()) }) //nolint:errcheck // both answers are right
		all.Go(func() {
			if proof, err := run.Terminate(s.ctx(), 0); err != nil || !proof.Proven {
				s.Errorf("terminate: %v, proof %+v", err, proof)
			}
		})
		all.Wait()
		if end := s.wait(run); end.Started == sandbox.StartedNo {
			require.Empty(s, sink.String(sandbox.Stdout))
		}
	}
}

func doubtTests() []namedTest {
	return []namedTest{{"AmbiguousCreate", ambiguousCreate}, {"Strangers", strangers}}
}

// After a create in doubt the handle that the caller knows is enough to make sure.
func ambiguousCreate(s *suite) {
	if s.Ambiguous == nil {
		s.Log("NOT TESTED: the harness has no Ambiguous, so nothing is said about a create in doubt")
		return
	}
	for _, made := range []bool{true, false} {
		s.Ambiguous(s.T, s.p, made)
		spec := s.spec()
		_, err := s.p.Create(s.ctx(), spec)
		require.Error(s, err)
		require.Equal(s, sandbox.Ambiguous, sandbox.KindOf(err), "%v", err)
		require.Equal(s, made, s.listed(spec.Lease))
		h := sandbox.Handle{Provider: s.p.Name(), Host: s.p.Capabilities().Host, Lease: spec.Lease}
		for range 2 {
			proof, err := s.p.Destroy(s.ctx(), h)
			require.NoError(s, err)
			requireProven(s, proof)
		}
		require.False(s, s.listed(spec.Lease))
	}
	_, out, _ := s.run(s.create(), s.process(Print("usable")))
	require.Equal(s, "usable\n", out)
}

// What does not carry our mark is neither listed nor destroyed.
func strangers(s *suite) {
	if s.Stranger == nil {
		s.Log("NOT TESTED: the harness has no Stranger, so nothing is said about what is not ours")
		return
	}
	h, alive := s.Stranger(s.T)
	require.False(s, s.listed(h.Lease))
	_, err := s.p.Destroy(s.ctx(), h)
	require.Error(s, err, "proof of what is still there, or the end of what is not ours")
	require.True(s, alive())
}
