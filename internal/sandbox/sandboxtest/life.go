package sandboxtest

import (
	"crypto/rand"
	"fmt"
	"sync"

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

func saysWhatItIs(s *suite) {
	caps := s.p.Capabilities()
	require.NotEmpty(s, s.p.Name())
	require.NotEmpty(s, caps.Host)
	require.Contains(s, []string{"kernel", "provider"}, caps.Scope)
	require.NotEmpty(s, caps.Isolation.Level)
	for field, enforced := range map[string]bool{
		"cpu_ms": caps.Enforces.CPU, "memory_bytes": caps.Enforces.Memory, "pids": caps.Enforces.Pids,
		"disk_bytes": caps.Enforces.Disk, "inodes": caps.Enforces.Inodes, "open_files": caps.Enforces.OpenFiles,
		"cpu_share": caps.Enforces.CPUShare,
	} {
		if enforced {
			require.NotContains(s, caps.Unenforced, field)
		} else {
			require.NotEmpty(s, caps.Unenforced[field], "the reason why %s is not enforced", field)
		}
	}
	require.Equal(s, caps, s.p.Capabilities(), "capabilities are constant")
}

func createListDestroy(s *suite) {
	spec := s.spec()
	require.False(s, s.listed(spec.Lease))
	sb, err := s.p.Create(s.ctx(), spec)
	require.NoError(s, err)
	h := sb.Handle()
	require.Equal(s, s.p.Name(), h.Provider)
	require.Equal(s, spec.Lease, h.Lease)
	require.Equal(s, s.p.Capabilities().Host, h.Host)
	require.NotEmpty(s, sb.Isolation().Level)
	require.True(s, s.listed(spec.Lease))

	proof, err := sb.Destroy(s.ctx())
	require.NoError(s, err)
	requireProven(s, proof)
	require.False(s, s.listed(spec.Lease))

	for _, again := range []sandbox.Handle{h, {Provider: h.Provider, Host: h.Host, Lease: h.Lease}} {
		proof, err = s.p.Destroy(s.ctx(), again)
		require.NoError(s, err)
		requireProven(s, proof)
	}
	proof, err = sb.Destroy(s.ctx())
	require.NoError(s, err)
	requireProven(s, proof)

	_, err = sb.Prepare(s.ctx(), s.process(), &Sink{})
	require.Error(s, err, "a destroyed sandbox takes a process")
	require.Error(s, sb.Reset(s.ctx()), "a destroyed sandbox can be reset")
	select {
	case <-sb.Lost():
		require.Fail(s, "a sandbox that its owner destroyed is called lost")
	default:
	}
}

func destroyUnknown(s *suite) {
	h := sandbox.Handle{Provider: s.p.Name(), Host: s.p.Capabilities().Host, Lease: rand.Text()}
	proof, err := s.p.Destroy(s.ctx(), h)
	require.NoError(s, err)
	requireProven(s, proof)
}

// A sandbox elsewhere is not gone because it is not here.
func destroyForeign(s *suite) {
	host := s.p.Capabilities().Host
	for _, h := range []sandbox.Handle{
		{Provider: s.p.Name(), Host: host + "-other", Lease: rand.Text()},
		{Provider: s.p.Name() + "-other", Host: host, Lease: rand.Text()},
		{Provider: s.p.Name(), Host: host},
		{},
	} {
		proof, err := s.p.Destroy(s.ctx(), h)
		require.Error(s, err, "%+v", h)
		require.False(s, proof.Proven, "%+v", h)
	}
}

func destroyEndsTheRun(s *suite) {
	sb := s.create()
	sink := &Sink{}
	run := s.start(sb, sink, IgnoreTerm(), Print("running"), Sleep(long))
	require.Eventually(s, func() bool { return sink.String(sandbox.Stdout) == "running\n" }, patience, tick)
	proof, err := sb.Destroy(s.ctx())
	require.NoError(s, err)
	requireProven(s, proof)
	end, err := run.Wait(s.ctx())
	require.NoError(s, err)
	requireProven(s, end.Proof)
	require.Equal(s, sandbox.StartedYes, end.Started)
	proof, err = run.Terminate(s.ctx(), 0)
	require.NoError(s, err)
	requireProven(s, proof)
}

func destroyBehindClosedGate(s *suite) {
	sb := s.create()
	sink := &Sink{}
	run, err := sb.Prepare(s.ctx(), s.process(Print("never")), sink)
	require.NoError(s, err)
	proof, err := sb.Destroy(s.ctx())
	require.NoError(s, err)
	requireProven(s, proof)
	require.Error(s, run.Open(s.ctx()))
	end, err := run.Wait(s.ctx())
	require.NoError(s, err)
	requireProven(s, end.Proof)
	require.Equal(s, sandbox.StartedNo, end.Started)
	require.Empty(s, sink.String(sandbox.Stdout))
}

func destroyByMany(s *suite) {
	sb := s.create()
	s.start(sb, &Sink{}, IgnoreTerm(), Sleep(long))
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			proof, err := s.p.Destroy(s.ctx(), sb.Handle())
			if err != nil || !proof.Proven {
				s.Errorf("destroy: %v, proof %+v", err, proof)
			}
		})
	}
	all.Wait()
	require.False(s, s.listed(sb.Handle().Lease))
}

func leaseIDsAreUnique(s *suite) {
	sb := s.create()
	spec := s.Spec
	spec.Lease = sb.Handle().Lease
	_, err := s.p.Create(s.ctx(), spec)
	require.Error(s, err)
	end, out, _ := s.run(sb, s.process(Print("alive")))
	require.Equal(s, &sandbox.Exit{}, end.Exit, "the failed create did not hurt the first sandbox")
	require.Equal(s, "alive\n", out)
}

func manySandboxes(s *suite) {
	var all sync.WaitGroup
	for i := range 6 {
		sb := s.create()
		all.Go(func() {
			for use := range 3 {
				text := fmt.Sprintf("sandbox %d use %d", i, use)
				sink := &Sink{}
				run, err := sb.Prepare(s.ctx(), s.process(Print(text), Exit(i)), sink)
				if err == nil {
					err = run.Open(s.ctx())
				}
				if err != nil {
					s.Errorf("%s: %v", text, err)
					return
				}
				end, err := run.Wait(s.ctx())
				if err != nil || !end.Proof.Proven || end.Exit == nil || end.Exit.Code != i ||
					sink.String(sandbox.Stdout) != text+"\n" {
					s.Errorf("%s: %v, end %+v, output %q", text, err, end, sink.String(sandbox.Stdout))
					return
				}
				if !s.p.Capabilities().Reset {
					return
				}
				if err := sb.Reset(s.ctx()); err != nil {
					s.Errorf("%s: %v", text, err)
					return
				}
			}
		})
	}
	all.Wait()
}
