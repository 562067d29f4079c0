package simulation_test

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sallyport/sallyport/internal/sandbox/fake"
)

// sim is one story: its dice, what happened, and which rules were broken.
type sim struct {
	t     *testing.T
	seed  uint64
	began time.Time
	world *fake.World
	books *books
	queue *queue
	truth *truth
	// find is the worker that runs as a process, nil when it has been replaced.
	find func(p *process) *worker

	mu sync.Mutex
	// dice are one sequence for each purpose, so that what one actor draws changes
	// little for the others.
	dice map[string]*rand.Rand
	// trouble is the chance of each kind of fault in this story.
	trouble map[string]float64
	counts  map[string]int
	lines   []line
	broken  []string
	calm    bool // no more faults
	outage  bool // the broker is away
	over    bool // the story is at its end: the processes that still run are torn down
}

// line is one thing that happened. It is put into words only if somebody asks.
type line struct {
	at     time.Duration
	who    string
	format string
	args   []any
}

// maxLines bounds a story; what comes later is left out.
const maxLines = 50_000

// shown is how much of a story is printed: its end, where the failure stands.
const shown = 600

func newSim(t *testing.T, seed uint64) *sim {
	t.Helper()
	s := &sim{
		t: t, seed: seed, began: time.Now(), world: fake.NewWorld(),
		dice: map[string]*rand.Rand{}, trouble: map[string]float64{}, counts: map[string]int{},
	}
	s.books = newBooks(t)
	s.truth = newTruth(s)
	s.books.onWrite = s.truth.wrote
	s.queue = newQueue(s)
	for _, kind := range faultKinds() {
		s.trouble[kind] = []float64{0, 0.02, 0.06, 0.2}[s.pick("trouble "+kind, 4)]
	}
	return s
}

// tell notes what happened.
func (s *sim) tell(who, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.lines) < maxLines {
		s.lines = append(s.lines, line{time.Since(s.began), who, format, args})
	}
}

// breach notes a broken rule.
func (s *sim) breach(format string, args ...any) {
	what := fmt.Sprintf(format, args...)
	s.tell("CHECK", "%s", what)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken = append(s.broken, what)
}

// count counts something that the simulation has to reach.
func (s *sim) count(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[what]++
}

// die is the sequence for a purpose; s.mu is held.
func (s *sim) die(purpose string) *rand.Rand {
	d := s.dice[purpose]
	if d == nil {
		h := fnv.New64a()
		_, _ = h.Write([]byte(purpose))
		d = rand.New(rand.NewPCG(s.seed, h.Sum64()))
		s.dice[purpose] = d
	}
	return d
}

// chance says whether a fault of a kind happens to who now, and counts it.
func (s *sim) chance(kind, who string) bool {
	s.mu.Lock()
	p, known := s.trouble[kind]
	hit := !s.calm && s.die(kind+" "+who).Float64() < p
	if hit {
		s.counts[kind]++
	}
	s.mu.Unlock()
	if !known {
		panic("no such fault: " + kind)
	}
	if hit {
		s.tell(who, "fault: %s", kind)
	}
	return hit
}

// pick is a number below n.
func (s *sim) pick(purpose string, n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.die(purpose).IntN(n)
}

// upTo is a duration below most.
func (s *sim) upTo(purpose string, most time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Duration(s.die(purpose).Int64N(int64(most)))
}

func (s *sim) setCalm() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calm, s.outage = true, false
}

func (s *sim) setOutage(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.outage = on
}

func (s *sim) isOver() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

func (s *sim) workerOf(p *process) *worker { return s.find(p) }

// sweepHost ends what a worker leaves on its host, as the kernel and the worker's
// next start do; what is in quarantine is left to the reaper. A worker that ended in
// peace leaves nothing else.
func (s *sim) sweepHost(host string, peace bool) {
	for _, id := range s.world.Live() {
		mine := false
		s.truth.of(id, func(l *lease) { mine = !l.outlives && l.owner != nil && hostOf(l.owner.name) == host })
		if !mine || s.books.quarantined(s.books.subjects.Quarantine(localName, host, id)) {
			continue
		}
		if peace {
			s.breach("the pool of %s ended in peace, %s is there and nobody knows", host, s.truth.name(id))
		}
		s.world.Vanish(id)
	}
}

func (s *sim) down() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.outage
}

// report fails the test with the story if a rule was broken.
func (s *sim) report() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.broken) == 0 {
		return
	}
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d broke %d rules:\n", s.seed, len(s.broken))
	for _, what := range s.broken[:min(len(s.broken), 20)] {
		fmt.Fprintf(&b, "  - %s\n", what)
	}
	fmt.Fprintf(&b, "the story (its last %d of %d lines):\n", min(len(s.lines), shown), len(s.lines))
	for _, l := range s.lines[max(0, len(s.lines)-shown):] {
		fmt.Fprintf(&b, "  %10s  %-10s %s\n", l.at.Round(time.Millisecond), l.who, fmt.Sprintf(l.format, l.args...))
	}
	kinds := slices.Sorted(maps.Keys(s.trouble))
	b.WriteString("trouble:")
	for _, kind := range kinds {
		fmt.Fprintf(&b, " %q=%v", kind, s.trouble[kind])
	}
	fmt.Fprintf(&b, "\ntell it again: go test ./internal/simulation -run 'TestSimulation$' -seed=%d -count=20\n", s.seed)
	s.t.Error(b.String())
}

// pause waits for d of virtual time, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// faultKinds are the faults of single calls. Crashes and the like are events of
// the story (story_test.go).
func faultKinds() []string {
	return []string{
		faultRefuse, faultHang, faultHangDone, faultAnswer, faultSlow,
		createRefused, createAmbiguous, createMade, createLate, createHang, createDeaf,
		prepareFails, prepareHangs, resetFails, resetHangs, destroyFails, destroyDone, destroyUnproven, destroyHangs, destroyLies,
		inventoryFails, inventoryMisses, outputFails, outputHangs,
	}
}

const (
	faultRefuse   = "broker refuses"
	faultHang     = "broker does not answer, nothing done"
	faultHangDone = "broker does not answer, done"
	faultAnswer   = "broker's answer is lost"
	faultSlow     = "broker is slow"

	createRefused   = "create refused"
	createAmbiguous = "create ambiguous, nothing made"
	createMade      = "create ambiguous, made"
	createLate      = "create ambiguous, made late"
	createHang      = "create hangs, made"
	createDeaf      = "create ignores its end"

	prepareFails    = "prepare fails"
	prepareHangs    = "prepare hangs"
	resetFails      = "reset fails"
	resetHangs      = "reset hangs"
	destroyFails    = "destroy fails"
	destroyDone     = "destroy fails, done"
	destroyUnproven = "destroy without proof"
	destroyHangs    = "destroy hangs"
	destroyLies     = "destroy lies"
	inventoryFails  = "inventory fails"
	inventoryMisses = "inventory misses something"
	outputFails     = "output fails"
	outputHangs     = "output hangs"
)
