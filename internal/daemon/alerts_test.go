package daemon_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/require"
)

// words are all the texts in the sources that name metrics.
func words(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for _, dir := range []string{".", "../observe"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		require.NoError(t, err)
		for _, name := range files {
			if regexp.MustCompile(`_test\.go$`).MatchString(name) {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
			require.NoError(t, err)
			ast.Inspect(file, func(n ast.Node) bool {
				if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					if text, err := strconv.Unquote(lit.Value); err == nil {
						found[text] = true
					}
				}
				return true
			})
		}
	}
	return found
}

// TestAlertsNameMetricsThatExist: an alert on a metric of another name never fires.
func TestAlertsNameMetricsThatExist(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/alerts.yml")
	require.NoError(t, err)
	var doc struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	require.NoError(t, yaml.UnmarshalWithOptions(text, &doc, yaml.Strict()))
	metric, label, known := regexp.MustCompile(`\bsallyport_([a-z0-9_]+)`), regexp.MustCompile(`(state|reason|result)=~?"([^"]+)"`), words(t)
	rules := map[string]bool{}
	for _, group := range doc.Groups {
		require.NotEmpty(t, group.Name)
		for _, rule := range group.Rules {
			require.NotEmpty(t, rule.Alert)
			require.False(t, rules[rule.Alert], "%s stands twice", rule.Alert)
			rules[rule.Alert] = true
			require.Contains(t, []string{"info", "warning", "critical"}, rule.Labels["severity"], rule.Alert)
			require.NotEmpty(t, rule.Annotations["summary"], rule.Alert)
			names := metric.FindAllStringSubmatch(rule.Expr, -1)
			require.NotEmpty(t, names, "%s: %s", rule.Alert, rule.Expr)
			for _, name := range names {
				require.True(t, known[name[1]], "%s: there is no metric %s", rule.Alert, name[0])
			}
			// Sides that differ in a label match nothing unless they are told to ignore it.
			if left, right, two := strings.Cut(rule.Expr, " and "); two && label.FindString(left) != label.FindString(right) {
				require.Regexp(t, `^(ignoring|on) \(`, right, rule.Alert)
			}
			for _, l := range label.FindAllStringSubmatch(rule.Expr, -1) {
				for word := range strings.SplitSeq(l[2], "|") {
					if l[1] != "reason" { // those are the wire's words
						require.True(t, known[word], "%s: there is no %s %q", rule.Alert, l[1], word)
					}
				}
			}
		}
	}
	require.Greater(t, len(rules), 10)
}
