package wire

import (
	"fmt"
	"strings"
)

// Bounds of a request. A profile's maximum stands below the ceilings of its
// limits; the ceilings exist so that every arithmetic on them is safe.
const (
	// MaxRequestBytes is the longest body of a request: the greatest max_payload
	// that NATS advises, 8 MiB, which counts headers too, less the 64 KiB to
	// which JetStream bounds a message's headers. A server's own max_payload
	// (1 MiB unless it is set) bounds it further.
	MaxRequestBytes = 8<<20 - 64<<10
	// MaxArgs bounds argv.
	MaxArgs = 32768
	// MaxEnv bounds the number of environment variables.
	MaxEnv = 4096
	// MaxArgBytes is the longest argv string and the longest "NAME=value", in
	// bytes without the NUL: execve(2), MAX_ARG_STRLEN, 32 pages.
	MaxArgBytes = 128<<10 - 1
	// MaxExecBytes bounds argv and env together as the kernel counts them, each
	// string with its NUL and its 8-byte pointer: execve(2), a quarter of the
	// usual 8 MiB stack limit, less 64 KiB for the variables that the sandbox
	// adds and for what a #! line puts in front.
	MaxExecBytes = 2<<20 - 64<<10
	// MaxPathBytes is the longest path, PATH_MAX without the NUL (limits.h).
	MaxPathBytes = 4095
	// MaxNameBytes is the longest part of a path, NAME_MAX (limits.h).
	MaxNameBytes = 255
	// MaxFiles bounds the input files, MaxCollect the patterns of output files.
	MaxFiles   = 1024
	MaxCollect = 64
	// MaxMetaBytes bounds all keys and values of meta together.
	MaxMetaBytes = 4 << 10
	// MaxAttemptsCeiling is the greatest retry.max_attempts.
	MaxAttemptsCeiling = 10
	// MaxPriority is the greatest priority; 0 is the most urgent, as for the
	// priority groups of JetStream.
	MaxPriority = 9
)

// Bounds of what we write.
const (
	// MaxMessageBytes bounds every text for a person in a result or a record.
	MaxMessageBytes = 2 << 10
	// MaxEvidence bounds the pieces of evidence in a result or a record.
	MaxEvidence = 64
	// MaxRecordBytes is the longest stored record: the default max_payload of
	// 1 MiB less room for the headers that we set ourselves.
	MaxRecordBytes = 1<<20 - 8<<10
	// MaxDeadBodyBytes bounds the body that a dead letter keeps. In base64 it
	// takes 960 KB; where long headers leave it less room, less is kept.
	MaxDeadBodyBytes = 704 << 10
)

// The bounds of the details of an end.
const (
	maxExitCode = 255 // waitpid(2): eight bits
	maxSignal   = 64  // signal(7): SIGRTMAX
)

// Message formats a text for a person and cuts it to MaxMessageBytes on a rune
// border. What is not UTF-8 in it becomes U+FFFD, so that it can always be
// encoded.
func Message(format string, args ...any) string {
	return bounded(fmt.Sprintf(format, args...))
}

// bounded is Message for a text that exists.
func bounded(text string) string {
	const mark = " …"
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= MaxMessageBytes {
		return text
	}
	return truncate(text, MaxMessageBytes-len(mark)) + mark
}
