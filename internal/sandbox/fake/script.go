package fake

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sallyport/sallyport/internal/sandbox"
)

// Pattern is the line that write steps repeat, newline included. A shell makes
// the same bytes with: yes 0123456789abcde | head -c SIZE.
const Pattern = "0123456789abcde\n"

// maxSize bounds the SIZE of a step, so that no arithmetic on it overflows.
const maxSize = 1 << 40

// script is a parsed argv.
type script struct {
	steps []step
	// Effects of contract calls; empty means that the call works.
	prepare, open, reset, collect string
	start                         sandbox.StartReason
	waitNever                     bool
	termUnproven                  bool
	destroy                       rule
	delay                         map[string]time.Duration
}

// step is one thing that the program does.
type step struct {
	name string
	text string
	n    int64
	d    time.Duration
}

// rule is an effect that holds for the next left calls; left < 0 is for ever.
type rule struct {
	effect string
	left   int
}

func (r *rule) active() bool { return r.effect != "" && r.left != 0 }

// next is the effect on this call; empty means that it works.
func (r *rule) next() string {
	if !r.active() {
		return ""
	}
	if r.left > 0 {
		r.left--
	}
	return r.effect
}

// forms maps each step's name to how it is written, for the list in a refusal.
func forms() map[string]string {
	return map[string]string{
		"print": "print:TEXT", "err": "err:TEXT", "cat": "cat", "write": "write:SIZE", "write-err": "write-err:SIZE",
		"env": "env:NAME", "pwd": "pwd", "touch": "touch:NAME", "ls": "ls",
		"put": "put:NAME:TEXT", "show": "show:NAME", "make": "make:symlink|fifo|hardlink|dir:NAME", "sleep": "sleep:DURATION",
		"forever": "forever", "cpu": "cpu:DURATION", "memory": "memory:SIZE", "oom": "oom",
		"ignore-term": "ignore-term", "term-exit": "term-exit:N[:DURATION]", "leftover": "leftover[:DURATION]",
		"exit": "exit:N", "signal": "signal:N", "die": "die[:unproven]",
		"prepare": "prepare:refuse|unavailable|hang", "start": "start:REASON", "open": "open:refuse|ambiguous|hang",
		"wait": "wait:never", "terminate": "terminate:unproven", "reset": "reset:fail|hang", "collect": "collect:fail",
		"destroy": "destroy:fail[*N]|hang[*N]|lie[*N]|unproven[*N]|never|ok", "delay": "delay:CALL:DURATION",
	}
}

// parse reads the steps after argv[0]. Its error is for a person.
func parse(words []string) (script, error) {
	s := script{delay: map[string]time.Duration{}}
	for i, word := range words {
		name, arg, has := strings.Cut(word, ":")
		if forms()[name] == "" {
			return script{}, fmt.Errorf("argv[%d]: no step %q; the steps are: %s", i+1, name,
				strings.Join(slices.Sorted(maps.Values(forms())), " "))
		}
		if err := s.add(name, arg, has); err != nil {
			return script{}, fmt.Errorf("argv[%d]: %q is not of the form %s: %w", i+1, word, forms()[name], err)
		}
	}
	return s, nil
}

func (s *script) add(name, arg string, has bool) error {
	switch name {
	case "prepare":
		return choose(&s.prepare, arg, "refuse", "unavailable", "hang")
	case "open":
		return choose(&s.open, arg, "refuse", "ambiguous", "hang")
	case "reset":
		return choose(&s.reset, arg, "fail", "hang")
	case "collect":
		return choose(&s.collect, arg, "fail")
	case "wait":
		s.waitNever = true
		return choose(new(string), arg, "never")
	case "terminate":
		s.termUnproven = true
		return choose(new(string), arg, "unproven")
	case "start":
		s.start = sandbox.StartReason(arg)
		return choose(new(string), arg, string(sandbox.StartNotFound), string(sandbox.StartNotExecutable),
			string(sandbox.StartBadFormat), string(sandbox.StartBadInterpreter), string(sandbox.StartBadCwd),
			string(sandbox.StartTooBig), string(sandbox.StartSetup))
	case "destroy":
		return s.addDestroy(arg)
	case "delay":
		return s.addDelay(arg)
	default:
		return s.addStep(name, arg, has)
	}
}

func (s *script) addDestroy(arg string) error {
	effect, times, counted := strings.Cut(arg, "*")
	s.destroy.left = 1
	if counted {
		n, err := strconv.Atoi(times)
		if err != nil || n < 1 {
			return fmt.Errorf("times %q is not a number from 1", times)
		}
		s.destroy.left = n
	}
	switch effect {
	case "never":
		s.destroy.left = -1
	case "ok":
		s.destroy = rule{}
		return nil
	}
	return choose(&s.destroy.effect, effect, "fail", "hang", "lie", "unproven", "never")
}

func (s *script) addDelay(arg string) error {
	call, d, _ := strings.Cut(arg, ":")
	if err := choose(new(string), call, "prepare", "open", "wait", "terminate", "collect", "reset", "destroy"); err != nil {
		return err
	}
	delay, err := duration(d)
	s.delay[call] = delay
	return err
}

func (s *script) addStep(name, arg string, has bool) error {
	st := step{name: name, text: arg}
	var err error
	switch name {
	case "write", "write-err", "memory":
		st.n, err = size(arg)
	case "sleep", "cpu":
		st.d, err = duration(arg)
	case "leftover":
		st.d = -1
		if has {
			st.d, err = duration(arg)
		}
	case "exit":
		st.n, err = number(arg, 0, 255)
	case "signal":
		st.n, err = number(arg, 1, 64)
	case "term-exit":
		code, d, delayed := strings.Cut(arg, ":")
		st.n, err = number(code, 0, 255)
		if err == nil && delayed {
			st.d, err = duration(d)
		}
	case "env", "touch", "show":
		if arg == "" {
			err = fmt.Errorf("the name is missing")
		}
	case "put", "make":
		before, after, _ := strings.Cut(arg, ":")
		if before == "" || name == "make" && after == "" {
			err = fmt.Errorf("the name is missing")
		} else if name == "make" {
			err = choose(new(string), before, kindSymlink, kindFifo, kindHardLink, kindDir)
		}
	case "die":
		if has {
			err = choose(new(string), arg, "unproven")
		}
	}
	s.steps = append(s.steps, st)
	return err
}

func choose(to *string, word string, allowed ...string) error {
	if !slices.Contains(allowed, word) {
		return fmt.Errorf("%q is none of %s", word, strings.Join(allowed, ", "))
	}
	*to = word
	return nil
}

func number(word string, least, most int64) (int64, error) {
	n, err := strconv.ParseInt(word, 10, 64)
	if err != nil || n < least || n > most {
		return 0, fmt.Errorf("%q is not a number from %d to %d", word, least, most)
	}
	return n, nil
}

func duration(word string) (time.Duration, error) {
	d, err := time.ParseDuration(word)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q is not a duration such as 100ms", word)
	}
	return d, nil
}

func size(word string) (int64, error) {
	digits, unit := word, int64(1)
	for _, u := range []struct {
		suffix string
		bytes  int64
	}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}} {
		if rest, ok := strings.CutSuffix(word, u.suffix); ok {
			digits, unit = rest, u.bytes
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 || n > maxSize/unit {
		return 0, fmt.Errorf("%q is not a size such as 64MiB, at most 1024GiB", word)
	}
	return n * unit, nil
}
