package leaseinit_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox/local/leaseinit"
)

func setup() leaseinit.Setup {
	return leaseinit.Setup{
		Base: "/mnt", Hostname: "sandbox", JobUID: 1000, Switch: true,
		View: []leaseinit.Op{
			{Kind: leaseinit.OpDir, Path: "/etc"},
			{Kind: leaseinit.OpFile, Path: "/etc/passwd", Arg: "root\x00\xff\n"},
			{Kind: leaseinit.OpBind, Path: "/usr", Arg: "/usr"},
			{Kind: leaseinit.OpLink, Path: "/bin", Arg: strings.Repeat("x", 5000)},
		},
		Filter: []byte("filters!"), JobFilter: []byte{0, 1, 2, 3, 4, 5, 6, 7},
	}
}

// FuzzSetup: what lease init reads from the worker is what was written, or is refused;
// it never panics, and takes no memory that the message does not pay for.
func FuzzSetup(f *testing.F) {
	whole := setup()
	f.Add(whole.Encode())
	f.Add((&leaseinit.Setup{}).Encode())
	f.Add(whole.Encode()[:40])
	f.Fuzz(func(t *testing.T, message []byte) {
		s, ok := leaseinit.DecodeSetup(message)
		if !ok {
			return
		}
		again, ok := leaseinit.DecodeSetup(s.Encode())
		require.True(t, ok)
		require.Equal(t, s, again)
		require.LessOrEqual(t, len(s.View)*12, len(message))
		// A message is what it says, to its last byte.
		if len(message) > 0 {
			_, ok = leaseinit.DecodeSetup(message[:len(message)-1])
			require.False(t, ok)
		}
		_, ok = leaseinit.DecodeSetup(append(bytes.Clone(message), 0))
		require.False(t, ok)
	})
}

// FuzzJob: every string of a job arrives where the stub looks for it.
func FuzzJob(f *testing.F) {
	f.Add("sh\n-c\necho", "PATH=/bin\nX=", "/bin/sh\n/usr/bin/sh", "/workspace", "size=1", uint64(64), uint64(7))
	f.Add("", "", "", "", "", uint64(0), uint64(0))
	f.Add(strings.Repeat("x", 100_000), "\xff\xfe", "\n", "..", "", ^uint64(0), ^uint64(0))
	f.Fuzz(func(t *testing.T, argv, env, candidates, cwd, options string, processes, limit uint64) {
		list := func(text string) (all []string) {
			if text == "" {
				return nil
			}
			return strings.Split(strings.ReplaceAll(text, "\x00", ""), "\n")
		}
		clean := func(text string) string { return strings.ReplaceAll(text, "\x00", "") }
		job := &leaseinit.Job{
			Seq: uint32(limit), Candidates: list(candidates), Argv: list(argv), Env: list(env), Cwd: clean(cwd),
			Workspace: clean(options), Tmp: clean(options + "t"), Shm: clean(options + "s"), Processes: processes,
		}
		for i := range limit % 17 {
			job.Rlimits = append(job.Rlimits, leaseinit.Rlimit{Resource: i, Value: limit + i})
		}
		got, err := leaseinit.DecodeJob(job.Encode())
		require.NoError(t, err)
		require.Equal(t, job, got)
	})
}

// FuzzReport: whatever comes from inside is a report or is refused.
func FuzzReport(f *testing.F) {
	f.Add(make([]byte, leaseinit.ReportSize))
	f.Add(bytes.Repeat([]byte{0xff}, leaseinit.ReportSize+20))
	f.Add([]byte{1, 0, 0, 0})
	f.Fuzz(func(t *testing.T, message []byte) {
		r, text, ok := leaseinit.DecodeReport(message)
		require.Equal(t, len(message) >= leaseinit.ReportSize, ok)
		if ok {
			require.Equal(t, string(message[leaseinit.ReportSize:]), text)
			require.NotEmpty(t, r.Stage.String())
		}
	})
}
