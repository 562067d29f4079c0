package createos

import (
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/sallyport/sallyport/internal/sandbox"
)

// shell runs our scripts. What they work on travels in their arguments, which no shell
// reads: there is nothing to quote. It is no login shell, whose profile could say or
// change something.
const shell = "/bin/bash"

// scripted is a script's command line.
func scripted(script string, args ...string) []string {
	return append([]string{shell, "-c", script, "sallyport"}, args...)
}

// setupScript makes a sandbox usable: workspace, our directory, marker.
const setupScript = `
umask 022
mkdir -p -- "$1" "$2" && chmod 0755 -- "$1" && chmod 0755 -- "$2" && printf %s "$3" >"$2/marker"
`

// resetScript empties the workspace ($1) and the temporary directories ($4…), and makes
// our own ($2) and the marker ($3) again. What is no directory, or a link to one, is
// replaced where it is ours, and left alone elsewhere.
const resetScript = `
umask 022
ws=$1 own=$2 marker=$3
shift 3
cd / || exit 1
if [ -L "$ws" ] || [ ! -d "$ws" ]; then rm -f -- "$ws" || exit 1; fi
mkdir -p -- "$ws" && chmod 0755 -- "$ws" || exit 1
[ -d "$1" ] && [ ! -L "$1" ] || exit 1
for dir in "$ws" "$@"; do
	if [ -L "$dir" ] || [ ! -d "$dir" ]; then continue; fi
	find "$dir" -mindepth 1 -maxdepth 1 -exec rm -rf -- {} + || exit 1
	[ -z "$(find "$dir" -mindepth 1 -maxdepth 1)" ] || exit 1
done
mkdir -p -- "$own" && chmod 0755 -- "$own" && printf %s "$marker" >"$own/marker"
`

// listScript writes what stands in the workspace ($1) to a file ($2): type, links, size
// and path, each ended by a NUL, at most $3 bytes. GNU find follows no link.
const listScript = `
cd -- "$1" || exit 1
set -o pipefail
find . -mindepth 1 -maxdepth "$4" -printf '%y %n %s %P\0' 2>/dev/null | head -c "$3" >"$2"
status=("${PIPESTATUS[@]}")
[ "${status[1]}" = 0 ] || exit 1
case ${status[0]} in 0|141) exit 0 ;; esac
# What cannot be listed is left out by find, which says so; that it cannot print is worse.
find . -maxdepth 0 -printf '' 2>/dev/null || exit 2
exit 3
`

// runScript places the files, waits at the gate, and becomes the program. Lines that
// begin with the nonce tell us where it is; the last one, on both streams, is "start":
// what follows is the program's own. Its arguments:
//
//	nonce base limit workspace cwd input PATH files {path mode size} env {NAME=value} argv
const runScript = `
nonce=$1 base=$2 limit=$3 ws=$4 cwd=$5 input=$6 path=$7 files=$8
shift 8
say() { printf '%s %s\n' "$nonce" "$*" >&2; }
fail() { rm -f -- "$base-gate" "$base-stdin"; say fail "$@"; exit 125; }
umask 022
if [ "$files" -gt 0 ]; then
	exec 3<"$base-files"
	i=0
	while [ "$i" -lt "$files" ]; do
		to=$ws/$1 dir=
		case $1 in */*) dir=${1%/*} ;; esac
		if mkdir -p -- "$ws/$dir" && head -c "$3" <&3 >"$to" && [ "$(wc -c <"$to")" -eq "$3" ] && chmod -- "$2" "$to"; then
			shift 3
			i=$((i+1))
			continue
		fi
		rm -rf -- "$ws"/* "$ws"/.[!.]* "$ws"/..?* "$base-files"
		say file "$i"
		exit 125
	done
	exec 3<&-
	rm -f -- "$base-files"
fi
count=$1
shift
env=("${@:1:count}")
shift "$count"
say ready
i=0
until [ -e "$base-gate" ]; do
	if [ "$SECONDS" -ge "$limit" ]; then say gate; exit 125; fi
	# Nearly all gates open within seconds; one that does not shall cost little.
	if [ "$i" -lt 500 ]; then sleep 0.01; i=$((i+1)); else sleep 0.1; fi
done
case $input in
file) exec <"$base-stdin" ;;
none) exec </dev/null ;;
esac
rm -f -- "$base-gate" "$base-stdin"
if ! cd -- "$cwd" 2>/dev/null; then
	if [ ! -e "$cwd" ]; then fail bad_cwd 2; elif [ ! -d "$cwd" ]; then fail bad_cwd 20; else fail bad_cwd 13; fi
fi
found=
look() {
	if [ -f "$1" ] && [ -x "$1" ]; then found=yes; return 0; fi
	if [ -e "$1" ]; then found=no; fi
	return 1
}
case $1 in
*/*) look "$1" ;;
*)
	set -f
	IFS=:
	for dir in $path; do look "${dir:-.}/$1" && break; done
	unset IFS
	;;
esac
case $found in
no) fail not_executable 13 ;;
'') fail not_found 2 ;;
esac
printf '%s start\n' "$nonce"
say start
exec /usr/bin/env -i "${env[@]}" "$@"
`

// program is a process that was found good.
type program struct {
	sandbox.Process
	path  string // its PATH
	cwd   string
	files []sandbox.File
}

// envName says that name is what a shell takes for a variable's name.
func envName(name string) bool {
	for i := range len(name) {
		c := name[i]
		letter := c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}

// newProgram checks a process before anything is sent.
func newProgram(p sandbox.Process, workspace string) (*program, error) {
	g := &program{Process: p, path: "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", cwd: p.Cwd, files: p.Files}
	if len(p.Argv) == 0 || p.Argv[0] == "" {
		return nil, errors.New("argv: a program is needed")
	}
	if strings.Contains(p.Argv[0], "=") {
		return nil, errors.New("argv[0]: a program whose name has a = cannot be run here")
	}
	for i, arg := range p.Argv {
		if err := sendable(arg); err != nil {
			return nil, fmt.Errorf("argv[%d]: %w", i, err)
		}
	}
	for i, entry := range p.Env {
		name, value, ok := strings.Cut(entry, "=")
		if !ok || !envName(name) {
			return nil, fmt.Errorf("env[%d]: must be NAME=value, with a name of letters, digits and _", i)
		}
		if err := sendable(value); err != nil {
			return nil, fmt.Errorf("env[%d]: %w", i, err)
		}
		if name == "PATH" {
			g.path = value
		}
	}
	if err := sendable(p.Cwd); err != nil {
		return nil, fmt.Errorf("cwd: %w", err)
	}
	switch {
	case p.Cwd == "":
		g.cwd = workspace
	case !path.IsAbs(p.Cwd):
		g.cwd = workspace + "/" + p.Cwd
	}
	if p.Limits != (sandbox.Limits{}) {
		return nil, errors.New("limits: this provider enforces none for a single run")
	}
	if err := sandbox.CheckFiles(p.Files); err != nil {
		return nil, err
	}
	for i := range p.Files {
		if err := sendable(p.Files[i].Path); err != nil {
			return nil, &sandbox.FileError{Path: p.Files[i].Path, Err: err}
		}
	}
	return g, nil
}

// sendable says whether a text arrives as it is: arguments hold no NUL, JSON only UTF-8.
func sendable(s string) error {
	switch {
	case strings.Contains(s, "\x00"):
		return errors.New("has a NUL byte")
	case !utf8.ValidString(s):
		return errors.New("is not UTF-8")
	}
	return nil
}

// argv is the command line of the process that becomes the program.
func (g *program) argv(nonce, base, input string, limit int, workspace string, sizes []int64) []string {
	args := []string{nonce, base, strconv.Itoa(limit), workspace, g.cwd, input, g.path, strconv.Itoa(len(g.files))}
	for i := range g.files {
		mode := g.files[i].Mode
		if mode == 0 {
			mode = 0o644
		}
		args = append(args, g.files[i].Path, strconv.FormatUint(uint64(mode), 8), strconv.FormatInt(sizes[i], 10))
	}
	args = append(args, strconv.Itoa(len(g.Env)))
	args = append(args, g.Env...)
	return scripted(runScript, append(args, g.Argv...)...)
}

// startError is what a fail line says.
func (g *program) startError(words []string) *sandbox.StartError {
	e := &sandbox.StartError{Reason: sandbox.StartSetup, Path: g.Argv[0]}
	if len(words) != 2 {
		return e
	}
	switch reason := sandbox.StartReason(words[0]); reason {
	case sandbox.StartNotFound, sandbox.StartNotExecutable:
		e.Reason = reason
	case sandbox.StartBadCwd:
		e.Reason, e.Path = reason, g.cwd
	case sandbox.StartBadFormat, sandbox.StartBadInterpreter, sandbox.StartTooBig, sandbox.StartSetup: // said by no script
	}
	if number, err := strconv.Atoi(words[1]); err == nil {
		e.Errno = number
	}
	return e
}

// counted is the concatenation of the files' contents, which notes their sizes and whose
// fault it was when one cannot be read.
type counted struct {
	files []sandbox.File
	at    int
	sizes []int64
	fault *sandbox.FileError
}

func newCounted(files []sandbox.File) *counted {
	return &counted{files: files, sizes: make([]int64, len(files))}
}

// Read implements io.Reader.
func (c *counted) Read(p []byte) (int, error) {
	for c.at < len(c.files) {
		n, err := c.files[c.at].Content.Read(p)
		c.sizes[c.at] += int64(n)
		switch {
		case errors.Is(err, io.EOF):
			c.at++
		case err != nil:
			c.fault = &sandbox.FileError{Path: c.files[c.at].Path, Err: err}
			return n, c.fault
		}
		if n > 0 {
			return n, nil
		}
	}
	return 0, io.EOF
}
