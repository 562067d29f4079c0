package archtest_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox"
)

const module = "github.com/sallyport/sallyport/"

// layers reads ARCHITECTURE.md's codemap: per package, the packages of ours that
// it may import; "*" means any.
func layers(t *testing.T) map[string]string {
	t.Helper()
	page, err := os.ReadFile("../../ARCHITECTURE.md")
	require.NoError(t, err)
	table := map[string]string{}
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 4 {
			continue
		}
		name, code := strings.CutPrefix(strings.TrimSpace(cells[1]), "`")
		if !code {
			continue
		}
		may := strings.TrimSpace(strings.ReplaceAll(cells[3], "`", ""))
		switch may {
		case "any":
			may = "*"
		case "–":
			may = ""
		}
		table[strings.TrimSuffix(name, "`")] = may
	}
	require.Greater(t, len(table), 15, "the codemap of ARCHITECTURE.md was not found")
	return table
}

// natsUsers may import NATS; everybody else gets at it through internal/bus, or
// not at all.
func natsUsers() []string {
	return []string{
		"internal/bus", "internal/bus/bustest", "internal/consumer", "internal/service", "internal/gateway", "internal/reaper", "internal/daemon", "internal/bench",
		"client", "cmd/worker", "integration",
	}
}

func TestImportDirections(t *testing.T) {
	t.Parallel()
	table := layers(t)
	seen := map[string]bool{}
	for _, file := range sources(t, parser.ImportsOnly) {
		may, ok := table[file.dir]
		if !ok && !seen[file.dir] {
			t.Errorf("%s: the package has no entry in the layer table; decide where it belongs", file.dir)
		}
		seen[file.dir] = true
		if !ok || may == "*" {
			continue
		}
		for _, name := range file.imports(t) {
			rel, ours := strings.CutPrefix(name, module)
			if ours && !slices.Contains(strings.Fields(may), rel) {
				t.Errorf("%s may not import %s: %s may import only [%s]", file.name, rel, file.dir, may)
			}
		}
	}
	for dir, may := range table {
		if !hasGo(t, dir) {
			t.Errorf("%s is in the layer table and has no Go file", dir)
		}
		for name := range strings.FieldsSeq(may) {
			if _, ok := table[name]; !ok && name != "*" {
				t.Errorf("%s may import %s, which is not in the table", dir, name)
			}
		}
	}
}

// TestTestSupportStaysInTests: a package that is called …test is for tests alone. The
// one that stands in for a service is also for a person to try it with.
func TestTestSupportStaysInTests(t *testing.T) {
	t.Parallel()
	for _, file := range sources(t, parser.ImportsOnly) {
		for _, name := range file.imports(t) {
			rel, ours := strings.CutPrefix(name, module)
			byHand := rel == "internal/sandbox/createos/createostest" && file.dir == "internal/daemon"
			if ours && strings.HasSuffix(rel, "test") && !strings.HasSuffix(file.dir, "test") && !byHand {
				t.Errorf("%s may not import %s: it is for tests", file.name, rel)
			}
		}
	}
}

// TestLeaseDiagram: the page's diagram is the transition function's own.
func TestLeaseDiagram(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../ARCHITECTURE.md")
	require.NoError(t, err)
	require.Contains(t, string(page), "```mermaid\n"+sandbox.Diagram()+"```\n")
}

func TestNATSStaysAtTheEdge(t *testing.T) {
	t.Parallel()
	for _, file := range sources(t, parser.ImportsOnly) {
		for _, name := range file.imports(t) {
			if strings.HasPrefix(name, "github.com/nats-io/") && !slices.Contains(natsUsers(), file.dir) {
				t.Errorf("%s may not import %s: NATS stays at the edge", file.name, name)
			}
		}
	}
}

// TestLeaseInitStaysSmall: lease init starts once for each lease, from an init
// function that runs before those of all packages that it does not import. Each
// import that it has is paid for there, in time and in memory.
func TestLeaseInitStaysSmall(t *testing.T) {
	t.Parallel()
	for _, file := range sources(t, parser.ImportsOnly) {
		if file.dir != "internal/sandbox/local/leaseinit" {
			continue
		}
		for _, name := range file.imports(t) {
			first, _, _ := strings.Cut(name, "/")
			if strings.Contains(first, ".") && !strings.HasPrefix(name, "golang.org/x/sys/") {
				t.Errorf("%s may not import %s: only the standard library and golang.org/x/sys", file.name, name)
			}
		}
	}
}

// TestNoBareGoStatement: a goroutine that nobody waits for outlives its owner.
func TestNoBareGoStatement(t *testing.T) {
	t.Parallel()
	for _, file := range sources(t, parser.SkipObjectResolution) {
		ast.Inspect(file.syntax, func(n ast.Node) bool {
			if g, ok := n.(*ast.GoStmt); ok {
				t.Errorf("%s:%d: bare go statement; use WaitGroup.Go or errgroup in a function that waits",
					file.name, file.set.Position(g.Pos()).Line)
			}
			return true
		})
	}
}

// source is one Go file that is part of the product.
type source struct {
	name, dir string
	set       *token.FileSet
	syntax    *ast.File
}

// sources parses every Go file that is no test. Modules of their own (tools) and
// what the go command ignores are left out.
func sources(t *testing.T, mode parser.Mode) []source {
	t.Helper()
	root := os.DirFS("../..")
	var all []source
	require.NoError(t, fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return skipped(root, name, d)
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		set := token.NewFileSet()
		syntax, err := parser.ParseFile(set, name, text, mode)
		if err != nil {
			return err
		}
		all = append(all, source{name: name, dir: path.Dir(name), set: set, syntax: syntax})
		return nil
	}))
	require.NotEmpty(t, all)
	return all
}

func skipped(root fs.FS, name string, d fs.DirEntry) error {
	base := d.Name()
	if name != "." && (strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") || base == "testdata") {
		return fs.SkipDir
	}
	if _, err := fs.Stat(root, path.Join(name, "go.mod")); err == nil && name != "." {
		return fs.SkipDir
	}
	return nil
}

func (s source) imports(t *testing.T) []string {
	t.Helper()
	names := make([]string, 0, len(s.syntax.Imports))
	for _, spec := range s.syntax.Imports {
		name, err := strconv.Unquote(spec.Path.Value)
		require.NoError(t, err)
		names = append(names, name)
	}
	return names
}

// hasGo counts tests too: integration has nothing else.
func hasGo(t *testing.T, dir string) bool {
	t.Helper()
	names, err := fs.Glob(os.DirFS("../.."), dir+"/*.go")
	require.NoError(t, err)
	return len(names) > 0
}
