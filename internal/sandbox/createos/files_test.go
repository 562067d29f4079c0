package createos_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/sandbox/createos/createostest"
)

func text(path, content string) sandbox.File {
	return sandbox.File{Path: path, Content: strings.NewReader(content)}
}

// collect runs a collection and returns what was taken, a line each.
func (r *rig) collect(run sandbox.Run, patterns ...string) (lines []string, more int, err error) {
	r.Helper()
	spec := sandbox.CollectSpec{Patterns: patterns, MaxFiles: 100, MaxFileBytes: 64 << 20, MaxBytes: 64 << 20}
	more, err = run.Collect(r.ctx(), spec, func(c sandbox.Collected) error {
		if c.Refused != "" {
			lines = append(lines, c.Path+": "+c.Refused)
			return nil
		}
		content, err := io.ReadAll(c.Content)
		if err != nil {
			lines = append(lines, c.Path+" broke: "+err.Error())
			return nil //nolint:nilerr // it is what the test looks at
		}
		sum := sha256.Sum256(content)
		lines = append(lines, fmt.Sprintf("%s=%d %s", c.Path, len(content), hex.EncodeToString(sum[:4])))
		return nil
	})
	return lines, more, err
}

// Many files cost one upload, keep their modes, and are the program's before it starts.
func TestFilesArePlacedInOneUpload(t *testing.T) {
	t.Parallel()
	r := setup(t)
	box := r.create()
	process := shell(`for f in run "dir/with 'quote" big empty; do stat -c '%a %s %U' "$f"; done; ./run; sha256sum <big; stat -c %a dir; ls -A /tmp/.sallyport`)
	big := strings.Repeat("\x00\xff\n", 1<<20)
	process.Files = []sandbox.File{
		{Path: "run", Mode: 0o750, Content: strings.NewReader("#!/bin/sh\necho it ran\n")},
		text("dir/with 'quote", "x"),
		{Path: "big", Mode: 0o600, Content: iotest.OneByteReader(strings.NewReader(big))},
		text("empty", ""),
	}
	r.ForgetCalls()
	_, sink := r.run(box, process)
	sum := sha256.Sum256([]byte(big))
	require.Equal(t, "750 22 root\n644 1 root\n600 3145728 root\n644 0 root\nit ran\n"+hex.EncodeToString(sum[:])+"  -\n755\nmarker\n", sink.out(), sink.err())
	require.Equal(t, 2, r.count(createostest.PutFile), "the files, and the gate")
	r.destroy(box)
}

func TestFilesThatCannotBePlaced(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files []sandbox.File
		rules []createostest.Rule
		kind  sandbox.Kind
		about string
	}{
		"source breaks": {
			files: []sandbox.File{text("a", "x"), {Path: "b", Content: io.MultiReader(strings.NewReader(strings.Repeat("x", 1<<20)), iotest.ErrReader(errTold))}},
			kind:  sandbox.Refused, about: "b",
		},
		"too large for the service": {
			files: []sandbox.File{text("a", "x")},
			rules: []createostest.Rule{{Op: createostest.PutFile, Then: []createostest.Action{createostest.Status(413, "")}}},
			kind:  sandbox.Refused, about: "a",
		},
		"name too long": {files: []sandbox.File{text("a", "x"), text(strings.Repeat("n", 300), "x")}, kind: sandbox.Refused, about: strings.Repeat("n", 300)},
		"upload in doubt": {
			files: []sandbox.File{text("a", "x")},
			rules: []createostest.Rule{{Op: createostest.PutFile, Then: []createostest.Action{createostest.CutAfterCommit()}}},
			kind:  sandbox.Ambiguous,
		},
		"not cleaned up": {
			files: []sandbox.File{{Path: "b", Content: iotest.ErrReader(errTold)}},
			rules: []createostest.Rule{{Op: createostest.Exec, Then: []createostest.Action{createostest.Status(503, "")}}},
			kind:  sandbox.Refused, about: "b",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			box := r.create()
			r.Script(c.rules...)
			process := shell("true")
			process.Files = c.files
			_, err := box.Prepare(r.ctx(), process, &recorder{})
			var about *sandbox.FileError
			if name == "not cleaned up" {
				r.kind(sandbox.Unavailable, err)
				require.ErrorIs(t, err, errTold)
				r.destroy(box)
				return
			}
			r.kind(c.kind, err)
			if c.kind != sandbox.Refused {
				r.destroy(box)
				return
			}
			require.ErrorAs(t, err, &about)
			require.Equal(t, c.about, about.Path)
			_, sink := r.run(box, shell("ls -A; ls -A /tmp/.sallyport >&2"))
			require.Empty(t, sink.out(), "nothing of it is left where a program looks")
			if name != "source breaks" { // what was on its way then may be written after it was removed
				require.Equal(t, "marker\n", sink.err())
			}
			r.destroy(box)
		})
	}
}

func TestCollectIsExact(t *testing.T) {
	t.Parallel()
	r := setup(t)
	box := r.create()
	run, sink := r.start(box, shell(`yes 0123456789 | head -c 5242880 >big; chmod 600 big; mkdir d; printf 'a\nb' >"d/line
end"; printf x >"$(printf '\377')"; ln -s /etc/passwd link; ln -s /etc d/out; sha256sum <big | head -c 8`))
	_, err := run.Wait(r.ctx())
	require.NoError(t, err)
	r.ForgetCalls()
	lines, more, err := r.collect(run, "**")
	require.NoError(t, err)
	require.Zero(t, more)
	x, ab := sha256.Sum256([]byte("x")), sha256.Sum256([]byte("a\nb"))
	require.Equal(t, []string{
		"big=5242880 " + sink.out(), "d/line\nend=3 " + hex.EncodeToString(ab[:4]), "d/out: " + sandbox.RefusedSymlink,
		"link: " + sandbox.RefusedSymlink,
	}, lines[:4])
	// Whether the service can name it is its own affair.
	require.Contains(t, []string{"\xff=1 " + hex.EncodeToString(x[:4]), "\xff: cannot be read: CreateOS answered HTTP 404 to the file transfer"}, lines[4])
	require.Len(t, lines, 5)
	require.Equal(t, 1, r.count(createostest.Exec))
	require.Equal(t, 1+3, r.count(createostest.GetFile), "the listing and the files; no link is followed")
	r.destroy(box)
}

func TestADownloadThatBreaks(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		then createostest.Action
		want string
		err  bool
	}{
		"cut":       {createostest.CutBody(5), "f broke: the connection failed", false},
		"shorter":   {createostest.Status(200, "12345"), "f broke: 5 bytes are missing: unexpected EOF", false},
		"longer":    {createostest.Status(200, "1234567890x"), "f broke: the file is larger than it was", false},
		"not found": {createostest.Status(404, ""), "f: cannot be read: CreateOS answered HTTP 404 to the file transfer", false},
		"503":       {createostest.Status(503, ""), "", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			box := r.create()
			run, _ := r.start(box, shell("printf 1234567890 >f; echo y >g"))
			_, err := run.Wait(r.ctx())
			require.NoError(t, err)
			r.Script(createostest.Rule{Op: createostest.GetFile, Nth: 2, Then: []createostest.Action{c.then}})
			lines, _, err := r.collect(run, "f", "g")
			if c.err {
				r.kind(sandbox.Unavailable, err)
			} else {
				require.NoError(t, err)
				require.Equal(t, c.want, lines[0])
				require.Len(t, lines, 2, "the others follow")
			}
			r.destroy(box)
		})
	}
}

// A listing comes from a sandbox in which a job was.
func TestAListingThatMakesNoSense(t *testing.T) {
	t.Parallel()
	for name, listing := range map[string]string{
		"outside": "f 1 1 ../x\x00", "absolute": "f 1 1 /etc/passwd\x00", "dot": "f 1 1 a/./b\x00", "inner": "f 1 1 a/../../b\x00",
		"negative": "f 1 -1 a\x00", "no size": "f 1 a\x00", "no end": "f 1 1 a", "huge": "f 1 99999999999999999999 a\x00", "no name": "f 1 1 \x00",
		"no kind": " 1 1 a\x00", "long kind": "ff 1 1 a\x00",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			box := r.create()
			run, _ := r.start(box, shell("true"))
			_, err := run.Wait(r.ctx())
			require.NoError(t, err)
			r.on(createostest.GetFile, createostest.Status(200, listing))
			lines, _, err := r.collect(run, "**")
			require.ErrorContains(t, err, "listing of the workspace is invalid")
			require.Empty(t, lines)
			require.Equal(t, 1, r.count(createostest.GetFile))
			r.destroy(box)
		})
	}
}

func TestCollectBounds(t *testing.T) {
	t.Parallel()
	r := setup(t)
	box := r.create()
	run, _ := r.start(box, shell(`d=.; for i in $(seq 70); do d=$d/d; mkdir $d; done; touch $d/deep; echo x >a`))
	_, err := run.Wait(r.ctx())
	require.NoError(t, err)
	lines, more, err := r.collect(run, "**/deep", "a")
	require.NoError(t, err)
	require.Zero(t, more)
	require.Equal(t, strings.TrimSuffix(strings.Repeat("d/", 64), "/")+": "+sandbox.RefusedDeep, lines[1])
	require.Len(t, lines, 2)
	// What was asked for by nobody costs nothing.
	r.ForgetCalls()
	lines, _, err = r.collect(run)
	require.NoError(t, err)
	require.Empty(t, lines)
	require.Empty(t, r.Calls())
	// Where the listing fails, so does the collection.
	for _, then := range []createostest.Action{
		createostest.Status(503, ""), createostest.Status(200, `{"status":"success","data":{"result":{"exit_code":2}}}`),
	} {
		r.on(createostest.Exec, then)
		_, _, err = r.collect(run, "*")
		require.Error(t, err)
		require.NotEqual(t, sandbox.Refused, sandbox.KindOf(err))
	}
	// Where something could not be listed, that is told.
	r.on(createostest.Exec, createostest.CommitThen(200, `{"status":"success","data":{"result":{"exit_code":3}}}`))
	_, more, err = r.collect(run, "a")
	require.NoError(t, err)
	require.Equal(t, 1, more)
	r.destroy(box)
}
