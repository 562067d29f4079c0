package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/wire"
)

// shipped is where the files for operators stand.
const shipped = "../deploy/nats"

// guardedConfig is what docs/permissions.md asks of every service. The fake sandboxes
// outlive their worker, so that the ledger is written, and the reaper service ends them.
const guardedConfig = `
ack_wait: 5s
fake_world: %s
sweep_interval: 1s
fleet_slots: 64
reply_allow: ["_INBOX.{tenant}.>", "reply.{tenant}.>"]
profiles:
  default: {}
  fake: {provider: fake}
`

// inboxes are the inbox prefixes of the users in the shipped files, and of the
// tests' own: acme is a second tenant, made as the files say. The witnesses may do
// everything in the account of the streams, and in that of the observers.
var inboxes = map[string]string{
	"worker": "_INBOX_exec.worker", "gateway": "_INBOX_exec.gateway", "reaper": "_INBOX_exec.reaper",
	"operator": "_INBOX.@operator", "observer": "_INBOX", "sys": "_INBOX",
	"demo": "_INBOX.demo", "demo-trusted": "_INBOX.demo", "acme": "_INBOX.acme",
	"witness": "_INBOX_witness", "onlooker": "_INBOX",
}

// slots of the worker under test.
const slots = 2

func password(user string) string { return "pw-of-" + user }

// guarded is a server made from the shipped files.
type guarded struct {
	*stack
	witness  *nats.Conn // sees all in the account of the streams
	onlooker *nats.Conn // sees all in the account of the observers
	users    users
}

// users says how they come in: for a connection, and for a command.
type users interface {
	option(t *testing.T, user string) nats.Option
	flags(t *testing.T, user string) []string
}

// passwords are the users of the configuration files.
type passwords struct{}

func (passwords) option(_ *testing.T, user string) nats.Option {
	return nats.UserInfo(user, password(user))
}

func (passwords) flags(_ *testing.T, user string) []string {
	return []string{"--user", user, "--password", password(user)}
}

// guardedFiles copies the shipped files and adds the tenant acme by the recipe that they
// name.
func guardedFiles(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(shipped)))
	recipe(t, dir, "sed 's/demo/")
	main, err := os.ReadFile(filepath.Join(dir, "sallyport.conf"))
	require.NoError(t, err)
	text := strings.Replace(string(main), `include "tenants/demo.conf"`, "include \"tenants/demo.conf\"\n    include \"tenants/acme.conf\"", 1)
	text = strings.Replace(text, "$tenant_demo,", "$tenant_demo, $tenant_acme,", 1)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "sallyport.conf"), []byte(text), 0o600))
	return dir
}

// recipe carries out the command in the comments of sallyport.conf that begins so.
func recipe(t *testing.T, dir, begin string) {
	t.Helper()
	main, err := os.ReadFile(filepath.Join(dir, "sallyport.conf"))
	require.NoError(t, err)
	_, command, found := strings.Cut(string(main), "\n#   "+begin)
	require.True(t, found, "sallyport.conf has no recipe that begins with %s", begin)
	command, _, _ = strings.Cut(begin+command, "\n")
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", command)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s: %s", command, out)
}

// guardedOptions reads the server's configuration; the test's own are the place where
// it listens and stores, and the witnesses. The test runs beside others from here on.
func guardedOptions(t *testing.T, dir string, env map[string]string) *server.Options {
	t.Helper()
	var opts *server.Options
	// The environment is the whole process's: in a subtest it is set for as long as the
	// files are read, and the test itself may run beside others.
	require.True(t, t.Run("files", func(t *testing.T) {
		for variable, user := range map[string]string{
			"WORKER": "worker", "GATEWAY": "gateway", "REAPER": "reaper", "OPERATOR": "operator", "OBSERVER": "observer", "SYS": "sys",
			"demo": "demo", "demo_trusted": "demo-trusted", "acme": "acme",
		} {
			t.Setenv("EXEC_PASSWORD_"+variable, password(user))
		}
		for variable, value := range env {
			t.Setenv(variable, value)
		}
		var err error
		opts, err = server.ProcessConfigFile(filepath.Join(dir, "nats-server.conf"))
		require.NoError(t, err)
	}))
	t.Parallel()
	opts.Host, opts.Port, opts.HTTPHost, opts.HTTPPort = "127.0.0.1", server.RANDOM_PORT, "", 0
	opts.StoreDir, opts.SyncAlways = t.TempDir(), false
	opts.NoSigs, opts.NoLog, opts.DisableJetStreamBanner = true, true, true
	for _, a := range opts.Accounts {
		switch a.GetName() {
		case "EXEC":
			opts.Users = append(opts.Users, &server.User{Username: "witness", Password: password("witness"), Account: a})
		case "EXEC_OBSERVER":
			opts.Users = append(opts.Users, &server.User{Username: "onlooker", Password: password("onlooker"), Account: a})
		}
	}
	return opts
}

func startServer(t *testing.T, opts *server.Options) *server.Server {
	t.Helper()
	srv, err := server.NewServer(opts)
	require.NoError(t, err)
	srv.Start()
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	require.True(t, srv.ReadyForConnections(patience), "server does not listen")
	return srv
}

// newGuarded starts the server and makes the streams; settings are further lines of the
// configuration.
func newGuarded(t *testing.T, opts *server.Options, come users, settings ...string) *guarded {
	t.Helper()
	srv := startServer(t, opts)
	dir := t.TempDir()
	g := &guarded{stack: &stack{t: t, url: srv.ClientURL(), dir: dir, config: filepath.Join(dir, "sallyport.yaml")}, users: come}
	require.NoError(t, os.WriteFile(g.config, []byte(fmt.Sprintf(guardedConfig, t.TempDir())+strings.Join(settings, "\n")), 0o600))
	g.witness, g.onlooker = g.as(t, "witness"), g.as(t, "onlooker")
	var err error
	g.nc = g.witness
	g.js, err = jetstream.New(g.witness)
	require.NoError(t, err)
	g.ok("operator", "streams", "apply", "--config", g.config)
	return g
}

// as connects as a user until the test ends.
func (g *guarded) as(t *testing.T, user string) *nats.Conn {
	t.Helper()
	require.Contains(t, inboxes, user)
	nc, err := nats.Connect(g.url, g.users.option(t, user), nats.CustomInboxPrefix(inboxes[user]), nats.PermissionErrOnSubscribe(true),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})) // read from LastError
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	return nc
}

// login puts a user's settings behind a command's words.
func (g *guarded) login(user string, args ...string) []string {
	at := len(args)
	if i := slices.Index(args, "--"); i >= 0 {
		at = i
	}
	flags := append(g.users.flags(g.t, user), "--server", g.url, "--inbox-prefix", inboxes[user])
	return slices.Insert(slices.Clone(args), at, flags...)
}

// ok runs a command as a user and expects it to work.
func (g *guarded) ok(user string, args ...string) string {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, g.login(user, args...)...)
	// The race detector's own pause at the end of each process is longer than all else.
	cmd.Env = append(os.Environ(), "XDG_CONFIG_HOME="+g.dir, "GORACE=atexit_sleep_ms=0")
	out, err := cmd.CombinedOutput()
	require.NoError(g.t, err, "%s: %v: %s", user, args, out)
	return string(out)
}

// serve starts a service as the user of its role and waits until it is ready.
func (g *guarded) serve(role string, args ...string) *service {
	g.t.Helper()
	port := freePort(g.t)
	args = append([]string{role, "--config", g.config, "--state-dir", filepath.Join(g.dir, role), "--http", port}, args...)
	w := g.start(g.login(role, args...)...)
	w.http = port
	w.waitReady()
	return w
}

// TestPermissionWholePath: with the shipped files everything works that should, and
// the server has nothing to refuse.
func TestPermissionWholePath(t *testing.T) {
	newGuarded(t, guardedOptions(t, guardedFiles(t), nil), passwords{}).wholePath(t)
}

func (g *guarded) wholePath(t *testing.T) {
	t.Helper()
	services := []*service{g.serve("worker", "--require", "namespaces", "--slots", strconv.Itoa(slots), "--drain", "5s"), g.serve("gateway"), g.serve("reaper")}

	for _, tenant := range []string{"demo", "acme"} {
		require.Equal(t, "hello\n", g.ok(tenant, "run", "--tenant", tenant, "--", "echo", "hello"))
		g.ok(tenant, "submit", "--tenant", tenant, "--id", "kept", "--", "sh", "-c", "echo one; echo two")
		require.Equal(t, "one\ntwo\n", g.ok(tenant, "tail", "--tenant", tenant, "kept"))
		require.Contains(t, g.ok(tenant, "status", "--tenant", tenant, "--json", "kept"), `"done"`)
	}
	g.cancels()
	g.runsTrusted()

	// In doubt, into quarantine, and out of it.
	f := g.submitAs("demo", "doubt", `{"v":1,"profile":"fake","argv":["fake","wait:never","destroy:fail"],"limits":{"wall_ms":300,"grace_ms":100}}`)
	require.Equal(t, wire.Quarantined, f.wait().result.Lease.Disposition, "%s", f.raw)
	g.quarantine(f.result.Lease.ID, func(q *wire.Quarantine) bool { return q.State == wire.Gone })
	for _, user := range []string{"operator", "observer"} {
		require.Contains(t, g.ok(user, "quarantine", "ls"), f.result.Lease.ID, user)
		require.Contains(t, g.ok(user, "quarantine", "show", f.result.Lease.ID), "doubt", user)
		// Who holds what is the workers' word, and asked for elsewhere.
		leases, _ := g.command(g.login(user, "leases", "--all", "--wait", "10ms")...)
		require.Contains(t, leases, f.result.Lease.ID, user)
		require.Contains(t, g.ok(user, "workers"), fmt.Sprintf("of %d", slots), user)
		require.Contains(t, g.ok(user, "dead", "ls"), "broken", user)
		require.Contains(t, g.ok(user, "streams", "check", "--config", g.config), "as planned", user)
	}
	for _, s := range services {
		require.Zero(t, s.metric(t, "sallyport_nats_permission_errors_total"), "%s", s.log)
	}
	g.replies(services[1])
	for _, s := range services {
		s.stop()
		require.Equal(t, 0, s.cmd.ProcessState.ExitCode(), "%s", s.log)
		require.NotContains(t, s.log.String(), "permission", "a service met a refusal")
	}
}

// submitAs submits a request with the tenant's own inbox.
func (g *guarded) submitAs(tenant, id, body string) *followed {
	g.t.Helper()
	nc := g.as(g.t, tenant)
	inbox := nc.NewInbox()
	sub, err := nc.SubscribeSync(inbox)
	require.NoError(g.t, err)
	msg := nats.NewMsg("exec.submit." + tenant + ".default")
	msg.Reply, msg.Data = inbox, []byte(body)
	msg.Header.Set(wire.HeaderID, id)
	require.NoError(g.t, nc.PublishMsg(msg))
	return &followed{t: g.t, id: id, sub: sub}
}

// cancels a job that runs, which takes the gateway and the worker, and one that waits.
func (g *guarded) cancels() {
	g.t.Helper()
	running := make([]*followed, 0, slots)
	for i := range slots {
		f := g.submitAs("demo", id("long-%d", i), `{"v":1,"argv":["sleep","600"]}`)
		running = append(running, f)
		g.state(f.id, wire.JobRunning)
	}
	waiting := g.submitAs("demo", "waiting", `{"v":1,"argv":["echo","never"]}`)
	g.state("waiting", wire.JobQueued)
	for _, f := range append([]*followed{waiting}, running...) {
		g.ok("demo", "cancel", "--tenant", "demo", f.id)
	}
	for _, f := range append(running, waiting) {
		require.Equal(g.t, wire.Cancelled, f.wait().result.Outcome, "%s", f.raw)
	}
}

// state waits until a job of demo stands where it should.
func (g *guarded) state(id string, want wire.JobState) {
	g.t.Helper()
	nc := g.as(g.t, "demo")
	require.Eventually(g.t, func() bool {
		msg, err := nc.RequestWithContext(g.soon(), "exec.status.demo."+id, nil)
		return err == nil && strings.Contains(string(msg.Data), `"`+string(want)+`"`)
	}, patience, 20*time.Millisecond, "job %s is never %s", id, want)
}

// runsTrusted is what a trusted publisher may: jobs straight into the queue, among
// them one that nobody can run, and big files both ways.
func (g *guarded) runsTrusted() {
	g.t.Helper()
	nc := g.as(g.t, "demo-trusted")
	js, err := jetstream.New(nc)
	require.NoError(g.t, err)
	inbox := nc.NewInbox()
	sub, err := nc.SubscribeSync(inbox)
	require.NoError(g.t, err)
	msg := nats.NewMsg("exec.job.demo.default.direct")
	msg.Data = []byte(`{"v":1,"argv":["echo","direct"]}`)
	msg.Header.Set(wire.HeaderReplyTo, inbox)
	_, err = js.PublishMsg(g.soon(), msg)
	require.NoError(g.t, err)
	f := (&followed{t: g.t, id: "direct", sub: sub}).wait().exited(0)
	require.Equal(g.t, "direct\n", string(f.stdout))
	_, err = js.Publish(g.soon(), "exec.job.demo.default.broken", []byte("{"))
	require.NoError(g.t, err)

	big := filepath.Join(g.dir, "big")
	require.NoError(g.t, os.WriteFile(big, []byte(strings.Repeat("0123456789abcdef", 64<<10)), 0o600))
	got := filepath.Join(g.dir, "got")
	g.ok("demo-trusted", "run", "--tenant", "demo", "--file", big, "--collect", "copy", "--collect-dir", got, "--", "cp", "big", "copy")
	want, err := os.ReadFile(big)
	require.NoError(g.t, err)
	is, err := os.ReadFile(filepath.Join(got, "copy"))
	require.NoError(g.t, err)
	require.Equal(g.t, want, is)
	require.Eventually(g.t, func() bool {
		return strings.Contains(g.ok("operator", "dead", "ls"), "broken")
	}, patience, 20*time.Millisecond)
}

// replies: no request can make a service speak where its sender may not, and no
// header of a submission reaches the queue.
func (g *guarded) replies(gateway *service) {
	t := g.t
	t.Helper()
	demo := g.as(t, "demo")
	seen, err := g.witness.SubscribeSync("exec.job.>")
	require.NoError(t, err)
	elsewhere := []string{
		"_INBOX.acme.x", "reply.acme.x", "_INBOX_exec.worker.x", "_INBOX.@operator.x", "exec.job.acme.default.evil", "exec.submit.acme.default",
		"exec.cancel.acme.kept", "exec.run.acme.kept", "exec.out.acme.kept", "exec.ctl.acme.kept", "$KV.EXEC_WORKERS.x", "$SRV.PING", "$O.EXEC_FILES.M.x",
	}
	var heard []*nats.Subscription
	for _, reply := range elsewhere {
		if strings.HasPrefix(reply, "exec.job.") {
			continue
		}
		sub, err := g.witness.SubscribeSync(reply)
		require.NoError(t, err)
		heard = append(heard, sub)
	}
	require.NoError(t, g.witness.Flush())
	for _, reply := range elsewhere {
		for _, subject := range []string{"exec.submit.demo.default", "exec.status.demo.kept", "exec.cancel.demo.kept", "exec.read.demo.kept"} {
			require.NoError(t, demo.PublishRequest(subject, reply, []byte(`{"v":1,"argv":["echo"]}`)))
		}
	}
	// Silence is over when the gateway has counted them all.
	require.Eventually(t, func() bool {
		return gateway.metric(t, "sallyport_gateway_replies_refused_total") == float64(4*len(elsewhere))
	}, patience, 20*time.Millisecond, "requests with foreign reply subjects")
	require.NoError(t, g.witness.Flush())
	for _, sub := range heard {
		n, _, err := sub.Pending()
		require.NoError(t, err)
		require.Zero(t, n, "something was said on %s", sub.Subject)
	}
	// The server itself refuses its own subjects as replies.
	for _, reply := range []string{"$JS.API.STREAM.PURGE.EXEC_OUT", "$JS.ACK.EXEC_JOBS.w-default.1.1.1.0.0", "_R_.x.y"} {
		nc := g.as(t, "demo")
		require.NoError(t, nc.PublishRequest("exec.status.demo.kept", reply, nil))
		require.NoError(t, nc.Flush())
		require.ErrorIs(t, nc.LastError(), nats.ErrPermissionViolation, reply)
	}
	// An operator is told what services there are.
	pong, err := g.as(t, "operator").RequestWithContext(g.soon(), "$SRV.PING.sallyport-gateway", nil)
	require.NoError(t, err)
	require.Contains(t, string(pong.Data), "sallyport-gateway")
	// The mirror: its own inbox is answered.
	_, err = demo.RequestWithContext(g.soon(), "exec.status.demo.kept", nil)
	require.NoError(t, err)

	msg := nats.NewMsg("exec.submit.demo.default")
	msg.Reply, msg.Data = demo.NewInbox(), []byte(`{"v":1,"argv":["echo","clean"]}`)
	for name, value := range map[string]string{
		"Nats-Rollup": "all", "Nats-Schedule": "@every 1s", "Nats-Schedule-Target": "exec.job.acme.default.evil", "Nats-TTL": "1s", "Nats-Msg-Id": "x",
		"Nats-Expected-Stream": "NONE", "Nats-Incr": "1", "Nats-Batch-Id": "b", "Status": "409", "Description": "Consumer Deleted", "KV-Operation": "PURGE", "Other": "x",
	} {
		msg.Header.Set(name, value)
	}
	sub, err := demo.SubscribeSync(msg.Reply)
	require.NoError(t, err)
	require.NoError(t, demo.PublishMsg(msg))
	f := (&followed{t: t, id: "clean", sub: sub}).wait().exited(0)
	require.Equal(t, "clean\n", string(f.stdout))
	queued, err := seen.NextMsg(patience)
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(queued.Subject, "exec.job.demo.default."), queued.Subject)
	require.Equal(t, nats.Header{wire.HeaderReplyTo: {msg.Reply}, "Nats-Expected-Stream": {"EXEC_JOBS"}}, queued.Header)
	n, _, err := seen.Pending()
	require.NoError(t, err)
	require.Zero(t, n, "more than that one job was queued")

	g.borrowedAck(gateway)

	// A trusted publisher's header is judged by the workers.
	into := g.as(t, "acme")
	foreign, err := into.SubscribeSync("_INBOX.acme.>")
	require.NoError(t, err)
	require.NoError(t, into.Flush())
	js, err := jetstream.New(g.as(t, "demo-trusted"))
	require.NoError(t, err)
	job := nats.NewMsg("exec.job.demo.default.borrowed")
	job.Data = []byte(`{"v":1,"argv":["echo","evil"]}`)
	job.Header.Set(wire.HeaderReplyTo, "_INBOX.acme.x")
	_, err = js.PublishMsg(g.soon(), job)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return strings.Contains(g.ok("operator", "dead", "ls"), "borrowed") }, patience, 20*time.Millisecond)
	n, _, err = foreign.Pending()
	require.NoError(t, err)
	require.Zero(t, n)
}

// borrowedAck: the server lends a trusted publisher its voice, for the acknowledgement
// of a stored job. It cancels nobody's job.
func (g *guarded) borrowedAck(gateway *service) {
	g.t.Helper()
	const refused = "sallyport_gateway_replies_refused_total"
	before := gateway.metric(g.t, refused)
	victim := g.submitAs("acme", "victim", `{"v":1,"argv":["sleep","600"]}`)
	require.Eventually(g.t, func() bool {
		return strings.Contains(g.ok("acme", "status", "--tenant", "acme", "--json", "victim"), `"running"`)
	}, patience, 20*time.Millisecond)
	nc := g.as(g.t, "demo-trusted")
	require.NoError(g.t, nc.PublishRequest("exec.job.demo.default.lent", "exec.cancel.acme.victim", []byte(`{"v":1,"argv":["echo"]}`)))
	require.Eventually(g.t, func() bool { return gateway.metric(g.t, refused) == before+1 }, patience, 20*time.Millisecond, "the acknowledgement never came to the gateway")
	require.Contains(g.t, g.ok("acme", "status", "--tenant", "acme", "--json", "victim"), `"running"`)
	g.ok("acme", "cancel", "--tenant", "acme", "victim")
	require.Equal(g.t, wire.Cancelled, victim.wait().result.Outcome, "%s", victim.raw)
}

// errRefused is what the server's permissions refuse.
var errRefused = errors.New("refused by permissions")

// try is one attempt on a connection of its own: nil when it worked, errRefused when
// the server refused it and nothing came of it. Anything else is neither.
type try func(t *testing.T, g *guarded, nc *nats.Conn) error

// attempt is what some must not be able to do, and who is, which shows that the
// attempt is sound.
type attempt struct {
	name   string
	do     try
	mayNot []string
	may    []string
}

// verdict of an attempt whose effect was, or was not, seen.
func verdict(nc *nats.Conn, effect bool) error {
	refused := errors.Is(nc.LastError(), nats.ErrPermissionViolation)
	switch {
	case refused && !effect:
		return errRefused
	case !refused && effect:
		return nil
	default:
		return errors.Join(fmt.Errorf("refused: %t, effect: %t", refused, effect), nc.LastError())
	}
}

// publish to a subject; a witness sees whether it got through.
func publish(subject string) try {
	return func(t *testing.T, g *guarded, nc *nats.Conn) error {
		t.Helper()
		sub, err := g.witness.SubscribeSync(subject)
		require.NoError(t, err)
		require.NoError(t, g.witness.Flush())
		require.NoError(t, nc.Publish(subject, []byte("junk")))
		require.NoError(t, nc.Flush())
		require.NoError(t, g.witness.Flush())
		n, _, err := sub.Pending()
		require.NoError(t, err)
		require.NoError(t, sub.Unsubscribe())
		return verdict(nc, n == 1)
	}
}

// subscribe to a subject, in a queue group too; the witness publishes on probe.
func subscribe(subject, probe string) try {
	return func(t *testing.T, g *guarded, nc *nats.Conn) error {
		t.Helper()
		var heard int
		for _, group := range []string{"", nats.NewInbox()} {
			sub, err := nc.QueueSubscribeSync(subject, group)
			require.NoError(t, err)
			require.NoError(t, nc.Flush())
			require.NoError(t, g.witness.Publish(probe, nil))
			require.NoError(t, g.witness.Flush())
			require.NoError(t, nc.Flush())
			if sub.IsValid() {
				n, _, err := sub.Pending()
				require.NoError(t, err)
				heard += n
			}
		}
		if heard == 1 {
			return fmt.Errorf("heard on %s in one of two ways", subject)
		}
		return verdict(nc, heard > 0)
	}
}

// ask sends a request and waits for an answer, whatever it says.
func ask(subject, body string) try {
	return func(t *testing.T, _ *guarded, nc *nats.Conn) error {
		t.Helper()
		sub, err := nc.SubscribeSync(nc.NewInbox())
		require.NoError(t, err)
		require.NoError(t, nc.PublishRequest(subject, sub.Subject, []byte(body)))
		require.NoError(t, nc.Flush())
		if err := nc.LastError(); err != nil {
			return verdict(nc, false)
		}
		msg, err := sub.NextMsg(patience)
		if err != nil {
			return fmt.Errorf("ask %s: %w", subject, err)
		}
		if msg.Header.Get("Status") == "503" {
			return fmt.Errorf("ask %s: nobody answers", subject)
		}
		return nil
	}
}

// store puts a message with an id of its own below prefix into a stream, and takes
// the stream's refusal for one. name=value are headers.
func store(prefix string, headers ...string) try {
	return func(t *testing.T, g *guarded, nc *nats.Conn) error {
		t.Helper()
		js, err := jetstream.New(nc)
		require.NoError(t, err)
		msg := nats.NewMsg(prefix + strings.ReplaceAll(nats.NewInbox(), ".", "-"))
		msg.Data = []byte("junk")
		for _, h := range headers {
			name, value, _ := strings.Cut(h, "=")
			msg.Header.Set(name, value)
		}
		_, err = js.PublishMsg(g.soon(), msg)
		if _, refused := errors.AsType[*jetstream.APIError](err); refused {
			return errRefused
		}
		return err
	}
}

// trace asks the server to tell a message's way on a subject.
func trace(subject, dest string) try {
	return func(t *testing.T, g *guarded, nc *nats.Conn) error {
		t.Helper()
		sub, err := g.witness.SubscribeSync(dest)
		require.NoError(t, err)
		defer func() { require.NoError(t, sub.Unsubscribe()) }()
		require.NoError(t, g.witness.Flush())
		msg := nats.NewMsg(subject)
		msg.Header.Set("Nats-Trace-Dest", dest)
		require.NoError(t, nc.PublishMsg(msg))
		require.NoError(t, nc.Flush())
		if nc.LastError() == nil {
			_, err := sub.NextMsg(patience)
			return err
		}
		n, _, err := sub.Pending()
		require.NoError(t, err)
		return verdict(nc, n > 0)
	}
}

// borrow asks subject with somebody's subject for the answer, and tells whether the
// answer reaches it in the account of the streams.
func borrow(subject, reply string) try {
	return func(t *testing.T, g *guarded, nc *nats.Conn) error {
		t.Helper()
		sub, err := g.witness.SubscribeSync(reply)
		require.NoError(t, err)
		defer func() { require.NoError(t, sub.Unsubscribe()) }()
		own, err := g.onlooker.SubscribeSync(reply)
		require.NoError(t, err)
		defer func() { require.NoError(t, own.Unsubscribe()) }()
		require.NoError(t, errors.Join(g.witness.Flush(), g.onlooker.Flush()))
		require.NoError(t, nc.PublishRequest(subject, reply, nil))
		require.NoError(t, nc.Flush())
		if nc.LastError() != nil {
			return verdict(nc, false)
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		for ctx.Err() == nil {
			if _, err := sub.NextMsg(10 * time.Millisecond); err == nil {
				return nil
			}
			// The answer has come, and stayed in the asker's own account.
			if _, err := own.NextMsg(10 * time.Millisecond); err == nil {
				require.NoError(t, g.witness.Flush())
				n, _, err := sub.Pending()
				require.NoError(t, err)
				if n > 0 {
					return nil
				}
				return errRefused
			}
		}
		return ctx.Err()
	}
}

// TestPermissionRefusals: what each user of the shipped files must not be able to do,
// and the same done by whoever may.
func TestPermissionRefusals(t *testing.T) {
	g := newGuarded(t, guardedOptions(t, guardedFiles(t), nil), passwords{})
	g.refusals(t)
	t.Run("coming in without a user, or with a wrong password", func(t *testing.T) {
		for _, opts := range [][]nats.Option{nil, {nats.UserInfo("worker", "")}, {nats.UserInfo("demo", password("acme"))}} {
			_, err := nats.Connect(g.url, opts...)
			require.ErrorIs(t, err, nats.ErrAuthorization)
		}
		g.as(t, "demo").Close()
	})
}

// TestPermissionPrefixes: the recipe for other prefixes forgets no subject.
func TestPermissionPrefixes(t *testing.T) {
	dir := guardedFiles(t)
	recipe(t, dir, "sed -i")
	opts := guardedOptions(t, dir, nil)
	subjects := 0
	for _, u := range opts.Users {
		if u.Permissions == nil {
			continue
		}
		for _, subject := range slices.Concat(u.Permissions.Publish.Allow, u.Permissions.Subscribe.Allow) {
			require.NotContains(t, "."+subject, ".exec.", u.Username)
			require.NotContains(t, subject, "EXEC", u.Username)
			subjects++
		}
	}
	require.Greater(t, subjects, 100)
	g := newGuarded(t, opts, passwords{}, "subject_prefix: lab", "stream_prefix: LAB")
	require.Contains(t, g.ok("observer", "workers", "--config", g.config), "no workers")
	g.ok("observer", "streams", "check", "--config", g.config)
	require.NoError(t, publish("lab.submit.demo.default")(t, g, g.as(t, "demo")))
	require.ErrorIs(t, publish("lab.submit.acme.default")(t, g, g.as(t, "demo")), errRefused)
}

func (g *guarded) refusals(t *testing.T) {
	t.Helper()
	t.Run("hear the tenants from the observers' account", func(t *testing.T) {
		observer, acme := g.as(t, "observer"), g.as(t, "acme")
		var heard []*nats.Subscription
		for _, nc := range []*nats.Conn{observer, acme} {
			sub, err := nc.SubscribeSync("_INBOX.acme.>")
			require.NoError(t, err)
			require.NoError(t, nc.Flush())
			heard = append(heard, sub)
		}
		require.NoError(t, g.witness.Publish("_INBOX.acme.n.x", nil))
		require.NoError(t, errors.Join(g.witness.Flush(), observer.Flush(), acme.Flush()))
		for i, want := range []int{0, 1} {
			n, _, err := heard[i].Pending()
			require.NoError(t, err)
			require.Equal(t, want, n)
		}
	})
	for _, a := range slices.Concat(tenantAttempts(), outputAttempts(), serviceAttempts(), streamAttempts(), recordAttempts(), answerAttempts(), everythingAttempts()) {
		t.Run(a.name, func(t *testing.T) {
			require.NotEmpty(t, a.may, "nobody shows that the attempt is sound")
			for _, user := range a.mayNot {
				require.ErrorIs(t, a.do(t, g, g.as(t, user)), errRefused, "%s must not", user)
			}
			for _, user := range a.may {
				require.NoError(t, a.do(t, g, g.as(t, user)), "%s may", user)
			}
		})
	}
	for name, headers := range jobHeaders() {
		t.Run(name, func(t *testing.T) {
			const job = "exec.job.demo.default."
			for _, user := range []string{"demo-trusted", "gateway"} {
				require.ErrorIs(t, store(job, headers...)(t, g, g.as(t, user)), errRefused, "the stream must refuse %s", user)
				require.NoError(t, store(job)(t, g, g.as(t, user)), "without the header %s may", user)
			}
		})
	}
}

// but is everybody in the shipped files without those named.
func but(users ...string) []string {
	var all []string
	for _, user := range []string{"demo", "demo-trusted", "acme", "worker", "gateway", "reaper", "operator", "observer"} {
		if !slices.Contains(users, user) {
			all = append(all, user)
		}
	}
	return all
}

// tenantAttempts: one tenant acting as another.
func tenantAttempts() []attempt {
	rows := []attempt{
		{"submit as another tenant", publish("exec.submit.acme.default"), but("acme"), []string{"acme"}},
		{"ask another tenant's status", publish("exec.status.acme.j"), but("acme"), []string{"acme"}},
		{"cancel another tenant's job", publish("exec.cancel.acme.j"), but("acme"), []string{"acme"}},
		{"read another tenant's stored output", publish("exec.read.acme.j"), but("acme"), []string{"acme"}},
		{"submit as a service", publish("exec.submit.demo.default"), but("demo", "demo-trusted"), []string{"demo", "demo-trusted"}},
		{"reach another tenant's job at its worker", publish("exec.ctl.acme.j"), but("gateway", "worker"), []string{"gateway"}},
		{"reach one's own job at its worker", publish("exec.ctl.demo.j"), but("gateway", "worker"), []string{"gateway"}},
		{"queue another tenant's job", publish("exec.job.acme.default.j"), but("gateway"), []string{"gateway"}},
		{"queue a job oneself", publish("exec.job.demo.default.j"), but("gateway", "demo-trusted"), []string{"gateway", "demo-trusted"}},
		{"publish into another tenant's inbox", publish("_INBOX.acme.n.x"), but("worker", "gateway"), []string{"worker", "gateway"}},
		{"publish on another tenant's reply subject", publish("reply.acme.x"), but("worker", "gateway"), []string{"worker", "gateway"}},
		{"publish into one's own inbox", publish("_INBOX.demo.n.x"), but("worker", "gateway"), []string{"worker", "gateway"}},
		{"listen at another tenant's inbox", subscribe("_INBOX.acme.>", "_INBOX.acme.n.x"), but("acme", "observer"), []string{"acme"}},
		{"listen at one of another tenant's inboxes", subscribe("_INBOX.acme.n.x", "_INBOX.acme.n.x"), but("acme", "observer"), []string{"acme"}},
		{"listen at another tenant's reply subjects", subscribe("reply.acme.>", "reply.acme.x"), but("acme"), []string{"acme"}},
	}
	for _, role := range []string{"worker", "gateway", "reaper", "operator"} {
		// The observer may listen to _INBOX.>, in an account where these do not come.
		inbox := inboxes[role]
		mayNot := but(role, "observer")
		rows = append(rows, attempt{"listen at the inboxes of the " + role, subscribe(inbox+".>", inbox+".n.x"), mayNot, []string{role}})
	}
	return append(
		rows,
		attempt{"answer in a worker's place", publish("_INBOX_exec.worker.n.x"), but("worker"), []string{"worker"}},
		attempt{"answer in a gateway's place", publish("_INBOX_exec.gateway.n.x"), but("worker"), []string{"worker"}},
		attempt{"answer an operator", publish("_INBOX.@operator.n.x"), but("worker", "gateway", "reaper"), []string{"gateway", "reaper"}},
		attempt{"answer a reaper", publish("_INBOX_exec.reaper.n.x"), but(), []string{"witness"}},
	)
}

// outputAttempts: who sees output, and who makes it.
func outputAttempts() []attempt {
	return []attempt{
		{"see another tenant's live output", subscribe("exec.live.acme.j", "exec.live.acme.j"), but("acme", "operator"), []string{"acme", "operator"}},
		{"see all of another tenant's live output", subscribe("exec.live.acme.*", "exec.live.acme.j"), but("acme", "operator"), []string{"acme", "operator"}},
		{"see all tenants' live output", subscribe("exec.live.*.*", "exec.live.acme.j"), but("operator"), []string{"operator"}},
		{"see all live output", subscribe("exec.live.>", "exec.live.acme.j"), but(), []string{"witness"}},
		{"see output as it is stored", subscribe("exec.out.acme.j", "exec.out.acme.j"), but(), []string{"witness"}},
		{"see one's own output as it is stored", subscribe("exec.out.demo.j", "exec.out.demo.j"), but(), []string{"witness"}},
		{"get another tenant's stored output directly", ask("$JS.API.DIRECT.GET.EXEC_OUT.exec.out.acme.j", ""), but("operator"), []string{"operator"}},
		{"get any stored output directly", ask("$JS.API.DIRECT.GET.EXEC_OUT", `{"last_by_subj":"exec.out.acme.j"}`), but("gateway", "operator"), []string{"gateway", "operator"}},
		{"get stored output from its stream", ask("$JS.API.STREAM.MSG.GET.EXEC_OUT", `{"last_by_subj":"exec.out.acme.j"}`), but("operator"), []string{"operator"}},
		{"forge another tenant's stored output", publish("exec.out.acme.j"), but("worker"), []string{"worker"}},
		{"forge one's own stored output", publish("exec.out.demo.j"), but("worker"), []string{"worker"}},
		{"forge another tenant's live output", publish("exec.live.acme.j"), but(), []string{"witness"}},
		{"forge one's own live output", publish("exec.live.demo.j"), but(), []string{"witness"}},
	}
}

// serviceAttempts: standing in a service's place.
func serviceAttempts() []attempt {
	var rows []attempt
	for _, kind := range []string{"submit.acme.default", "submit.demo.default", "status.demo.j", "cancel.demo.j", "read.demo.j"} {
		rows = append(rows, attempt{"take requests on " + kind, subscribe("exec."+kind, "exec."+kind), but("gateway"), []string{"gateway"}})
	}
	for _, all := range []string{"submit", "status", "cancel", "read"} {
		rows = append(rows, attempt{"take all requests of " + all, subscribe("exec."+all+".*.*", "exec."+all+".demo.x"), but("gateway"), []string{"gateway"}})
	}
	return append(
		rows,
		attempt{"answer for a worker", subscribe("exec.ctl.demo.j", "exec.ctl.demo.j"), but("worker"), []string{"worker"}},
		attempt{"answer for all workers", subscribe("exec.ctl.*.*", "exec.ctl.demo.j"), but("worker"), []string{"worker"}},
		attempt{"be found as a service", subscribe("$SRV.PING", "$SRV.PING"), but("gateway", "worker", "reaper"), []string{"gateway", "worker", "reaper"}},
		attempt{"be found as the reaper", subscribe("$SRV.INFO.sallyport-reaper", "$SRV.INFO.sallyport-reaper"), but("worker", "reaper"), []string{"worker", "reaper"}},
		attempt{"take what operators ask reapers", subscribe("exec.reaper.hold", "exec.reaper.hold"), but("worker", "reaper"), []string{"worker", "reaper"}},
		attempt{"take what operators ask workers", subscribe("exec.worker.leases", "exec.worker.leases"), but("worker"), []string{"worker"}},
		attempt{"ask a reaper to let go", publish("exec.reaper.resolve"), but("operator"), []string{"operator"}},
		attempt{"ask a reaper what it has", publish("exec.reaper.ls"), but("operator"), []string{"operator"}},
		attempt{"ask workers for their leases", publish("exec.worker.leases"), but("operator"), []string{"operator"}},
		attempt{"be found as the gateway", subscribe("$SRV.INFO.sallyport-gateway", "$SRV.INFO.sallyport-gateway"), but("gateway"), []string{"gateway"}},
		attempt{"be found as another service", subscribe("$SRV.PING.other", "$SRV.PING.other"), but(), []string{"witness"}},
		attempt{"look for services", publish("$SRV.PING"), but("operator"), []string{"operator"}},
		attempt{"ask the server about itself", publish("$SYS.REQ.SERVER.PING"), but(), []string{"witness"}},
		attempt{"hear of what consumers do", subscribe("$JS.EVENT.ADVISORY.CONSUMER.TERMINATED.EXEC_JOBS.w-default", "$JS.EVENT.ADVISORY.CONSUMER.TERMINATED.EXEC_JOBS.w-default"), but("operator"), []string{"operator"}},
	)
}

// streamAttempts: the JetStream API. The bodies are such that whoever may ask is
// answered and nothing is changed.
func streamAttempts() []attempt {
	operator := []string{"operator"}
	rows := []attempt{
		{"pull jobs", ask("$JS.API.CONSUMER.MSG.NEXT.EXEC_JOBS.w-default", `{"batch":1,"no_wait":true}`), but("worker", "operator"), []string{"worker"}},
		{"pull quarantine records", publish("$JS.API.CONSUMER.MSG.NEXT.EXEC_LEDGER.reaper-local-h"), but("worker", "reaper", "operator"), []string{"worker", "reaper"}},
		{"acknowledge another's job", publish("$JS.ACK.EXEC_JOBS.w-default.1.1.1.0.0"), but("worker"), []string{"worker"}},
		{"acknowledge another's quarantine record", publish("$JS.ACK.EXEC_LEDGER.reaper-local-h.1.1.1.0.0"), but("worker", "reaper"), []string{"worker", "reaper"}},
		{"read queued jobs", ask("$JS.API.STREAM.MSG.GET.EXEC_JOBS", `{"seq":1}`), but("gateway", "operator"), []string{"gateway"}},
		{"read dead letters", ask("$JS.API.STREAM.MSG.GET.EXEC_DEAD", `{"seq":1}`), but("operator", "observer"), []string{"operator", "observer"}},
		{"list streams", ask("$JS.API.STREAM.LIST", ""), but("operator", "observer"), []string{"operator", "observer"}},
		{"know the account", ask("$JS.API.INFO", ""), []string{"demo", "demo-trusted", "acme"}, []string{"worker", "gateway", "reaper", "operator", "observer"}},
		{"know a stream's state", ask("$JS.API.STREAM.INFO.EXEC_JOBS", ""), []string{"demo", "demo-trusted", "acme"}, []string{"worker", "gateway", "reaper", "operator", "observer"}},
		{"make a consumer of one's own stored output", ask("$JS.API.CONSUMER.CREATE.EXEC_OUT.c.exec.out.demo.j", "{"), but("operator"), operator},
		{"make a consumer of the ledger's leases", ask("$JS.API.CONSUMER.CREATE.EXEC_LEDGER.c.exec.lease.local.l", "{"), but("operator"), operator},
		{"make a consumer of quarantine records", ask("$JS.API.CONSUMER.CREATE.EXEC_LEDGER.c.exec.quarantine.local.h.*", "{"), but("worker", "reaper", "operator"), []string{"worker", "reaper", "operator"}},
		{"make a consumer of all of the ledger", ask("$JS.API.CONSUMER.CREATE.EXEC_LEDGER.c", "{"), but("operator"), operator},
		{"make a durable consumer the old way", ask("$JS.API.CONSUMER.DURABLE.CREATE.EXEC_LEDGER.c", "{"), but("operator"), operator},
		{"take a queue's consumer away", ask("$JS.API.CONSUMER.DELETE.EXEC_JOBS.none", ""), but("operator"), operator},
		{"pause a queue's consumer", ask("$JS.API.CONSUMER.PAUSE.EXEC_JOBS.none", "{"), but("operator"), operator},
		{"make a stream", ask("$JS.API.STREAM.CREATE.OWN", "{"), but("operator"), operator},
		{"move a stream's leader", publish("$JS.API.STREAM.LEADER.STEPDOWN.NONE"), but("operator"), operator},
	}
	for _, stream := range []string{"EXEC_JOBS", "EXEC_OUT", "EXEC_RUNS", "EXEC_LEDGER", "EXEC_DEAD", "KV_EXEC_WORKERS", "OBJ_EXEC_FILES"} {
		files := stream == "OBJ_EXEC_FILES"
		purgers := operator
		if files {
			purgers = []string{"operator", "worker", "demo-trusted"}
		}
		rows = append(
			rows,
			attempt{"purge " + stream, ask("$JS.API.STREAM.PURGE."+stream, `{"filter":"none.such"}`), but(purgers...), purgers},
			attempt{"delete " + stream, ask("$JS.API.STREAM.DELETE."+stream, "not empty, so refused"), but("operator"), operator},
			attempt{"change " + stream, ask("$JS.API.STREAM.UPDATE."+stream, "{"), but("operator"), operator},
			attempt{"delete a message of " + stream, ask("$JS.API.STREAM.MSG.DELETE."+stream, `{"seq":999999}`), but("operator"), operator},
			attempt{"copy " + stream, ask("$JS.API.STREAM.SNAPSHOT."+stream, "{"), but("operator"), operator},
			attempt{"restore " + stream, ask("$JS.API.STREAM.RESTORE."+stream, "{"), but("operator"), operator},
		)
		if !files {
			rows = append(rows, attempt{"make a consumer of all of " + stream, ask("$JS.API.CONSUMER.CREATE."+stream, "{"), but("operator"), operator})
		}
	}
	return rows
}

// recordAttempts: what workers and reapers write down.
func recordAttempts() []attempt {
	return []attempt{
		{"forge a run record", publish("exec.run.acme.j"), but("worker", "gateway"), []string{"worker", "gateway"}},
		{"forge one's own run record", publish("exec.run.demo.j"), but("worker", "gateway"), []string{"worker", "gateway"}},
		{"see run records as they are written", subscribe("exec.run.>", "exec.run.acme.j"), but(), []string{"witness"}},
		{"read run records", ask("$JS.API.STREAM.MSG.GET.EXEC_RUNS", `{"last_by_subj":"exec.run.acme.j"}`), but("worker", "gateway", "operator"), []string{"worker", "gateway"}},
		{"get run records directly", publish("$JS.API.DIRECT.GET.EXEC_RUNS.exec.run.acme.j"), but("operator"), []string{"operator"}},
		{"forge a dead letter", publish("exec.dead.acme.default.j"), but("worker"), []string{"worker"}},
		{"forge a quarantine record", publish("exec.quarantine.local.h.l"), but("worker", "reaper", "operator"), []string{"worker", "reaper", "operator"}},
		{"forge a lease of the ledger", publish("exec.lease.local.l"), but("worker", "reaper", "operator"), []string{"worker", "reaper", "operator"}},
		{"forge a worker's sign of life", publish("exec.lease._worker.w"), but("worker", "reaper", "operator"), []string{"worker", "reaper"}},
		{"read the ledger", ask("$JS.API.STREAM.MSG.GET.EXEC_LEDGER", `{"seq":1}`), but("worker", "reaper", "operator", "observer"), []string{"worker", "reaper", "operator", "observer"}},
		{"forge a worker's entry", publish("$KV.EXEC_WORKERS.w"), but("worker", "operator"), []string{"worker", "operator"}},
		{"put an object", publish("$O.EXEC_FILES.M.x"), but("worker", "operator", "demo-trusted"), []string{"worker", "operator", "demo-trusted"}},
		{"get an object", ask("$JS.API.DIRECT.GET.OBJ_EXEC_FILES.$O.EXEC_FILES.M.x", ""), but("operator", "demo-trusted"), []string{"operator", "demo-trusted"}},
		{"get an object from the leader", ask("$JS.API.STREAM.MSG.GET.OBJ_EXEC_FILES", `{"seq":1}`), but("operator", "worker"), []string{"operator", "worker"}},
	}
}

// jobHeaders are what a trusted publisher's jobs could carry for the server to act on.
// The stream refuses each.
func jobHeaders() map[string][]string {
	return map[string][]string{
		"wipe the queue by rolling it up":     {"Nats-Rollup=all"},
		"replace a message by rolling it up":  {"Nats-Rollup=sub"},
		"queue a job for another by schedule": {"Nats-Schedule=@every 1s", "Nats-Schedule-Target=exec.job.acme.default.evil"},
		"make a job that vanishes":            {"Nats-TTL=1s"},
		"count with a job":                    {"Nats-Incr=+1"},
		"queue jobs in a batch":               {"Nats-Batch-Id=b", "Nats-Batch-Sequence=1", "Nats-Batch-Commit=1"},
	}
}

// answerAttempts: what the server itself would say, and where.
func answerAttempts() []attempt {
	var rows []attempt
	// The worst subjects for an answer: they would be stored.
	for _, reply := range []string{"exec.job.acme.default.evil", "exec.run.acme.evil", "exec.quarantine.local.h.evil", "_INBOX.acme.n.evil", "exec.cancel.acme.j"} {
		rows = append(rows, attempt{
			// The worker may, as NATS cannot divide it: see docs/permissions.md.
			"have the JetStream API answer on " + reply, borrow("$JS.API.STREAM.INFO.EXEC_JOBS", reply),
			[]string{"demo", "acme", "observer"},
			[]string{"worker"},
		})
	}
	return append(
		rows,
		attempt{"trace into another tenant's inbox", trace("exec.submit.demo.default", "_INBOX.acme.n.x"), []string{"demo", "demo-trusted"}, []string{"witness"}},
		attempt{"trace into a run record", trace("exec.submit.demo.default", "exec.run.acme.x"), []string{"demo", "demo-trusted"}, []string{"witness"}},
	)
}

// everythingAttempts: subscribing to more than one may, by wildcards.
func everythingAttempts() []attempt {
	var rows []attempt
	for subject, probe := range map[string]string{
		">": "any.thing", "*.>": "any.thing", "exec.>": "exec.job.acme.default.x", "exec.*.acme.>": "exec.job.acme.default.x", "*.*.acme.*": "exec.run.acme.x",
		"exec.job.>": "exec.job.acme.default.x", "exec.*.*.*": "exec.run.acme.x", "$JS.>": "$JS.API.NONE", "$JS.API.>": "$JS.API.NONE", "$JS.ACK.>": "$JS.ACK.EXEC_JOBS.w-default.1.1.1.0.0",
		"$KV.>": "$KV.EXEC_WORKERS.none", "$O.>": "$O.EXEC_FILES.M.none", "$SRV.>": "$SRV.PING", "$JS.FC.>": "$JS.FC.x", "reply.>": "reply.acme.x", "_INBOX.*.*": "_INBOX.acme.x",
		"_INBOX_exec.>": "_INBOX_exec.worker.x", "_INBOX_exec.*.*": "_INBOX_exec.worker.x",
	} {
		mayNot := but()
		if strings.HasPrefix(subject, "_INBOX.") {
			mayNot = but("observer") // in its own account, where nobody else is
		}
		rows = append(rows, attempt{"listen to " + subject, subscribe(subject, probe), mayNot, []string{"witness"}})
	}
	return rows
}
