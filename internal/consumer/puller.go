package consumer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
)

// ackPrefix begins the reply subject of every stored message and of nothing
// else: a server refuses a client's publish with such a reply.
const ackPrefix = "$JS.ACK."

// The bounds of one pull request.
const (
	// maxBatch bounds one request; a worker with more free slots sends several.
	maxBatch = 256
	// firstRetry and lastRetry bound the wait before asking a consumer again that
	// has lost our requests or cannot be reached.
	firstRetry = 50 * time.Millisecond
	lastRetry  = 2 * time.Second
	// callTimeout bounds one request to the JetStream API by the puller.
	callTimeout = 2 * time.Second
	// overheardTimeout is how long the server may take to say that nobody listens;
	// settleTick is how often the end looks whether its requests have expired.
	overheardTimeout = 250 * time.Millisecond
	settleTick       = 10 * time.Millisecond
)

// pullQueue is one durable pull consumer.
type pullQueue struct {
	Queue    string
	Consumer string
	// Weight is the queue's share of the free slots, at least 1.
	Weight int
	// Limit is the most deliveries of this queue that are worked on at once.
	Limit int
}

// pullConfig is what a puller needs to know.
type pullConfig struct {
	// API is the JetStream API's prefix; empty means $JS.API.
	API    string
	Stream string
	Queues []pullQueue
	// Slots is the most deliveries that are worked on at once, all queues
	// together.
	Slots int
	// Expires is how long a request stays parked at the server, Heartbeat how
	// often the server says meanwhile that it is.
	Expires, Heartbeat time.Duration
	// Ready says whether there is anything to work with; while it returns an
	// error nothing is asked for. It is called often and must not block.
	Ready func() error
	// Verify looks at the consumer before the first request, and again after it
	// was deleted or could not be reached. It returns the most messages that one
	// request may ask for, 0 for no bound.
	Verify func(ctx context.Context, queue string) (batch int, err error)
	// Start works on one delivery. It runs in its own goroutine and holds a slot
	// until it returns.
	Start func(queue string, m *nats.Msg, md *nats.MsgMetadata)
}

// puller asks durable pull consumers for exactly as many messages as there are
// free slots.
//
// nats.go's own loops take a *stored* message with a Status header for the
// server's word and close for good, so this one stands on core NATS: one inbox,
// requests with a short expiry and a heartbeat, and one sum of what was asked and
// neither delivered nor given back (the credit) for each queue. A stored message
// is told by its reply subject, whatever its headers claim.
//
// Credit is exact for queues that have a backlog. A queue that is idle keeps one
// request parked beside them, so that its first message does not wait for a slot
// to be granted to it; the message that then finds no slot goes back at once.
type puller struct {
	nc     *nats.Conn
	log    zerolog.Logger
	cfg    pullConfig
	inbox  string
	byName map[string]*lane
	kick   chan struct{}
	jobs   sync.WaitGroup

	mu      sync.Mutex
	lanes   []*lane
	running int
	next    uint64 // number of the next request
	stopped bool
	paused  error   // why nothing is asked for
	clock   float64 // virtual time of the queues with a backlog
	stats   pullStats
}

// pullStats counts what a puller did.
type pullStats struct {
	Requests, Resets, Surplus, Strange uint64
	Running, Owed, MaxRunning          int
}

// lane is the state of one queue; the puller's mutex guards it.
type lane struct {
	pullQueue
	api     string
	running int
	owed    int
	// floor is the lowest request number whose answers still count.
	floor uint64
	// busy says that the queue had more when it delivered last.
	busy  bool
	vtime float64
	// heard is when the server last gave a sign of life for this queue.
	heard, delivered time.Time
	// suspect lanes are verified before they are asked again.
	suspect bool
	err     error
	retryAt time.Time
	retry   time.Duration
	batch   int
}

func newPuller(nc *nats.Conn, log zerolog.Logger, cfg pullConfig) *puller {
	p := &puller{nc: nc, log: log, cfg: cfg, inbox: nc.NewInbox(), byName: map[string]*lane{}, kick: make(chan struct{}, 1)}
	if cfg.API == "" {
		cfg.API = "$JS.API"
	}
	for _, q := range cfg.Queues {
		l := &lane{
			pullQueue: q, suspect: true, batch: maxBatch, err: errors.New("not asked yet"),
			api: cfg.API + ".CONSUMER.MSG.NEXT." + cfg.Stream + "." + q.Consumer,
		}
		p.lanes = append(p.lanes, l)
		p.byName[q.Consumer] = l
	}
	return p
}

// run pulls until ctx ends, then gives back what still arrives and returns. What
// was started goes on: wait waits for it.
func (p *puller) run(ctx context.Context) error {
	closed := make(chan struct{})
	sub, err := p.nc.Subscribe(p.inbox+".*.*", p.on)
	if err != nil {
		return fmt.Errorf("subscribe to the pull inbox: %w", err)
	}
	sub.SetClosedHandler(func(string) { close(closed) })
	status := p.nc.StatusChanged(nats.CONNECTED)
	defer p.nc.RemoveStatusListener(status)
	p.watch(ctx, status)
	p.mu.Lock()
	p.stopped = true
	p.mu.Unlock()
	ending := context.WithoutCancel(ctx)
	if p.overheard(ending) {
		p.settle(ending)
	}
	return p.drain(ending, sub, closed)
}

// wait returns when everything that was started has ended; run has returned.
func (p *puller) wait() { p.jobs.Wait() }

// watch keeps the requests alive until ctx ends.
func (p *puller) watch(ctx context.Context, status <-chan nats.Status) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-status:
			// Requests that were parked over the old connection may be gone.
			p.mu.Lock()
			for _, l := range p.lanes {
				p.void(l, nil)
			}
			p.mu.Unlock()
		case <-p.kick:
		case <-timer.C:
		}
		p.verify(ctx)
		p.missed(time.Now())
		p.fill()
		timer.Reset(p.pause(time.Now()))
	}
}

// overheard says whether somebody else listens where our messages arrive, like
// an operator's `nats sub '>'`. The server drops a request whose subject nobody
// listens on; else it goes on delivering to it, and without us that message is
// heard, not given back, and lies there for the ack wait. The subject of the
// question is one that our own subscription does not match.
func (p *puller) overheard(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, overheardTimeout)
	defer cancel()
	_, err := p.nc.RequestWithContext(ctx, p.inbox+".overheard", nil)
	return err == nil || errors.Is(err, context.DeadlineExceeded)
}

// settle waits until the requests that are parked have expired; what they bring
// until then is given back.
func (p *puller) settle(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Expires+p.cfg.Heartbeat)
	defer cancel()
	tick := time.NewTicker(settleTick)
	defer tick.Stop()
	for p.snapshot().Owed > 0 && p.nc.IsConnected() {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// drain unsubscribes so that what is on its way still arrives and is given back.
func (p *puller) drain(ctx context.Context, sub *nats.Subscription, closed <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := sub.Drain(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		return fmt.Errorf("drain the pull inbox: %w", err)
	}
	select {
	case <-closed:
	case <-ctx.Done():
		// The server cannot be reached; it returns what it sent us after the ack
		// wait. Ending the subscription ends the callbacks.
		if err := sub.Unsubscribe(); err != nil && !errors.Is(err, nats.ErrBadSubscription) && !errors.Is(err, nats.ErrConnectionClosed) {
			return fmt.Errorf("unsubscribe the pull inbox: %w", err)
		}
		<-closed
		return nil
	}
	if err := p.nc.FlushWithContext(ctx); err != nil {
		p.log.Warn().Err(err).Msg("messages that were given back may return late")
	}
	return nil
}

// on takes what arrives on the inbox; the client calls it from one goroutine.
func (p *puller) on(m *nats.Msg) {
	if strings.HasPrefix(m.Reply, ackPrefix) {
		p.deliver(m)
		return
	}
	p.answer(m)
}

// deliver takes a stored message: it starts it when a slot is free and gives it
// back at once when none is.
func (p *puller) deliver(m *nats.Msg) {
	md, err := m.Metadata()
	var l *lane
	if err == nil {
		l = p.byName[md.Consumer]
	}
	if l == nil || md.Stream != p.cfg.Stream {
		p.mu.Lock()
		p.stats.Strange++
		p.mu.Unlock()
		return
	}
	if !p.admit(l, md, time.Now()) {
		if err := m.Respond([]byte("-NAK")); err != nil {
			p.log.Debug().Err(err).Msg("surplus message not given back")
		}
		return
	}
	p.jobs.Go(func() {
		defer p.release(l)
		p.cfg.Start(l.Queue, m, md)
	})
	p.fill()
}

// admit books a delivery and takes a slot for it; false means that there is none.
func (p *puller) admit(l *lane, md *nats.MsgMetadata, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.heard, l.delivered, l.err, l.retry = now, now, nil, 0
	l.owed = max(0, l.owed-1)
	full := p.running >= p.cfg.Slots || l.running >= l.Limit
	if busy := md.NumPending > 0 || full; busy && !l.busy {
		// What a queue did not use while it was idle gives it no claim later.
		l.vtime = max(l.vtime, p.clock)
		l.busy = true
	} else {
		l.busy = busy
	}
	if full || p.stopped {
		p.stats.Surplus++
		return false
	}
	l.vtime += 1 / float64(l.Weight)
	l.running++
	p.running++
	p.stats.MaxRunning = max(p.stats.MaxRunning, p.running)
	return true
}

// release gives back the slot that admit took.
func (p *puller) release(l *lane) {
	p.mu.Lock()
	l.running--
	p.running--
	p.mu.Unlock()
	p.fill()
}

// answer takes a message of the server about one of our requests. Its subject is
// the request's.
func (p *puller) answer(m *nats.Msg) {
	l, number := p.request(m.Subject)
	if l == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if number < l.floor {
		return // that request's credit is void already
	}
	status := m.Header.Get("Status")
	if status == "100" {
		l.heard, l.err, l.retry = time.Now(), nil, 0
		return
	}
	if pending, err := strconv.Atoi(m.Header.Get("Nats-Pending-Messages")); err == nil && pending >= 0 {
		l.heard, l.err = time.Now(), nil
		l.owed = max(0, l.owed-pending)
		p.wake()
		return
	}
	if status == "" {
		p.stats.Strange++
		return
	}
	// 409 (leadership change, server shutdown, consumer deleted, a bound is
	// exceeded), 503 (nobody there), 400: nothing that we asked for will come.
	l.suspect = true
	p.void(l, fmt.Errorf("the server answered %s %s", status, m.Header.Get("Description")))
	p.wake()
}

// request reads the subject of an answer: <inbox>.<lane>.<number>.
func (p *puller) request(subject string) (*lane, uint64) {
	rest, found := strings.CutPrefix(subject, p.inbox+".")
	index, number, two := strings.Cut(rest, ".")
	i, err := strconv.Atoi(index)
	if !found || !two || err != nil || i < 0 || i >= len(p.lanes) {
		return nil, 0
	}
	n, err := strconv.ParseUint(number, 36, 64)
	if err != nil {
		return nil, 0
	}
	return p.lanes[i], n
}

// void forgets all credit of a lane and asks again after a pause, which grows
// while err says that it keeps failing. p.mu is held.
func (p *puller) void(l *lane, err error) {
	p.stats.Resets++
	l.owed, l.floor = 0, p.next
	if err == nil {
		l.retry = 0
		l.retryAt = time.Now()
		l.heard = l.retryAt
		return
	}
	l.err = err
	l.retry = min(max(2*l.retry, firstRetry), lastRetry)
	l.retryAt = time.Now().Add(jitter(l.retry))
}

// missed voids the credit of lanes whose parked requests went silent, and takes
// a lane that no longer delivers for idle.
func (p *puller) missed(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.lanes {
		if l.owed == 0 {
			continue
		}
		if now.Sub(l.heard) > 2*p.cfg.Heartbeat {
			p.void(l, errors.New("no heartbeat from the server"))
			continue
		}
		if now.Sub(l.delivered) > p.cfg.Heartbeat/4 {
			l.busy = false
		}
	}
}

// verify looks at the consumers that are suspect and due.
func (p *puller) verify(ctx context.Context) {
	for _, l := range p.lanes {
		p.mu.Lock()
		due := l.suspect && !time.Now().Before(l.retryAt)
		p.mu.Unlock()
		if !due {
			continue
		}
		call, cancel := context.WithTimeout(ctx, callTimeout)
		batch, err := p.cfg.Verify(call, l.Queue)
		cancel()
		p.mu.Lock()
		if err != nil {
			p.void(l, err)
		} else {
			l.suspect, l.batch = false, maxBatch
			if batch > 0 {
				l.batch = min(batch, maxBatch)
			}
		}
		p.mu.Unlock()
	}
}

// pause is how long the watch may sleep.
func (p *puller) pause(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := p.cfg.Heartbeat / 4
	for _, l := range p.lanes {
		if l.retryAt.After(now) {
			d = min(d, l.retryAt.Sub(now))
		}
	}
	return max(d, time.Millisecond)
}

func (p *puller) wake() {
	select {
	case p.kick <- struct{}{}:
	default: // one wake-up is pending already
	}
}

// fill asks for what is free. The requests are written without the lock.
func (p *puller) fill() {
	paused := p.cfg.Ready()
	p.mu.Lock()
	p.paused = paused
	var asks []ask
	if paused == nil && !p.stopped {
		asks = p.plan(time.Now())
	}
	p.mu.Unlock()
	for _, a := range asks {
		if err := p.nc.PublishRequest(a.lane.api, a.reply, a.body); err != nil {
			p.mu.Lock()
			p.void(a.lane, fmt.Errorf("ask for messages: %w", err))
			p.mu.Unlock()
		}
	}
}

// ask is one pull request.
type ask struct {
	lane  *lane
	reply string
	body  []byte
}

// plan books the requests that are to be sent now. p.mu is held.
func (p *puller) plan(now time.Time) []ask {
	free := p.cfg.Slots - p.running
	if free <= 0 {
		return nil
	}
	var asks []ask
	for i, want := range p.share(free, now) {
		l := p.lanes[i]
		missing := want - l.owed
		// While something is parked, a request per ended job would only cost:
		// it is topped up when half of it is used.
		if missing <= 0 || (l.owed > 0 && missing < want-want/2) {
			continue
		}
		if l.owed == 0 {
			l.heard = now
		}
		for missing > 0 {
			n := min(missing, l.batch)
			missing -= n
			l.owed += n
			asks = append(asks, p.newAsk(i, n))
		}
	}
	return asks
}

func (p *puller) newAsk(i, n int) ask {
	reply := p.inbox + "." + strconv.Itoa(i) + "." + strconv.FormatUint(p.next, 36)
	p.next++
	p.stats.Requests++
	// Workers that were started together must not ask together for ever.
	expires := p.cfg.Expires - rand.N(p.cfg.Expires/5+1)
	body := fmt.Appendf(nil, `{"batch":%d,"expires":%d,"idle_heartbeat":%d}`, n, expires, p.cfg.Heartbeat)
	return ask{lane: p.lanes[i], reply: reply, body: body}
}

// share says how much credit each lane should have, free slots being given. The
// lanes with a backlog split all of it by weight, counting what they were given
// before; idle ones have one beside it. When all are idle they split it.
func (p *puller) share(free int, now time.Time) []int {
	want := make([]int, len(p.lanes))
	var busy, idle []int
	for i, l := range p.lanes {
		switch {
		case l.suspect || now.Before(l.retryAt) || l.running >= l.Limit:
		case l.busy:
			busy = append(busy, i)
		default:
			idle = append(idle, i)
		}
	}
	if len(busy) == 0 {
		p.split(free, idle, want, func(l *lane, n int) float64 { return float64(n) / float64(l.Weight) })
	} else {
		p.clock = p.lanes[busy[0]].vtime
		for _, i := range busy {
			p.clock = min(p.clock, p.lanes[i].vtime)
		}
		p.split(free, busy, want, func(l *lane, n int) float64 { return l.vtime + float64(n)/float64(l.Weight) })
	}
	for _, i := range idle {
		want[i] = max(want[i], 1)
	}
	return want
}

// split gives free slots one by one to the lane whose turn it is: the one with
// the lowest key for what it would have. What is parked already comes first, as
// it cannot be taken back.
func (p *puller) split(free int, among, want []int, key func(l *lane, n int) float64) {
	for _, i := range among {
		l := p.lanes[i]
		want[i] = min(l.owed, l.Limit-l.running, free)
		free -= want[i]
	}
	for free > 0 {
		best := -1
		for _, i := range among {
			l := p.lanes[i]
			if want[i] >= l.Limit-l.running {
				continue
			}
			if best < 0 || key(l, want[i]) < key(p.lanes[best], want[best]) {
				best = i
			}
		}
		if best < 0 {
			return
		}
		want[best]++
		free--
	}
}

// ready says why nothing is pulled, or nil.
func (p *puller) ready() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return errors.New("stopped pulling")
	}
	if p.paused != nil {
		return p.paused
	}
	var errs []error
	for _, l := range p.lanes {
		if l.err != nil {
			errs = append(errs, fmt.Errorf("queue %s: %w", l.Queue, l.err))
		}
	}
	return errors.Join(errs...)
}

func (p *puller) snapshot() pullStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	s.Running = p.running
	for _, l := range p.lanes {
		s.Owed += l.owed
	}
	return s
}

// jitter is d less up to a quarter, so that many workers do not act together.
func jitter(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return d - rand.N(d/4+1)
}
