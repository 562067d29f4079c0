package mutants

// mutants are the bugs that the tests have to find.
func mutants() []mutant {
	const (
		pool     = "internal/leasepool"
		executor = "internal/executor"
		reaper   = "internal/reaper"
		keeper   = "internal/ledger"
		consumer = "internal/consumer"
		remote   = "internal/sandbox/createos"
	)
	return []mutant{
		// The pool.
		{
			"a reset error is ignored", pool + "/run.go",
			"event = sandbox.EventResetFailed", "event = sandbox.EventReset",
			[]suite{simulation()},
		},
		{
			"a destroy error is dropped", pool + "/run.go",
			"event = sandbox.EventDestroyUnproven", "event = sandbox.EventDestroyed",
			[]suite{simulation()},
		},
		{
			"a destroy without proof counts", pool + "/run.go",
			"if err == nil && !proof.Proven {", "if false {",
			[]suite{simulation()},
		},
		{
			"an ambiguous create counts as refused", pool + "/run.go",
			"return sandbox.EventCreateAmbiguous", "return sandbox.EventCreateRefused",
			[]suite{simulation()},
		},
		{
			"the pool closes an intent on an absence", pool + "/run.go",
			"if err == nil && box == nil && e.profile.ledger && proof.Absence() {", "if false {",
			[]suite{{pool, "^TestAnAbsenceClosesNoIntent$"}},
		},
		{
			"a second release is not noticed", pool + "/pool.go",
			"if l.released {", "if false {",
			[]suite{{pool, "^TestDoubleReleasePanics$"}},
		},
		{
			"reuse without proof", pool + "/books.go",
			`case v.Doubt != "" || !v.Proof.Proven:`, `case v.Doubt != "":`,
			[]suite{{pool, "^(TestDoubtIsQuarantined|TestSimulation)$"}},
		},
		{
			"nobody waits for the quarantine record", pool + "/books.go",
			"return Released{Disposition: Quarantined, Settled: e.settled}", "return Released{Disposition: Quarantined}",
			[]suite{simulation()},
		},
		{
			"a lease serves any tenant", pool + "/books.go",
			"func (e *entry) key() key { return key{e.profile, e.tenant} }", `func (e *entry) key() key { return key{e.profile, ""} }`,
			[]suite{simulation()},
		},
		{
			"quarantine gives capacity back", "internal/sandbox/lease.go",
			"return move(LeaseQuarantined, ActionSettle)", "return move(LeaseQuarantined, ActionSettle, ActionGiveBack)",
			[]suite{simulation()},
		},
		{
			"a sandbox is made without an intent", pool + "/ledger.go",
			`return sandbox.Errorf(sandbox.Unavailable, "create", "note the intent in the ledger: %w", err)`, "_ = err",
			[]suite{simulation()},
		},
		{
			"a lease is used although its use is not noted", pool + "/ledger.go",
			"case err != nil, b.closed:", "case b.closed:",
			[]suite{simulation()},
		},
		{
			"a lapsed epoch drops nothing", pool + "/ledger.go",
			"p.update(func(b *books, now time.Time) { b.disown(now) })", "p.update(func(*books, time.Time) {})",
			[]suite{simulation(), {pool, "^TestDisown"}},
		},
		// The executor.
		{
			"the gate opens without a claim", executor + "/attempt.go",
			"case claimErr != nil:", "case false:",
			[]suite{simulation()},
		},
		{
			"an ambiguous start is no doubt", executor + "/attempt.go",
			"at.verdict.Doubt = leasepool.QuarantineAmbiguousStart", "at.verdict.Fresh = false",
			[]suite{simulation()},
		},
		{
			"a job is acknowledged before its lease's record", executor + "/executor.go",
			"outcome.Settled = released.Settled", "outcome.Settled = nil",
			[]suite{simulation()},
		},
		{
			"every end counts as proven", executor + "/result.go",
			"at.verdict.Proof = at.end.Proof", "at.end.Proof.Proven = true; at.verdict.Proof = at.end.Proof",
			[]suite{simulation()},
		},
		// The reaper and its sweeps.
		{
			"a reaper believes in a destroy without proof", reaper + "/attempt.go",
			"if !proof.Proven || len(proof.Evidence) == 0 {", "if false {",
			[]suite{{"internal/simulation", "^TestNoProofIsNoEnd$"}},
		},
		{
			"no second look", reaper + "/attempt.go",
			"if found[rec.Lease] {", "if found[rec.Lease] && false {",
			[]suite{{reaper, "^TestTriesUntilProven$"}},
		},
		{
			"one 404 closes an intent", reaper + "/attempt.go",
			"s.r.book.stands(subject, stored.Seq) < s.r.cfg.CreateDeadline {", "s.r.book.stands(subject, stored.Seq) < 0 {",
			[]suite{{reaper, "^TestAmbiguousCreateMayComeLate$"}},
		},
		{
			"a sweep without a second look", reaper + "/sweep.go",
			"if gone := states[h.Lease] == wire.LeaseDestroyed; !before || gone && !was.gone {", "if gone := before && !before; gone {",
			[]suite{{reaper, "^TestStraysAreSweptAfterTwoLooks$"}},
		},
		{
			"a worker is dead at once", reaper + "/sweep.go",
			"if time.Since(was.since) > e.Record.Lapse() && w.end(ctx, e) {", "if time.Since(was.since) >= 0 && w.end(ctx, e) {",
			[]suite{simulation()},
		},
		{
			"dead workers' leases are nobody's business", reaper + "/sweep.go",
			"return fateGone // ended, or the worker's id has started again", "return fateAlive",
			[]suite{simulation()},
		},
		{
			"what reappears is left alone", reaper + "/sweep.go",
			"if h.Provider != w.provider || owned(states[h.Lease]) {", `if h.Provider != w.provider || states[h.Lease] != "" {`,
			[]suite{simulation()},
		},
		// The ledger's keeper.
		{
			"an overtaken lease's entry is taken as ours", keeper + "/keeper.go",
			"state != wire.LeaseQuarantined && state != wire.LeaseDestroyed", "state != wire.LeaseDestroyed",
			[]suite{{keeper, "^TestALeaseThatWasTakenAwayIsNotUsed$"}},
		},
		{
			"an epoch never lapses by itself", keeper + "/epoch.go",
			"return now.Sub(renewed) >= k.cfg.Bound || now.Round(0).Sub(renewed.Round(0)) >= k.cfg.Bound", "return renewed.After(now)",
			[]suite{simulation(), {keeper, "^TestALapsedEpochDropsItsLeases$"}},
		},
		// The consumer, and a provider.
		{
			"the acknowledgement waits for nothing", consumer + "/final.go",
			"c.awaitSettled(ctx, d, f.settled)", "",
			[]suite{{consumer, "^TestAckWaitsForTheQuarantineRecord$"}},
		},
		{
			"a 5xx counts as an answer", remote + "/error.go",
			"case e.status == 0 || e.status >= 500 || e.status == http.StatusRequestTimeout:", "case e.status == 0 || e.status == http.StatusRequestTimeout:",
			[]suite{{remote, "^TestCreateKinds$"}},
		},
	}
}
