package wire

import (
	"encoding/base64"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Validate checks everything about r that its format fixes, and returns the
// first fault. What this build does not offer yet, what the profile bounds and
// what the host can enforce is not its business.
func (r *Request) Validate() *Invalid {
	if r.V != Version {
		return invalid(ReasonVersion, "v", "must be the number %d, not %d; this build speaks no other version", Version, r.V)
	}
	for _, check := range []func() *Invalid{
		r.checkArgv, r.checkEnv, r.checkExecSize, r.checkCwd, r.checkStdin, r.checkFiles, r.checkCollect,
		func() *Invalid { return r.Limits.Validate("limits") },
		r.checkRules, r.checkTimes, func() *Invalid { return checkMeta(r.Meta) },
	} {
		if bad := check(); bad != nil {
			return bad
		}
	}
	return nil
}

func (r *Request) checkArgv() *Invalid {
	switch {
	case len(r.Argv) == 0:
		return invalid(ReasonField, "argv", "must be a list of strings with at least one, the program")
	case len(r.Argv) > MaxArgs:
		return invalid(ReasonTooBig, "argv", "must have at most %d elements, not %d", MaxArgs, len(r.Argv))
	case r.Argv[0] == "":
		return invalid(ReasonField, "argv[0]", "must name a program, not be empty")
	}
	for i, arg := range r.Argv {
		if bad := checkText(element("argv", i), arg, MaxArgBytes); bad != nil {
			return bad
		}
	}
	return nil
}

func (r *Request) checkEnv() *Invalid {
	if len(r.Env) > MaxEnv {
		return invalid(ReasonTooBig, "env", "must have at most %d variables, not %d", MaxEnv, len(r.Env))
	}
	for _, name := range sortedKeys(r.Env) {
		field := member("env", name)
		switch {
		case name == "":
			return invalid(ReasonField, "env", "must not hold a variable with an empty name")
		case strings.Contains(name, "="):
			return invalid(ReasonField, field, "must not have '=' in its name")
		case !utf8.ValidString(name) || strings.Contains(name, "\x00"):
			return invalid(ReasonField, field, "must have a name of UTF-8 text without a NUL character")
		}
		if bad := checkText(field, r.Env[name], MaxArgBytes-len("=")-len(name)); bad != nil {
			return bad
		}
	}
	return nil
}

// checkExecSize counts as the kernel does, so that a request which passes never
// ends in execve's E2BIG.
func (r *Request) checkExecSize() *Invalid {
	const perString = len("\x00") + 8
	total := 0
	for _, arg := range r.Argv {
		total += len(arg) + perString
	}
	for name, value := range r.Env {
		total += len(name) + len("=") + len(value) + perString
	}
	if total > MaxExecBytes {
		return invalid(ReasonTooBig, "argv", "argv and env together must have at most %d bytes (with %d more for each string), not %d", MaxExecBytes, perString, total)
	}
	return nil
}

// checkCwd takes an absolute path inside the sandbox, or one below the
// workspace.
func (r *Request) checkCwd() *Invalid {
	if r.Cwd == "" {
		return nil
	}
	if bad := checkPath("cwd", r.Cwd); bad != nil {
		return bad
	}
	if !path.IsAbs(r.Cwd) && !below(r.Cwd) {
		return invalid(ReasonField, "cwd", "must be absolute, or relative to the workspace and not lead out of it with ..")
	}
	return nil
}

func (r *Request) checkStdin() *Invalid {
	if r.Stdin != nil && r.StdinBase64 != nil {
		return invalid(ReasonField, "stdin_base64", "must not stand beside stdin; give the input once")
	}
	if r.Stdin != nil && !utf8.ValidString(*r.Stdin) {
		return invalid(ReasonField, "stdin", "must be UTF-8 text; use stdin_base64 for other bytes")
	}
	if r.StdinBase64 != nil {
		return checkBase64("stdin_base64", *r.StdinBase64)
	}
	return nil
}

// Input is what r feeds to the program's standard input, and whether it says
// anything about it. The request must be valid.
func (r *Request) Input() (data []byte, given bool) {
	switch {
	case r.Stdin != nil:
		return []byte(*r.Stdin), true
	case r.StdinBase64 != nil:
		data, err := base64.StdEncoding.Strict().DecodeString(*r.StdinBase64)
		return data, err == nil
	}
	return nil, false
}

func (r *Request) checkFiles() *Invalid {
	if len(r.Files) > MaxFiles {
		return invalid(ReasonTooBig, "files", "must have at most %d elements, not %d", MaxFiles, len(r.Files))
	}
	for i := range r.Files {
		if bad := r.Files[i].check(element("files", i)); bad != nil {
			return bad
		}
	}
	return r.checkPlaces()
}

func (f *File) check(field string) *Invalid {
	if bad := checkRelative(field+".path", f.Path); bad != nil {
		return bad
	}
	contents := 0
	for _, given := range []bool{f.Text != nil, f.Base64 != nil, f.Object != ""} {
		if given {
			contents++
		}
	}
	if contents != 1 {
		return invalid(ReasonField, field, "must have exactly one of text, base64 and object")
	}
	if f.Text != nil && !utf8.ValidString(*f.Text) {
		return invalid(ReasonField, field+".text", "must be UTF-8 text; use base64 for other bytes")
	}
	if f.Base64 != nil {
		if bad := checkBase64(field+".base64", *f.Base64); bad != nil {
			return bad
		}
	}
	if f.Object != "" && !ValidObject(f.Object) {
		return invalid(ReasonField, field+".object", "must be the name of an object: 1 to %d bytes without control characters, with slashes between segments that are not empty, . or ..", MaxObjectName)
	}
	if f.Mode != "" && !octalMode(f.Mode) {
		return invalid(ReasonField, field+".mode", `must be three octal digits, not all 0, with a 0 in front, for instance "0644", not %s`, quoted(f.Mode))
	}
	return nil
}

// octalMode takes permission bits only: a setuid file has no use in a sandbox.
func octalMode(mode string) bool {
	if len(mode) != 4 || mode[0] != '0' {
		return false
	}
	return strings.Trim(mode, "01234567") == "" && mode != "0000"
}

func (r *Request) checkCollect() *Invalid {
	if len(r.Collect) > MaxCollect {
		return invalid(ReasonTooBig, "collect", "must have at most %d elements, not %d", MaxCollect, len(r.Collect))
	}
	total := 0
	for i, pattern := range r.Collect {
		field := element("collect", i)
		if total += len(pattern); total > MaxCollectBytes {
			return invalid(ReasonTooBig, "collect", "must have at most %d bytes, all patterns together", MaxCollectBytes)
		}
		if bad := checkRelative(field, pattern); bad != nil {
			return bad
		}
		for segment := range strings.SplitSeq(pattern, "/") {
			if _, err := path.Match(segment, ""); err != nil {
				return invalid(ReasonField, field, "must be a pattern with *, ? and [a-z] between slashes, not %s", quoted(pattern))
			}
		}
	}
	return nil
}

// checkRules checks the fields that choose between rules of ours.
func (r *Request) checkRules() *Invalid {
	if r.Profile != "" && !ValidToken(r.Profile) {
		return invalid(ReasonField, "profile", "must be %s, not %s", tokenText(), quoted(r.Profile))
	}
	if r.Lease.Reuse != "" && !r.Lease.Reuse.Valid() {
		return invalid(ReasonField, "lease.reuse", "must be %s, not %s", choice(reuses()), quoted(string(r.Lease.Reuse)))
	}
	if r.Output != "" && !r.Output.Valid() {
		return invalid(ReasonField, "output", "must be %s, not %s", choice(outputModes()), quoted(string(r.Output)))
	}
	if n := r.Retry.MaxAttempts; n != nil {
		if bad := wholeNumber("retry.max_attempts", "attempts", int64(*n), 1, MaxAttemptsCeiling); bad != nil {
			return bad
		}
	}
	if n := r.Priority; n != nil {
		return wholeNumber("priority", "", int64(*n), 0, MaxPriority)
	}
	return nil
}

func (r *Request) checkTimes() *Invalid {
	for _, given := range []struct {
		field string
		at    *time.Time
	}{{"deadline", r.Deadline}, {"not_before", r.NotBefore}} {
		// RFC 3339 has four digits for the year; before 1970 it is surely a zero
		// value or a wrong unit.
		if given.at != nil && (given.at.UTC().Year() < 1970 || given.at.UTC().Year() > 9998) {
			return invalid(ReasonField, given.field, "must lie between the years 1970 and 9998")
		}
	}
	if r.Deadline != nil && r.NotBefore != nil && !r.NotBefore.Before(*r.Deadline) {
		return invalid(ReasonField, "not_before", "must lie before the deadline, or the job can never start")
	}
	return nil
}

func checkMeta(meta map[string]string) *Invalid {
	total := 0
	for _, key := range sortedKeys(meta) {
		if key == "" {
			return invalid(ReasonField, "meta", "must not hold an empty key")
		}
		if !utf8.ValidString(key) || !utf8.ValidString(meta[key]) {
			return invalid(ReasonField, member("meta", key), "must be UTF-8 text")
		}
		total += len(key) + len(meta[key])
	}
	if total > MaxMetaBytes {
		return invalid(ReasonTooBig, "meta", "must have at most %d bytes, all keys and values together, not %d", MaxMetaBytes, total)
	}
	return nil
}

// checkText takes UTF-8 without NUL, because the kernel ends a string at the
// first one and would silently run something else.
func checkText(field, text string, limit int) *Invalid {
	switch {
	case strings.Contains(text, "\x00"):
		return invalid(ReasonField, field, "must not contain a NUL character")
	case !utf8.ValidString(text):
		return invalid(ReasonField, field, "must be UTF-8 text")
	case len(text) > limit:
		return invalid(ReasonTooBig, field, "must have at most %d bytes, not %d", max(limit, 0), len(text))
	}
	return nil
}

func checkPath(field, name string) *Invalid {
	if bad := checkText(field, name, MaxPathBytes); bad != nil {
		return bad
	}
	for part := range strings.SplitSeq(name, "/") {
		if len(part) > MaxNameBytes {
			return invalid(ReasonTooBig, field, "must have at most %d bytes between two slashes, not %d", MaxNameBytes, len(part))
		}
	}
	return nil
}

func checkRelative(field, name string) *Invalid {
	if name == "" {
		return invalid(ReasonField, field, "must be a path relative to the workspace, not empty")
	}
	if bad := checkPath(field, name); bad != nil {
		return bad
	}
	if path.IsAbs(name) || !below(name) || path.Clean(name) == "." || strings.HasSuffix(name, "/") {
		return invalid(ReasonField, field, "must be the path of a file relative to the workspace that does not lead out of it, not %s", quoted(name))
	}
	return nil
}

// below says whether a relative path never leaves the place where it begins, not
// even on its way: a/../../b is refused although it could come back.
func below(name string) bool {
	depth := 0
	for part := range strings.SplitSeq(name, "/") {
		switch part {
		case "", ".":
		case "..":
			depth--
		default:
			depth++
		}
		if depth < 0 {
			return false
		}
	}
	return true
}

func checkBase64(field, text string) *Invalid {
	// The decoder skips line breaks; a sender who wraps lines has another
	// encoding in mind.
	if strings.ContainsAny(text, "\r\n") {
		return invalid(ReasonField, field, "must be base64 (RFC 4648) without line breaks")
	}
	if _, err := base64.StdEncoding.Strict().DecodeString(text); err != nil {
		return invalid(ReasonField, field, "must be base64 (RFC 4648, with padding)")
	}
	return nil
}

func tokenText() string {
	return "1 to 64 of A-Z, a-z, 0-9, '_' and '-'"
}

// sortedKeys makes the first fault that is reported the same each time.
func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }
