// Package mutants has tests only: it shows that the tests find bugs. Each mutant is
// one line of the product changed into a bug that somebody could write; the tests
// that it names have to fail. `make mutants` runs them all in a copy of the tree,
// which is never touched itself; the ordinary tests check only that each mutant can
// still be made.
package mutants

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	runAll = flag.Bool("mutants", false, "run the tests on every mutant")
	only   = flag.String("mutant", "", "run the tests on the mutant of this name alone")
)

const (
	// root is the module's directory, from here.
	root = "../.."
	// patience bounds one run of tests on one mutant. A test that waits for ever has
	// found its bug too.
	patience = 2 * time.Minute
	// stories are told by the simulation on each mutant that it is to find.
	stories = 60
)

// mutant is one bug in one line.
type mutant struct {
	name string
	file string
	// line stands there exactly once, but for its indentation; bug takes its place.
	line, bug string
	// by are the tests that have to find it: any of them is enough, they are run in
	// this order until one has.
	by []suite
}

// suite is some tests of one package.
type suite struct{ pkg, run string }

func simulation() suite { return suite{"internal/simulation", "^TestSimulation$"} }

// TestEveryMutantCanBeMade keeps the list in step with the code.
func TestEveryMutantCanBeMade(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, m := range mutants() {
		text, err := os.ReadFile(filepath.Join(root, m.file))
		require.NoError(t, err, m.name)
		_, err = m.apply(string(text))
		require.NoError(t, err, "%s: change the mutant with the code", m.name)
		require.NotEmpty(t, m.by, m.name)
		require.False(t, names[m.name], "two mutants are called %q", m.name)
		names[m.name] = true
	}
	require.GreaterOrEqual(t, len(names), 12)
}

// apply makes the bug.
func (m mutant) apply(text string) (string, error) {
	lines := strings.Split(text, "\n")
	at := -1
	for i, line := range lines {
		if strings.TrimSpace(line) != m.line {
			continue
		}
		if at >= 0 {
			return "", fmt.Errorf("%s has the line %q more than once", m.file, m.line)
		}
		at = i
	}
	if at < 0 {
		return "", fmt.Errorf("%s has no line %q", m.file, m.line)
	}
	lines[at] = strings.Replace(lines[at], m.line, m.bug, 1)
	return strings.Join(lines, "\n"), nil
}

// TestMutants runs the tests on every mutant, in the form that -mutants asks for.
func TestMutants(t *testing.T) {
	if !*runAll && *only == "" {
		t.Log("left to make mutants: it takes some minutes")
		return
	}
	tree := t.TempDir()
	require.NoError(t, copyTree(t.Context(), tree))
	// What fails without a bug finds none.
	for _, s := range suites() {
		found, how, err := s.finds(t.Context(), tree)
		require.NoError(t, err)
		require.False(t, found, "%s %s fails without a mutant: %s", s.pkg, s.run, how)
	}
	var table strings.Builder
	survivors := 0
	for _, m := range mutants() {
		if *only != "" && m.name != *only {
			continue
		}
		began := time.Now()
		by, err := try(t.Context(), tree, m)
		if err != nil {
			survivors++
			by = "SURVIVES: " + err.Error()
			t.Errorf("%s: %v", m.name, err)
		}
		row := fmt.Sprintf("%-44s %-34s %5.1fs  %s\n", m.name, strings.TrimPrefix(m.file, "internal/"), time.Since(began).Seconds(), by)
		fmt.Fprint(os.Stderr, row) // as it goes: the whole takes minutes
		table.WriteString(row)
	}
	t.Logf("%d mutants, %d survive\n%s", strings.Count(table.String(), "\n"), survivors, table.String())
}

// suites are the tests of all mutants that are to be run, each once.
func suites() []suite {
	var all []suite
	for _, m := range mutants() {
		for _, s := range m.by {
			if !slices.Contains(all, s) && (*only == "" || m.name == *only) {
				all = append(all, s)
			}
		}
	}
	return all
}

// copyTree copies what git knows of or would.
func copyTree(ctx context.Context, to string) error {
	list := exec.CommandContext(ctx, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = root
	names, err := list.Output()
	if err != nil {
		return fmt.Errorf("list the files: %w", err)
	}
	for name := range strings.SplitSeq(strings.TrimRight(string(names), "\x00"), "\x00") {
		info, err := os.Lstat(filepath.Join(root, name))
		if errors.Is(err, os.ErrNotExist) || err == nil && !info.Mode().IsRegular() {
			continue
		}
		if err != nil {
			return err
		}
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return err
		}
		place := filepath.Join(to, name)
		if err := os.MkdirAll(filepath.Dir(place), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(place, text, info.Mode().Perm()); err != nil {
			return err
		}
	}
	return nil
}

// try makes the mutant in the tree, runs its tests until one fails, and takes it
// back. It returns which one found it.
func try(ctx context.Context, tree string, m mutant) (by string, err error) {
	file := filepath.Join(tree, m.file)
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	bad, err := m.apply(string(text))
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(file, []byte(bad), 0o600); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.WriteFile(file, text, 0o600)) }()
	for _, s := range m.by {
		found, how, err := s.finds(ctx, tree)
		if err != nil {
			return "", err
		}
		if found {
			return strings.TrimPrefix(s.pkg, "internal/") + " " + strings.Trim(s.run, "^$") + ": " + how, nil
		}
	}
	return "", fmt.Errorf("none of its %d tests fails", len(m.by))
}

// finds runs the tests and says whether they fail, and on what. That they cannot be built is an
// error: a mutant is a bug, no misspelling.
func (s suite) finds(ctx context.Context, tree string) (found bool, how string, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	args := []string{"test", "-count=1", "-failfast", "-timeout=90s", "-run", s.run, "./" + s.pkg}
	if s == simulation() {
		args = append(args, fmt.Sprintf("-seeds=%d", stories))
	}
	test := exec.CommandContext(ctx, "go", args...)
	test.Dir = tree
	out, err := test.CombinedOutput()
	switch {
	case err == nil && bytes.Contains(out, []byte("no tests to run")):
		return false, "", fmt.Errorf("%s has no test %s", s.pkg, s.run)
	case err == nil:
		return false, "", nil
	case bytes.Contains(out, []byte("[build failed]")), bytes.Contains(out, []byte("[setup failed]")):
		return false, "", fmt.Errorf("it does not build: %s", bytes.TrimSpace(out))
	}
	return true, reason(string(out)), nil
}

// reason is the first thing that a failed test says, cut to fit a table.
func reason(out string) string {
	const width = 110
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		broken, story := strings.CutPrefix(line, "- ")
		if !story && !strings.HasPrefix(line, "panic:") && !strings.HasPrefix(line, "Error:") {
			continue
		}
		return broken[:min(len(broken), width)]
	}
	return "see there"
}
