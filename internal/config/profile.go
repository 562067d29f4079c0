package config

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Profile is an operator-defined kind of sandbox.
type Profile struct {
	Name string
	// Provider makes its sandboxes: local, createos or fake.
	Provider string
	// Root is the root view. For local: empty means the host's system directories,
	// read-only; a directory, read-only; or "overlay:" and a directory, which each job
	// sees as if it could be written to. For createos: an image's name. For fake: steps.
	Root string
	// Shape is the size of a sandbox in its provider's word; empty means its default.
	Shape string
	// Reuse is tenant (again for the same tenant after proof and reset) or never.
	Reuse string
	// Warm is the number of unused sandboxes to keep ready, 0 to 256.
	Warm int
	// MaxUses is the number of jobs after which a sandbox is destroyed.
	MaxUses int
	// MaxAge and IdleTTL bound a sandbox's life and its idle time.
	MaxAge, IdleTTL time.Duration
	// Default applies where a request sets no limit, Max is the most it may set.
	Default, Max Limits
}

// Limits bound one run. Zero means "none given", in Default only: Max always
// bounds everything.
type Limits struct {
	Wall, Grace, CPU          time.Duration
	MemoryBytes, OutputBytes  int64
	DiskBytes, Inodes         int64
	Pids, OpenFiles, CPUShare int64
}

// limit is one field of Limits with its key in the file.
type limit struct {
	key   string
	parse func(string) (int64, error)
	write func(int64) string
	at    func(*Limits) *int64
}

// limits are the fields in the order in which they print. The ceilings are those
// of a request's own limits.
func limits() []limit {
	return []limit{
		timeLimit("wall", 7*24*time.Hour, func(l *Limits) *time.Duration { return &l.Wall }),
		timeLimit("grace", time.Hour, func(l *Limits) *time.Duration { return &l.Grace }),
		timeLimit("cpu", 365*24*time.Hour, func(l *Limits) *time.Duration { return &l.CPU }),
		sizeLimit("memory", 1<<44, func(l *Limits) *int64 { return &l.MemoryBytes }),
		sizeLimit("output", 1<<40, func(l *Limits) *int64 { return &l.OutputBytes }),
		sizeLimit("disk", 1<<44, func(l *Limits) *int64 { return &l.DiskBytes }),
		countLimit("inodes", 1<<32, func(l *Limits) *int64 { return &l.Inodes }),
		countLimit("pids", 1<<22, func(l *Limits) *int64 { return &l.Pids }),
		countLimit("open_files", 1<<20, func(l *Limits) *int64 { return &l.OpenFiles }),
		countLimit("cpu_share", 102_400, func(l *Limits) *int64 { return &l.CPUShare }),
	}
}

func timeLimit(key string, most time.Duration, at func(*Limits) *time.Duration) limit {
	write := func(n int64) string { return FormatDuration(time.Duration(n)) }
	return limit{key, func(word string) (int64, error) {
		d, err := ParseDuration(word)
		if err == nil && d%time.Millisecond != 0 {
			err = errors.New("is finer than a millisecond")
		}
		return bounded(int64(d), int64(most), write, err)
	}, write, func(l *Limits) *int64 { return (*int64)(at(l)) }}
}

func sizeLimit(key string, most int64, at func(*Limits) *int64) limit {
	return limit{key, func(word string) (int64, error) {
		n, err := ParseSize(word)
		return bounded(n, most, FormatSize, err)
	}, FormatSize, at}
}

func countLimit(key string, most int64, at func(*Limits) *int64) limit {
	write := func(n int64) string { return strconv.FormatInt(n, 10) }
	return limit{key, func(word string) (int64, error) { return parseCount(word, 0, most) }, write, at}
}

// bounded refuses a limit above its ceiling.
func bounded(n, most int64, write func(int64) string, err error) (int64, error) {
	if err == nil && n > most {
		err = errors.New("is above " + write(most))
	}
	return n, err
}

// builtin is what a profile is where the file says nothing.
func builtin(name, provider string) Profile {
	return Profile{
		Name: name, Provider: provider, Reuse: "tenant",
		Warm: 1, MaxUses: 1000, MaxAge: time.Hour, IdleTTL: 5 * time.Minute,
		Default: Limits{
			Wall: time.Minute, Grace: 2 * time.Second,
			MemoryBytes: 512 << 20, OutputBytes: 16 << 20,
			DiskBytes: 256 << 20, Inodes: 16384,
			Pids: 256, OpenFiles: 1024, CPUShare: 100,
		},
		Max: Limits{
			Wall: time.Hour, Grace: time.Minute, CPU: 4 * time.Hour,
			MemoryBytes: 4 << 30, OutputBytes: 1 << 30,
			DiskBytes: 1 << 30, Inodes: 262144,
			Pids: 4096, OpenFiles: 65536, CPUShare: 800,
		},
	}
}

// givenProfile is what the file says about one profile: words by path below it
// ("warm", "limits.max.wall"), with the place of each.
type givenProfile struct {
	where string
	words map[string]givenWord
	order []string
}

type givenWord struct{ where, text string }

// profileKeys are the keys of a profile besides limits.
func profileKeys() []string {
	return []string{"provider", "root", "shape", "reuse", "warm", "max_uses", "max_age", "idle_ttl"}
}

// profiles lays what the file gave over the built-in values.
func (l *loader) profiles() {
	for _, name := range slices.Sorted(maps.Keys(l.given)) {
		given := l.given[name]
		p, known := l.cfg.Profiles[name]
		if !known {
			p = builtin(name, "local")
		}
		if err := checkToken(name); err != nil {
			l.mistake(given.where, keyProfiles, quote(name)+" "+err.Error())
		}
		if word, ok := given.words["provider"]; ok {
			p.become(word.text)
		}
		for _, path := range given.order {
			word := given.words[path]
			if err := p.set(path, word.text); err != nil {
				l.mistake(word.where, keyProfiles+"."+name+"."+path, quote(word.text)+" "+err.Error())
			}
		}
		for _, f := range limits() {
			l.fit(given, f, &p)
		}
		l.cfg.Profiles[name] = p
	}
}

// become takes the provider's own defaults, before what is given.
func (p *Profile) become(provider string) {
	p.Provider = provider
	if provider == "createos" {
		// A remote sandbox costs money while it stands, and keeps what a reset does not
		// see.
		p.Reuse, p.Warm = "never", 0
		// Its shape limits a sandbox, nothing there limits a run.
		p.Default = Limits{Wall: p.Default.Wall, Grace: p.Default.Grace, OutputBytes: p.Default.OutputBytes}
	}
}

// fit keeps the default below the maximum: a built-in default follows a lower
// maximum, a given one that is above it is a mistake.
func (l *loader) fit(given *givenProfile, f limit, p *Profile) {
	def, most := f.at(&p.Default), f.at(&p.Max)
	if *def <= *most {
		return
	}
	word, ok := given.words["limits.default."+f.key]
	if !ok {
		*def = *most
		return
	}
	l.mistake(word.where, keyProfiles+"."+p.Name+".limits.default."+f.key,
		fmt.Sprintf("%s is above the maximum %s", quote(word.text), f.write(*most)))
}

func (p *Profile) set(path, text string) error {
	for _, f := range limits() {
		for prefix, into := range map[string]*Limits{"limits.default.": &p.Default, "limits.max.": &p.Max} {
			if path != prefix+f.key {
				continue
			}
			n, err := f.parse(text)
			if err == nil && n < 1 {
				err = errors.New("is zero; no job is unlimited, so leave the key out to take the built-in limit")
			}
			if err == nil {
				*f.at(into) = n
			}
			return err
		}
	}
	switch path {
	case "provider":
		p.Provider = text
		return among("local", "createos", "fake")(text)
	case "root":
		p.Root = text
		if p.Provider == "local" {
			return checkRoot(text)
		}
	case "shape":
		p.Shape = text
		if p.Provider != "createos" {
			return errors.New("is for the provider createos: local sandboxes have limits")
		}
	case "reuse":
		p.Reuse = text
		return among("tenant", "never")(text)
	case "warm":
		return setCount(&p.Warm, text, 0, 256)
	case "max_uses":
		return setCount(&p.MaxUses, text, 1, 1_000_000)
	case "max_age":
		return setDuration(&p.MaxAge, text)
	case "idle_ttl":
		return setDuration(&p.IdleTTL, text)
	default:
		return errors.New("belongs to no setting")
	}
	return nil
}

// checkRoot takes a clean absolute path, with "overlay:" in front of it or not. The
// root of the host itself would show what no job should see.
func checkRoot(text string) error {
	dir, _ := strings.CutPrefix(text, "overlay:")
	switch {
	case !filepath.IsAbs(dir):
		return errors.New("is not an absolute path, nor overlay: and one")
	case filepath.Clean(dir) != dir:
		return errors.New("is not the shortest form of its path, which is " + filepath.Clean(dir))
	case dir == "/":
		return errors.New("is the host's own root: leave the key out to show its system directories")
	}
	return nil
}

func setCount(at *int, text string, least, most int64) error {
	n, err := parseCount(text, least, most)
	if err == nil {
		*at = int(n)
	}
	return err
}

func setDuration(at *time.Duration, text string) error {
	const least = time.Second // a shorter life would only churn
	d, err := ParseDuration(text)
	if err == nil && (d < least || d > 7*24*time.Hour) {
		err = errors.New("is out of range: from 1s to 7d")
	}
	if err == nil {
		*at = d
	}
	return err
}
