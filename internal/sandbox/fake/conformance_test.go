package fake_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/sandbox/fake"
	"github.com/sallyport/sallyport/internal/sandbox/sandboxtest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]fake.Config{
		"Local":  {Scope: "kernel"},
		"Remote": {Name: "remote", Host: "account", OutlivesWorker: true, NoReset: true, Unenforced: map[string]string{"pids": "no such call"}},
		"Shared": {OutlivesWorker: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			world := fake.NewWorld()
			if name == "Shared" {
				var err error
				world, err = fake.OpenWorld(t.TempDir())
				require.NoError(t, err)
				defer func() { require.NoError(t, world.Close()) }()
			}
			sandboxtest.Run(t, sandboxtest.Harness{
				New:     func(*testing.T) sandbox.Provider { return fake.New(world, cfg) },
				Command: command,
				Spec:    sandbox.Spec{Profile: "test"},
				Cwd:     "/tmp",
				StartErrors: map[sandbox.StartReason]sandbox.Process{
					sandbox.StartNotFound:       {Argv: []string{"/no/such/program"}},
					sandbox.StartNotExecutable:  {Argv: []string{"fake", "start:not_executable"}},
					sandbox.StartBadFormat:      {Argv: []string{"fake", "start:bad_format"}},
					sandbox.StartBadInterpreter: {Argv: []string{"fake", "start:bad_interpreter"}},
					sandbox.StartBadCwd:         {Argv: []string{"fake"}, Cwd: "/no/such/dir"},
				},
				Ambiguous: func(t *testing.T, p sandbox.Provider, made bool) {
					provider, ok := p.(*fake.Provider)
					require.True(t, ok)
					provider.OnCreate(fake.Create{Kind: sandbox.Ambiguous, Exists: made})
				},
				Stranger: func(t *testing.T) (sandbox.Handle, func() bool) {
					h := sandbox.Handle{Provider: "fake", Host: "fake", Lease: "theirs"}
					if cfg.Name != "" {
						h.Provider, h.Host = cfg.Name, cfg.Host
					}
					require.NoError(t, world.PlantStranger(h))
					return h, func() bool { return len(world.Strangers()) == 1 }
				},
				Break: func(t *testing.T, sb sandbox.Sandbox) { require.True(t, world.Vanish(sb.Handle().Lease)) },
			})
			require.Empty(t, world.Live())
			require.Equal(t, world.Created(), world.Destroyed()+world.Vanished())
		})
	}
}

// command expresses the suite's programs in the fake's steps.
func command(ops ...sandboxtest.Op) []string {
	argv := []string{"fake"}
	for _, op := range ops {
		switch op.Do {
		case sandboxtest.DoPrint:
			argv = append(argv, "print:"+op.Text)
		case sandboxtest.DoEprint:
			argv = append(argv, "err:"+op.Text)
		case sandboxtest.DoArgs:
			for _, arg := range op.Args {
				argv = append(argv, "print:"+arg)
			}
		case sandboxtest.DoCat:
			argv = append(argv, "cat")
		case sandboxtest.DoEnv:
			argv = append(argv, "env:"+op.Text)
		case sandboxtest.DoPwd:
			argv = append(argv, "pwd")
		case sandboxtest.DoWrite:
			argv = append(argv, fmt.Sprint("write:", op.N))
		case sandboxtest.DoTouch:
			argv = append(argv, "touch:"+op.Name)
		case sandboxtest.DoPut:
			argv = append(argv, "put:"+op.Name+":"+op.Text)
		case sandboxtest.DoShow:
			argv = append(argv, "show:"+op.Name)
		case sandboxtest.DoSymlink:
			argv = append(argv, "make:symlink:"+op.Name)
		case sandboxtest.DoFifo:
			argv = append(argv, "make:fifo:"+op.Name)
		case sandboxtest.DoHardLink:
			argv = append(argv, "make:hardlink:"+op.Name)
		case sandboxtest.DoDir:
			argv = append(argv, "make:dir:"+op.Name)
		case sandboxtest.DoList:
			argv = append(argv, "ls")
		case sandboxtest.DoSleep:
			argv = append(argv, "sleep:"+op.D.String())
		case sandboxtest.DoIgnoreTerm:
			argv = append(argv, "ignore-term")
		case sandboxtest.DoTermExit:
			argv = append(argv, fmt.Sprint("term-exit:", op.N))
		case sandboxtest.DoLeftover:
			argv = append(argv, "leftover")
		case sandboxtest.DoExit:
			argv = append(argv, fmt.Sprint("exit:", op.N))
		case sandboxtest.DoSignal:
			argv = append(argv, fmt.Sprint("signal:", op.N))
		}
	}
	return argv
}
