package hostile

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox"
)

// neighbours tests what a job does to the next one in its lease, and to those in
// other leases.
func (h *host) neighbours(t *testing.T) {
	if !h.compiled {
		t.Log("not tested, for want of a C compiler: neighbours")
		return
	}
	if h.groups {
		t.Run("memory of the next job", h.memoryOfTheNext)
	} else {
		t.Log("not tested, for want of control groups: memory of the next job")
	}
	t.Run("input beside many pipes", h.inputBesideManyPipes)
	t.Run("lease beside many filters", h.leaseBesideManyFilters)
	t.Run("lease beside many descriptors on their way", h.leaseBesideManyInFlight)
}

// memoryOfTheNext: a job that uses two thirds of its memory is not killed for what
// the one before has left behind.
func (h *host) memoryOfTheNext(t *testing.T) {
	l := h.lease(t)
	for _, name := range []string{
		"A7_memory_left", "10_shm_fill", "11_disk_fill", "84_many_inodes", "85_deep_directories", "86_deleted_open", "80_rights_cycle",
		"A5_pipe_hog", "A6_storm_at_exit", "44_hydra", "72_ipc_left", "88_links_locks", "B2_netlink_hog", "A4_own_filters", "B4_memory_in_rings",
		"C1_in_flight", "C3_attributes", "C4_names_not_there", "C7_watches",
	} {
		run(t, l.box, true, job{argv: []string{inside, name}, wall: time.Second})
		next := run(t, l.box, true, job{argv: []string{inside, "A8_memory_now"}, wall: patience})
		require.Equal(t, exited, next.outcome(), "after %s: exit %+v, peak %d", name, next.Exit, next.Usage.MemoryPeakBytes)
	}
	l.end(t)
}

// hold runs a program that stays, and waits until it has written something.
func (h *host) hold(t *testing.T, l *lease, name string) (end func()) {
	t.Helper()
	sink := &bounded{full: make(chan struct{})}
	r, err := l.box.Prepare(t.Context(), sandbox.Process{Argv: []string{inside, name, "stay"}, Limits: limits(h.groups)}, sink)
	require.NoError(t, err)
	require.NoError(t, r.Open(t.Context()))
	require.Eventually(t, func() bool {
		sink.mu.Lock()
		defer sink.mu.Unlock()
		return sink.stdout.Len() > 0
	}, patience, time.Millisecond)
	return func() {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		proof, err := r.Terminate(ctx, 0)
		require.NoError(t, err)
		require.True(t, proof.Proven)
		requireGone(t, l.box)
	}
}

// inputBesideManyPipes: the kernel makes pipes small for a user who has many, and an
// ordinary user's worker is the same user as its jobs.
func (h *host) inputBesideManyPipes(t *testing.T) {
	end := h.hold(t, h.lease(t), "A5_pipe_hog")
	defer end()
	l := h.lease(t)
	text := strings.Repeat("x", 60<<10)
	e := run(t, l.box, h.groups, job{argv: []string{"/bin/cat"}, stdin: strings.NewReader(text), wall: patience})
	require.Equal(t, exited, e.outcome())
	require.Equal(t, text, string(e.stdout))
	l.end(t)
}

// leaseBesideManyFilters: filters are compiled into memory of which all users have
// one amount.
func (h *host) leaseBesideManyFilters(t *testing.T) {
	end := h.hold(t, h.lease(t), "A4_own_filters")
	defer end()
	h.lease(t).end(t)
	if data, err := os.ReadFile("/proc/vmallocinfo"); err == nil {
		t.Logf("%d mappings for compiled filters", strings.Count(string(data), "bpf"))
	}
}

// leaseBesideManyInFlight: descriptors that are on their way through sockets are counted
// for the user, and the worker sends some with every job.
func (h *host) leaseBesideManyInFlight(t *testing.T) {
	end := h.hold(t, h.lease(t), "C1_in_flight")
	defer end()
	l := h.lease(t)
	e := run(t, l.box, h.groups, job{argv: []string{"/bin/true"}, wall: patience})
	require.Equal(t, exited, e.outcome())
	l.end(t)
}
