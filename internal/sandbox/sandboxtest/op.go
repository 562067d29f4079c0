package sandboxtest

import (
	"fmt"
	"strings"
	"time"
)

// Pattern is the line, newline included, that Write repeats.
const Pattern = "0123456789abcde\n"

// Op is one step of a program.
type Op struct {
	Do Action
	// Text of Print, Eprint, Env and Put.
	Text string
	// Name of the steps that have to do with files.
	Name string
	// N is the size of Write in bytes, the code of Exit and TermExit, the number
	// of Signal.
	N int
	// D is the time of Sleep.
	D time.Duration
	// Args of Args.
	Args []string
}

// Action is what an Op does.
type Action int

// The actions. The zero value is invalid.
const (
	DoPrint Action = iota + 1
	DoEprint
	DoArgs
	DoCat
	DoEnv
	DoPwd
	DoWrite
	DoTouch
	DoList
	DoPut
	DoShow
	DoSymlink
	DoFifo
	DoHardLink
	DoDir
	DoSleep
	DoIgnoreTerm
	DoTermExit
	DoLeftover
	DoExit
	DoSignal
)

// Print writes text and a newline to stdout, Eprint to stderr.
func Print(text string) Op { return Op{Do: DoPrint, Text: text} }

// Eprint writes text and a newline to stderr.
func Eprint(text string) Op { return Op{Do: DoEprint, Text: text} }

// Args writes each argument and a newline; the arguments travel in argv as they
// are. At most one a program.
func Args(args ...string) Op { return Op{Do: DoArgs, Args: args} }

// Cat copies standard input to stdout until its end.
func Cat() Op { return Op{Do: DoCat} }

// Env writes the variable's value and a newline.
func Env(name string) Op { return Op{Do: DoEnv, Text: name} }

// Pwd writes the working directory and a newline.
func Pwd() Op { return Op{Do: DoPwd} }

// Write writes n bytes of repeated Pattern to stdout.
func Write(n int) Op { return Op{Do: DoWrite, N: n} }

// Touch makes a file in the working directory.
func Touch(name string) Op { return Op{Do: DoTouch, Name: name} }

// Put adds text to a file in a directory of the workspace that is there.
func Put(name, text string) Op { return Op{Do: DoPut, Name: name, Text: text} }

// Show writes a file's content.
func Show(name string) Op { return Op{Do: DoShow, Name: name} }

// Symlink makes a symbolic link to a file of the system.
func Symlink(name string) Op { return Op{Do: DoSymlink, Name: name} }

// Fifo makes a named pipe.
func Fifo(name string) Op { return Op{Do: DoFifo, Name: name} }

// HardLink makes a file with a second name.
func HardLink(name string) Op { return Op{Do: DoHardLink, Name: name} }

// Dir makes a directory.
func Dir(name string) Op { return Op{Do: DoDir, Name: name} }

// List writes the names of the files in the working directory, a line each.
func List() Op { return Op{Do: DoList} }

// Sleep waits for d.
func Sleep(d time.Duration) Op { return Op{Do: DoSleep, D: d} }

// IgnoreTerm makes it, and what it starts, ignore SIGTERM.
func IgnoreTerm() Op { return Op{Do: DoIgnoreTerm} }

// TermExit makes it exit with code on SIGTERM.
func TermExit(code int) Op { return Op{Do: DoTermExit, N: code} }

// Leftover starts a process in a session of its own that outlives the program.
func Leftover() Op { return Op{Do: DoLeftover} }

// Exit ends the program with code.
func Exit(code int) Op { return Op{Do: DoExit, N: code} }

// Signal ends the program by the signal.
func Signal(number int) Op { return Op{Do: DoSignal, N: number} }

// Shell is a Harness.Command for sandboxes that have sh, coreutils and setsid(1).
func Shell(ops ...Op) []string {
	var script strings.Builder
	var args []string
	trapped := false
	for _, op := range ops {
		switch op.Do {
		case DoPrint:
			fmt.Fprintf(&script, "printf '%%s\\n' %s\n", quote(op.Text))
		case DoEprint:
			fmt.Fprintf(&script, "printf '%%s\\n' %s >&2\n", quote(op.Text))
		case DoArgs:
			args = op.Args
			script.WriteString("for a in \"$@\"; do printf '%s\\n' \"$a\"; done\n")
		case DoCat:
			script.WriteString("cat\n")
		case DoEnv:
			fmt.Fprintf(&script, "printf '%%s\\n' \"$%s\"\n", op.Text)
		case DoPwd:
			script.WriteString("pwd\n")
		case DoWrite:
			fmt.Fprintf(&script, "yes %s | head -c %d\n", strings.TrimSuffix(Pattern, "\n"), op.N)
		case DoTouch:
			fmt.Fprintf(&script, ": > %s\n", quote(op.Name))
		case DoList:
			script.WriteString("ls -1\n")
		case DoPut, DoShow, DoSymlink, DoFifo, DoHardLink, DoDir:
			script.WriteString(shellFile(op))
		case DoSleep:
			if !trapped {
				fmt.Fprintf(&script, "sleep %.3f\n", op.D.Seconds())
				break
			}
			// A shell runs its trap between commands: a signal that comes just
			// before one long sleep would wait for all of it.
			fmt.Fprintf(&script, "i=0; while [ $i -lt %d ]; do sleep 0.05; i=$((i+1)); done\n", op.D.Milliseconds()/50+1)
		case DoIgnoreTerm:
			script.WriteString("trap '' TERM\n")
		case DoTermExit:
			trapped = true
			fmt.Fprintf(&script, "trap 'exit %d' TERM\n", op.N)
		case DoLeftover:
			script.WriteString("setsid sleep 1000 >/dev/null 2>&1 </dev/null &\n")
		case DoExit:
			fmt.Fprintf(&script, "exit %d\n", op.N)
		case DoSignal:
			fmt.Fprintf(&script, "kill -%d $$\n", op.N)
		}
	}
	return append([]string{"sh", "-c", script.String(), "sh"}, args...)
}

// shellFile is a step that has to do with files.
func shellFile(op Op) string {
	name := quote(op.Name)
	return map[Action]string{
		DoPut:      fmt.Sprintf("printf '%%s' %s >> %s\n", quote(op.Text), name),
		DoShow:     fmt.Sprintf("cat %s\n", name),
		DoSymlink:  fmt.Sprintf("ln -s /etc/passwd %s\n", name),
		DoFifo:     fmt.Sprintf("mkfifo %s\n", name),
		DoHardLink: fmt.Sprintf("echo x > %s; ln %s %s.second\n", name, name, name),
		DoDir:      fmt.Sprintf("mkdir %s\n", name),
	}[op.Do]
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
