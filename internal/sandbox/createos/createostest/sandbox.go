package createostest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
)

// The statuses of a sandbox that this server has.
const (
	statusCreating   = "creating"
	statusRunning    = "running"
	statusPausing    = "pausing"
	statusPaused     = "paused"
	statusResuming   = "resuming"
	statusDestroying = "destroying"
	statusDestroyed  = "destroyed"
	statusFailed     = "failed"
)

// Bounds of a creation (the API's).
const (
	maxEnvs      = 64
	maxEnvBytes  = 4 << 10
	maxEnvsBytes = 64 << 10
	minAutoPause = 60
	maxAutoPause = 86400
	defaultDisk  = 10 << 10
	defaultList  = 50
	maxList      = 500
	maxName      = 128
)

func terminal(status string) bool { return status == statusDestroyed || status == statusFailed }

// sandboxRequest is the body of a creation.
type sandboxRequest struct {
	Shape          string            `json:"shape"`
	Rootfs         string            `json:"rootfs"`
	Name           string            `json:"name"`
	Region         string            `json:"region"`
	DiskMiB        int64             `json:"disk_mib"`
	Egress         []string          `json:"egress"`
	Envs           map[string]string `json:"envs"`
	SSHPubkeys     []string          `json:"ssh_pubkeys"`
	IngressEnabled bool              `json:"ingress_enabled"`
	Networks       []struct {
		ID string `json:"id"`
	} `json:"networks"`
	Disks []struct {
		DiskID    string `json:"disk_id"`
		MountPath string `json:"mount_path"`
		SubPath   string `json:"sub_path"`
	} `json:"disks"`
	AutoPause *int64 `json:"auto_pause_after_seconds"`
}

// box is one sandbox. Everything but machine's own is guarded by Server.mu.
type box struct {
	id, key string
	asked   sandboxRequest
	status  string
	planted bool
	machine Machine
	// procs are its process records.
	procs map[string]*process
	order []string
	// uses counts calls that use it; used is when the last one ended.
	uses int
	// starting counts programs that are just being started: it is not paused then.
	starting  int
	used      time.Time
	autoPause int64
	// asked to be destroyed.
	destroying                                 bool
	created, running, paused, resumed, finally time.Time
}

func (s *Server) createSandbox(r *http.Request) (int, any, error) {
	var asked sandboxRequest
	if err := decode(r, &asked); err != nil {
		return 0, nil, err
	}
	b, err := s.admit(in(r).key, asked)
	if err != nil {
		return 0, nil, err
	}
	s.setCreated(in(r).call, b.id)
	begin := s.config.Now()
	// The client's going does not undo it.
	if err := s.boot(context.WithoutCancel(r.Context()), b); err != nil {
		return 0, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	view := b.view()
	view["spawn_ms"] = s.config.Now().Sub(begin).Milliseconds()
	view["bandwidth_quota_bytes"] = int64(1) << 40
	view["ingress_url_template"] = "https://{port}-" + b.id + ".example.invalid"
	if a, ok := in(r).fx.find(kindMalformedID); ok {
		view["id"] = a.text
	}
	return ok(view)
}

// admit checks a creation and takes its name.
func (s *Server) admit(key string, asked sandboxRequest) (*box, error) {
	if err := asked.check(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, refuse(http.StatusServiceUnavailable, "the server is closing")
	}
	b := &box{
		id: "sb-" + strings.ToLower(ulid.Make().String()), key: key, asked: asked, status: statusCreating,
		procs: map[string]*process{}, created: s.config.Now(), used: s.config.Now(),
	}
	if asked.AutoPause != nil {
		b.autoPause = *asked.AutoPause
	}
	if asked.Name == "" {
		b.asked.Name = "quiet-heron-" + b.id[len(b.id)-8:]
	}
	for _, other := range s.boxes {
		if other.key == key && !terminal(other.status) && other.asked.Name == b.asked.Name {
			return nil, &refusal{status: http.StatusConflict, text: "the name is taken", code: "name_taken"}
		}
	}
	s.boxes[b.id] = b
	s.order = append(s.order, b.id)
	return b, nil
}

func (q *sandboxRequest) check() error {
	bad := func(format string, args ...any) error { return refuse(http.StatusBadRequest, format, args...) }
	if vcpu, _ := q.size(); vcpu == 0 {
		return bad("shape: %q is none", q.Shape)
	}
	if q.DiskMiB < 0 {
		return bad("disk_mib: less than 0")
	}
	if len(q.Name) > maxName || !regexp.MustCompile(`^[A-Za-z0-9_-]*$`).MatchString(q.Name) {
		return bad("name: not of [A-Za-z0-9_-], or too long")
	}
	if q.AutoPause != nil && (*q.AutoPause < minAutoPause || *q.AutoPause > maxAutoPause) {
		return bad("auto_pause_after_seconds: not from %d to %d", minAutoPause, maxAutoPause)
	}
	total := 0
	for name, value := range q.Envs {
		if !envName(name) || len(value) > maxEnvBytes {
			return bad("envs: %q has no good name, or too long a value", name)
		}
		total += len(name) + len(value)
	}
	if len(q.Envs) > maxEnvs || total > maxEnvsBytes {
		return bad("envs: too many, or too long")
	}
	return nil
}

// size reads a shape's name: s-2vcpu-4gb.
func (q *sandboxRequest) size() (vcpu, memMiB int) {
	m := regexp.MustCompile(`^s-([1-9]\d?)vcpu-([1-9]\d{0,3})(mb|gb)$`).FindStringSubmatch(q.Shape)
	if m == nil {
		return 0, 0
	}
	// The pattern lets numbers through alone.
	vcpu, _ = strconv.Atoi(m[1])   //nolint:errcheck // see above
	memMiB, _ = strconv.Atoi(m[2]) //nolint:errcheck // see above
	if m[3] == "gb" {
		memMiB <<= 10
	}
	return vcpu, memMiB
}

func envName(name string) bool {
	return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`).MatchString(name)
}

// boot makes the machine.
func (s *Server) boot(ctx context.Context, b *box) error {
	m, err := s.backend.Boot(ctx, b.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		b.status, b.finally = statusFailed, s.config.Now()
		return err
	}
	b.machine = m
	if b.destroying || s.closed {
		// It was deleted before it was there.
		s.later(0, func() { s.finishLogged(b) })
		return nil
	}
	s.moveLater(b, statusCreating, statusRunning)
	return nil
}

// moveLater changes the status after the lag, if it is still from by then; s.mu is
// held.
func (s *Server) moveLater(b *box, from, to string) {
	b.status = from
	if s.config.Lag == 0 {
		b.move(s, to)
		return
	}
	s.later(s.config.Lag, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if b.status == from {
			b.move(s, to)
		}
	})
}

// move sets a status and its time; s.mu is held.
func (b *box) move(s *Server, to string) {
	now := s.config.Now()
	switch to {
	case statusRunning:
		if b.status == statusResuming {
			b.resumed = now
		} else {
			b.running = now
		}
		b.used = now
	case statusPaused:
		b.paused = now
	}
	b.status = to
}

// later does f after d, or at once when the server closes; s.mu is held, and Close
// waits.
func (s *Server) later(d time.Duration, f func()) {
	s.running.Go(func() {
		s.pause(d)
		f()
	})
}

func (s *Server) box(id string) *box {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.boxes[id]
}

// find is the sandbox of a request, if it is in the caller's account and there.
func (s *Server) find(r *http.Request) (*box, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.boxes[r.PathValue("id")]
	if b == nil || b.key != in(r).key || terminal(b.status) && !s.config.KeepDestroyed {
		return nil, refuse(http.StatusNotFound, "no such sandbox")
	}
	s.idle(b)
	return b, nil
}

// idle pauses a sandbox that nobody has used for its time; s.mu is held. It has no
// living process, so that there is nothing to freeze.
func (s *Server) idle(b *box) {
	if b.status != statusRunning || b.autoPause == 0 || b.uses > 0 || b.lives() {
		return
	}
	if at := b.used.Add(time.Duration(b.autoPause) * time.Second); !s.config.Now().Before(at) {
		b.status, b.paused = statusPaused, at
	}
}

// lives says whether a managed process lives; Server.mu is held.
func (b *box) lives() bool {
	for _, p := range b.procs {
		if !p.isGone() {
			return true
		}
	}
	return false
}

// use keeps a running sandbox from its idle pause until done is called.
func (s *Server) use(b *box) (done func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case terminal(b.status) || b.status == statusDestroying:
		return nil, refuse(http.StatusNotFound, "the sandbox is %s", b.status)
	case b.status != statusRunning:
		return nil, &refusal{status: http.StatusConflict, text: "the sandbox is " + b.status, code: "sandbox_not_running"}
	}
	b.uses++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		b.uses--
		b.used = s.config.Now()
	}, nil
}

func (s *Server) listSandboxes(r *http.Request) (int, any, error) {
	limit, err := number(r, "limit", defaultList)
	if err != nil {
		return 0, nil, err
	}
	offset, err := number(r, "offset", 0)
	if err != nil {
		return 0, nil, err
	}
	limit = min(limit, maxList)
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*box
	for _, id := range s.order {
		b := s.boxes[id]
		s.idle(b)
		wanted := r.URL.Query().Get("status")
		if b.key == in(r).key && (!terminal(b.status) || s.config.KeepDestroyed) && (wanted == "" || wanted == b.status) {
			all = append(all, b)
		}
	}
	page := []map[string]any{}
	for i := offset; i < int64(len(all)) && i < offset+limit; i++ {
		page = append(page, all[i].view())
	}
	return ok(map[string]any{
		"data":       page,
		"pagination": map[string]any{"total": len(all), "limit": limit, "offset": offset, "count": len(page)},
	})
}

func (s *Server) getSandbox(_ *http.Request, b *box) (int, any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return ok(b.view())
}

func (s *Server) patchSandbox(r *http.Request, b *box) (int, any, error) {
	var asked struct {
		IngressEnabled   *bool  `json:"ingress_enabled"`
		AutoPause        *int64 `json:"auto_pause_after_seconds"`
		DisableAutoPause bool   `json:"disable_auto_pause"`
	}
	if err := decode(r, &asked); err != nil {
		return 0, nil, err
	}
	if asked.AutoPause != nil && (*asked.AutoPause < minAutoPause || *asked.AutoPause > maxAutoPause || asked.DisableAutoPause) {
		return fail(http.StatusBadRequest, "auto_pause_after_seconds: not from %d to %d, or disabled at once", minAutoPause, maxAutoPause)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if terminal(b.status) || b.status == statusDestroying {
		return fail(http.StatusConflict, "the sandbox is %s", b.status)
	}
	if asked.IngressEnabled != nil {
		b.asked.IngressEnabled = *asked.IngressEnabled
	}
	if asked.AutoPause != nil {
		b.autoPause = *asked.AutoPause
	}
	if asked.DisableAutoPause {
		b.autoPause = 0
	}
	return ok(b.view())
}

func (s *Server) deleteSandbox(r *http.Request, b *box) (int, any, error) {
	if in(r).fx.has(kindLieDeleted) {
		return ok(map[string]any{"id": b.id, "status": statusDestroyed})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if terminal(b.status) {
		return ok(map[string]any{"id": b.id, "status": b.status})
	}
	if !b.destroying {
		b.destroying = true
		b.status = statusDestroying
		if b.machine != nil {
			s.later(s.config.Lag, func() { s.finishLogged(b) })
		}
	}
	return ok(map[string]any{"id": b.id, "status": b.status})
}

// finish ends a sandbox.
func (s *Server) finish(ctx context.Context, b *box) error {
	if err := s.end(ctx, b); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !terminal(b.status) {
		b.status, b.finally = statusDestroyed, s.config.Now()
	}
	return nil
}

// finishLogged is finish for which nobody waits. A sandbox that does not end stays
// destroying.
func (s *Server) finishLogged(b *box) {
	ctx, cancel := ownContext()
	defer cancel()
	if err := s.finish(ctx, b); err != nil {
		s.log.Error().Err(err).Str("sandbox", b.id).Msg("the sandbox has not ended")
	}
}

// end ends the machine and lets go of all that waits for its processes.
func (s *Server) end(ctx context.Context, b *box) error {
	s.mu.Lock()
	machine := b.machine
	for _, p := range b.procs {
		p.letGo()
	}
	s.mu.Unlock()
	if machine == nil {
		return nil
	}
	return machine.End(ctx)
}

func (s *Server) pauseSandbox(r *http.Request, b *box) (int, any, error) {
	s.mu.Lock()
	switch {
	case b.status == statusPaused:
		s.mu.Unlock()
		return ok(map[string]any{"id": b.id, "status": b.status})
	case b.status != statusRunning || b.starting > 0:
		s.mu.Unlock()
		return fail(http.StatusConflict, "the sandbox is %s, or starts a program", b.status)
	}
	b.status = statusPausing
	s.mu.Unlock()
	if err := b.machine.Freeze(context.WithoutCancel(r.Context())); err != nil {
		return 0, nil, err
	}
	return s.transit(b, statusPausing, statusPaused)
}

func (s *Server) resumeSandbox(r *http.Request, b *box) (int, any, error) {
	s.mu.Lock()
	switch {
	case b.status == statusRunning:
		s.mu.Unlock()
		return ok(map[string]any{"id": b.id, "status": b.status})
	case b.status != statusPaused:
		s.mu.Unlock()
		return fail(http.StatusConflict, "the sandbox is %s", b.status)
	}
	b.status = statusResuming
	s.mu.Unlock()
	if err := b.machine.Thaw(context.WithoutCancel(r.Context())); err != nil {
		return 0, nil, err
	}
	return s.transit(b, statusResuming, statusRunning)
}

func (s *Server) transit(b *box, from, to string) (int, any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.status == from {
		s.moveLater(b, from, to)
	}
	return http.StatusAccepted, map[string]any{"id": b.id, "status": from}, nil
}

// view is the SandboxView; s.mu is held.
func (b *box) view() map[string]any {
	vcpu, mem := b.asked.size()
	disk := b.asked.DiskMiB
	if disk == 0 {
		disk = defaultDisk
	}
	v := map[string]any{
		"id": b.id, "status": b.status, "name": b.asked.Name, "ip": "10.0.0.2", "vcpu": vcpu, "mem_mib": mem, "disk_mib": disk,
		"shape": b.asked.Shape, "rootfs": b.asked.Rootfs, "region": b.asked.Region, "egress": slices.Concat([]string{}, b.asked.Egress),
		"envs": slices.Sorted(maps.Keys(b.asked.Envs)), "ssh_pubkeys": slices.Concat([]string{}, b.asked.SSHPubkeys),
		"created_by": accountOf(b.key), "ingress_enabled": b.asked.IngressEnabled,
	}
	if len(b.asked.Envs) == 0 {
		v["envs"] = []string{}
	}
	for name, at := range map[string]time.Time{
		"created_at": b.created, "running_at": b.running, "paused_at": b.paused, "last_resumed_at": b.resumed, "destroyed_at": b.finally,
	} {
		if !at.IsZero() {
			v[name] = at.UTC().Format(time.RFC3339Nano)
		}
	}
	if b.autoPause > 0 {
		v["auto_pause_after_seconds"] = b.autoPause
	}
	return v
}

// book is what the books say; s.mu is held.
func (b *box) book(s *Server) Sandbox {
	s.idle(b)
	return Sandbox{
		ID: b.id, Name: b.asked.Name, Key: b.key, Status: b.status, Shape: b.asked.Shape, Rootfs: b.asked.Rootfs, Region: b.asked.Region,
		AutoPause: time.Duration(b.autoPause) * time.Second, Created: b.created, Gone: b.finally, Planted: b.planted,
		Processes: slices.Clone(b.order),
	}
}

// accountOf names an account without its key.
func accountOf(key string) string {
	sum := sha256.Sum256([]byte(key))
	return "user-" + hex.EncodeToString(sum[:4])
}
