package simulation_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sallyport/sallyport/internal/run"
	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/wire"
)

// story is the cast of one simulation and what befalls it.
type story struct {
	*sim
	plans   []*workerPlan
	remote  bool
	local   bool
	all     sync.WaitGroup // everything that runs
	starts  int
	jobs    int
	reapers int // services

	cast sync.Mutex
	// running are the newest starts of each worker and reaper, by host.
	workers map[string]*worker
	reaping map[string]*reaping
	back    map[string]time.Time // when the dead ones come back
}

// simulate tells the story of a seed and returns what it reached.
func simulate(t *testing.T, seed uint64) map[string]int {
	t.Helper()
	s := &story{sim: newSim(t, seed), workers: map[string]*worker{}, reaping: map[string]*reaping{}, back: map[string]time.Time{}}
	s.find = s.worker
	s.design()
	s.begin()
	s.disturb()
	s.heal()
	s.endWorkers()
	s.finish()
	s.report()
	return s.counts
}

// design draws what the fleet is like.
func (s *story) design() {
	kind := s.pick("kind", 4)
	first, second := localName, localName
	switch kind {
	case 1, 3:
		first, second = remoteName, remoteName
	case 2:
		first, second = remoteName, localName
	}
	s.remote, s.local = kind != 0, kind == 0 || kind == 2
	s.reapers = s.pick("reapers", 3)
	if !s.remote {
		s.reapers = 0
	}
	for i := range 1 + s.pick("workers", 3) {
		plan := &workerPlan{name: fmt.Sprintf("w%d", i+1), slots: 1 + s.pick("slots", 3)}
		plan.capacity = plan.slots + s.pick("capacity", 3)
		plan.profiles = []profilePlan{
			{name: "default", provider: first, reuse: true, warm: s.pick("warm", 2)},
			{name: "once", provider: second},
		}
		s.plans = append(s.plans, plan)
	}
	s.tell("story", "%d workers, first %s, second %s, %d reaper services", len(s.plans), first, second, s.reapers)
}

func (s *story) begin() {
	for _, plan := range s.plans {
		s.startWorker(plan)
	}
	for i := range s.reapers {
		s.startReaper(fmt.Sprintf("r%d", i+1))
	}
}

func (s *story) startWorker(plan *workerPlan) {
	s.starts++
	p := newProcess(s.sim, fmt.Sprintf("%s.%d", plan.name, s.starts))
	s.tell(p.name, "starts")
	w := startWorker(p, plan, &s.all)
	s.cast.Lock()
	defer s.cast.Unlock()
	s.workers[plan.name] = w
}

func (s *story) startReaper(host string) {
	s.starts++
	p := newProcess(s.sim, fmt.Sprintf("%s.%d", host, s.starts))
	s.tell(p.name, "starts")
	s.reaping[host] = startReaper(p, []string{remoteName}, &s.all)
}

// worker is the one that runs as a process.
func (s *story) worker(p *process) *worker {
	s.cast.Lock()
	defer s.cast.Unlock()
	for _, w := range s.workers {
		if w.process == p {
			return w
		}
	}
	return nil
}

// disturb publishes jobs and lets things happen to everybody for some minutes.
func (s *story) disturb() {
	until := time.Now().Add(time.Minute + s.upTo("length", 2*time.Minute))
	jobs := 6 + s.pick("jobs", 14)
	s.all.Go(func() {
		for range jobs {
			time.Sleep(s.upTo("between jobs", 8*time.Second))
			s.publish()
		}
	})
	for time.Now().Before(until) {
		time.Sleep(time.Second + s.upTo("between events", 12*time.Second))
		s.comeBack(false)
		s.event()
	}
}

// publish makes a job up.
func (s *story) publish() {
	s.jobs++
	id := fmt.Sprintf("j%d", s.jobs)
	tenant := []string{"a", "b"}[s.pick("tenant", 2)]
	r := &wire.Request{V: wire.Version, Env: map[string]string{"JOB": id, "TENANT": tenant}, Argv: s.program()}
	if s.pick("long", 12) == 0 { // longer than a claim lives without a renewal
		r.Argv, r.Limits.WallMS = []string{"fake", "print:hello", "sleep:30s"}, new(int64(40_000))
	}
	if s.pick("profile", 3) == 0 {
		r.Profile = "once"
	}
	if s.pick("fresh", 8) == 0 {
		r.Lease.Reuse = wire.ReuseNever
	}
	if s.pick("retry", 3) == 0 {
		r.Retry.IfLost = true
		r.Retry.MaxAttempts = new(2 + s.pick("attempts", 2))
	}
	s.queue.publish(&job{Job: wire.Job{Tenant: tenant, Queue: "q", ID: id}, request: r})
}

// program is what a job runs: mostly something ordinary, else a story of its own.
func (s *story) program() []string {
	argv := []string{"fake", "print:hello", "sleep:" + s.upTo("run", 3*time.Second).String()}
	if s.pick("ordinary", 100) < 45 {
		return append(argv, "print:bye")
	}
	odd := [][]string{
		{"leftover"},
		{"leftover:500ms"},
		{"ignore-term", "forever"},
		{"forever"},
		{"write:512KiB"},
		{"oom"},
		{"exit:3"},
		{"open:ambiguous"},
		{"open:hang"},
		{"open:refuse"},
		{"prepare:refuse"},
		{"start:not_found"},
		{"wait:never"},
		{"terminate:unproven", "forever"},
		{"die"},
		{"die:unproven"},
		{"reset:fail"},
		{"reset:hang"},
		{"delay:reset:3s"},
		{"delay:wait:1s"},
		{"delay:open:2s"},
		{"destroy:fail*2"},
		{"destroy:unproven*3"},
		{"destroy:hang*2"},
		{"destroy:never"},
		{"delay:destroy:7s"},
		{"wait:never", "destroy:fail*3"},
		{"sleep:10s"},
		{"delay:terminate:3s", "forever"},
	}
	return append(argv, odd[s.pick("odd", len(odd))]...)
}

// event lets one thing happen.
func (s *story) event() {
	w := s.workers[s.plans[s.pick("whom", len(s.plans))].name]
	long := time.Second + s.upTo("how long", 70*time.Second)
	switch s.pick("event", 12) {
	case 0, 1:
		s.crash(w, long)
	case 2:
		s.ask(w, long)
	case 3:
		s.event1("freeze", w.name, long, w.freeze)
	case 4, 5:
		s.event1("cut off", w.name, long, w.cut)
	case 6:
		s.event1("broker outage", "broker", long/2, s.setOutage)
	case 7:
		s.event1("provider outage", "provider", long/3, s.world.Outage)
	case 8:
		s.disturbReaper(long)
	case 9:
		s.vanish()
	case 10:
		s.cancel()
	case 11:
		s.hold(long / 2)
	}
}

// event1 switches something on, and off after a while.
func (s *story) event1(what, who string, long time.Duration, turn func(on bool)) {
	s.count(what)
	s.tell(who, "%s for %s", what, long)
	turn(true)
	s.all.Go(func() {
		time.Sleep(long)
		turn(false)
	})
}

func (s *story) crash(w *worker, long time.Duration) {
	if !s.alive(w) {
		return
	}
	s.count("crash")
	s.tell(w.name, "crashes, comes back in %s", long)
	w.kill()
	s.back[w.plan.name] = time.Now().Add(long)
}

// ask asks a worker to end in an orderly way.
func (s *story) ask(w *worker, long time.Duration) {
	if !s.alive(w) {
		return
	}
	s.count("orderly stop")
	s.tell(w.name, "is asked to stop, comes back in %s", long)
	w.stop()
	s.back[w.plan.name] = time.Now().Add(long)
}

func (s *story) alive(w *worker) bool {
	select {
	case <-w.asked.Done():
		return false
	default:
		return true
	}
}

// comeBack starts what has ended and is due; now starts all.
func (s *story) comeBack(now bool) {
	for _, plan := range s.plans {
		at, gone := s.back[plan.name]
		if !gone || !now && time.Now().Before(at) {
			continue
		}
		<-s.workers[plan.name].ended // one start at a time, as a service manager has it
		delete(s.back, plan.name)
		s.startWorker(plan)
	}
	for _, host := range slices.Sorted(maps.Keys(s.reaping)) {
		if at, gone := s.back[host]; gone && (now || !time.Now().Before(at)) {
			<-s.reaping[host].ended
			delete(s.back, host)
			s.startReaper(host)
		}
	}
}

func (s *story) disturbReaper(long time.Duration) {
	if s.reapers == 0 {
		return
	}
	r := s.reaping[fmt.Sprintf("r%d", 1+s.pick("reaper", s.reapers))]
	host := hostOf(r.name)
	if _, gone := s.back[host]; gone {
		return
	}
	switch s.pick("reaper's fate", 3) {
	case 0:
		s.count("reaper crash")
		s.tell(r.name, "crashes, comes back in %s", long)
		r.kill()
		s.back[host] = time.Now().Add(long)
	case 1:
		s.event1("reaper freeze", r.name, long, r.freeze)
	case 2:
		s.event1("reaper cut off", r.name, long, r.cut)
	}
}

// vanish ends a sandbox from outside.
func (s *story) vanish() {
	live := s.world.Live()
	if len(live) == 0 {
		return
	}
	// Ids are not the seed's: the choice goes by the order of their making.
	slices.SortFunc(live, func(a, b string) int { return strings.Compare(s.truth.name(a), s.truth.name(b)) })
	id := live[s.pick("vanish", len(live))]
	if s.world.Vanish(id) {
		s.count("vanished")
		s.tell("world", "%s vanishes", s.truth.name(id))
	}
}

// cancel cancels a job that runs somewhere, as its publisher.
func (s *story) cancel() {
	for _, plan := range s.plans {
		if w := s.workers[plan.name]; w.answers() && s.cancelAt(w.consumer) {
			return
		}
	}
}

func (s *story) cancelAt(c *consumer) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(c.attempts)) {
		s.count("cancelled")
		s.tell("publisher", "cancels %s", id)
		c.attempts[id].cut(run.ErrCancelled)
		return true
	}
	return false
}

// hold lets an operator hold a quarantined lease for a while.
func (s *story) hold(long time.Duration) {
	for _, r := range s.books.list("exec.quarantine.") {
		rec, err := wire.DecodeQuarantine(r.data)
		if err != nil || rec.State != wire.InQuarantine {
			continue
		}
		rec.State = wire.OnHold
		seq, err := s.books.write(entry{r.subject, r.seq, mustEncode(s.sim, rec)})
		if err != nil {
			continue
		}
		s.count("held")
		s.tell("operator", "holds %s for %s", s.truth.name(rec.Lease), long)
		s.all.Go(func() {
			time.Sleep(long)
			rec.State = wire.InQuarantine
			if _, err := s.books.write(entry{r.subject, seq, mustEncode(s.sim, rec)}); err != nil {
				s.tell("operator", "%s is held no more: %v", s.truth.name(rec.Lease), err)
			}
		})
		return
	}
}

func mustEncode(s *sim, rec *wire.Quarantine) []byte {
	data, err := wire.EncodeQuarantine(rec)
	if err != nil {
		s.breach("%v", err)
	}
	return data
}

// The bounds of what follows the last fault, in virtual time.
const (
	settleJobs   = 10 * time.Minute
	settleLeases = 15 * time.Minute
	look         = 5 * time.Second
)

// heal ends all faults, brings everybody back, and waits until all is in order.
func (s *story) heal() {
	s.tell("story", "all faults end")
	s.setCalm()
	s.world.Outage(false)
	s.loseWorker()
	s.comeBack(true)
	s.cast.Lock()
	for _, w := range s.workers {
		w.freeze(false)
		w.cut(false)
	}
	s.cast.Unlock()
	for _, r := range s.reaping {
		r.freeze(false)
		r.cut(false)
	}
	time.Sleep(3 * time.Minute) // what is late comes, and events that are due end
	s.within(settleJobs, "jobs wait for ever", s.queue.open)
	s.within(settleLeases, "leases are never settled", s.unsettled)
}

// loseWorker is the end of a machine that never comes back: others have to end what
// it left. What ran on it alone went with it.
func (s *story) loseWorker() {
	if s.local || len(s.plans) < 2 || s.pick("lost", 2) == 0 {
		return
	}
	w := s.workers[s.plans[0].name]
	s.count("never comes back")
	s.tell(w.name, "is lost for good")
	w.kill()
	delete(s.back, w.plan.name)
}

// cure lets everything be destroyed that did not let itself be.
func (s *story) cure() {
	for _, id := range s.world.Live() {
		if _, err := s.world.Knob(id, "destroy:ok"); err != nil {
			s.breach("cure: %v", err)
		}
	}
}

// within waits until list is empty, at most for bound.
func (s *story) within(bound time.Duration, what string, list func() []string) {
	until := time.Now().Add(bound)
	for {
		s.cure()
		left := list()
		if len(left) == 0 {
			return
		}
		if time.Now().After(until) {
			s.breach("%s: %s", what, strings.Join(left, "; "))
			return
		}
		time.Sleep(look)
	}
}

// unsettled is what is neither gone nor idle in the pool of a worker that lives.
func (s *story) unsettled() []string {
	idle := map[string]bool{}
	s.cast.Lock()
	for _, w := range s.workers {
		for _, info := range w.pool.Leases() {
			if !w.isDead() && info.State == sandbox.LeaseIdle {
				idle[info.ID] = true
			}
		}
	}
	s.cast.Unlock()
	return s.truth.leftovers(func(id string) bool { return idle[id] })
}

// endWorkers asks all workers to end; nothing may be left.
func (s *story) endWorkers() {
	for _, w := range s.workers {
		w.stop()
	}
	for _, w := range s.workers {
		<-w.ended
		if w.left != nil && !w.isDead() {
			s.breach("the pool of %s ended with: %v", w.name, w.left)
		}
	}
	s.within(time.Minute, "left at the end", func() []string { return s.truth.leftovers(nil) })
	for _, id := range slices.Sorted(maps.Keys(s.queue.jobs)) {
		if j := s.queue.jobs[id]; len(j.finals) != 1 {
			s.breach("%s has %d final decisions", id, len(j.finals))
		}
	}
	leases, again := s.truth.used()
	s.counts["leases used"] += leases
	s.counts["leases used again"] += again
	s.counts["sandboxes"] += s.world.Created()
	s.counts["jobs"] += s.jobs
}

// finish ends everything that still runs.
func (s *story) finish() {
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
	for _, r := range s.reaping {
		r.end()
	}
	s.all.Wait()
}
