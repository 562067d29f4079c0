package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"time"

	"github.com/sallyport/sallyport/client"
	"github.com/sallyport/sallyport/internal/daemon"
	"github.com/sallyport/sallyport/internal/wire"
)

type runCommand struct {
	natsFlags
	jobFlags
	jsonFlag

	CollectDir string `help:"Directory for the collected files; what has their names there is replaced." placeholder:"DIR"`

	Argv []string `arg:"" passthrough:"partial" help:"Program and arguments."`
}

// Run submits the job, shows its output as it comes and exits with its code.
// What keeps the job from starting exits with 125, as a job that was not started
// does; the first signal cancels the job.
func (c *runCommand) Run(s *session) (err error) {
	request, err := c.request(command(c.Argv), s.stdin)
	if err != nil {
		return err
	}
	if len(c.Collect) > 0 && c.CollectDir == "" && !c.JSON {
		return &exit{exitUsage, errors.New("--collect needs --collect-dir, where the files go (or --json, whose result has them)")}
	}
	request.Output = wire.OutputReply
	if c.JSON {
		request.Output = wire.OutputInline
	}
	cl, err := s.client(c.ConfigFile, c.Tenant, c.Queue)
	if err != nil {
		return notStarted(err)
	}
	defer cl.close()
	if err := c.upload(s.ctx, cl.Client); err != nil {
		return notStarted(err)
	}
	job, err := cl.Submit(s.ctx, request, c.ID)
	if err != nil {
		return notStarted(err)
	}
	defer func() { err = errors.Join(err, job.Close()) }()
	result, err := follow(s, cl.Client, job)
	if errors.Is(err, syscall.EPIPE) {
		// As for any program in a pipeline: nobody reads on, so nothing runs on.
		return &exit{code: 128 + int(syscall.SIGPIPE), err: cancelJob(s, cl.Client, job)}
	}
	if err != nil {
		return &exit{wire.ExitLost, fmt.Errorf("job %s.%s: %w; it may still be running: sallyport status %s --tenant %s", job.Tenant, job.ID, err, job.ID, job.Tenant)}
	}
	var saved error
	if c.CollectDir != "" {
		saved = save(s, cl.Client, c.CollectDir, result)
	}
	return c.finish(s, job, result, saved)
}

// notStarted gives err the exit code that says the most about the job.
func notStarted(err error) error {
	var r *client.RefusedError
	var coded *exit
	switch {
	case errors.As(err, &r):
		return &exit{wire.ExitStatus(&r.Result), err}
	case errors.Is(err, client.ErrMaybeAccepted):
		return &exit{wire.ExitLost, err}
	case errors.As(err, &coded):
		return err
	case errors.Is(err, client.ErrNoGateway), errors.Is(err, daemon.ErrConnect):
		return &exit{wire.ExitNotStarted, err}
	default:
		return &exit{wire.ExitNotStarted, err}
	}
}

// Results whose message was lost (a reconnect at the wrong moment) are found by
// asking, this often.
const askAgain = 5 * time.Second

// follow shows the job's output and returns its result. The first signal cancels
// the job, whose result is then waited for all the same, unless nobody takes the
// cancel; the second ends the waiting.
func follow(s *session, cl *client.Client, job *client.Job) (*client.Result, error) {
	waiting, giveUp := context.WithCancelCause(context.WithoutCancel(s.ctx))
	defer giveUp(nil)
	stop := context.AfterFunc(s.ctx, func() {
		if err := cancelJob(s, cl, job); err != nil {
			giveUp(err)
		}
	})
	defer stop()
	defer context.AfterFunc(s.hurry, func() { giveUp(errors.New("not waited for any longer")) })()
	for {
		ctx, cancel := context.WithTimeout(waiting, askAgain)
		ev, err := job.Next(ctx)
		cancel()
		if waiting.Err() != nil {
			return nil, context.Cause(waiting)
		}
		if errors.Is(err, context.DeadlineExceeded) {
			if result, err := ask(waiting, cl, job); result != nil || err != nil {
				return result, err
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		if result, err := show(s, ev); result != nil || err != nil {
			return result, err
		}
	}
}

// cancelJob asks for the job's end, also after the first signal.
func cancelJob(s *session, cl *client.Client, job *client.Job) error {
	ctx, cancel := detached(s.ctx)
	defer cancel()
	if _, err := cl.Cancel(ctx, job.ID); err != nil {
		return fmt.Errorf("cancel job %s.%s: %w", job.Tenant, job.ID, err)
	}
	return nil
}

// ask returns the result where the job is over although nobody told us. A
// gateway that does not answer now is no reason to give up.
func ask(ctx context.Context, cl *client.Client, job *client.Job) (*client.Result, error) {
	state, err := cl.Status(ctx, job.ID)
	switch {
	case err != nil:
		return nil, nil //nolint:nilnil,nilerr // not known yet
	case state.State == wire.JobUnknown:
		return nil, client.ErrUnknownJob
	}
	return state.Final()
}

// show prints one event, and returns the result when it is that.
func show(s *session, ev client.Event) (*client.Result, error) {
	var to io.Writer
	switch ev.Type {
	case wire.EventStdout:
		to = s.stdout
	case wire.EventStderr:
		to = s.stderr
	case wire.EventResult:
		return wire.DecodeResult(ev.Data)
	case wire.EventAccepted, wire.EventStarted, wire.EventEnd:
		return nil, nil //nolint:nilnil // no result yet
	}
	if _, err := to.Write(ev.Data); err != nil {
		return nil, fmt.Errorf("write the job's output: %w", err)
	}
	return nil, nil //nolint:nilnil // no result yet
}

// finish prints the result where it is asked for or needs words, and exits. Files
// that could not be saved are an error of this command, told beside the job's code.
func (c *runCommand) finish(s *session, job *client.Job, result *client.Result, saved error) error {
	if c.JSON {
		if err := s.json(result); err != nil {
			return err
		}
	} else {
		for _, lost := range job.Lost() {
			s.warnf("output is missing: events %d to %d did not arrive", lost.From, lost.To)
		}
		if unread := result.Output.Unread; unread != nil {
			s.warnf("output is missing: %s", unread.Reason)
		}
		if result.Outcome != wire.Exited || unproven(result) {
			s.warnf("%s", summary(result))
		}
	}
	if code := wire.ExitStatus(result); code != exitOK {
		return &exit{code: code, err: saved}
	}
	return saved
}

func unproven(r *client.Result) bool {
	return r.Containment != nil && r.Containment.Verdict == wire.Unproven
}

// summary is a result in one line.
func summary(r *client.Result) string {
	var b strings.Builder
	b.WriteString(string(r.Outcome))
	if r.Reason != "" {
		b.WriteString(" (" + string(r.Reason) + ")")
	}
	switch {
	case r.ExitCode != nil:
		fmt.Fprintf(&b, ", exit code %d", *r.ExitCode)
	case r.Signal != nil:
		name := r.Signal.Name
		if name == "" {
			name = fmt.Sprint(r.Signal.Number)
		}
		b.WriteString(", signal " + name)
	}
	if r.Usage != nil {
		fmt.Fprintf(&b, ", after %s", time.Duration(r.Usage.WallMS)*time.Millisecond)
	}
	switch {
	case r.Output.Unread != nil || len(r.Output.LostRanges) > 0:
		b.WriteString(", output incomplete")
	case r.Output.Truncated:
		b.WriteString(", output cut at the limit")
	}
	if unproven(r) {
		b.WriteString(", NOT proven that nothing is left")
	}
	if r.Message != "" {
		b.WriteString(": " + r.Message)
	}
	return b.String()
}
