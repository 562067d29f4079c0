package createos_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEveryRowHasItsTest: the table of docs/createos.md is whole, and each test that it
// names is there.
func TestEveryRowHasItsTest(t *testing.T) {
	page, err := os.ReadFile("../../../docs/createos.md")
	require.NoError(t, err)
	_, table, found := strings.Cut(string(page), "## Rules and their tests")
	require.True(t, found)
	tests := testSources(t)
	rows := map[string]bool{}
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 3 || strings.HasPrefix(cells[0], "-") || strings.TrimSpace(cells[0]) == "row" {
			require.False(t, strings.HasPrefix(line, "|") && len(cells) != 3, "not a row: %s", line)
			continue
		}
		row, test := strings.TrimSpace(cells[0]), strings.TrimSpace(cells[2])
		require.False(t, rows[row], "row %s stands there twice", row)
		rows[row] = true
		if why, not := strings.CutPrefix(test, "not adopted: "); not {
			require.NotEmpty(t, why, row)
			continue
		}
		name, sub, _ := strings.Cut(strings.Trim(test, "`"), "/")
		require.Contains(t, tests, name, "row %s has no test", row)
		if sub != "" {
			require.Contains(t, tests[name], strconv.Quote(sub), "row %s: %s has no case %q", row, name, sub)
		}
	}
	var want []string
	for prefix, n := range map[string]int{"E": 39, "": 64, "N": 25, "P": 16} {
		for i := range n {
			want = append(want, prefix+strconv.Itoa(i+1))
		}
	}
	for _, row := range want {
		require.True(t, rows[row] || rows[row+"a"], "row %s is missing", row)
	}
}

// testSources are the texts of this package's tests by their names.
func testSources(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("*_test.go")
	require.NoError(t, err)
	begins := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	sources := map[string]string{}
	for _, name := range files {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		at := begins.FindAllSubmatchIndex(text, -1)
		for i, m := range at {
			end := len(text)
			if i+1 < len(at) {
				end = at[i+1][0]
			}
			sources[string(text[m[2]:m[3]])] = string(text[m[0]:end])
		}
	}
	return sources
}
