package createostest

import (
	"net/http"
	"slices"
	"time"
)

// Call is one request that the server got.
type Call struct {
	// Seq counts the calls from 1.
	Seq int
	// Begun is when it arrived, by Config.Now; Ended when it was answered, or zero.
	Begun, Ended time.Time
	Op           Op
	Method       string
	// Path is the URL's path, Query its raw query.
	Path, Query string
	// Sandbox and Process are the ids in the path, if any.
	Sandbox, Process string
	// Header is without keys.
	Header http.Header
	// Body is the request's body, except a file's, up to 64 KiB; BodyBytes and
	// BodySHA256 (hex) are of all of it, as far as it was read.
	Body       []byte
	BodyBytes  int64
	BodySHA256 string
	// Status is the answer's; 0 while there is none.
	Status int
	// AnswerBytes is how much of the answer's body was sent, WireBytes how much of
	// the answer (only with Start).
	AnswerBytes, WireBytes int64
	// Scripted says that a rule fired.
	Scripted bool
	// Processed says that the API did what was asked, or refused it: no rule kept
	// the call from it.
	Processed bool
	// Created is the id of what the call really created, whatever was answered.
	Created string

	span *span
}

// Sandbox is one sandbox in the books.
type Sandbox struct {
	ID, Name string
	// Key is the API key of the account that owns it.
	Key    string
	Status string
	// Shape, Rootfs and Region are as they were asked for.
	Shape, Rootfs, Region string
	// AutoPause is the idle time after which it pauses; 0 means never.
	AutoPause time.Duration
	Created   time.Time
	// Gone is when its end was complete, or zero.
	Gone time.Time
	// Planted says that Plant made it.
	Planted bool
	// Processes are the ids of its process records.
	Processes []string
}

// Live says that it is there: neither destroyed nor failed.
func (b Sandbox) Live() bool { return !terminal(b.Status) }

// Calls are the recorded calls of the given operations, all without any, in the
// order in which they arrived.
func (s *Server) Calls(ops ...Op) []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []Call
	for _, c := range s.calls {
		if len(ops) == 0 || slices.Contains(ops, c.Op) {
			copied := *c
			copied.WireBytes = c.span.bytes()
			found = append(found, copied)
		}
	}
	return found
}

// ForgetCalls empties the book of calls.
func (s *Server) ForgetCalls() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = nil
}

// Sandboxes are all sandboxes that ever were, in the order of their creation.
func (s *Server) Sandboxes() []Sandbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Sandbox, 0, len(s.order))
	for _, id := range s.order {
		all = append(all, s.boxes[id].book(s))
	}
	return all
}

// Plant makes a running sandbox that no client asked for: somebody else's in the
// account of the key, Config.APIKey if empty. It has no processes and no files.
func (s *Server) Plant(key, name string) (id string, err error) {
	if key == "" {
		key = s.config.APIKey
	}
	if !s.enter() {
		return "", errClosed
	}
	defer s.running.Done()
	b, err := s.admit(key, sandboxRequest{Name: name, Shape: "s-1vcpu-256mb"})
	if err != nil {
		return "", err
	}
	s.mu.Lock()
	b.planted = true
	s.mu.Unlock()
	ctx, cancel := ownContext()
	defer cancel()
	if err := s.boot(ctx, b); err != nil {
		return "", err
	}
	return b.id, nil
}

// Vanish ends a sandbox at once, as when its host dies. It returns when it is gone.
func (s *Server) Vanish(id string) error {
	b := s.box(id)
	if b == nil {
		return errNoSandbox
	}
	ctx, cancel := ownContext()
	defer cancel()
	return s.finish(ctx, b)
}

// LiveProcesses are the processes that really live in all sandboxes, without the
// server's own.
func (s *Server) LiveProcesses() []LiveProcess {
	s.mu.Lock()
	machines := make([]Machine, 0, len(s.boxes))
	for _, id := range s.order {
		if m := s.boxes[id].machine; m != nil {
			machines = append(machines, m)
		}
	}
	s.mu.Unlock()
	var live []LiveProcess
	for _, m := range machines {
		live = append(live, m.Live()...)
	}
	return live
}

// Leftovers names what is on this host, processes or files, of sandboxes that have
// ended; of all after Close. Close checks it.
func (s *Server) Leftovers() ([]string, error) { return s.backend.Leftovers() }
