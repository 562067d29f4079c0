package createostest_test

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox/createos/createostest"
)

func TestAccount(t *testing.T) {
	t.Parallel()
	c := setup(t, createostest.Config{MoreKeys: []string{"other"}})
	box := c.sandbox()
	as := func(header, value string) answer {
		r := c.request("GET", box, nil)
		r.Header.Del("X-Api-Key")
		if header != "" {
			r.Header.Set(header, value)
		}
		return c.send(r)
	}
	as("", "").refused(http.StatusUnauthorized)
	as("X-Api-Key", "wrong").refused(http.StatusUnauthorized)
	as("X-Api-Key", "other").refused(http.StatusNotFound)
	for _, header := range []string{"X-Api-Key", "X-Auth-Token", "X-Access-Token"} {
		as(header, key).ok()
	}
	// A name is taken in its account alone.
	name := text(c.do("GET", box, nil).ok()["name"])
	c.do("POST", "/v1/sandboxes", object{"shape": shape, "name": name}).refused(http.StatusConflict)
	r := c.request("POST", "/v1/sandboxes", object{"shape": shape, "name": name})
	r.Header.Set("X-Api-Key", "other")
	c.send(r).ok()
	for _, call := range c.Calls() {
		require.Empty(t, call.Header.Get("X-Api-Key"), "the books keep no key")
	}
	books := c.Sandboxes()
	require.Len(t, books, 2)
	require.Equal(t, []string{key, "other"}, []string{books[0].Key, books[1].Key})
}

func TestCreationIsChecked(t *testing.T) {
	t.Parallel()
	c := setup(t, createostest.Config{})
	for name, body := range map[string]any{
		"no shape":           object{},
		"no such shape":      object{"shape": "large"},
		"unknown field":      object{"shape": shape, "surprise": 1},
		"no json":            "{",
		"two values":         `{"shape":"` + shape + `"}{}`,
		"bad name":           object{"shape": shape, "name": "a b"},
		"long name":          object{"shape": shape, "name": strings.Repeat("x", 129)},
		"negative disk":      object{"shape": shape, "disk_mib": -1},
		"short pause":        object{"shape": shape, "auto_pause_after_seconds": 59},
		"long pause":         object{"shape": shape, "auto_pause_after_seconds": 86401},
		"bad env key":        object{"shape": shape, "envs": object{"A-B": ""}},
		"long env":           object{"shape": shape, "envs": object{"A": strings.Repeat("x", 4097)}},
		"wrong type of name": object{"shape": shape, "name": 1},
	} {
		t.Run(name, func(*testing.T) {
			c.do("POST", "/v1/sandboxes", body).refused(http.StatusBadRequest)
		})
	}
	require.Empty(t, c.Sandboxes())
}

func TestView(t *testing.T) {
	t.Parallel()
	c := setup(t, createostest.Config{})
	created := c.do("POST", "/v1/sandboxes", object{
		"shape": "s-2vcpu-4gb", "rootfs": "debian", "region": "eu", "name": "one", "egress": []string{"example.com"},
		"envs": object{"B": "secret", "A": ""}, "ingress_enabled": false, "auto_pause_after_seconds": 600,
	}).ok()
	require.Regexp(t, `^sb-[0-9a-z]{26}$`, created["id"])
	for _, field := range []string{"spawn_ms", "bandwidth_quota_bytes", "ingress_url_template", "ip"} {
		require.Contains(t, created, field)
	}
	view := c.do("GET", "/v1/sandboxes/"+text(created["id"]), nil).ok()
	require.Subset(t, view, object{
		"id": created["id"], "status": "running", "name": "one", "vcpu": 2.0, "mem_mib": 4096.0, "disk_mib": 10240.0, "shape": "s-2vcpu-4gb",
		"rootfs": "debian", "region": "eu", "egress": []any{"example.com"}, "envs": []any{"A", "B"}, "ingress_enabled": false,
		"auto_pause_after_seconds": 600.0,
	})
	require.Contains(t, view, "running_at")
	require.NotContains(t, view, "destroyed_at")
	c.do("GET", "/v1/sandboxes/sb-none", nil).refused(http.StatusNotFound)
	c.do("GET", "/v1/nothing", nil).refused(http.StatusNotFound)
	body := c.Calls(createostest.CreateSandbox)[0]
	require.Contains(t, string(body.Body), `"debian"`)
	require.Len(t, body.BodySHA256, 64)
	require.Equal(t, created["id"], body.Created)
}

func TestPages(t *testing.T) {
	t.Parallel()
	c := setup(t, createostest.Config{MoreKeys: []string{"other"}})
	for range 52 {
		_, err := c.Plant("", "")
		require.NoError(t, err)
	}
	_, err := c.Plant("other", "elsewhere")
	require.NoError(t, err)
	seen := map[string]bool{}
	for _, page := range []struct {
		query         string
		limit, offset float64
		count         int
	}{{"", 50, 0, 50}, {"?offset=50", 50, 50, 2}, {"?limit=9999", 500, 0, 52}, {"?limit=1&offset=99", 1, 99, 0}, {"?status=paused", 50, 0, 0}} {
		got := c.do("GET", "/v1/sandboxes"+page.query, nil).ok()
		list, isList := got["data"].([]any)
		require.True(t, isList)
		require.Len(t, list, page.count, page.query)
		pagination, isObject := got["pagination"].(object)
		require.True(t, isObject)
		require.InDelta(t, page.limit, pagination["limit"], 0)
		require.InDelta(t, page.offset, pagination["offset"], 0)
		require.InDelta(t, page.count, pagination["count"], 0)
		for _, one := range list {
			view, isObject := one.(object)
			require.True(t, isObject)
			require.NotEqual(t, "elsewhere", view["name"])
			seen[text(view["id"])] = true
		}
	}
	require.Len(t, seen, 52)
	c.do("GET", "/v1/sandboxes?limit=x", nil).refused(http.StatusBadRequest)
	require.True(t, c.Sandboxes()[0].Planted)
}

func TestNameIsFreeAgainAfterTheEnd(t *testing.T) {
	t.Parallel()
	c := setup(t, createostest.Config{})
	box := c.sandbox(object{"name": "one"})
	c.do("POST", "/v1/sandboxes", object{"shape": shape, "name": "one"}).refused(http.StatusConflict)
	c.do("DELETE", box, nil).ok()
	eventually(t, "the name is free", func() bool {
		return c.do("POST", "/v1/sandboxes", object{"shape": shape, "name": "one"}).code == http.StatusOK
	})
}

// TestLag: every transition takes its time, and what the sandbox cannot do meanwhile
// is refused.
func TestLag(t *testing.T) {
	t.Parallel()
	c := setup(t, createostest.Config{Lag: 200 * time.Millisecond})
	created := c.do("POST", "/v1/sandboxes", object{"shape": shape}).ok()
	require.Equal(t, "creating", created["status"])
	box := "/v1/sandboxes/" + text(created["id"])
	status := func() string { return text(c.do("GET", box, nil).ok()["status"]) }
	reaches := func(want string) { eventually(t, want, func() bool { return status() == want }) }
	c.do("POST", box+"/pause", nil).refused(http.StatusConflict)
	c.do("POST", box+"/exec", object{"cmd": "x"}).refused(http.StatusConflict)
	reaches("running")
	require.Equal(t, "running", c.do("POST", box+"/resume", nil).ok()["status"])

	paused := c.do("POST", box+"/pause", nil)
	require.Equal(t, "pausing", paused.ok()["status"])
	require.Equal(t, http.StatusAccepted, paused.code)
	require.NotEmpty(t, paused.header.Get("X-Poll-After"))
	c.do("POST", box+"/resume", nil).refused(http.StatusConflict)
	reaches("paused")
	c.do("POST", box+"/exec", object{"cmd": "x"}).refused(http.StatusConflict)
	require.Equal(t, http.StatusOK, c.do("POST", box+"/pause", nil).code)

	resumed := c.do("POST", box+"/resume", nil)
	require.Equal(t, http.StatusAccepted, resumed.code)
	require.Equal(t, "resuming", resumed.ok()["status"])
	reaches("running")
	require.Contains(t, c.do("GET", box, nil).ok(), "last_resumed_at")

	require.Equal(t, "destroying", c.do("DELETE", box, nil).ok()["status"])
	require.Equal(t, "destroying", c.do("DELETE", box, nil).ok()["status"], "again")
	require.Equal(t, "destroying", status())
	c.do("POST", box+"/exec", object{"cmd": "x"}).refused(http.StatusNotFound)
	eventually(t, "404", func() bool { return c.do("GET", box, nil).code == http.StatusNotFound })
	c.do("DELETE", box, nil).refused(http.StatusNotFound)
	require.Equal(t, "destroyed", c.Sandboxes()[0].Status)
	require.False(t, c.Sandboxes()[0].Live())
}

func TestKeepDestroyed(t *testing.T) {
	t.Parallel()
	c := setup(t, createostest.Config{KeepDestroyed: true})
	box := c.sandbox()
	c.do("DELETE", box, nil).ok()
	eventually(t, "destroyed", func() bool { return c.do("GET", box, nil).ok()["status"] == "destroyed" })
	require.Contains(t, c.do("GET", box, nil).ok(), "destroyed_at")
}

func TestAutoPause(t *testing.T) {
	t.Parallel()
	var offset atomic.Int64
	begin := time.Now()
	c := setup(t, createostest.Config{Now: func() time.Time { return begin.Add(time.Duration(offset.Load())) }})
	box := c.sandbox(object{"auto_pause_after_seconds": 60})
	process := c.start(box, "x", "forever")
	status := func() any { return c.do("GET", box, nil).ok()["status"] }
	offset.Add(int64(time.Hour))
	require.Equal(t, "running", status(), "a process lives")
	c.do("DELETE", process+"?grace_ms=0", nil).ok()
	offset.Add(int64(59 * time.Second))
	require.Equal(t, "running", status())
	c.do("POST", box+"/exec", object{"cmd": "x"}).ok()
	offset.Add(int64(59 * time.Second))
	require.Equal(t, "running", status(), "it was used")
	offset.Add(int64(time.Second))
	require.Equal(t, "paused", status())
	c.do("POST", box+"/resume", nil).ok()
	require.Equal(t, "running", status())
	require.InDelta(t, 90, c.do("PATCH", box, object{"auto_pause_after_seconds": 90}).ok()["auto_pause_after_seconds"], 0)
	c.do("PATCH", box, object{"auto_pause_after_seconds": 5}).refused(http.StatusBadRequest)
	require.NotContains(t, c.do("PATCH", box, object{"disable_auto_pause": true}).ok(), "auto_pause_after_seconds")
	offset.Add(int64(time.Hour))
	require.Equal(t, "running", status())
}

func TestRateLimit(t *testing.T) {
	t.Parallel()
	var offset atomic.Int64
	begin := time.Now()
	c := setup(t, createostest.Config{RatePerMinute: 3, Now: func() time.Time { return begin.Add(time.Duration(offset.Load())) }})
	for range 3 {
		c.do("GET", "/v1/whoami", nil).ok()
	}
	limited := c.do("GET", "/v1/whoami", nil)
	limited.refused(http.StatusTooManyRequests)
	require.Equal(t, "60", limited.header.Get("Retry-After"))
	offset.Add(int64(time.Minute))
	c.do("GET", "/v1/whoami", nil).ok()
}

func TestFiles(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T, createostest.Config) *client{"functions": setup, "processes": withProcesses} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := start(t, createostest.Config{})
			box := c.sandbox()
			content := strings.Repeat("\x00\xff binary", 1<<16)
			c.do("PUT", files(box, "/sallyport-workspace/deep/er/file"), content).ok()
			got := c.do("GET", files(box, "/sallyport-workspace/deep/er/file"), nil)
			require.Equal(t, http.StatusOK, got.code)
			require.Equal(t, content, string(got.body))
			c.do("PUT", files(box, "/sallyport-workspace/deep/er/file"), "short").ok()
			require.Equal(t, "short", string(c.do("GET", files(box, "/sallyport-workspace/deep/er/file"), nil).body))
			c.do("GET", files(box, "/none"), nil).refused(http.StatusNotFound)
			for _, bad := range []string{"", "relative", "/dir/"} {
				c.do("PUT", files(box, bad), "x").refused(http.StatusBadRequest)
				c.do("GET", files(box, bad), nil).refused(http.StatusBadRequest)
			}
			c.do("GET", files("/v1/sandboxes/sb-none", "/x"), nil).refused(http.StatusNotFound)

			strict := start(t, createostest.Config{StrictParents: true})
			box = strict.sandbox()
			strict.do("PUT", files(box, "/no/parent"), "x").refused(http.StatusNotFound)
			strict.do("PUT", files(box, "/tmp/parent"), "x").ok()
		})
	}
}

// TestFilesStayInside: links lead where they lead for a program inside.
func TestFilesStayInside(t *testing.T) {
	t.Parallel()
	c := withProcesses(t, createostest.Config{})
	box := c.sandbox()
	c.exec(box, "mkdir /w; ln -s /tmp/target /w/absolute; ln -s ../../../../tmp/target /w/up; mkfifo /w/pipe; ln -s /w/loop /w/loop; echo inside >/tmp/target")
	for _, name := range []string{"/w/absolute", "/w/up", "/w/../../../tmp/target"} {
		require.Equal(t, "inside\n", string(c.do("GET", files(box, name), nil).body), name)
	}
	c.do("PUT", files(box, "/w/absolute"), "changed").ok()
	require.Equal(t, "changed", c.exec(box, "cat /tmp/target")["stdout"])
	// A name is bytes.
	c.do("PUT", files(box, "/w/\xff"), "odd").ok()
	require.Equal(t, "odd", string(c.do("GET", files(box, "/w/\xff"), nil).body))
	require.Equal(t, "odd", c.exec(box, `cat /w/$'\xff'`)["stdout"])
	for _, name := range []string{"/w", "/w/pipe", "/w/loop", "/tmp/target/below"} {
		c.do("GET", files(box, name), nil).refused(http.StatusBadRequest)
	}
	c.do("PUT", files(box, "/w/pipe"), "x").refused(http.StatusBadRequest)
	c.do("PUT", files(box, "/usr/x"), "x").refused(http.StatusForbidden)
	require.NotEmpty(t, c.do("GET", files(box, "/etc/passwd"), nil).body, "the host's system is shown")
}

func TestExec(t *testing.T) {
	t.Parallel()
	c := withProcesses(t, createostest.Config{})
	box := c.sandbox(object{"envs": object{"DECLARED": "one"}})
	other := c.sandbox()
	run := func(body object) object {
		result, isObject := c.do("POST", box+"/exec", body).ok()["result"].(object)
		require.True(t, isObject)
		return result
	}
	got := run(object{"cmd": "/bin/bash", "args": []string{"-lc", `cat; echo "$DECLARED $HOME $PWD" >&2; exit 7`}, "stdin": "in"})
	require.Equal(t, object{"stdout": "in", "stderr": "one /root /root\n", "exit_code": 7.0}, got)
	require.Equal(t, "two", run(object{"cmd": "sh", "args": []string{"-c", `printf %s "$DECLARED"`}, "env": object{"DECLARED": "two"}})["stdout"])
	c.do("POST", box+"/exec", object{"cmd": "true", "env": object{"OTHER": ""}}).refused(http.StatusBadRequest)
	c.do("POST", box+"/exec", object{"cmd": "/no/such"}).refused(http.StatusBadRequest)
	c.do("POST", box+"/exec", object{"args": []string{"x"}}).refused(http.StatusBadRequest)
	c.do("POST", box+"/exec", object{"cmd": "true", "stream": true}).refused(http.StatusNotFound)
	require.InDelta(t, 137, c.exec(box, "kill -9 $$")["exit_code"], 0)

	// It waits for what has its output, and for that alone.
	require.Equal(t, "late\n", c.exec(box, "(sleep 0.2; echo late) & exit 0")["stdout"])
	c.exec(box, "setsid sleep 600 >/dev/null 2>&1 & exit 0")

	// Sandboxes are apart: files, processes, hosts.
	c.exec(box, "echo mine >/tmp/mine; mkdir -p /sallyport-workspace; hostname other")
	require.Equal(t, "", c.exec(other, "cat /tmp/mine /sallyport-workspace; pgrep sleep")["stdout"])
	require.Equal(t, "createos\n", c.exec(other, "hostname")["stdout"])
	require.Len(t, c.LiveProcesses(), 1)
	require.Equal(t, []string{"sleep", "600"}, c.LiveProcesses()[0].Argv)
	require.NoError(t, c.Vanish(strings.TrimPrefix(box, "/v1/sandboxes/")))
	require.Empty(t, c.LiveProcesses())
	c.do("GET", box, nil).refused(http.StatusNotFound)
}

// TestExecEndsWithItsClient: nobody is left to whom it could answer.
func TestExecEndsWithItsClient(t *testing.T) {
	t.Parallel()
	c := withProcesses(t, createostest.Config{})
	box := c.sandbox()
	c.http.Timeout = 300 * time.Millisecond
	require.Error(t, c.do("POST", box+"/exec", object{"cmd": "sleep", "args": []string{"600"}}).err)
	eventually(t, "it has ended", func() bool { return len(c.LiveProcesses()) == 0 })
}
