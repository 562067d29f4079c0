package bench

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sallyport/sallyport/internal/wire"
)

// NaiveStream and NaiveSubject are where the naive worker's jobs are queued.
const (
	NaiveStream   = "NAIVE_JOBS"
	NaiveSubject  = "naive.job"
	naiveConsumer = "naive"
)

// Naive is the worker that one would write in an afternoon: pull a message, run
// it with os/exec, publish what it prints, ack. No sandbox, no limits, no proof,
// no fence. It runs until ctx ends.
func Naive(ctx context.Context, url string, slots int) error {
	nc, err := nats.Connect(url)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return fmt.Errorf("jetstream: %w", err)
	}
	consumer, err := js.CreateOrUpdateConsumer(ctx, NaiveStream, jetstream.ConsumerConfig{
		Durable: naiveConsumer, AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 4 * slots,
	})
	if err != nil {
		return fmt.Errorf("consumer: %w", err)
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessages(slots))
	if err != nil {
		return fmt.Errorf("pull: %w", err)
	}
	defer messages.Stop()
	free := make(chan struct{}, slots)
	var running sync.WaitGroup
	defer running.Wait()
	defer context.AfterFunc(ctx, messages.Stop)()
	for {
		free <- struct{}{}
		msg, err := messages.Next()
		if errors.Is(err, jetstream.ErrMsgIteratorClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("next message: %w", err)
		}
		running.Go(func() {
			defer func() { <-free }()
			if err := naiveJob(ctx, nc, msg); err != nil && ctx.Err() == nil {
				// What one would write: there is nobody to tell.
				_ = msg.Nak() //nolint:errcheck // the naive worker's own way
			}
		})
	}
}

func naiveJob(ctx context.Context, nc *nats.Conn, msg jetstream.Msg) error {
	var r wire.Request
	if err := json.Unmarshal(msg.Data(), &r); err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	reply := msg.Headers().Get(wire.HeaderReplyTo)
	cmd := exec.CommandContext(ctx, r.Argv[0], r.Argv[1:]...) //nolint:gosec // running what it is told is its job
	if r.StdinBase64 != nil {
		cmd.Stdin = base64.NewDecoder(base64.StdEncoding, bytes.NewReader([]byte(*r.StdinBase64)))
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("pipe: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	buf := make([]byte, 64<<10)
	for {
		n, err := stdout.Read(buf)
		if n > 0 {
			if err := naivePublish(nc, reply, wire.EventStdout, buf[:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
	}
	code := 0
	var exit *exec.ExitError
	if err := cmd.Wait(); errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		return fmt.Errorf("wait: %w", err)
	}
	if err := naivePublish(nc, reply, wire.EventResult, []byte(strconv.Itoa(code))); err != nil {
		return err
	}
	if err := msg.Ack(); err != nil {
		return fmt.Errorf("ack: %w", err)
	}
	return nil
}

func naivePublish(nc *nats.Conn, reply string, event wire.EventType, data []byte) error {
	m := nats.NewMsg(reply)
	m.Header.Set(wire.HeaderEvent, string(event))
	m.Data = data
	if err := nc.PublishMsg(m); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	return nil
}
