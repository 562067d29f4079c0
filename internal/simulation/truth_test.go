package simulation_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sallyport/sallyport/internal/run"
	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/wire"
)

// truth is what is so, whatever the books and the processes think.
type truth struct {
	s *sim

	mu     sync.Mutex
	leases map[string]*lease
	runs   map[string]*boxRun // the newest of each job
	epochs map[string]string  // the newest of each worker
	// unfinished are the records and entries that do not say destroyed, by subject.
	unfinished map[string]unfinished
}

type unfinished struct{ lease, state string }

// lease is one sandbox, from the intent on.
type lease struct {
	id, name string
	owner    *process
	capacity int
	outlives bool
	// made says that it has come into being; late, that it did so after its maker
	// was told something else; lied, that somebody was told that it is gone.
	made, late, lied bool
	// run is the run that has it, nil when nobody has.
	run    *boxRun
	tenant string
	uses   int
	// epoch is the one in which its entry was written.
	epoch string
	// entered counts the uses that the ledger has.
	entered int
	// doubt says why it may not be used any more.
	doubt string
	dirty bool
}

func newTruth(s *sim) *truth {
	return &truth{s: s, leases: map[string]*lease{}, runs: map[string]*boxRun{}, epochs: map[string]string{}, unfinished: map[string]unfinished{}}
}

// of runs a change on a lease's truth.
func (w *truth) of(id string, change func(l *lease)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(w.lease(id))
}

func (w *truth) lease(id string) *lease {
	l := w.leases[id]
	if l == nil {
		l = &lease{id: id, name: fmt.Sprintf("L%d", len(w.leases)+1)}
		w.leases[id] = l
	}
	return l
}

// name is short for a lease.
func (w *truth) name(id string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lease(id).name
}

// exists says whether the sandbox is in the world.
func (w *truth) exists(id string) bool { return slices.Contains(w.s.world.Live(), id) }

// intended checks, before a create, that the ledger knows of it.
func (w *truth) intended(p *process, provider, id string) {
	r, err := w.s.books.read(w.s.books.subjects.Lease(provider, id))
	if err != nil {
		w.s.breach("%s makes %s, of which the ledger knows nothing: %v", p.name, w.name(id), err)
		return
	}
	rec, err := wire.DecodeLease(r.data)
	if err != nil || rec.State != wire.LeaseIntent && rec.State != wire.LeaseQuarantined {
		w.s.breach("%s makes %s, whose entry is %v (%v)", p.name, w.name(id), rec, err)
	}
}

// came notes that a sandbox exists, and that its worker has not too many.
func (w *truth) came(id string, late bool) {
	w.of(id, func(l *lease) { l.made, l.late = true, l.late || late })
	live := w.s.world.Live()
	w.mu.Lock()
	defer w.mu.Unlock()
	owner, n := w.lease(id).owner, 0
	for _, other := range live {
		if l := w.lease(other); l.owner == owner && !l.late && !l.lied {
			n++
		}
	}
	if capacity := w.lease(id).capacity; n > capacity {
		w.s.breach("%s has %d sandboxes with a capacity of %d", owner.name, n, capacity)
	}
}

// prepared checks that a lease may be used, and gives it to a run.
func (w *truth) prepared(b *box, r *boxRun) {
	w.of(b.id, func(l *lease) {
		l.uses++
		job := r.job
		switch {
		case l.run != nil:
			w.s.breach("%s is prepared for %s while %s has it", l.name, job, l.run.job)
		case l.doubt != "":
			w.s.breach("%s is prepared for %s although %s", l.name, job, l.doubt)
		case l.dirty:
			w.s.breach("%s is prepared for %s and was not reset", l.name, job)
		case l.tenant != "" && l.tenant != r.tenant:
			w.s.breach("%s of tenant %s is prepared for %s of tenant %s", l.name, l.tenant, job, r.tenant)
		case l.outlives && l.entered < l.uses:
			w.s.breach("%s is prepared for its use %d, the ledger has %d", l.name, l.uses, l.entered)
		}
		l.run, l.tenant, l.dirty = r, r.tenant, true
		w.runs[r.job] = r
	})
}

// doubted notes why a lease may not be used any more.
func (w *truth) doubted(id, why string) {
	w.of(id, func(l *lease) {
		if l.doubt == "" {
			l.doubt = why
		}
	})
}

// wrote sees every record that is written to the books.
func (w *truth) wrote(subject string, old, now []byte) {
	switch {
	case strings.Contains(subject, ".quarantine."):
		rec, err := wire.DecodeQuarantine(now)
		if err != nil {
			w.s.breach("a record that cannot be read: %v", err)
			return
		}
		w.note(subject, rec.Lease, string(rec.State), rec.Worker, rec.State == wire.Gone)
		w.wroteRecord(rec)
	case strings.Contains(subject, "._worker."):
		if rec, err := wire.DecodeEpoch(now); err == nil {
			w.mu.Lock()
			w.epochs[rec.Worker] = rec.Epoch
			w.mu.Unlock()
		}
	default:
		rec, err := wire.DecodeLease(now)
		if err != nil {
			w.s.breach("an entry that cannot be read: %v", err)
			return
		}
		w.note(subject, rec.Lease, string(rec.State), rec.Worker, rec.State == wire.LeaseDestroyed)
		if was, err := wire.DecodeLease(old); len(old) > 0 && (err != nil || decided(was.State) && !decided(rec.State)) {
			w.s.breach("the entry of %s becomes %s and was %s (%v)", w.name(rec.Lease), rec.State, was.State, err)
		}
		w.wroteEntry(rec)
	}
}

// decided says that a lease may not be used any more, whatever its worker thinks.
func decided(s wire.LeaseRecordState) bool {
	return s == wire.LeaseQuarantined || s == wire.LeaseDestroyed
}

func (w *truth) wroteRecord(rec *wire.Quarantine) {
	w.s.tell("books", "record of %s: %s (%s)", w.name(rec.Lease), rec.State, rec.Reason)
	if rec.State != wire.Gone {
		w.s.count("quarantined: " + string(rec.Reason))
		w.orphaned(rec)
		w.called(rec)
		w.doubted(rec.Lease, "it is in quarantine")
		return
	}
	w.ended("record", rec.Lease, rec.Evidence, rec.DestroyedAt)
}

func (w *truth) wroteEntry(rec *wire.LeaseRecord) {
	w.s.tell("books", "entry of %s: %s, epoch %s of %s", w.name(rec.Lease), rec.State, rec.Epoch, rec.Worker)
	switch rec.State {
	case wire.LeaseIntent:
		w.of(rec.Lease, func(l *lease) { l.epoch = rec.Epoch })
	case wire.LeaseReady:
	case wire.LeaseInUse:
		w.of(rec.Lease, func(l *lease) { l.entered = max(l.entered, rec.Uses) })
	case wire.LeaseQuarantined:
		w.doubted(rec.Lease, "its entry says quarantined")
	case wire.LeaseDestroyed:
		w.ended("entry", rec.Lease, rec.Evidence, rec.DestroyedAt)
	}
}

// orphaned checks that nobody takes a lease for ownerless whose worker lives, was
// not asked to end, and holds its epoch.
func (w *truth) orphaned(rec *wire.Quarantine) {
	w.mu.Lock()
	l, epoch := w.lease(rec.Lease), w.epochs[rec.Worker]
	w.mu.Unlock()
	if rec.Reason != wire.QuarantineOwnerGone || !l.outlives || l.owner == nil || l.owner.isDead() {
		return
	}
	owner := w.s.workerOf(l.owner)
	if owner != nil && owner.asked.Err() == nil && owner.keeper.Ready() == nil && l.epoch == epoch {
		w.s.breach("%s is taken for ownerless, %s lives and holds its epoch: %s", l.name, l.owner.name, rec.Message)
	}
}

// called checks that nothing is called back that did not come back, and that the
// ledger knew of everything.
func (w *truth) called(rec *wire.Quarantine) {
	w.of(rec.Lease, func(l *lease) {
		switch {
		case rec.Reason == wire.QuarantineUnowned:
			w.s.breach("%s is called unowned, its intent was durable", l.name)
		case rec.Reason == wire.QuarantineReappeared && !l.lied:
			w.s.breach("%s is said to be back, and it was gone for good", l.name)
		}
	})
}

// ended checks a word that a sandbox is gone.
func (w *truth) ended(what, id string, evidence []wire.Evidence, at *time.Time) {
	exists := w.exists(id)
	w.of(id, func(l *lease) {
		if len(evidence) == 0 || at == nil {
			w.s.breach("the %s of %s says destroyed without evidence", what, l.name)
		}
		if exists && !l.lied {
			w.s.breach("the %s of %s says destroyed, and it is there", what, l.name)
		}
		if l.doubt == "" {
			l.doubt = "the books say that it is gone"
		}
	})
}

// leftovers are the sandboxes that exist and the records that are not finished,
// but for those of leases that are excepted.
func (w *truth) leftovers(except func(id string) bool) []string {
	var left []string
	for _, id := range w.s.world.Live() {
		if except == nil || !except(id) {
			w.of(id, func(l *lease) { left = append(left, l.name+" is there") })
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, subject := range slices.Sorted(maps.Keys(w.unfinished)) {
		if u := w.unfinished[subject]; except == nil || !except(u.lease) {
			left = append(left, fmt.Sprintf("%s of %s is %s", subject[:strings.LastIndex(subject, ".")], w.lease(u.lease).name, u.state))
		}
	}
	return left
}

// note keeps what is unfinished.
func (w *truth) note(subject, lease, state, worker string, done bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.unfinished, subject)
	if !done {
		w.unfinished[subject] = unfinished{lease, state + " by " + worker}
	}
}

// judged compares what an executor says about an attempt with what is so.
func (w *truth) judged(a *attempt, outcome run.Outcome) {
	w.mu.Lock()
	r := w.runs[a.j.ID]
	w.mu.Unlock()
	if r == nil || r.b.v.p != a.c.p || r.b.id != a.lease {
		return
	}
	r.mu.Lock()
	opened, proven := r.started, r.proven
	r.mu.Unlock()
	result := outcome.Result
	switch {
	case outcome.Abandoned && opened:
		w.s.breach("%s was abandoned and may have started", a.j.ID)
	case outcome.Abandoned:
	case result.StartState == wire.StartNo && opened:
		w.s.breach("the result of %s says not_started, its gate was opened", a.j.ID)
	case result.StartState == wire.StartYes && !opened:
		w.s.breach("the result of %s says started, its gate was not opened", a.j.ID)
	}
	if c := result.Containment; !outcome.Abandoned && c != nil {
		if c.Verdict == wire.Proven && !proven {
			w.s.breach("the result of %s says proven, nobody has proven it", a.j.ID)
		}
		if c.Verdict == wire.Unproven && (result.Lease == nil || result.Lease.Disposition != wire.Quarantined || outcome.Settled == nil) {
			w.s.breach("%s ended unproven, its lease is %+v", a.j.ID, result.Lease)
		}
	}
}

// settled checks, when a job is acknowledged whose lease is in doubt, that the
// doubt is durable.
func (w *truth) settled(job string, use *wire.LeaseUse) {
	w.mu.Lock()
	host := hostOf(w.lease(use.ID).owner.name)
	outlives := w.lease(use.ID).outlives
	w.mu.Unlock()
	if outlives {
		host = account
	}
	_, err := w.s.books.read(w.s.books.subjects.Quarantine(use.Provider, host, use.ID))
	if err != nil && w.exists(use.ID) {
		w.s.breach("%s is acknowledged, its lease %s is in doubt and there is no record of that", job, w.name(use.ID))
	}
}

// used says how many leases were used once and more often.
func (w *truth) used() (leases, again int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.leases {
		if l.uses > 0 {
			leases++
		}
		if l.uses > 1 {
			again++
		}
	}
	return leases, again
}

func doubtOf(err error) bool { return err != nil && sandbox.KindOf(err) != sandbox.Refused }
