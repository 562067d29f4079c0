package config

import (
	"fmt"
	"strings"
)

// Mistake is one thing that the operator should correct.
type Mistake struct {
	// Where is the source: "sallyport.yaml:12", "environment SALLYPORT_SLOTS",
	// "flag --slots"; empty for what only the whole shows.
	Where string
	// Key is the setting's path in the file; empty where there is none.
	Key     string
	Message string
}

func (m Mistake) String() string {
	var parts []string
	for _, part := range []string{m.Where, m.Key, m.Message} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, ": ")
}

// MistakesError is the error of a configuration that cannot be used: all that is
// wrong with it.
type MistakesError []Mistake

func (m MistakesError) Error() string {
	if len(m) == 1 {
		return "configuration: " + m[0].String()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "configuration: %d mistakes", len(m))
	for _, mistake := range m {
		b.WriteString("\n  " + mistake.String())
	}
	return b.String()
}

// suggest is "; did you mean X?" for the nearest name, or "" where none is near.
func suggest(word string, names []string) string {
	best, bestDistance := "", len(word)/2+1
	for _, name := range names {
		d := distance(strings.ToLower(word), strings.ToLower(name))
		if d < bestDistance {
			best, bestDistance = name, d
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + best + "?"
}

// distance is the Damerau-Levenshtein distance in its optimal string alignment
// form: insertions, deletions, substitutions and swaps of neighbours.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}

// quote shows a value as the operator wrote it, cut to a readable length.
func quote(value string) string {
	const most = 80
	if len(value) > most {
		value = value[:most] + "…"
	}
	return fmt.Sprintf("%q", value)
}
