package createostest

import "net/http"

// routes are the endpoints.
func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	const (
		all       = "/v1/sandboxes"
		one       = all + "/{id}"
		processes = one + "/processes"
		process   = processes + "/{pid}"
	)
	for pattern, e := range map[string]endpoint{
		"POST " + all:                      s.createSandbox,
		"GET " + all:                       s.listSandboxes,
		"GET " + one:                       s.withBox(s.getSandbox),
		"PATCH " + one:                     s.withBox(s.patchSandbox),
		"DELETE " + one:                    s.withBox(s.deleteSandbox),
		"POST " + one + "/pause":           s.withBox(s.pauseSandbox),
		"POST " + one + "/resume":          s.withBox(s.resumeSandbox),
		"PUT " + one + "/files":            s.withRunning(s.putFile),
		"POST " + one + "/exec":            s.withRunning(s.exec),
		"POST " + processes:                s.withRunning(s.createProcess),
		"GET " + processes:                 s.withRunning(s.listProcesses),
		"GET " + process:                   s.withProcess(s.getProcess),
		"DELETE " + process:                s.withProcess(s.deleteProcess),
		"POST " + process + "/input":       s.withProcess(s.input),
		"POST " + process + "/stdin/close": s.withProcess(s.closeStdin),
		"POST " + process + "/resize":      s.withProcess(s.resize),
		"POST " + process + "/signal":      s.withProcess(s.signal),
		"GET " + process + "/wait":         s.withProcess(s.wait),
		"GET /v1/whoami":                   s.whoami,
	} {
		mux.HandleFunc(pattern, s.envelope(e))
	}
	mux.HandleFunc("GET "+one+"/files", s.getFile)
	mux.HandleFunc("GET "+process+"/connect", s.connect)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.refuse(w, refuse(http.StatusNotFound, "no such endpoint: %s %s", r.Method, r.URL.Path))
	})
	return mux
}

func (s *Server) whoami(r *http.Request) (int, any, error) {
	return ok(map[string]any{"id": accountOf(in(r).key)})
}

// withBox finds the sandbox in the caller's account.
func (s *Server) withBox(e func(*http.Request, *box) (int, any, error)) endpoint {
	return func(r *http.Request) (int, any, error) {
		b, err := s.find(r)
		if err != nil {
			return 0, nil, err
		}
		return e(r, b)
	}
}

// withRunning finds one that runs, and counts as use of it.
func (s *Server) withRunning(e func(*http.Request, *box) (int, any, error)) endpoint {
	return s.withBox(func(r *http.Request, b *box) (int, any, error) {
		done, err := s.use(b)
		if err != nil {
			return 0, nil, err
		}
		defer done()
		return e(r, b)
	})
}

// withProcess finds a process of a sandbox that runs.
func (s *Server) withProcess(e func(*http.Request, *box, *process) (int, any, error)) endpoint {
	return s.withRunning(func(r *http.Request, b *box) (int, any, error) {
		p := b.process(s, r.PathValue("pid"))
		if p == nil {
			return fail(http.StatusNotFound, "no such process")
		}
		return e(r, b, p)
	})
}
