package createostest_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sallyport/sallyport/internal/sandbox/createos/createostest"
)

// state is a process's state letter (proc_pid_stat(5)).
func state(t *testing.T, pid int) string {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	require.NoError(t, err)
	return strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))[0]
}

// TestNothingIsLeft: whatever runs and whatever it did to its files, Close ends and
// removes it. The end of setup checks.
func TestNothingIsLeft(t *testing.T) {
	t.Parallel()
	c := withProcesses(t, createostest.Config{})
	boxes := []string{c.sandbox(), c.sandbox(), c.sandbox()}
	c.exec(boxes[0], "mkdir -p /w/a/b; touch /w/a/b/c; chmod 0 /w/a/b /w/a; mount -t tmpfs none /w; mkdir /w/d")
	c.shell(boxes[1], "trap '' TERM; setsid sleep 600 & exec sleep 600")
	p := c.shell(boxes[2], "echo ready; exec sleep 600")
	require.Equal(t, "data", c.connect(p, 0).next().Type)
	var pids []int
	eventually(t, "all run", func() bool {
		live := c.LiveProcesses()
		pids = nil
		for _, l := range live {
			pids = append(pids, l.PID)
		}
		return len(live) == 3
	})
	left, err := c.Leftovers()
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(left), 3+3, "three sandboxes and three processes at least")
	require.NoError(t, c.Close())
	for _, pid := range pids {
		require.ErrorIs(t, unix.Kill(pid, 0), unix.ESRCH)
	}
}

// TestKilledTop: where the top of a tree was killed, nobody can say that the tree is
// gone before the sandbox is.
func TestKilledTop(t *testing.T) {
	t.Parallel()
	c := withProcesses(t, createostest.Config{})
	box := c.sandbox()
	p := c.shell(box, "setsid sleep 600 & echo ready; kill -9 $PPID; wait")
	require.Equal(t, "data", c.connect(p, 0).next().Type)
	require.Equal(t, http.StatusRequestTimeout, c.do("GET", p+"/wait?scope=tree&timeout_ms=300", nil).code)
	require.Equal(t, false, c.do("GET", p, nil).ok()["tree_exited"])
	require.NotEmpty(t, c.LiveProcesses())
	c.do("DELETE", box, nil).ok()
	eventually(t, "all is gone", func() bool { return len(c.LiveProcesses()) == 0 && !c.Sandboxes()[0].Live() })
}

// TestGuestsAreHardToEnd: a job's signals to pid 1 do nothing.
func TestGuestsAreHardToEnd(t *testing.T) {
	t.Parallel()
	c := withProcesses(t, createostest.Config{})
	box := c.sandbox()
	require.Equal(t, "there\n", c.exec(box, "for s in HUP INT QUIT TERM USR1 USR2 PIPE KILL; do kill -$s 1; done; echo there")["stdout"])
	require.Equal(t, "still\n", c.exec(box, "echo still")["stdout"])
}

// TestSandboxThatDies: a machine that is killed from outside takes its processes with
// it, and the API knows that their trees are gone.
func TestSandboxThatDies(t *testing.T) {
	t.Parallel()
	c := withProcesses(t, createostest.Config{})
	box := c.sandbox()
	p := c.shell(box, "echo ready; exec sleep 600")
	e := c.connect(p, 0)
	require.Equal(t, "data", e.next().Type)
	require.NoError(t, c.Vanish(c.Sandboxes()[0].ID))
	require.Nil(t, e.next())
	require.Error(t, e.lines.Err(), "the stream has not ended in good order")
	require.Empty(t, c.LiveProcesses())
	c.do("GET", p, nil).refused(http.StatusNotFound)
}

func TestServe(t *testing.T) {
	t.Parallel()
	_, err := createostest.New(createostest.Config{})
	require.Error(t, err, "a key is required")
	url, stop, err := createostest.Serve(t.Context(), "127.0.0.1:0", createostest.Config{APIKey: key, Backend: createostest.Programs(program)})
	require.NoError(t, err)
	response, err := http.Get(url + "/v1/whoami")
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusUnauthorized, response.StatusCode)
	require.NoError(t, stop())
	require.NoError(t, stop())
	_, err = http.Get(url) //nolint:bodyclose // there is none
	require.Error(t, err)
	_, _, err = createostest.Serve(t.Context(), "256.0.0.1:0", createostest.Config{APIKey: key, Backend: createostest.Programs(program)})
	require.Error(t, err)
}

// TestRootIsNobodyOutside: a program is root in its sandbox and an ordinary user for
// the kernel.
func TestRootIsNobodyOutside(t *testing.T) {
	t.Parallel()
	c := withProcesses(t, createostest.Config{})
	box := c.sandbox()
	require.Equal(t, "0\n", c.exec(box, "id -u")["stdout"])
	for _, forbidden := range []string{
		"cat /etc/shadow", "echo x >/proc/sys/kernel/core_pattern", "touch /usr/x", "mount -o remount,rw,bind /etc && touch /etc/x",
	} {
		require.NotZero(t, c.exec(box, forbidden)["exit_code"], forbidden)
	}
	p := c.shell(box, "exec sleep 600")
	c.do("GET", p, nil).ok()
	for _, l := range c.LiveProcesses() {
		info, err := os.Stat(fmt.Sprintf("/proc/%d", l.PID))
		require.NoError(t, err)
		stat, isStat := info.Sys().(*syscall.Stat_t)
		require.True(t, isStat)
		require.NotZero(t, stat.Uid)
	}
}

// broken is a backend whose machines do not come up, or come up late.
type broken struct {
	createostest.Backend
	wait chan struct{}
}

func (b *broken) Boot(ctx context.Context, id string) (createostest.Machine, error) {
	if b.wait == nil {
		return nil, errors.New("no")
	}
	<-b.wait
	return b.Backend.Boot(ctx, id)
}

func TestBootThatFails(t *testing.T) {
	t.Parallel()
	c := setup(t, createostest.Config{Backend: &broken{Backend: createostest.Programs(program)}})
	for range 2 { // a failed sandbox has no name
		c.do("POST", "/v1/sandboxes", object{"shape": shape, "name": "one"}).refused(http.StatusInternalServerError)
	}
	require.Equal(t, "failed", c.Sandboxes()[1].Status)
	c.do("GET", "/v1/sandboxes/"+c.Sandboxes()[1].ID, nil).refused(http.StatusNotFound)
}

// TestDeleteBeforeItIsThere: what is deleted while it is created ends when it is there.
func TestDeleteBeforeItIsThere(t *testing.T) {
	t.Parallel()
	backend := &broken{Backend: createostest.Programs(program), wait: make(chan struct{})}
	c := setup(t, createostest.Config{Backend: backend})
	created := make(chan answer)
	go func() { created <- c.do("POST", "/v1/sandboxes", object{"shape": shape}) }()
	eventually(t, "it is creating", func() bool { return len(c.Sandboxes()) == 1 })
	box := "/v1/sandboxes/" + c.Sandboxes()[0].ID
	require.Equal(t, "creating", c.do("GET", box, nil).ok()["status"])
	require.Equal(t, "destroying", c.do("DELETE", box, nil).ok()["status"])
	require.Equal(t, "destroying", c.do("GET", box, nil).ok()["status"])
	close(backend.wait)
	require.Contains(t, []any{"destroying", "destroyed"}, (<-created).ok()["status"])
	eventually(t, "it is gone", func() bool { return !c.Sandboxes()[0].Live() })
	require.False(t, c.Sandboxes()[0].Gone.IsZero())
}

// TestOneNameAtATime: of creations of one name at once, one wins.
func TestOneNameAtATime(t *testing.T) {
	t.Parallel()
	c := setup(t, createostest.Config{})
	codes := make(chan int)
	for range 10 {
		go func() { codes <- c.do("POST", "/v1/sandboxes", object{"shape": shape, "name": "one"}).code }()
	}
	count := map[int]int{}
	for range 10 {
		count[<-codes]++
	}
	require.Equal(t, map[int]int{http.StatusOK: 1, http.StatusConflict: 9}, count)
}
