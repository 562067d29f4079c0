package fake_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/sandbox/fake"
	"github.com/sallyport/sallyport/internal/sandbox/sandboxtest"
)

// story is one sandbox with one process, in a bubble of its own time.
type story struct {
	*testing.T
	world *fake.World
	p     *fake.Provider
	sb    sandbox.Sandbox
	sink  *sandboxtest.Sink
}

// tell runs f in a synctest bubble with a sandbox named lease.
func tell(t *testing.T, f func(s *story)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		world := fake.NewWorld()
		p := fake.New(world, fake.Config{OutlivesWorker: true})
		sb, err := p.Create(t.Context(), sandbox.Spec{Lease: "lease"})
		require.NoError(t, err)
		f(&story{T: t, world: world, p: p, sb: sb, sink: &sandboxtest.Sink{}})
		require.NoError(t, p.Close())
	})
}

func (s *story) prepare(steps ...string) (sandbox.Run, error) {
	return s.sb.Prepare(s.Context(), sandbox.Process{Argv: append([]string{"fake"}, steps...)}, s.sink)
}

func (s *story) start(steps ...string) sandbox.Run {
	s.Helper()
	run, err := s.prepare(steps...)
	require.NoError(s, err)
	require.NoError(s, run.Open(s.Context()))
	return run
}

// within is a context that ends after d.
func (s *story) within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(s.Context(), d)
	s.Cleanup(cancel)
	return ctx
}

func (s *story) requireKind(want sandbox.Kind, err error) {
	s.Helper()
	require.Error(s, err)
	require.Equal(s, want, sandbox.KindOf(err), "%v", err)
}

func TestUnknownStepIsRefusedWithTheList(t *testing.T) {
	tell(t, func(s *story) {
		for step, want := range map[string]string{
			"jump:high":         "argv[1]: no step \"jump\"",
			"sleep:soon":        "sleep:DURATION",
			"exit:256":          "from 0 to 255",
			"signal:0":          "from 1 to 64",
			"write:5MB":         "64MiB",
			"write:2000000GiB":  "64MiB",
			"prepare:later":     "refuse, unavailable, ambiguous",
			"destroy:fail*0":    "times \"0\" is not",
			"delay:create:1s":   "prepare, open, wait",
			"start:impossible":  "not_found",
			"wait:long":         "never",
			"die:slowly":        "unproven",
			"term-exit:1:never": "100ms",
			"touch":             "the name is missing",
		} {
			_, err := s.prepare(step)
			s.requireKind(sandbox.Refused, err)
			require.ErrorContains(s, err, want, step)
		}
		_, err := s.prepare("jump")
		require.ErrorContains(s, err, "destroy:fail[*N]|refuse[*N]|ambiguous[*N]|hang[*N]")
		require.ErrorContains(s, err, "print:TEXT")
		s.start("print:usable") // refusals did not hurt
	})
}

func TestPrepareKnobs(t *testing.T) {
	tell(t, func(s *story) {
		_, err := s.prepare("prepare:refuse", "destroy:never")
		s.requireKind(sandbox.Refused, err)
		s.start() // still idle
		proof, err := s.sb.Destroy(s.Context())
		require.NoError(s, err, "a refused process leaves no knob behind")
		require.True(s, proof.Proven)
	})
	tell(t, func(s *story) {
		_, err := s.prepare("prepare:unavailable")
		s.requireKind(sandbox.Unavailable, err)
		_, err = s.prepare()
		s.requireKind(sandbox.Unavailable, err)
	})
	tell(t, func(s *story) {
		begin := time.Now()
		_, err := s.sb.Prepare(s.within(time.Minute), sandbox.Process{Argv: []string{"fake", "prepare:hang"}}, s.sink)
		s.requireKind(sandbox.Ambiguous, err)
		require.ErrorContains(s, err, "deadline")
		require.Equal(s, time.Minute, time.Since(begin))
		require.Equal(s, []string{"lease"}, s.world.Live())
	})
	tell(t, func(s *story) {
		begin := time.Now()
		_, err := s.prepare("delay:prepare:3s")
		require.NoError(s, err)
		require.Equal(s, 3*time.Second, time.Since(begin))
	})
}

func TestOpenKnobs(t *testing.T) {
	tell(t, func(s *story) {
		run, err := s.prepare("open:refuse", "print:ran")
		require.NoError(s, err)
		s.requireKind(sandbox.Refused, run.Open(s.Context()))
		_, err = run.Terminate(s.Context(), time.Hour)
		require.NoError(s, err)
		end, err := run.Wait(s.Context())
		require.NoError(s, err)
		require.Equal(s, sandbox.StartedNo, end.Started)
		require.Zero(s, s.world.Started())
	})
	tell(t, func(s *story) {
		run, err := s.prepare("open:ambiguous", "print:ran")
		require.NoError(s, err)
		s.requireKind(sandbox.Ambiguous, run.Open(s.Context()))
		end, err := run.Wait(s.Context())
		require.NoError(s, err)
		require.Equal(s, sandbox.StartedMaybe, end.Started)
		require.Equal(s, "ran\n", s.sink.String(sandbox.Stdout))
		require.Equal(s, 1, s.world.Started())
	})
	tell(t, func(s *story) {
		run, err := s.prepare("open:hang", "print:ran")
		require.NoError(s, err)
		s.requireKind(sandbox.Ambiguous, run.Open(s.within(time.Second)))
		proof, err := run.Terminate(s.Context(), time.Second)
		require.NoError(s, err)
		require.True(s, proof.Proven)
		end, err := run.Wait(s.Context())
		require.NoError(s, err)
		require.Equal(s, sandbox.StartedMaybe, end.Started)
		require.Zero(s, s.world.Started())
	})
}

func TestUnprovenEnds(t *testing.T) {
	tell(t, func(s *story) {
		run := s.start("wait:never", "exit:3")
		end, err := run.Wait(s.within(time.Minute))
		require.ErrorIs(s, err, context.DeadlineExceeded)
		require.False(s, end.Proof.Proven)
		require.Equal(s, &sandbox.Exit{Code: 3}, end.Exit, "the leader's end is known")
		proof, err := run.Terminate(s.within(time.Minute), time.Second)
		require.ErrorIs(s, err, context.DeadlineExceeded)
		require.False(s, proof.Proven)
		s.requireKind(sandbox.Refused, s.sb.Reset(s.Context()))
		proof, err = s.sb.Destroy(s.Context())
		require.NoError(s, err)
		require.True(s, proof.Proven)
		end, err = run.Wait(s.Context())
		require.NoError(s, err)
		require.True(s, end.Proof.Proven, "with the sandbox the run is gone")
	})
	tell(t, func(s *story) {
		run := s.start("terminate:unproven", "forever")
		proof, err := run.Terminate(s.within(time.Minute), time.Second)
		require.Error(s, err)
		require.False(s, proof.Proven)
		end, err := run.Wait(s.within(time.Minute))
		require.Error(s, err)
		require.Equal(s, &sandbox.Exit{Signal: 15}, end.Exit)
	})
	tell(t, func(s *story) {
		run := s.start("terminate:unproven", "exit:0")
		end, err := run.Wait(s.Context())
		require.NoError(s, err, "a run that ends by itself is proven")
		require.True(s, end.Proof.Proven)
	})
	tell(t, func(s *story) {
		run := s.start("wait:never")
		require.NoError(s, s.p.Close())
		_, err := run.Wait(s.Context())
		s.requireKind(sandbox.Unavailable, err)
	})
}

func TestDestroyKnobs(t *testing.T) {
	tell(t, func(s *story) {
		s.start("destroy:fail*3")
		for range 3 {
			proof, err := s.sb.Destroy(s.Context())
			s.requireKind(sandbox.Unavailable, err)
			require.False(s, proof.Proven)
		}
		proof, err := s.sb.Destroy(s.Context())
		require.NoError(s, err)
		require.True(s, proof.Proven)
		require.Equal(s, 4, s.world.DestroyCalls("lease"))
		require.Equal(s, 1, s.world.Destroyed())
		require.Empty(s, s.world.Live())
	})
	tell(t, func(s *story) {
		s.start("destroy:lie*2")
		for range 2 {
			proof, err := s.p.Destroy(s.Context(), s.sb.Handle())
			require.NoError(s, err)
			require.True(s, proof.Proven)
			left, err := s.p.Inventory(s.Context())
			require.NoError(s, err)
			require.Len(s, left, 1, "a later look finds it")
		}
		_, err := s.p.Destroy(s.Context(), s.sb.Handle())
		require.NoError(s, err)
		require.Empty(s, s.world.Live())
	})
	tell(t, func(s *story) {
		s.start("destroy:never")
		for range 20 {
			_, err := s.sb.Destroy(s.Context())
			require.Error(s, err)
		}
		known, err := s.world.Knob("lease", "destroy:ok")
		require.NoError(s, err)
		require.True(s, known)
		_, err = s.sb.Destroy(s.Context())
		require.NoError(s, err, "cured")
	})
	tell(t, func(s *story) {
		s.start("destroy:hang", "delay:destroy:2s")
		begin := time.Now()
		_, err := s.sb.Destroy(s.within(time.Minute))
		s.requireKind(sandbox.Ambiguous, err)
		require.Equal(s, time.Minute, time.Since(begin))
		_, err = s.sb.Destroy(s.Context())
		require.NoError(s, err)
		require.Equal(s, time.Minute+2*time.Second, time.Since(begin))
	})
	tell(t, func(s *story) {
		s.start("destroy:unproven")
		proof, err := s.sb.Destroy(s.Context())
		require.NoError(s, err)
		require.False(s, proof.Proven)
	})
}

func TestResetKnobs(t *testing.T) {
	for step, kind := range map[string]sandbox.Kind{"reset:fail": sandbox.Unavailable, "reset:hang": sandbox.Ambiguous} {
		tell(t, func(s *story) {
			run := s.start(step, "delay:reset:5s")
			_, err := run.Wait(s.Context())
			require.NoError(s, err)
			s.requireKind(kind, s.sb.Reset(s.within(time.Minute)))
			_, err = s.prepare()
			s.requireKind(sandbox.Unavailable, err)
		})
	}
}

func TestDie(t *testing.T) {
	tell(t, func(s *story) {
		run := s.start("print:half", "die", "print:way")
		end, err := run.Wait(s.Context())
		require.NoError(s, err)
		require.True(s, end.Proof.Proven)
		require.Equal(s, sandbox.EvidenceNotFound, end.Proof.Evidence[0].Kind)
		require.Nil(s, end.Exit, "nobody saw its end")
		require.Equal(s, "half\n", s.sink.String(sandbox.Stdout))
		<-s.sb.Lost()
		require.Equal(s, 1, s.world.Vanished())
	})
	tell(t, func(s *story) {
		run := s.start("die:unproven")
		<-s.sb.Lost()
		end, err := run.Wait(s.within(time.Minute))
		require.Error(s, err)
		require.False(s, end.Proof.Proven)
		require.Equal(s, []string{"lease"}, s.world.Live())
	})
}

func TestLimitsAndTime(t *testing.T) {
	limits := sandbox.Limits{CPU: time.Second, MemoryBytes: 1 << 20}
	for steps, check := range map[string]func(t require.TestingT, end sandbox.End){
		"cpu:3s": func(t require.TestingT, end sandbox.End) {
			require.True(t, end.CPUExceeded)
			require.Equal(t, time.Second, end.Usage.CPUUser)
		},
		"cpu:500ms": func(t require.TestingT, end sandbox.End) {
			require.False(t, end.CPUExceeded)
			require.Equal(t, &sandbox.Exit{}, end.Exit)
			require.Equal(t, 500*time.Millisecond, end.Usage.CPUUser)
		},
		"memory:2MiB": func(t require.TestingT, end sandbox.End) {
			require.EqualValues(t, 1, end.OOM)
			require.Equal(t, &sandbox.Exit{Signal: 9}, end.Exit)
			require.EqualValues(t, 1<<20, end.Usage.MemoryPeakBytes)
		},
		"memory:1KiB": func(t require.TestingT, end sandbox.End) { require.EqualValues(t, 1<<10, end.Usage.MemoryPeakBytes) },
		"oom":         func(t require.TestingT, end sandbox.End) { require.EqualValues(t, 1, end.OOM) },
		"delay:wait:7s": func(t require.TestingT, end sandbox.End) {
			require.Equal(t, 7*time.Second, end.ProvenAt.Sub(end.EndedAt))
		},
		"leftover:1ms": func(t require.TestingT, end sandbox.End) { require.True(t, end.Leftover) },
		"leftover":     func(t require.TestingT, end sandbox.End) { require.True(t, end.Leftover) },
	} {
		tell(t, func(s *story) {
			run, err := s.sb.Prepare(s.Context(), sandbox.Process{Argv: []string{"fake", steps}, Limits: limits}, s.sink)
			require.NoError(s, err)
			require.NoError(s, run.Open(s.Context()))
			end, err := run.Wait(s.Context())
			require.NoError(s, err)
			check(s, end)
		})
	}
	tell(t, func(s *story) {
		run := s.start("leftover:1s", "sleep:2s")
		end, err := run.Wait(s.Context())
		require.NoError(s, err)
		require.False(s, end.Leftover, "the child ended first")
	})
	tell(t, func(s *story) {
		run := s.start("term-exit:9:3s", "forever")
		synctest.Wait()
		begin := time.Now()
		_, err := run.Terminate(s.Context(), 10*time.Second)
		require.NoError(s, err)
		require.Equal(s, 3*time.Second, time.Since(begin))
		end, err := run.Wait(s.Context())
		require.NoError(s, err)
		require.Equal(s, &sandbox.Exit{Code: 9}, end.Exit)
	})
}

func TestCreatePlans(t *testing.T) {
	create := func(s *story, lease string, d time.Duration) error {
		_, err := s.p.Create(s.within(d), sandbox.Spec{Lease: lease})
		return err
	}
	tell(t, func(s *story) {
		s.p.OnCreate(
			fake.Create{Kind: sandbox.Refused},
			fake.Create{Kind: sandbox.Ambiguous},
			fake.Create{Kind: sandbox.Ambiguous, Exists: true},
			fake.Create{Hang: true, Exists: true, Late: time.Hour},
			fake.Create{Delay: time.Second},
		)
		s.requireKind(sandbox.Refused, create(s, "a", time.Minute))
		s.requireKind(sandbox.Ambiguous, create(s, "b", time.Minute))
		require.Equal(s, []string{"lease"}, s.world.Live())
		s.requireKind(sandbox.Ambiguous, create(s, "c", time.Minute))
		require.Equal(s, []string{"c", "lease"}, s.world.Live())
		begin := time.Now()
		s.requireKind(sandbox.Ambiguous, create(s, "d", time.Minute))
		require.Equal(s, time.Minute, time.Since(begin))
		require.Equal(s, []string{"c", "lease"}, s.world.Live())
		require.NoError(s, create(s, "e", time.Minute))
		require.Equal(s, time.Minute+time.Second, time.Since(begin))
		time.Sleep(time.Hour)
		require.Equal(s, []string{"c", "d", "e", "lease"}, s.world.Live(), "d came late")
		require.NoError(s, create(s, "f", time.Minute), "plans are used up")
	})
}

func TestSharedWorld(t *testing.T) {
	tell(t, func(s *story) {
		run := s.start("forever", "destroy:fail")
		reaper := fake.New(s.world, fake.Config{})
		_, err := reaper.Destroy(s.Context(), s.sb.Handle())
		require.Error(s, err, "the knob stays with the sandbox")
		proof, err := reaper.Destroy(s.Context(), s.sb.Handle())
		require.NoError(s, err)
		require.True(s, proof.Proven)
		<-s.sb.Lost() // its owner did not do that
		end, err := run.Wait(s.Context())
		require.NoError(s, err)
		require.True(s, end.Proof.Proven)
		require.NoError(s, reaper.Close())
	})
	tell(t, func(s *story) {
		s.start("forever")
		require.NoError(s, s.p.Close())
		require.Equal(s, []string{"lease"}, s.world.Live(), "it outlives its worker")
		s.world.Outage(true)
		other := fake.New(s.world, fake.Config{})
		_, err := other.Destroy(s.Context(), s.sb.Handle())
		s.requireKind(sandbox.Unavailable, err)
		_, err = other.Inventory(s.Context())
		s.requireKind(sandbox.Unavailable, err)
		_, err = other.Create(s.Context(), sandbox.Spec{Lease: "x"})
		s.requireKind(sandbox.Unavailable, err)
		s.world.Outage(false)
		_, err = other.Destroy(s.Context(), s.sb.Handle())
		require.NoError(s, err)
	})
}

func TestCloseEndsWhatCannotOutliveIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		world := fake.NewWorld()
		p := fake.New(world, fake.Config{})
		for _, lease := range []string{"dies", "stays"} {
			_, err := p.Create(t.Context(), sandbox.Spec{Lease: lease})
			require.NoError(t, err)
		}
		_, err := world.Knob("stays", "destroy:never")
		require.NoError(t, err)
		require.NoError(t, p.Close())
		require.Equal(t, []string{"stays"}, world.Live())
		_, err = p.Create(t.Context(), sandbox.Spec{Lease: "late"})
		require.Equal(t, sandbox.Unavailable, sandbox.KindOf(err))
	})
}

func TestPlant(t *testing.T) {
	world := fake.NewWorld()
	h := sandbox.Handle{Provider: "fake", Host: "fake", Lease: "old"}
	require.NoError(t, world.Plant(h, "destroy:fail"))
	require.Error(t, world.Plant(h, "destroy:perhaps"))
	p := fake.New(world, fake.Config{})
	left, err := p.Inventory(t.Context())
	require.NoError(t, err)
	require.Equal(t, []sandbox.Handle{h}, left)
	_, err = p.Destroy(t.Context(), h)
	require.Error(t, err)
	_, err = p.Destroy(t.Context(), h)
	require.NoError(t, err)
	require.Empty(t, world.Live())
	require.NoError(t, p.Close())
}

func TestCreateWords(t *testing.T) {
	tell(t, func(s *story) {
		n := 0
		create := func(root string) error {
			n++
			ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
			defer cancel()
			_, err := s.p.Create(ctx, sandbox.Spec{Lease: fmt.Sprint("l", n), Root: root})
			return err
		}
		const root = "/create:refuse create:busy*2 create:unavailable create:protocol create:ambiguous*2 appear create:hang appear:1h create:ok create:refuse appear:2h"
		for i, kind := range []sandbox.Kind{
			sandbox.Refused, sandbox.Busy, sandbox.Busy, sandbox.Unavailable, sandbox.Protocol, sandbox.Ambiguous, sandbox.Ambiguous, sandbox.Ambiguous,
			0, sandbox.Refused, 0, 0,
		} {
			err := create(root)
			if kind == 0 {
				require.NoError(s, err, i)
				continue
			}
			require.Equal(s, kind, sandbox.KindOf(err), "%d: %v", i, err)
		}
		require.Equal(s, []string{"l11", "l12", "l6", "l7", "l9", "lease"}, s.world.Live())
		time.Sleep(time.Hour)
		require.Contains(s, s.world.Live(), "l8", "it came an hour later")
		require.NotContains(s, s.world.Live(), "l10")
		time.Sleep(time.Hour)
		require.Contains(s, s.world.Live(), "l10", "a refusal was a lie")
		err := create("create:refuse")
		s.requireKind(sandbox.Refused, err)
		err = create("/create:refuse ")
		s.requireKind(sandbox.Refused, err)
		begin := time.Now()
		err = create("delay:create:3s destroy:fail*2")
		require.NoError(s, err)
		require.Equal(s, 3*time.Second, time.Since(begin))
		for range 2 {
			_, err = s.p.Destroy(s.Context(), handleOf(fmt.Sprint("l", n)))
			s.requireKind(sandbox.Unavailable, err)
		}
		for root, want := range map[string]string{
			"print:hi": "no word \"print\"; the words are: appear[:DURATION] back:", "create:maybe": "is no effect",
			"appear": "no create word", "create:ok*0": "from 1", "back:soon": "100ms", "delay:open:1s": "create, destroy, inventory",
			"inventory:half": "unavailable, hang, partial", "/srv/python": "no word \"srv/python\"",
		} {
			err = create(root)
			s.requireKind(sandbox.Refused, err)
			require.ErrorContains(s, err, want, root)
		}
	})
}

func TestCreateThatLiesOrDies(t *testing.T) {
	tell(t, func(s *story) {
		sb, err := s.p.Create(s.Context(), sandbox.Spec{Lease: "lie", Root: "create:lie"})
		require.NoError(s, err)
		require.Equal(s, []string{"lease"}, s.world.Live(), "it is not there")
		_, err = sb.Prepare(s.Context(), sandbox.Process{Argv: []string{"fake"}}, s.sink)
		s.requireKind(sandbox.Gone, err)
		proof, err := sb.Destroy(s.Context())
		require.NoError(s, err)
		require.Equal(s, sandbox.EvidenceNotFound, proof.Evidence[0].Kind)

		sb, err = s.p.Create(s.Context(), sandbox.Spec{Lease: "die", Root: "create:die"})
		require.NoError(s, err)
		<-sb.Lost()
		_, err = sb.Prepare(s.Context(), sandbox.Process{Argv: []string{"fake"}}, s.sink)
		s.requireKind(sandbox.Gone, err)
		require.Equal(s, 1, s.world.Vanished())
	})
}

func TestDestroyedSandboxesComeBack(t *testing.T) {
	tell(t, func(s *story) {
		s.start("back:10s*2", "destroy:ambiguous")
		_, err := s.sb.Destroy(s.Context())
		s.requireKind(sandbox.Ambiguous, err)
		require.Empty(s, s.world.Live(), "it worked, and nobody knew")
		for range 2 {
			proof, err := s.p.Destroy(s.Context(), s.sb.Handle())
			require.NoError(s, err)
			require.Equal(s, sandbox.EvidenceNotFound, proof.Evidence[0].Kind)
			time.Sleep(10 * time.Second)
			left, err := s.p.Inventory(s.Context())
			require.NoError(s, err)
			require.Equal(s, []sandbox.Handle{s.sb.Handle()}, left, "there it is again")
			proof, err = s.p.Destroy(s.Context(), s.sb.Handle())
			require.NoError(s, err)
			require.True(s, proof.Proven)
		}
		time.Sleep(time.Hour)
		require.Empty(s, s.world.Live())
		require.Equal(s, []int{3, 3}, []int{s.world.Created(), s.world.Destroyed()})
	})
}

func TestInventoryKnobs(t *testing.T) {
	tell(t, func(s *story) {
		_, err := s.p.Create(s.Context(), sandbox.Spec{Lease: "other", Root: "inventory:partial*2 delay:inventory:1s"})
		require.NoError(s, err)
		begin := time.Now()
		for _, n := range []int{1, 1, 2} {
			left, err := s.p.Inventory(s.Context())
			require.NoError(s, err)
			require.Len(s, left, n)
		}
		require.Equal(s, 3*time.Second, time.Since(begin))
		require.NoError(s, s.world.Inventory("inventory:hang"))
		_, err = s.p.Inventory(s.within(time.Minute))
		s.requireKind(sandbox.Unavailable, err)
		require.ErrorIs(s, err, context.DeadlineExceeded)
		require.NoError(s, s.world.Inventory("inventory:unavailable*3"))
		_, err = s.p.Inventory(s.Context())
		s.requireKind(sandbox.Unavailable, err)
		require.NoError(s, s.world.Inventory("inventory:ok"))
		_, err = s.p.Inventory(s.Context())
		require.NoError(s, err)
		require.Error(s, s.world.Inventory("inventory:never"))
		require.Equal(s, 6, s.world.Looks())
	})
}

func TestCallsThatDieHalfWay(t *testing.T) {
	tell(t, func(s *story) {
		_, err := s.prepare("prepare:die")
		s.requireKind(sandbox.Gone, err)
		<-s.sb.Lost()
		require.Empty(s, s.world.Live())
	})
	tell(t, func(s *story) {
		_, err := s.prepare("prepare:ambiguous")
		s.requireKind(sandbox.Ambiguous, err)
		_, err = s.prepare()
		s.requireKind(sandbox.Unavailable, err)
	})
	tell(t, func(s *story) {
		run, err := s.prepare("open:die", "print:ran")
		require.NoError(s, err)
		s.requireKind(sandbox.Gone, run.Open(s.Context()))
		end, err := run.Wait(s.Context())
		require.NoError(s, err)
		require.Equal(s, sandbox.StartedMaybe, end.Started)
		require.Zero(s, s.world.Started())
	})
	tell(t, func(s *story) {
		run, err := s.prepare("open:unstarted", "print:ran")
		require.NoError(s, err)
		s.requireKind(sandbox.Ambiguous, run.Open(s.Context()))
		_, err = run.Terminate(s.Context(), 0)
		require.NoError(s, err)
		require.Zero(s, s.world.Started(), "in doubt, and it did not run")
	})
	tell(t, func(s *story) {
		run := s.start("wait:fail*2", "terminate:fail", "exit:0")
		for range 2 {
			_, err := run.Wait(s.Context())
			s.requireKind(sandbox.Unavailable, err)
		}
		_, err := run.Terminate(s.Context(), 0)
		s.requireKind(sandbox.Unavailable, err)
		end, err := run.Wait(s.Context())
		require.NoError(s, err)
		require.True(s, end.Proof.Proven)
	})
	tell(t, func(s *story) {
		run := s.start("terminate:hang", "forever")
		proof, err := run.Terminate(s.within(time.Second), 0)
		s.requireKind(sandbox.Ambiguous, err)
		require.False(s, proof.Proven)
		_, err = run.Terminate(s.Context(), 0)
		require.NoError(s, err)
	})
}

func TestMoreResetAndCollectKnobs(t *testing.T) {
	for step, kind := range map[string]sandbox.Kind{"reset:refuse": sandbox.Refused, "reset:ambiguous": sandbox.Ambiguous} {
		tell(t, func(s *story) {
			_, err := s.start(step).Wait(s.Context())
			require.NoError(s, err)
			s.requireKind(kind, s.sb.Reset(s.Context()))
			_, err = s.prepare()
			s.requireKind(sandbox.Unavailable, err)
		})
	}
	tell(t, func(s *story) {
		_, err := s.start("touch:secret", "reset:lie").Wait(s.Context())
		require.NoError(s, err)
		require.NoError(s, s.sb.Reset(s.Context()))
		_, err = s.start("ls").Wait(s.Context())
		require.NoError(s, err)
		require.Equal(s, "secret\n", s.sink.String(sandbox.Stdout), "the next job sees it")
	})
	for step, kind := range map[string]sandbox.Kind{
		"collect:refuse": sandbox.Refused, "collect:hang": sandbox.Unavailable, "collect:fail": sandbox.Unavailable,
	} {
		tell(t, func(s *story) {
			run := s.start(step)
			_, err := run.Wait(s.Context())
			require.NoError(s, err)
			_, err = run.Collect(s.within(time.Minute), sandbox.CollectSpec{Patterns: []string{"*"}, MaxFiles: 1}, func(sandbox.Collected) error { return nil })
			s.requireKind(kind, err)
		})
	}
}

func TestStrangersAreNeverListed(t *testing.T) {
	tell(t, func(s *story) {
		require.NoError(s, s.world.PlantStranger(handleOf("theirs")))
		left, err := s.p.Inventory(s.Context())
		require.NoError(s, err)
		require.Len(s, left, 1)
		_, err = s.p.Destroy(s.Context(), handleOf("theirs"))
		s.requireKind(sandbox.Refused, err)
		require.Equal(s, []string{"theirs"}, s.world.Strangers())
		require.Equal(s, []string{"lease"}, s.world.Live())
		require.Equal(s, 1, s.world.Created())
	})
}
