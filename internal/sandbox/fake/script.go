package fake

import (
	"errors"
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

// maxTimes bounds the N of a knob.
const maxTimes = 1 << 20

// script is a parsed argv.
type script struct {
	// ofRoot says that it is of a root view, not of a process.
	ofRoot bool
	steps  []step
	// Effects of contract calls; empty means that the call works.
	prepare, open, reset, collect string
	// plans are of the next calls of Create.
	plans              []Create
	wait, terminate    rule
	start              sandbox.StartReason
	waitNever          bool
	termUnproven       bool
	destroy, inventory rule
	back               time.Duration
	backs              int
	delay              map[string]time.Duration
}

// step is one thing that the program does.
type step struct {
	name string
	text string
	n    int64
	d    time.Duration
}

// rule is an effect that holds for the next Left calls; Left < 0 is for ever.
type rule struct {
	Effect string
	Left   int
}

func (r *rule) active() bool { return r.Effect != "" && r.Left != 0 }

// next is the effect on this call; empty means that it works.
func (r *rule) next() string {
	if !r.active() {
		return ""
	}
	if r.Left > 0 {
		r.Left--
	}
	return r.Effect
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
		"prepare": "prepare:refuse|unavailable|ambiguous|hang|die", "start": "start:REASON",
		"open": "open:refuse|ambiguous|unstarted|hang|die", "wait": "wait:never|fail[*N]",
		"terminate": "terminate:unproven|fail[*N]|hang[*N]", "reset": "reset:refuse|fail|ambiguous|hang|lie",
		"collect": "collect:refuse|fail|hang",
		"destroy": "destroy:fail[*N]|refuse[*N]|ambiguous[*N]|hang[*N]|lie[*N]|unproven[*N]|never|ok",
		"back":    "back:DURATION[*N]", "delay": "delay:CALL:DURATION",
	}
}

// rootForms are the words of a profile's root view.
func rootForms() map[string]string {
	return map[string]string{
		"create": "create:refuse|busy|unavailable|ambiguous|protocol|hang|lie|die|ok[*N]", "appear": "appear[:DURATION]",
		"inventory": "inventory:unavailable[*N]|hang[*N]|partial[*N]|ok",
		"destroy":   forms()["destroy"], "back": forms()["back"], "delay": forms()["delay"],
	}
}

// parse reads the steps after argv[0]. Its error is for a person.
func parse(words []string) (script, error) {
	s := script{delay: map[string]time.Duration{}}
	for i, word := range words {
		if err := s.read(word, forms(), "step"); err != nil {
			return script{}, fmt.Errorf("argv[%d]: %w", i+1, err)
		}
	}
	return s, nil
}

// parseRoot reads the words of a root view, or of World.Inventory and Plant: those
// that no process can give.
func parseRoot(words []string) (script, error) {
	s := script{ofRoot: true, delay: map[string]time.Duration{}}
	for _, word := range words {
		if err := s.read(word, rootForms(), "word"); err != nil {
			return script{}, err
		}
	}
	return s, nil
}

func (s *script) read(word string, forms map[string]string, what string) error {
	name, arg, has := strings.Cut(word, ":")
	if forms[name] == "" {
		return fmt.Errorf("no %s %q; the %ss are: %s", what, name, what, strings.Join(slices.Sorted(maps.Values(forms)), " "))
	}
	if err := s.add(name, arg, has); err != nil {
		return fmt.Errorf("%q is not of the form %s: %w", word, forms[name], err)
	}
	return nil
}

func (s *script) add(name, arg string, has bool) error {
	switch name {
	case "prepare":
		return choose(&s.prepare, arg, "refuse", "unavailable", "ambiguous", "hang", "die")
	case "open":
		return choose(&s.open, arg, "refuse", "ambiguous", "unstarted", "hang", "die")
	case "reset":
		return choose(&s.reset, arg, "refuse", "fail", "ambiguous", "hang", "lie")
	case "collect":
		return choose(&s.collect, arg, "refuse", "fail", "hang")
	case "wait":
		if s.waitNever = s.waitNever || arg == "never"; arg == "never" {
			return nil
		}
		return s.wait.set(arg, "fail")
	case "terminate":
		if s.termUnproven = s.termUnproven || arg == "unproven"; arg == "unproven" {
			return nil
		}
		return s.terminate.set(arg, "fail", "hang")
	case "create":
		return s.addCreate(arg)
	case "appear":
		return s.addAppear(arg, has)
	case "inventory":
		return s.inventory.set(arg, "unavailable", "hang", "partial", "ok")
	case "back":
		return s.addBack(arg)
	case "start":
		s.start = sandbox.StartReason(arg)
		return choose(new(string), arg, string(sandbox.StartNotFound), string(sandbox.StartNotExecutable),
			string(sandbox.StartBadFormat), string(sandbox.StartBadInterpreter), string(sandbox.StartBadCwd),
			string(sandbox.StartTooBig), string(sandbox.StartSetup))
	case "destroy":
		if arg == "never" {
			s.destroy = rule{"never", -1}
			return nil
		}
		return s.destroy.set(arg, "fail", "refuse", "ambiguous", "hang", "lie", "unproven", "ok")
	case "delay":
		return s.addDelay(arg)
	default:
		return s.addStep(name, arg, has)
	}
}

// set reads EFFECT[*N]; ok is no effect.
func (r *rule) set(arg string, allowed ...string) error {
	effect, n, err := times(arg)
	if err == nil {
		err = choose(new(string), effect, allowed...)
	}
	if *r = (rule{effect, n}); effect == "ok" {
		*r = rule{}
	}
	return err
}

// times reads WORD[*N], 1 to maxTimes.
func times(arg string) (word string, n int, err error) {
	word, count, counted := strings.Cut(arg, "*")
	if !counted {
		return word, 1, nil
	}
	n, err = strconv.Atoi(count)
	if err != nil || n < 1 || n > maxTimes {
		return "", 0, fmt.Errorf("times %q is not a number from 1 to %d", count, maxTimes)
	}
	return word, n, nil
}

func (s *script) addCreate(arg string) error {
	effect, n, err := times(arg)
	if err != nil {
		return err
	}
	plan, known := map[string]Create{
		"refuse": {Kind: sandbox.Refused}, "busy": {Kind: sandbox.Busy}, "unavailable": {Kind: sandbox.Unavailable},
		"ambiguous": {Kind: sandbox.Ambiguous}, "protocol": {Kind: sandbox.Protocol}, "hang": {Hang: true},
		"lie": {Lie: true}, "die": {Die: true}, "ok": {},
	}[effect]
	if !known {
		return fmt.Errorf("%q is no effect", effect)
	}
	plan.times = n
	s.plans = append(s.plans, plan)
	return nil
}

// addAppear is about the create word before it.
func (s *script) addAppear(arg string, has bool) (err error) {
	if len(s.plans) == 0 {
		return errors.New("no create word stands before it")
	}
	plan := &s.plans[len(s.plans)-1]
	if plan.Exists = true; has {
		plan.Late, err = duration(arg)
	}
	return err
}

func (s *script) addBack(arg string) error {
	d, n, err := times(arg)
	if err == nil {
		s.back, err = duration(d)
	}
	s.backs = n
	return err
}

func (s *script) addDelay(arg string) error {
	call, d, _ := strings.Cut(arg, ":")
	calls := []string{"prepare", "open", "wait", "terminate", "collect", "reset", "destroy"}
	if s.ofRoot {
		calls = []string{"create", "destroy", "inventory"}
	}
	if err := choose(new(string), call, calls...); err != nil {
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
