package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"

	"github.com/sallyport/sallyport/client"
	"github.com/sallyport/sallyport/internal/config"
	"github.com/sallyport/sallyport/internal/daemon"
	"github.com/sallyport/sallyport/internal/wire"
)

// tenantFlag is on every command about jobs.
type tenantFlag struct {
	Tenant string `default:"default" help:"Tenant (default)." placeholder:"NAME"`
}

// jobFlags describe a job.
type jobFlags struct {
	tenantFlag
	fileFlags

	Queue       string   `default:"default" help:"Queue (default)." placeholder:"NAME"`
	Profile     string   `help:"Profile." placeholder:"NAME"`
	ID          string   `name:"id" help:"The job's id; the same id never runs twice. The gateway makes one where there is none." placeholder:"ID"`
	Env         []string `sep:"none" help:"Environment variable, any number of times." placeholder:"K=V"`
	Cwd         string   `help:"Working directory inside the sandbox." placeholder:"DIR"`
	Stdin       string   `help:"Standard input from a file, or - for this command's own." placeholder:"FILE"`
	Wall        string   `help:"Longest wall time." placeholder:"10s"`
	Grace       string   `help:"Time between SIGTERM and SIGKILL." placeholder:"1s"`
	CPU         string   `name:"cpu" help:"Longest CPU time." placeholder:"5s"`
	Memory      string   `help:"Most memory." placeholder:"64MiB"`
	Pids        *int64   `help:"Most processes and threads." placeholder:"64"`
	OutputBytes string   `help:"Most output." placeholder:"1MiB"`
	Fresh       bool     `help:"In a sandbox that no job has used or will use again."`
	RetryIfLost bool     `help:"Run it again when it may have started and was lost."`
	Meta        []string `sep:"none" help:"Note to be echoed in the result, any number of times." placeholder:"K=V"`
}

// request makes the job's request; every wrong flag is in the error.
func (f *jobFlags) request(argv []string, stdin io.Reader) (*client.Request, error) {
	r := &client.Request{V: wire.Version, Argv: argv, Cwd: f.Cwd, Profile: f.Profile}
	var wrong []error
	note := func(flag string, err error) {
		if err != nil {
			wrong = append(wrong, fmt.Errorf("--%s: %w", flag, err))
		}
	}
	var err error
	r.Env, err = pairs(f.Env)
	note("env", err)
	r.Meta, err = pairs(f.Meta)
	note("meta", err)
	for _, d := range []struct {
		flag, text string
		at         **int64
	}{
		{"wall", f.Wall, &r.Limits.WallMS}, {"grace", f.Grace, &r.Limits.GraceMS}, {"cpu", f.CPU, &r.Limits.CPUMS},
	} {
		note(d.flag, setMillis(d.at, d.text))
	}
	note("memory", setBytes(&r.Limits.MemoryBytes, f.Memory))
	note("output-bytes", setBytes(&r.Limits.OutputBytes, f.OutputBytes))
	r.Limits.Pids = f.Pids
	if f.Fresh {
		r.Lease.Reuse = wire.ReuseNever
	}
	r.Retry.IfLost = f.RetryIfLost
	note("stdin", f.readStdin(r, stdin))
	note("file", f.read(r))
	if len(wrong) > 0 {
		return nil, &exit{exitUsage, errors.Join(wrong...)}
	}
	return r, nil
}

// readStdin puts the input into r, as text where it is valid UTF-8.
func (f *jobFlags) readStdin(r *client.Request, stdin io.Reader) (err error) {
	if f.Stdin == "" {
		return nil
	}
	from := stdin
	if f.Stdin != "-" {
		file, err := os.Open(f.Stdin)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, file.Close()) }()
		from = file
	}
	data, err := io.ReadAll(io.LimitReader(from, wire.MaxRequestBytes+1))
	if err != nil {
		return err
	}
	if len(data) > wire.MaxRequestBytes {
		return fmt.Errorf("is larger than a whole request may be (%s)", config.FormatSize(wire.MaxRequestBytes))
	}
	text := string(data)
	if utf8.ValidString(text) {
		r.Stdin = &text
		return nil
	}
	text = base64.StdEncoding.EncodeToString(data)
	r.StdinBase64 = &text
	return nil
}

func pairs(list []string) (map[string]string, error) {
	if len(list) == 0 {
		return nil, nil //nolint:nilnil // no pairs is an absent map
	}
	m := make(map[string]string, len(list))
	for _, word := range list {
		name, value, ok := strings.Cut(word, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("%q is not NAME=VALUE", word)
		}
		m[name] = value
	}
	return m, nil
}

func setMillis(at **int64, text string) error {
	if text == "" {
		return nil
	}
	d, err := config.ParseDuration(text)
	if err != nil {
		return fmt.Errorf("%q %w", text, err)
	}
	if d%time.Millisecond != 0 {
		return fmt.Errorf("%q is finer than a millisecond", text)
	}
	ms := d.Milliseconds()
	*at = &ms
	return nil
}

func setBytes(at **int64, text string) error {
	if text == "" {
		return nil
	}
	n, err := config.ParseSize(text)
	if err != nil {
		return fmt.Errorf("%q %w", text, err)
	}
	*at = &n
	return nil
}

// connected is a client on a connection of its own.
type connected struct {
	*client.Client

	nc *nats.Conn
}

func (c connected) close() { c.nc.Close() }

// client connects as a publisher.
func (s *session) client(file, tenant, queue string) (connected, error) {
	cfg, err := s.config(file, false)
	if err != nil {
		return connected{}, err
	}
	servers, opts, err := daemon.Dial(cfg.NATS)
	if err != nil {
		return connected{}, &exit{exitUsage, err}
	}
	nc, err := nats.Connect(servers, append(opts, nats.Name("sallyport "+s.parsed.Command()), nats.MaxReconnects(-1))...)
	if err != nil {
		return connected{}, fmt.Errorf("%w at %s: %w; start one with `sallyport dev`, or name it with --server", daemon.ErrConnect, servers, err)
	}
	c, err := client.New(nc, client.Config{Prefix: cfg.SubjectPrefix, StreamPrefix: cfg.StreamPrefix, Tenant: tenant, Queue: queue, AcceptTimeout: cfg.NATS.Timeout})
	if err != nil {
		nc.Close()
		return connected{}, &exit{exitUsage, err}
	}
	return connected{c, nc}, nil
}

type submitCommand struct {
	natsFlags
	jobFlags
	jsonFlag
	Argv []string `arg:"" passthrough:"partial" help:"Program and arguments."`
}

// Run submits and does not wait; the output is stored.
func (c *submitCommand) Run(s *session) (err error) {
	request, err := c.request(command(c.Argv), s.stdin)
	if err != nil {
		return err
	}
	request.Output = wire.OutputStored
	cl, err := s.client(c.ConfigFile, c.Tenant, c.Queue)
	if err != nil {
		return err
	}
	defer cl.close()
	if err := c.upload(s.ctx, cl.Client); err != nil {
		return err
	}
	job, err := cl.Submit(s.ctx, request, c.ID)
	if err != nil {
		return refused(err)
	}
	defer func() { err = errors.Join(err, job.Close()) }()
	if c.JSON {
		return s.json(wire.Accepted{V: wire.Version, Tenant: job.Tenant, Queue: job.Queue, ID: job.ID})
	}
	_, err = fmt.Fprintln(s.stdout, job.ID)
	return err
}

// refused gives a refusal of the request itself the exit code of a wrong use.
func refused(err error) error {
	if _, ok := errors.AsType[*client.RefusedError](err); ok {
		return &exit{exitUsage, err}
	}
	return err
}

type tailCommand struct {
	natsFlags
	tenantFlag
	jsonFlag
	From uint64 `help:"Cursor to go on after; 0 is the beginning." placeholder:"N"`
	ID   string `arg:"" help:"The job's id."`
}

// Run prints stored output until the job's end.
func (c *tailCommand) Run(s *session) (err error) {
	cl, err := s.client(c.ConfigFile, c.Tenant, "")
	if err != nil {
		return err
	}
	defer cl.close()
	tail, err := cl.Tail(c.ID, c.From)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tail.Close()) }()
	for {
		ev, cursor, err := tail.Next(s.ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := c.show(s, ev, cursor); err != nil {
			return err
		}
	}
}

func (c *tailCommand) show(s *session, ev client.Event, cursor uint64) error {
	if c.JSON {
		return s.json(eventLine(ev, cursor))
	}
	switch ev.Type {
	case wire.EventStdout:
		_, err := s.stdout.Write(ev.Data)
		return err
	case wire.EventStderr:
		_, err := s.stderr.Write(ev.Data)
		return err
	case wire.EventResult:
		result, err := wire.DecodeResult(ev.Data)
		if err != nil {
			return err
		}
		if result.Outcome != wire.Exited || unproven(result) {
			s.warnf("%s", summary(result))
		}
	case wire.EventAccepted, wire.EventStarted, wire.EventEnd:
	}
	return nil
}

// line is one event as JSON: data as text where it is UTF-8, else base64; the
// bodies of started and result as they are.
type line struct {
	Cursor  uint64          `json:"cursor,omitempty"`
	Event   wire.EventType  `json:"event"`
	Attempt int             `json:"attempt,omitempty"`
	Seq     uint64          `json:"seq,omitempty"`
	Offset  *int64          `json:"offset,omitempty"`
	Text    string          `json:"text,omitempty"`
	Base64  string          `json:"base64,omitempty"`
	Body    json.RawMessage `json:"body,omitempty"`
}

func eventLine(ev client.Event, cursor uint64) line {
	l := line{Cursor: cursor, Event: ev.Type, Attempt: ev.Attempt, Seq: ev.Seq}
	switch {
	case ev.Type != wire.EventStdout && ev.Type != wire.EventStderr:
		l.Body = ev.Data
	case utf8.Valid(ev.Data):
		l.Text, l.Offset = string(ev.Data), &ev.Offset
	default:
		l.Base64, l.Offset = base64.StdEncoding.EncodeToString(ev.Data), &ev.Offset
	}
	return l
}

type statusCommand struct {
	natsFlags
	tenantFlag
	jsonFlag
	ID string `arg:"" help:"The job's id."`
}

// Run prints the job's state.
func (c *statusCommand) Run(s *session) error {
	cl, err := s.client(c.ConfigFile, c.Tenant, "")
	if err != nil {
		return err
	}
	defer cl.close()
	state, err := cl.Status(s.ctx, c.ID)
	if err != nil {
		return err
	}
	return s.state(state, c.JSON)
}

type cancelCommand struct {
	natsFlags
	tenantFlag
	jsonFlag
	ID string `arg:"" help:"The job's id."`
}

// Run asks for the job's end and prints its state.
func (c *cancelCommand) Run(s *session) error {
	cl, err := s.client(c.ConfigFile, c.Tenant, "")
	if err != nil {
		return err
	}
	defer cl.close()
	state, err := cl.Cancel(s.ctx, c.ID)
	if err != nil {
		return err
	}
	return s.state(state, c.JSON)
}

// state prints where a job stands; an unknown job is a failure.
func (s *session) state(state *client.State, asJSON bool) error {
	var unknown error
	if state.State == wire.JobUnknown {
		unknown = &exit{code: exitFailure}
	}
	if asJSON {
		return errors.Join(s.json(state), unknown)
	}
	result, err := state.Final()
	if err != nil {
		return err
	}
	text := string(state.State)
	switch {
	case result != nil:
		text += ": " + summary(result)
	case state.State == wire.JobRunning:
		text += fmt.Sprintf(": attempt %d on %s", state.Attempt, state.Worker)
	}
	_, err = fmt.Fprintf(s.stdout, "%s.%s %s\n", state.Tenant, state.ID, text)
	return errors.Join(err, unknown)
}

// json prints v as one line.
func (s *session) json(v any) error {
	e := json.NewEncoder(s.stdout)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// command is argv without the -- that may stand before it.
func command(argv []string) []string {
	if len(argv) > 0 && argv[0] == "--" {
		return argv[1:]
	}
	return argv
}

// detached is for the last words of a command whose context has ended.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	const patience = 10 * time.Second
	return context.WithTimeout(context.WithoutCancel(ctx), patience)
}
