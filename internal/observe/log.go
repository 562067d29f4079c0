package observe

import (
	"fmt"
	"io"
	"time"

	"github.com/rs/zerolog"
)

// The keys that log lines may carry about a job. Nothing of a program's input or
// output is ever logged.
const (
	KeyTenant   = "tenant"
	KeyJob      = "job"
	KeyAttempt  = "attempt"
	KeyLease    = "lease"
	KeyProvider = "provider"
	KeyWorker   = "worker"
)

// Logger writes JSON lines to w from level (debug, info, warn, error) on, or,
// when pretty, lines for a person.
func Logger(w io.Writer, level string, pretty bool) (zerolog.Logger, error) {
	l, err := zerolog.ParseLevel(level)
	if err != nil || level == "" {
		return zerolog.Nop(), fmt.Errorf("log level %q is not one of debug, info, warn, error", level)
	}
	if pretty {
		w = zerolog.ConsoleWriter{Out: w, TimeFormat: time.TimeOnly}
	}
	return zerolog.New(w).Level(l).With().Timestamp().Logger(), nil
}
