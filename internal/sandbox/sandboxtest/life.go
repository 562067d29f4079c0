package sandboxtest

import (
	"crypto/rand"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox"
)

func lifeTests() []namedTest {
	return []namedTest{
		{"SaysWhatItIs", saysWhatItIs},
		{"CreateListDestroy", createListDestroy},
		{"DestroyUnknownIsProof", destroyUnknown},
		{"DestroyForeignIsNoProof", destroyForeign},
		{"DestroyEndsTheRun", destroyEndsTheRun},
		{"DestroyBehindClosedGate", destroyBehindClosedGate},
		{"DestroyAtOnceByMany", destroyByMany},
		{"LeaseIDsAreUnique", leaseIDsAreUnique},
		{"ManySandboxes", manySandboxes},
	}
}

func saysWhatItIs(t *testing.T, s *suite) {
	caps := s.p.Capabilities()
	require.NotEmpty(t, s.p.Name())
	require.NotEmpty(t, caps.Host)
	require.Contains(t, []string{"kernel", "provider"}, caps.Scope)
	require.NotEmpty(t, caps.Isolation.Level)
	for field, enforced := range map[string]bool{
		"cpu_ms": caps.Enforces.CPU, "memory_bytes": caps.Enforces.Memory, "pids": caps.Enforces.Pids,
		"disk_bytes": caps.Enforces.Disk, "inodes": caps.Enforces.Inodes, "open_files": caps.Enforces.OpenFiles,
		"cpu_share": caps.Enforces.CPUShare,
	} {
		if enforced {
			require.NotContains(t, caps.Unenforced, field)
		} else {
			require.NotEmpty(t, caps.Unenforced[field], "the reason why %s is not enforced", field)
		}
	}
	require.Equal(t, caps, s.p.Capabilities(), "capabilities are constant")
}

func createListDestroy(t *testing.T, s *suite) {
	spec := s.spec()
	require.False(t, s.listed(t, spec.Lease))
	sb, err := s.p.Create(s.ctx(t), spec)
	require.NoError(t, err)
	h := sb.Handle()
	require.Equal(t, s.p.Name(), h.Provider)
	require.Equal(t, spec.Lease, h.Lease)
	require.Equal(t, s.p.Capabilities().Host, h.Host)
	require.NotEmpty(t, sb.Isolation().Level)
	require.True(t, s.listed(t, spec.Lease))

	proof, err := sb.Destroy(s.ctx(t))
	require.NoError(t, err)
	requireProven(t, proof)
	require.False(t, s.listed(t, spec.Lease))

	for _, again := range []sandbox.Handle{h, {Provider: h.Provider, Host: h.Host, Lease: h.Lease}} {
		proof, err = s.p.Destroy(s.ctx(t), again)
		require.NoError(t, err)
		requireProven(t, proof)
	}
	proof, err = sb.Destroy(s.ctx(t))
	require.NoError(t, err)
	requireProven(t, proof)

	_, err = sb.Prepare(s.ctx(t), s.process(), &Sink{})
	require.Error(t, err, "a destroyed sandbox takes a process")
	require.Error(t, sb.Reset(s.ctx(t)), "a destroyed sandbox can be reset")
	select {
	case <-sb.Lost():
		require.Fail(t, "a sandbox that its owner destroyed is called lost")
	default:
	}
}

func destroyUnknown(t *testing.T, s *suite) {
	h := sandbox.Handle{Provider: s.p.Name(), Host: s.p.Capabilities().Host, Lease: rand.Text()}
	proof, err := s.p.Destroy(s.ctx(t), h)
	require.NoError(t, err)
	requireProven(t, proof)
}

// A sandbox elsewhere is not gone because it is not here.
func destroyForeign(t *testing.T, s *suite) {
	host := s.p.Capabilities().Host
	for _, h := range []sandbox.Handle{
		{Provider: s.p.Name(), Host: host + "-other", Lease: rand.Text()},
		{Provider: s.p.Name() + "-other", Host: host, Lease: rand.Text()},
		{Provider: s.p.Name(), Host: host},
		{},
	} {
		proof, err := s.p.Destroy(s.ctx(t), h)
		require.Error(t, err, "%+v", h)
		require.False(t, proof.Proven, "%+v", h)
	}
}

func destroyEndsTheRun(t *testing.T, s *suite) {
	sb := s.create(t)
	sink := &Sink{}
	run := s.start(t, sb, sink, IgnoreTerm(), Print("running"), Sleep(long))
	require.Eventually(t, func() bool { return sink.String(sandbox.Stdout) == "running\n" }, patience, tick)
	proof, err := sb.Destroy(s.ctx(t))
	require.NoError(t, err)
	requireProven(t, proof)
	end, err := run.Wait(s.ctx(t))
	require.NoError(t, err)
	requireProven(t, end.Proof)
	require.Equal(t, sandbox.StartedYes, end.Started)
	proof, err = run.Terminate(s.ctx(t), 0)
	require.NoError(t, err)
	requireProven(t, proof)
}

func destroyBehindClosedGate(t *testing.T, s *suite) {
	sb := s.create(t)
	sink := &Sink{}
	run, err := sb.Prepare(s.ctx(t), s.process(Print("never")), sink)
	require.NoError(t, err)
	proof, err := sb.Destroy(s.ctx(t))
	require.NoError(t, err)
	requireProven(t, proof)
	require.Error(t, run.Open(s.ctx(t)))
	end, err := run.Wait(s.ctx(t))
	require.NoError(t, err)
	requireProven(t, end.Proof)
	require.Equal(t, sandbox.StartedNo, end.Started)
	require.Empty(t, sink.String(sandbox.Stdout))
}

func destroyByMany(t *testing.T, s *suite) {
	sb := s.create(t)
	s.start(t, sb, &Sink{}, IgnoreTerm(), Sleep(long))
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			proof, err := s.p.Destroy(s.ctx(t), sb.Handle())
			if err != nil || !proof.Proven {
				t.Errorf("destroy: %v, proof %+v", err, proof)
			}
		})
	}
	all.Wait()
	require.False(t, s.listed(t, sb.Handle().Lease))
}

func leaseIDsAreUnique(t *testing.T, s *suite) {
	sb := s.create(t)
	spec := s.Spec
	spec.Lease = sb.Handle().Lease
	_, err := s.p.Create(s.ctx(t), spec)
	require.Error(t, err)
	end, out, _ := s.run(t, sb, s.process(Print("alive")))
	require.Equal(t, &sandbox.Exit{}, end.Exit, "the failed create did not hurt the first sandbox")
	require.Equal(t, "alive\n", out)
}

func manySandboxes(t *testing.T, s *suite) {
	var all sync.WaitGroup
	for i := range 6 {
		sb := s.create(t)
		all.Go(func() {
			for use := range 3 {
				text := fmt.Sprintf("sandbox %d use %d", i, use)
				sink := &Sink{}
				run, err := sb.Prepare(s.ctx(t), s.process(Print(text), Exit(i)), sink)
				if err == nil {
					err = run.Open(s.ctx(t))
				}
				if err != nil {
					t.Errorf("%s: %v", text, err)
					return
				}
				end, err := run.Wait(s.ctx(t))
				if err != nil || !end.Proof.Proven || end.Exit == nil || end.Exit.Code != i ||
					sink.String(sandbox.Stdout) != text+"\n" {
					t.Errorf("%s: %v, end %+v, output %q", text, err, end, sink.String(sandbox.Stdout))
					return
				}
				if !s.p.Capabilities().Reset {
					return
				}
				if err := sb.Reset(s.ctx(t)); err != nil {
					t.Errorf("%s: %v", text, err)
					return
				}
			}
		})
	}
	all.Wait()
}
