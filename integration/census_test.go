package integration

import (
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/wire"
)

// census counts, beside the jobs' own readers, what every job of a stack ever
// published to any inbox.
type census struct {
	s  *stack
	nc *nats.Conn

	mu      sync.Mutex
	started map[string]map[int]int // job key → attempt → started events
	finals  map[string]map[string]int
	ends    map[string]int
	marks   map[string]bool // our own messages behind what was to be counted
}

// census begins to count, and gives the stack a connection whose inboxes can be
// told from those of the services: whoever listens on _INBOX.> also hears the
// pull requests' subjects, and the server goes on delivering to the requests of a
// worker that has gone while anybody hears them. It must come before the jobs.
func (s *stack) census() *census {
	s.t.Helper()
	const inboxes = "reply.default"
	own, err := nats.Connect(s.url, nats.MaxReconnects(-1), nats.CustomInboxPrefix(inboxes))
	require.NoError(s.t, err)
	s.t.Cleanup(own.Close)
	s.nc = own
	nc, err := nats.Connect(s.url, nats.MaxReconnects(-1), nats.CustomInboxPrefix(inboxes))
	require.NoError(s.t, err)
	s.t.Cleanup(nc.Close)
	c := &census{
		s: s, nc: nc, started: map[string]map[int]int{}, finals: map[string]map[string]int{}, ends: map[string]int{},
		marks: map[string]bool{},
	}
	sub, err := nc.Subscribe(inboxes+".>", c.count)
	require.NoError(s.t, err)
	require.NoError(s.t, sub.SetPendingLimits(-1, -1))
	require.NoError(s.t, nc.Flush())
	return c
}

func (c *census) count(m *nats.Msg) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ev, err := wire.ParseEvent(m.Header, m.Data)
	if err != nil { // not an event
		if len(m.Header) == 0 && len(m.Data) == 0 {
			c.marks[m.Subject] = true
		}
		return
	}
	switch ev.Type {
	case wire.EventStarted:
		if c.started[ev.Job] == nil {
			c.started[ev.Job] = map[int]int{}
		}
		c.started[ev.Job][ev.Attempt]++
	case wire.EventResult:
		if c.finals[ev.Job] == nil {
			c.finals[ev.Job] = map[string]int{}
		}
		c.finals[ev.Job][string(ev.Data)]++
	case wire.EventEnd:
		c.ends[ev.Job]++
	case wire.EventAccepted, wire.EventStdout, wire.EventStderr:
	}
}

// atMostOnce asserts that a job had exactly one decision, and that no attempt but the
// first ever began, nor that one twice.
func (c *census) atMostOnce(id string) {
	c.s.t.Helper()
	c.catchUp()
	c.mu.Lock()
	defer c.mu.Unlock()
	key := "default." + id
	require.Len(c.s.t, c.finals[key], 1, "decisions about %s", id)
	for attempt, times := range c.started[key] {
		require.Equal(c.s.t, [2]int{1, 1}, [2]int{attempt, times}, "attempt of %s, and its starts", id)
	}
}

// once asserts that a job had exactly one decision and began once in each of the
// attempts 1 to n, as far as anything was published until now.
func (c *census) once(id string, n int) {
	c.s.t.Helper()
	c.catchUp()
	c.mu.Lock()
	defer c.mu.Unlock()
	key := "default." + id
	require.Len(c.s.t, c.finals[key], 1, "decisions about %s", id)
	require.Len(c.s.t, c.started[key], n, "attempts of %s", id)
	for attempt, times := range c.started[key] {
		require.Equal(c.s.t, 1, times, "%s, attempt %d", id, attempt)
	}
}

// catchUp waits until all that was published before it is counted.
func (c *census) catchUp() {
	c.s.t.Helper()
	mark := c.nc.NewInbox()
	require.NoError(c.s.t, c.nc.Publish(mark, nil))
	require.Eventually(c.s.t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.marks[mark]
	}, patience, time.Millisecond, "the census is behind")
}
