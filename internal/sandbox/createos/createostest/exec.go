package createostest

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// maxExecOutput bounds each stream of an exec: it is held in memory.
const maxExecOutput = 32 << 20

// execOutput is what an exec wrote.
type execOutput struct {
	mu   sync.Mutex
	out  [2]bytes.Buffer
	over bool
}

func (o *execOutput) take(stream int, p []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	b := &o.out[stream-1]
	if room := maxExecOutput - b.Len(); len(p) > room {
		o.over = true
		p = p[:room]
	}
	b.Write(p)
}

// exec runs a command to the end of all that has its output. A client that goes ends
// it.
func (s *Server) exec(r *http.Request, b *box) (int, any, error) {
	var asked struct {
		Cmd    string            `json:"cmd"`
		Args   []string          `json:"args"`
		Stdin  *string           `json:"stdin"`
		Env    map[string]string `json:"env"`
		Stream bool              `json:"stream"`
	}
	if err := decode(r, &asked); err != nil {
		return 0, nil, err
	}
	if asked.Stream || r.URL.Query().Get("stream") == "true" {
		return fail(http.StatusNotFound, "no streaming here")
	}
	env, err := b.env(asked.Cmd, asked.Args, asked.Env)
	if err != nil {
		return 0, nil, err
	}
	begin := s.config.Now()
	var output execOutput
	tree, err := s.start(r, b, Program{Cmd: asked.Cmd, Args: asked.Args, Env: env, Cwd: cwdOr(""), Output: output.take})
	if err != nil {
		return 0, nil, err
	}
	var feeding sync.WaitGroup
	defer feeding.Wait()
	feeding.Go(func() {
		if asked.Stdin != nil {
			// A command need not read what it is given.
			_, _ = io.Copy(tree.Stdin(), strings.NewReader(*asked.Stdin)) //nolint:errcheck // see above
		}
		_ = tree.Stdin().Close() //nolint:errcheck // it may have been closed by the command's end
	})
	if !s.awaitExec(r, tree) {
		return fail(http.StatusServiceUnavailable, "the client or the sandbox has gone")
	}
	output.mu.Lock()
	defer output.mu.Unlock()
	result := map[string]any{"stdout": output.out[0].String(), "stderr": output.out[1].String()}
	if e := tree.Exit(); e.Signal == 0 {
		result["exit_code"] = e.Code
	} else {
		result["exit_code"], result["error"] = 128+e.Signal, "signal: "+signalName(e.Signal)
	}
	if output.over {
		result["error"] = "too much output"
	}
	return ok(map[string]any{"result": result, "exec_ms": s.config.Now().Sub(begin).Milliseconds()})
}

// awaitExec waits for a command; false when it was ended.
func (s *Server) awaitExec(r *http.Request, tree Tree) bool {
	for _, end := range []<-chan struct{}{tree.Exited(), tree.Silent()} {
		select {
		case <-end:
		case <-r.Context().Done():
			// An error means that the sandbox has ended.
			_ = tree.Signal(int(unix.SIGKILL), true) //nolint:errcheck // see above
			<-tree.Gone()
			return false
		case <-s.closing:
			<-tree.Gone()
			return false
		}
	}
	return true
}

func (s *Server) putFile(r *http.Request, b *box) (int, any, error) {
	name, err := filePath(r)
	if err != nil {
		return 0, nil, err
	}
	if err := b.machine.Store(r.Context(), name, r.Body, !s.config.StrictParents); err != nil {
		return 0, nil, fileRefusal(err)
	}
	return ok(map[string]any{"path": name})
}

func (s *Server) getFile(w http.ResponseWriter, r *http.Request) {
	f, done, err := s.openFile(r)
	if err != nil {
		s.refuse(w, err)
		return
	}
	defer done()
	w.Header().Set("Content-Type", "application/octet-stream")
	if _, err := io.Copy(w, f); err != nil {
		s.log.Debug().Err(err).Msg("a file was not sent completely")
		panic(http.ErrAbortHandler)
	}
}

func (s *Server) openFile(r *http.Request) (io.Reader, func(), error) {
	b, err := s.find(r)
	if err != nil {
		return nil, nil, err
	}
	done, err := s.use(b)
	if err != nil {
		return nil, nil, err
	}
	name, err := filePath(r)
	if err != nil {
		done()
		return nil, nil, err
	}
	f, err := b.machine.Open(r.Context(), name)
	if err != nil {
		done()
		return nil, nil, fileRefusal(err)
	}
	return f, func() {
		// It was only read.
		_ = f.Close() //nolint:errcheck // see above
		done()
	}, nil
}

func filePath(r *http.Request) (string, error) {
	name := r.URL.Query().Get("path")
	if !path.IsAbs(name) || strings.Contains(name, "\x00") || strings.HasSuffix(name, "/") {
		return "", refuse(http.StatusBadRequest, "path: must be absolute, and name a file")
	}
	return name, nil
}

func fileRefusal(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, errEnded):
		return refuse(http.StatusNotFound, "%v", err)
	case errors.Is(err, fs.ErrInvalid), errors.Is(err, unix.EISDIR), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ENXIO),
		errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENAMETOOLONG):
		return refuse(http.StatusBadRequest, "%v", err)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EROFS):
		return refuse(http.StatusForbidden, "%v", err)
	}
	return err
}
