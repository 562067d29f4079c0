package wire

// The exit codes with which a client reports what a program's own code cannot
// say. They keep clear of what shells use where they can: 124 is that of
// timeout(1), 126 and 127 those of sh(1), 128+n that of a signal.
const (
	ExitExpired    = 120
	ExitInvalid    = 121
	ExitLimit      = 122
	ExitLost       = 123
	ExitTimedOut   = 124
	ExitNotStarted = 125
	ExitNotExec    = 126
	ExitNotFound   = 127
	ExitCancelled  = 130
	ExitOOM        = 137
)

// ExitStatus is the code with which `sallyport run` exits after r: the program's
// own for exited (0 to 255), 128 + n for a signal, and one of the constants for
// the rest. A result that says exited or signaled without a detail, or that has
// an outcome that this build does not know, counts as lost.
func ExitStatus(r *Result) int {
	switch r.Outcome {
	case Exited:
		if r.ExitCode != nil && *r.ExitCode >= 0 && *r.ExitCode <= maxExitCode {
			return *r.ExitCode
		}
	case Signaled:
		if r.Signal != nil && r.Signal.Number >= 1 && r.Signal.Number <= maxSignal {
			return 128 + r.Signal.Number
		}
	case TimedOut:
		return ExitTimedOut
	case Cancelled:
		return ExitCancelled
	case OOM:
		return ExitOOM
	case Limit:
		return ExitLimit
	case NotStarted:
		if r.ExitCode != nil && (*r.ExitCode == ExitNotExec || *r.ExitCode == ExitNotFound) {
			return *r.ExitCode
		}
		return ExitNotStarted
	case Lost:
		return ExitLost
	case InvalidJob:
		return ExitInvalid
	case Expired:
		return ExitExpired
	}
	return ExitLost
}
