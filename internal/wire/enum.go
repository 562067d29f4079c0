package wire

import "slices"

// The closed sets, in the order in which an error message lists them.

func outcomes() []Outcome {
	return []Outcome{Exited, Signaled, TimedOut, Cancelled, OOM, Limit, NotStarted, Lost, InvalidJob, Expired}
}

func startStates() []StartState { return []StartState{StartNo, StartMaybe, StartYes} }

func dispositions() []Disposition { return []Disposition{Reusable, Destroyed, Quarantined} }

func verdicts() []Verdict { return []Verdict{Proven, Unproven} }

func scopes() []Scope { return []Scope{ScopeKernel, ScopeProvider} }

func outputModes() []OutputMode {
	return []OutputMode{OutputStored, OutputReply, OutputBoth, OutputInline, OutputNone}
}

func reuses() []Reuse { return []Reuse{ReuseNever, ReuseTenant} }

func runStates() []RunState { return []RunState{RunClaimed, RunReleased, RunDone, RunCancelled} }

func quarantineStates() []QuarantineState { return []QuarantineState{InQuarantine, OnHold, Gone} }

func quarantineReasons() []QuarantineReason {
	return []QuarantineReason{
		QuarantineUnproven, QuarantineAmbiguousStart, QuarantineAmbiguousMake,
		QuarantineResetFailed, QuarantineDestroyFailed, QuarantineOwnerGone,
		QuarantineUnowned, QuarantineReappeared, QuarantineStaleIntent,
	}
}

func leaseRecordStates() []LeaseRecordState {
	return []LeaseRecordState{LeaseIntent, LeaseReady, LeaseInUse, LeaseQuarantined, LeaseDestroyed}
}

func epochStates() []EpochState { return []EpochState{EpochAlive, EpochEnded} }

// Valid says whether o is one of the outcomes.
func (o Outcome) Valid() bool { return slices.Contains(outcomes(), o) }

// Valid says whether s is one of the start states.
func (s StartState) Valid() bool { return slices.Contains(startStates(), s) }

// Valid says whether d is one of the dispositions.
func (d Disposition) Valid() bool { return slices.Contains(dispositions(), d) }

// Valid says whether v is one of the verdicts.
func (v Verdict) Valid() bool { return slices.Contains(verdicts(), v) }

// Valid says whether s is one of the scopes.
func (s Scope) Valid() bool { return slices.Contains(scopes(), s) }

// Valid says whether m is one of the output modes; the empty mode is not.
func (m OutputMode) Valid() bool { return slices.Contains(outputModes(), m) }

// Valid says whether r is one of the reuse rules; the empty rule is not.
func (r Reuse) Valid() bool { return slices.Contains(reuses(), r) }

// Valid says whether s is one of the run states.
func (s RunState) Valid() bool { return slices.Contains(runStates(), s) }

// Terminal says whether s is a state that holds the final decision.
func (s RunState) Terminal() bool { return s == RunDone || s == RunCancelled }

// Valid says whether s is one of the quarantine states.
func (s QuarantineState) Valid() bool { return slices.Contains(quarantineStates(), s) }

// Valid says whether r is one of the quarantine reasons.
func (r QuarantineReason) Valid() bool { return slices.Contains(quarantineReasons(), r) }

// Valid says whether s is one of the states of a ledger entry.
func (s LeaseRecordState) Valid() bool { return slices.Contains(leaseRecordStates(), s) }

// Valid says whether s is one of the states of an epoch.
func (s EpochState) Valid() bool { return slices.Contains(epochStates(), s) }

// Reasons are the reasons that may stand beside outcome o; none for an outcome
// that explains itself.
func (o Outcome) Reasons() []Reason {
	switch o {
	case Limit:
		return []Reason{ReasonOutput, ReasonCPU, ReasonDisk}
	case NotStarted:
		return []Reason{
			ReasonNotFound, ReasonNotExecutable, ReasonBadFormat, ReasonBadInterpreter, ReasonBadCwd,
			ReasonArgumentsTooBig, ReasonUnenforceable, ReasonNoSandbox, ReasonStart, ReasonFiles,
		}
	case Lost:
		return []Reason{ReasonWorkerGone, ReasonSandboxGone, ReasonShutdown, ReasonAmbiguous, ReasonInternal}
	case InvalidJob:
		return []Reason{
			ReasonNotJSON, ReasonField, ReasonTooBig, ReasonVersion, ReasonUnsupported, ReasonProfile,
			ReasonQueue, ReasonReply, ReasonIDConflict, ReasonSubject,
		}
	case Expired:
		return []Reason{ReasonDeadline, ReasonQueueAge}
	case Exited, Signaled, TimedOut, Cancelled, OOM:
		return nil
	}
	return nil
}

// Valid says whether r is a reason of some outcome.
func (r Reason) Valid() bool {
	return slices.ContainsFunc(outcomes(), func(o Outcome) bool { return slices.Contains(o.Reasons(), r) })
}
