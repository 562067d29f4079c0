package createos

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/sys/unix"

	"github.com/sallyport/sallyport/internal/sandbox"
)

// status is a sandbox's, as the service says it.
type status string

const (
	statusCreating   status = "creating"
	statusRunning    status = "running"
	statusPausing    status = "pausing"
	statusPaused     status = "paused"
	statusResuming   status = "resuming"
	statusForking    status = "forking"
	statusError      status = "error"
	statusDestroyed  status = "destroyed"
	statusFailed     status = "failed"
	statusDestroying status = "destroying"
)

// over says that there is no sandbox (any more).
func (s status) over() bool { return s == statusDestroyed || s == statusFailed }

// view is a sandbox.
type view struct {
	ID     string `json:"id"`
	Status status `json:"status"`
	Name   string `json:"name"`
}

// creation is what to create.
type creation struct {
	Shape     string   `json:"shape"`
	Rootfs    string   `json:"rootfs,omitzero"`
	Name      string   `json:"name"`
	Region    string   `json:"region,omitzero"`
	DiskMiB   int64    `json:"disk_mib,omitzero"`
	Egress    []string `json:"egress,omitempty"`
	Ingress   bool     `json:"ingress_enabled"`
	AutoPause int64    `json:"auto_pause_after_seconds,omitzero"`
}

const lifecycle = "sandbox lifecycle"

// resource says that id can stand in a path, and is one.
func resource(id string) bool { return token(id, 200) }

var errIdentity = errors.New("the sandbox's identity or state is invalid")

// create asks for a sandbox, once.
func (c *client) create(ctx context.Context, body creation) (view, error) {
	k := call{what: lifecycle, effect: founds, method: http.MethodPost, path: "/sandboxes", json: body}
	var v view
	if err := c.do(ctx, k, &v); err != nil {
		return view{}, err
	}
	if !resource(v.ID) {
		return view{}, &callError{what: k.what, effect: k.effect, sent: true, malformed: true, err: errors.New("the sandbox's id is invalid")}
	}
	return v, nil
}

func (c *client) get(ctx context.Context, id string) (view, error) {
	k := call{what: lifecycle, effect: looks, method: http.MethodGet, path: "/sandboxes/" + id}
	var v view
	if err := c.again(ctx, k, &v); err != nil {
		return view{}, err
	}
	if v.ID != id || v.Status == "" {
		return view{}, &callError{what: k.what, effect: k.effect, sent: true, malformed: true, err: errIdentity}
	}
	return v, nil
}

// remove asks for the end of a sandbox. The answer is a claim.
func (c *client) remove(ctx context.Context, id string) error {
	return c.again(ctx, call{what: lifecycle, effect: changes, method: http.MethodDelete, path: "/sandboxes/" + id}, nil)
}

// submit asks for a transition: pause or resume.
func (c *client) submit(ctx context.Context, id, action string) error {
	return c.do(ctx, call{what: lifecycle, effect: changes, method: http.MethodPost, path: "/sandboxes/" + id + "/" + action}, nil)
}

const (
	pageSize = 100
	// maxSandboxes bounds a listing; accounts have far fewer.
	maxSandboxes = 100_000
	// listings is how often a listing that changed while it was read is begun again.
	listings = 4
)

// list lists all sandboxes of the account. Pages are counted from the front, so that a
// sandbox which goes meanwhile moves others where they are not seen: a listing whose
// pages do not agree on their number is read again.
func (c *client) list(ctx context.Context) ([]view, error) {
	for range listings {
		all, whole, err := c.pages(ctx)
		if err != nil || whole {
			return all, err
		}
	}
	return nil, &callError{what: "sandbox listing", effect: looks, sent: true, err: errors.New("it changed each time it was read")}
}

func (c *client) pages(ctx context.Context) (all []view, whole bool, err error) {
	seen := map[string]bool{}
	total := -1
	for offset := 0; ; {
		var page struct {
			Data       []view `json:"data"`
			Pagination struct {
				Total *int `json:"total"`
			} `json:"pagination"`
		}
		k := call{
			what: "sandbox listing", effect: looks, method: http.MethodGet, path: "/sandboxes",
			query: url.Values{"limit": {strconv.Itoa(pageSize)}, "offset": {strconv.Itoa(offset)}},
		}
		if err := c.again(ctx, k, &page); err != nil {
			return nil, false, err
		}
		bad := &callError{what: k.what, effect: looks, sent: true, malformed: true, err: errors.New("the page is invalid")}
		if page.Pagination.Total == nil || *page.Pagination.Total < 0 || *page.Pagination.Total > maxSandboxes {
			return nil, false, bad
		}
		if total >= 0 && total != *page.Pagination.Total {
			return nil, false, nil
		}
		total = *page.Pagination.Total
		for _, v := range page.Data {
			if !resource(v.ID) || v.Status == "" {
				return nil, false, bad
			}
			if seen[v.ID] {
				return nil, false, nil
			}
			seen[v.ID] = true
			all = append(all, v)
		}
		offset += len(page.Data)
		if offset >= total {
			return all, len(all) == total, nil
		}
		if len(page.Data) == 0 {
			return nil, false, nil
		}
	}
}

// upload stores a file.
func (c *client) upload(ctx context.Context, id, name string, content io.Reader, length int64) error {
	return c.do(ctx, call{
		what: "file transfer", effect: changes, method: http.MethodPut, path: "/sandboxes/" + id + "/files",
		query: url.Values{"path": {name}}, body: content, length: length,
	}, nil)
}

// download opens a file. The call's deadline runs until it is closed.
func (c *client) download(ctx context.Context, id, name string) (io.ReadCloser, error) {
	k := call{
		what: "file transfer", effect: looks, method: http.MethodGet, path: "/sandboxes/" + id + "/files",
		query: url.Values{"path": {name}},
	}
	ctx, cancel := c.within(ctx, k)
	response, err := c.send(ctx, k) //nolint:bodyclose // the caller closes it, and thereby the call
	if err != nil {
		cancel()
		return nil, err
	}
	return &body{ReadCloser: response.Body, cancel: cancel}, nil
}

// body is an answer's body that ends its call when it is closed.
type body struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (b *body) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}

// exec runs a command to its end and returns its exit code.
func (c *client) exec(ctx context.Context, id, cmd string, args ...string) (int, error) {
	k := call{
		what: "workspace command", effect: changes, method: http.MethodPost, path: "/sandboxes/" + id + "/exec",
		json: map[string]any{"cmd": cmd, "args": args},
	}
	var answer struct {
		Result struct {
			ExitCode *int   `json:"exit_code"`
			Error    string `json:"error"`
		} `json:"result"`
	}
	if err := c.do(ctx, k, &answer); err != nil {
		return 0, err
	}
	if answer.Result.ExitCode == nil {
		return 0, &callError{what: k.what, effect: k.effect, sent: true, malformed: true, err: errors.New("the exit status is missing")}
	}
	return *answer.Result.ExitCode, nil
}

// details is a managed process.
type details struct {
	ID           string         `json:"process_id"`
	State        string         `json:"state"`
	LeaderExited bool           `json:"leader_exited"`
	TreeExited   bool           `json:"tree_exited"`
	ExitCode     *int           `json:"exit_code"`
	Signal       string         `json:"signal"`
	Output       jsontext.Value `json:"output"`
}

// exit is the leader's end, or nil while it is not known.
func (d *details) exit() *sandbox.Exit {
	if !d.LeaderExited && !d.TreeExited {
		return nil
	}
	exit, err := exitOf(d.ExitCode, d.Signal)
	if err != nil {
		return nil
	}
	return exit
}

// newest is the sequence number of the last piece of output.
func (d *details) newest() (uint64, error) {
	var journal struct {
		Newest *uint64 `json:"newest_seq"`
	}
	if len(d.Output) == 0 || json.Unmarshal(d.Output, &journal) != nil || journal.Newest == nil {
		return 0, errJournal
	}
	return *journal.Newest, nil
}

// exitOf reads an exit status: a signal by its name, or a code.
func exitOf(code *int, signal string) (*sandbox.Exit, error) {
	if signal != "" {
		number := int(unix.SignalNum(signal))
		if number == 0 {
			return nil, errors.New("the exit status is invalid")
		}
		return &sandbox.Exit{Signal: number}, nil
	}
	switch {
	case code == nil:
		return nil, errors.New("the exit status is missing")
	case *code < 0 || *code > 255:
		return nil, errors.New("the exit status is invalid")
	}
	return &sandbox.Exit{Code: *code}, nil
}

func processes(id string) string { return "/sandboxes/" + id + "/processes" }

// start creates a managed process, once and never again.
func (c *client) start(ctx context.Context, id, cwd string, argv []string) (details, error) {
	k := call{
		what: "process creation", effect: changes, method: http.MethodPost, path: processes(id),
		// The field env can only override what was declared with the sandbox.
		json: map[string]any{"cmd": argv[0], "args": argv[1:], "cwd": cwd},
	}
	var d details
	if err := c.do(ctx, k, &d); err != nil {
		return details{}, err
	}
	if !resource(d.ID) {
		return details{}, &callError{what: k.what, effect: k.effect, sent: true, malformed: true, err: errors.New("the process's id is invalid")}
	}
	return d, nil
}

// process is one call about one process.
func (c *client) process(ctx context.Context, k call, id, pid, rest string) (details, error) {
	k.path = processes(id) + "/" + pid + rest
	var d details
	var err error
	if k.method == http.MethodGet && k.timeout == 0 {
		err = c.again(ctx, k, &d)
	} else {
		err = c.do(ctx, k, &d)
	}
	if err == nil && d.ID != pid {
		err = &callError{what: k.what, effect: k.effect, sent: true, malformed: true, err: errors.New("the answer is about another process")}
	}
	return d, err
}

func (c *client) look(ctx context.Context, id, pid string) (details, error) {
	return c.process(ctx, call{what: "process status", effect: looks, method: http.MethodGet}, id, pid, "")
}

// waitTree returns when the tree has ended; 408 when it has not, after d.
func (c *client) waitTree(ctx context.Context, id, pid string, d time.Duration) (details, error) {
	k := call{
		what: "process wait", effect: looks, method: http.MethodGet, timeout: d + c.timeout,
		query: url.Values{"scope": {"tree"}, "timeout_ms": {strconv.FormatInt(d.Milliseconds(), 10)}},
	}
	return c.process(ctx, k, id, pid, "/wait")
}

// kill ends a process tree: a request, the grace period, force.
func (c *client) kill(ctx context.Context, id, pid string, grace time.Duration) (details, error) {
	k := call{
		what: "process cleanup", effect: changes, method: http.MethodDelete, timeout: grace + c.timeout,
		query: url.Values{"grace_ms": {strconv.FormatInt(grace.Milliseconds(), 10)}},
	}
	return c.process(ctx, k, id, pid, "")
}

func (c *client) listProcesses(ctx context.Context, id string) ([]details, error) {
	k := call{what: "process listing", effect: looks, method: http.MethodGet, path: processes(id)}
	var answer struct {
		Processes *[]details `json:"processes"`
	}
	if err := c.again(ctx, k, &answer); err != nil {
		return nil, err
	}
	bad := &callError{what: k.what, effect: looks, sent: true, malformed: true, err: errors.New("the listing is invalid")}
	if answer.Processes == nil {
		return nil, bad
	}
	for _, d := range *answer.Processes {
		if !resource(d.ID) {
			return nil, bad
		}
	}
	return *answer.Processes, nil
}

// input writes to a process's standard input, in the order of the calls.
func (c *client) input(ctx context.Context, id, pid string, data []byte) error {
	k := call{
		what: "process input", effect: changes, method: http.MethodPost, path: processes(id) + "/" + pid + "/input",
		json: map[string]any{"data_base64": data}, timeout: 365 * 24 * time.Hour, // as long as the process does not read
	}
	return c.do(ctx, k, nil)
}

// closeStdin closes a process's standard input; that it was closed before is no error.
func (c *client) closeStdin(ctx context.Context, id, pid string) error {
	k := call{what: "stdin close", effect: changes, method: http.MethodPost, path: processes(id) + "/" + pid + "/stdin/close"}
	err := c.do(ctx, k, nil)
	if statusOf(err) == http.StatusConflict {
		return nil
	}
	return err
}

// connect opens the output stream behind after. It lives as long as ctx.
func (c *client) connect(ctx context.Context, id, pid string, after uint64) (io.ReadCloser, error) {
	k := call{
		what: "output connection", effect: looks, method: http.MethodGet, path: processes(id) + "/" + pid + "/connect",
		query: url.Values{"after": {strconv.FormatUint(after, 10)}},
	}
	response, err := c.send(ctx, k)
	if err != nil {
		return nil, err
	}
	if response.StatusCode == http.StatusNoContent {
		empty := &callError{what: k.what, effect: looks, sent: true, malformed: true, err: errors.New("the stream is empty")}
		return nil, errors.Join(empty, response.Body.Close())
	}
	return response.Body, nil
}
