package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox"
)

func fileTests() []namedTest {
	return []namedTest{
		{"Placed", filesPlaced},
		{"NotPlaced", filesNotPlaced},
		{"Collected", filesCollected},
		{"Refused", filesRefused},
		{"Bounded", collectBounded},
		{"OnlyAfterTheProof", collectAfterProof},
		{"GoneWithTheReset", filesGone},
	}
}

// text is an input file with this content.
func text(path, content string) sandbox.File {
	return sandbox.File{Path: path, Content: strings.NewReader(content)}
}

// plenty is a CollectSpec whose bounds no test meets by chance.
func plenty(patterns ...string) sandbox.CollectSpec {
	return sandbox.CollectSpec{Patterns: patterns, MaxFiles: 100, MaxFileBytes: 4 << 20, MaxBytes: 8 << 20}
}

// files says whether there are files here; a provider that has none must refuse
// them, which is tested instead.
func (s *suite) files() bool {
	s.Helper()
	if s.p.Capabilities().Files {
		return true
	}
	process := s.process()
	process.Files = []sandbox.File{text("a", "x")}
	_, err := s.create().Prepare(s.ctx(), process, &Sink{})
	require.Equal(s, sandbox.Refused, sandbox.KindOf(err), "files without Capabilities.Files: %v", err)
	return false
}

// collected is a collection as lines: the path and what came of it.
func (s *suite) collected(run sandbox.Run, spec sandbox.CollectSpec) (lines []string, more int) {
	s.Helper()
	more, err := run.Collect(s.ctx(), spec, func(c sandbox.Collected) error {
		if c.Refused != "" {
			require.Nil(s, c.Content)
			lines = append(lines, c.Path+": "+c.Refused)
			return nil
		}
		data, err := io.ReadAll(c.Content)
		require.NoError(s, err)
		require.Len(s, data, int(c.Size))
		lines = append(lines, c.Path+"="+string(data))
		return nil
	})
	require.NoError(s, err)
	return lines, more
}

// finished runs a program to its proven end.
func (s *suite) finished(sb sandbox.Sandbox, ops ...Op) sandbox.Run {
	s.Helper()
	run := s.start(sb, &Sink{}, ops...)
	require.Equal(s, &sandbox.Exit{}, s.wait(run).Exit)
	return run
}

func filesPlaced(s *suite) {
	if !s.files() {
		return
	}
	big := pattern(1<<20 + 3)
	process := s.process(List(), Show("a"), Show("d/e/f"), Show("empty"), Put("a", "more"), Show("a"))
	process.Files = []sandbox.File{
		text("a", "über ☃\n"), text("d/e/f", "deep\n"), text("empty", ""),
		{Path: "big", Mode: 0o755, Content: iotest.HalfReader(strings.NewReader(big))},
	}
	sink := &Sink{}
	run := s.startProcess(s.create(), sink, process)
	require.Equal(s, &sandbox.Exit{}, s.wait(run).Exit)
	require.Equal(s, "a\nbig\nd\nempty\nüber ☃\ndeep\nüber ☃\nmore", sink.String(sandbox.Stdout))
	lines, _ := s.collected(run, plenty("big"))
	require.Len(s, lines, 1)
	requireSame(s, "big="+big, lines[0])
}

// What cannot be placed is refused, and the sandbox is as it was.
func filesNotPlaced(s *suite) {
	if !s.files() {
		return
	}
	sb := s.create()
	broken := errors.New("source broke")
	type fault struct {
		name  string
		files []sandbox.File
	}
	faults := []fault{
		{"outside", []sandbox.File{text("../a", "")}},
		{"absolute", []sandbox.File{text("/a", "")}},
		{"twice", []sandbox.File{text("a", ""), text("a", "")}},
		{"a file as directory", []sandbox.File{text("a", ""), text("a/b", "")}},
		{"a directory as file", []sandbox.File{text("a/b", ""), text("a", "")}},
		{"no content", []sandbox.File{{Path: "a"}}},
		{"source", []sandbox.File{text("first", "x"), {Path: "a", Content: io.MultiReader(strings.NewReader("half"), iotest.ErrReader(broken))}}},
	}
	if s.p.Capabilities().Enforces.Disk {
		faults = append(faults, fault{"disk", []sandbox.File{text("first", "x"), text("a", pattern(2<<20))}})
	}
	for _, f := range faults {
		process := s.process()
		process.Files, process.Limits.DiskBytes = f.files, 1<<20
		if !s.p.Capabilities().Enforces.Disk {
			process.Limits.DiskBytes = 0
		}
		_, err := sb.Prepare(s.ctx(), process, &Sink{})
		require.Error(s, err, f.name)
		require.Equal(s, sandbox.Refused, sandbox.KindOf(err), "%s: %v", f.name, err)
		var about *sandbox.FileError
		require.ErrorAs(s, err, &about, f.name)
		require.Equal(s, f.files[len(f.files)-1].Path, about.Path)
		if f.name == "source" {
			require.ErrorIs(s, err, broken)
		}
	}
	end, out, _ := s.run(sb, s.process(List()))
	require.Equal(s, &sandbox.Exit{}, end.Exit)
	require.Empty(s, out, "something of the refused files is left")
}

func filesCollected(s *suite) {
	if !s.files() {
		return
	}
	run := s.finished(s.create(), Put("b", "2"), Put("a", "1"), Put("b.txt", "3"), Dir("d"), Put("d/x", "4"), Dir("d/e"), Put("d/e/y", "5"), Touch("empty"), Leftover())
	for _, c := range []struct {
		patterns []string
		lines    []string
	}{
		{[]string{"a"}, []string{"a=1"}},
		{[]string{"b", "a", "a", "?"}, []string{"a=1", "b=2", "d: " + sandbox.RefusedDirectory}},
		{[]string{"b*"}, []string{"b=2", "b.txt=3"}},
		{[]string{"d/*"}, []string{"d/e: " + sandbox.RefusedDirectory, "d/x=4"}},
		{[]string{"d/**"}, []string{"d/e/y=5", "d/x=4"}},
		{[]string{"**/y", "empty"}, []string{"d/e/y=5", "empty="}},
		{[]string{"absent", "no/such/*", "a/b"}, nil},
		{nil, nil},
	} {
		lines, more := s.collected(run, plenty(c.patterns...))
		require.Equal(s, c.lines, lines, "%q", c.patterns)
		require.Zero(s, more)
	}
	_, err := run.Collect(s.ctx(), plenty("["), func(sandbox.Collected) error { return nil })
	require.Equal(s, sandbox.Refused, sandbox.KindOf(err), "%v", err)
}

func filesRefused(s *suite) {
	if !s.files() {
		return
	}
	run := s.finished(s.create(), Symlink("link"), Fifo("fifo"), HardLink("linked"), Dir("dir"), Put("ok", "ok"))
	var lines []string
	prompt(s, "collect", func() { lines, _ = s.collected(run, plenty("link", "fifo", "dir", "ok")) })
	require.Equal(s, []string{"dir: " + sandbox.RefusedDirectory, "fifo: " + sandbox.RefusedSpecial, "link: " + sandbox.RefusedSymlink, "ok=ok"}, lines)
	lines, _ = s.collected(run, plenty("linked"))
	require.Equal(s, []string{"linked: " + sandbox.RefusedHardLink}, lines)
}

func collectBounded(s *suite) {
	if !s.files() {
		return
	}
	run := s.finished(s.create(), Put("a", "1234"), Put("b", "123456789"), Put("c", "1234"), Put("d", "123"), Put("e", "1"))
	spec := sandbox.CollectSpec{Patterns: []string{"*"}, MaxFiles: 4, MaxFileBytes: 8, MaxBytes: 7}
	lines, more := s.collected(run, spec)
	require.Equal(s, []string{"a=1234", "b: " + sandbox.RefusedSize(9, 8), "c: " + sandbox.RefusedSize(4, 3), "d=123"}, lines)
	require.Equal(s, 1, more)
	stop := errors.New("enough")
	calls := 0
	_, err := run.Collect(s.ctx(), plenty("*"), func(sandbox.Collected) error { calls++; return stop })
	require.ErrorIs(s, err, stop)
	require.Equal(s, 1, calls)
	ctx, cancel := context.WithCancel(s.Context())
	cancel()
	_, err = run.Collect(ctx, plenty("*"), func(sandbox.Collected) error { return nil })
	require.ErrorIs(s, err, context.Canceled)
}

func collectAfterProof(s *suite) {
	if !s.files() {
		return
	}
	_, run := s.running()
	_, err := run.Collect(s.ctx(), plenty("*"), func(sandbox.Collected) error { return errors.New("taken from a running job") })
	require.Equal(s, sandbox.Refused, sandbox.KindOf(err), "while it runs: %v", err)
	_, err = run.Terminate(s.ctx(), 0)
	require.NoError(s, err)
	s.wait(run)
	lines, _ := s.collected(run, plenty("*"))
	require.Empty(s, lines)
}

func filesGone(s *suite) {
	if !s.files() || !s.p.Capabilities().Reset {
		return
	}
	sb := s.create()
	for i := range 3 {
		name := fmt.Sprint("file", i)
		process := s.process(List(), Put("made", "x"))
		process.Files = []sandbox.File{text(name, "x")}
		sink := &Sink{}
		run := s.startProcess(sb, sink, process)
		s.wait(run)
		require.Equal(s, name+"\n", sink.String(sandbox.Stdout))
		lines, _ := s.collected(run, plenty("*"))
		require.Equal(s, []string{name + "=x", "made=x"}, lines)
		require.NoError(s, sb.Reset(s.ctx()))
		_, err := run.Collect(s.ctx(), plenty("*"), func(sandbox.Collected) error { return nil })
		require.Error(s, err, "after the reset")
	}
}
