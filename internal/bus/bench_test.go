package bus_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/bus/bustest"
	"github.com/sallyport/sallyport/internal/wire"
)

func benchBus(b *testing.B) (*server.Server, *bus.Bus) {
	b.Helper()
	s := bustest.Server(b, nil)
	conn, err := bus.Connect(b.Context(), bus.Options{Servers: s.ClientURL(), Log: zerolog.Nop()})
	require.NoError(b, err)
	b.Cleanup(func() {
		if err := conn.Close(context.WithoutCancel(b.Context())); err != nil {
			b.Error(err)
		}
	})
	plan, err := bus.Plan(small())
	require.NoError(b, err)
	_, err = conn.Apply(b.Context(), plan)
	require.NoError(b, err)
	return s, conn
}

// BenchmarkOutput is the rate of 64 KiB chunks; core is plain NATS on the same
// server, the floor.
func BenchmarkOutput(b *testing.B) {
	const size = 64 << 10
	chunk := make([]byte, size)
	for _, mode := range []wire.OutputMode{"core", wire.OutputReply, wire.OutputStored} {
		b.Run(string(mode), func(b *testing.B) {
			s, conn := benchBus(b)
			nc, err := nats.Connect(s.ClientURL())
			require.NoError(b, err)
			defer nc.Close()
			var arrived atomic.Int64
			all := make(chan struct{})
			sub, err := nc.Subscribe("reply.x", func(m *nats.Msg) {
				if len(m.Data) == size && arrived.Add(1) == int64(b.N) {
					close(all)
				}
			})
			require.NoError(b, err)
			require.NoError(b, sub.SetPendingLimits(-1, -1))
			require.NoError(b, nc.FlushTimeout(patience))
			b.SetBytes(size)
			b.ResetTimer()
			if mode == "core" {
				for range b.N {
					require.NoError(b, conn.Output().Publish("reply.x", chunk))
				}
				require.NoError(b, conn.Output().FlushTimeout(time.Minute))
				<-all
				return
			}
			cfg := bus.OutputConfig{Job: job("t", "default", "j"), Attempt: 1, Mode: mode}
			if mode == wire.OutputReply {
				cfg.Reply = "reply.x"
			}
			o := conn.NewOutput(cfg)
			for i := range b.N {
				require.NoError(b, o.Emit(b.Context(), wire.Event{Type: wire.EventStdout, Seq: uint64(i + 1), Data: chunk}))
			}
			require.NoError(b, o.Final(b.Context(), []byte(result), uint64(b.N+1)))
			if mode == wire.OutputReply {
				<-all
			}
		})
	}
}

// BenchmarkFinal is a small job's way through the bus: the claim, the record of
// its end, a chunk, the result. core is one request and reply, the floor of each
// of the three waits.
func BenchmarkFinal(b *testing.B) {
	b.Run("core", func(b *testing.B) {
		s, conn := benchBus(b)
		nc, err := nats.Connect(s.ClientURL())
		require.NoError(b, err)
		defer nc.Close()
		_, err = nc.Subscribe("echo", func(m *nats.Msg) {
			if err := m.Respond(nil); err != nil {
				b.Error(err)
			}
		})
		require.NoError(b, err)
		require.NoError(b, nc.FlushTimeout(patience))
		for b.Loop() {
			_, err := conn.Control().Request("echo", nil, patience)
			require.NoError(b, err)
		}
	})
	b.Run("job", func(b *testing.B) {
		_, conn := benchBus(b)
		i := 0
		for b.Loop() {
			i++
			id := fmt.Sprint("j", i)
			seq, err := conn.Runs().Create(b.Context(), "t", id, claimed("x"))
			require.NoError(b, err)
			o := conn.NewOutput(bus.OutputConfig{Job: job("t", "default", id), Attempt: 1, Mode: wire.OutputReply, Reply: "reply.x"})
			require.NoError(b, o.Emit(b.Context(), stdout(1, 0, "hello")))
			done := claimed("x")
			done.State, done.Result = wire.RunDone, wire.RawResult(result)
			_, err = conn.Runs().Update(b.Context(), "t", id, done, seq)
			require.NoError(b, err)
			require.NoError(b, o.Final(b.Context(), []byte(result), 2))
		}
	})
}

// BenchmarkLedger is what the books cost: an entry's step, a quarantine with its
// batch, and a listing of as many entries as one listing has.
func BenchmarkLedger(b *testing.B) {
	b.Run("intend", func(b *testing.B) {
		_, conn := benchBus(b)
		i := 0
		for b.Loop() {
			i++
			_, err := conn.Ledger().Intend(b.Context(), intent(fmt.Sprint("l", i)))
			require.NoError(b, err)
		}
	})
	b.Run("quarantine", func(b *testing.B) {
		_, conn := benchBus(b)
		i := 0
		for b.Loop() {
			i++
			rec := intent(fmt.Sprint("l", i))
			seq, err := conn.Ledger().Intend(b.Context(), rec)
			require.NoError(b, err)
			require.NoError(b, conn.Ledger().Quarantine(b.Context(), bus.StoredLease{Record: rec, Seq: seq}, doubted(rec)))
		}
	})
	b.Run("list", func(b *testing.B) {
		_, conn := benchBus(b)
		fill(b, conn, bus.MaxList)
		b.ReportAllocs()
		for b.Loop() {
			list, err := conn.Ledger().List(b.Context(), "remote")
			require.NoError(b, err)
			require.Len(b, list, bus.MaxList)
		}
	})
}
