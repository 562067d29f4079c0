package cgroup_test

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox/local/cgroup"
)

const (
	self  = 4242
	mount = "/sys/fs/cgroup"
)

// tree is a v2 tree that behaves as the kernel's does (admin-guide/cgroup-v2),
// where this package can notice: which files a group has, who may write, no
// internal processes, busy groups.
type tree struct {
	mu     sync.Mutex
	t      *testing.T
	groups map[string]*group
	// own is the worker's group, relative to the mount.
	membership func() string
	mountinfo  string
	// owned are the prefixes that an ordinary user may write below; nil is root.
	owned []string
	// realRoot: the mount's root is the hierarchy's own, where the rule of no
	// internal processes does not hold.
	realRoot bool
	// absent are files that this kernel does not have.
	absent map[string]bool
	// broken are writes, by the file's path, that fail.
	broken map[string]error
	// owners are who was given a file.
	owners map[string]int
	// beforeMkdir sees each group before it is made.
	beforeMkdir func(name string)
	// busy is how often a group still says EBUSY after it is empty.
	busy int
	// writes are the successful ones, in their order.
	writes []string
}

type group struct {
	procs   []int
	subtree map[string]bool
	offered map[string]bool // only for the root: what the kernel or the container has
	values  map[string]string
	current int64 // memory in use
	pinned  int64 // of which cannot be freed
	peak    int64
	// once are processes that are listed once more, right after their end.
	once []int
}

// newTree has the worker in own ("/" or "/a/b"), alone.
func newTree(t *testing.T, own string) *tree {
	t.Helper()
	f := &tree{t: t, groups: map[string]*group{}, absent: map[string]bool{}, broken: map[string]error{}, owners: map[string]int{}}
	f.mountinfo = "30 23 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
	f.add(mount)
	f.groups[mount].offered = set("cpuset", "cpu", "io", "memory", "pids")
	for dir := mount; ; {
		rest := strings.TrimPrefix(mount+strings.TrimSuffix(own, "/"), dir)
		if rest == "" {
			break
		}
		f.groups[dir].subtree = set("cpu", "memory", "pids")
		dir = path.Join(dir, strings.SplitN(rest, "/", 3)[1])
		f.add(dir)
	}
	f.groups[path.Join(mount, own)].procs = []int{self}
	return f
}

func set(names ...string) map[string]bool {
	m := map[string]bool{}
	for _, name := range names {
		m[name] = true
	}
	return m
}

func (f *tree) add(dir string) *group {
	g := &group{subtree: map[string]bool{}, values: map[string]string{}}
	f.groups[dir] = g
	return g
}

// at is a group that the test wants to look into or to change.
func (f *tree) at(dir string) *group {
	f.t.Helper()
	g := f.groups[path.Join(mount, dir)]
	require.NotNil(f.t, g, "no group %s in %v", dir, slices.Sorted(maps.Keys(f.groups)))
	return g
}

// change runs change while nobody else looks.
func (f *tree) change(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *tree) available(dir string) map[string]bool {
	if g := f.groups[dir]; g.offered != nil {
		return g.offered
	}
	return f.groups[path.Dir(dir)].subtree
}

// has says whether a group has a file.
func (f *tree) has(dir, name string) bool {
	if f.absent[name] {
		return false
	}
	root := f.isRealRoot(dir)
	switch name {
	case "cgroup.procs", "cgroup.controllers", "cgroup.subtree_control", "cpu.stat":
		return true
	case "cgroup.events", "cgroup.kill":
		return !root
	}
	controller, _, _ := strings.Cut(name, ".")
	known := set("memory.max", "memory.swap.max", "memory.oom.group", "memory.peak", "memory.current", "memory.events",
		"memory.reclaim", "pids.max", "pids.current", "pids.events", "pids.peak", "cpu.max")
	return known[name] && !root && f.available(dir)[controller]
}

func (f *tree) isRealRoot(dir string) bool { return f.realRoot && dir == mount }

func (f *tree) mayWrite(dir string) bool {
	return f.owned == nil || slices.ContainsFunc(f.owned, func(prefix string) bool {
		return dir == prefix || strings.HasPrefix(dir, prefix+"/")
	})
}

func (f *tree) whereSelf() string {
	for dir, g := range f.groups {
		if slices.Contains(g.procs, self) {
			return dir
		}
	}
	return ""
}

func (f *tree) ReadFile(name string) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch name {
	case "/proc/self/cgroup":
		if f.membership != nil {
			return []byte(f.membership()), nil
		}
		return []byte("0::/" + strings.TrimPrefix(strings.TrimPrefix(f.whereSelf(), mount), "/") + "\n"), nil
	case "/proc/self/mountinfo":
		return []byte(f.mountinfo), nil
	}
	text, err := f.read(name)
	return []byte(text), err
}

func (f *tree) read(name string) (string, error) {
	dir, base := path.Split(name)
	dir = path.Clean(dir)
	g := f.groups[dir]
	if g == nil || !f.has(dir, base) {
		return "", fail("open", name, syscall.ENOENT)
	}
	switch base {
	case "cgroup.procs":
		var out strings.Builder
		for _, pid := range slices.Concat(g.procs, g.once) {
			fmt.Fprintln(&out, pid)
		}
		g.once = nil
		return out.String(), nil
	case "cgroup.controllers":
		return strings.Join(slices.Sorted(maps.Keys(f.available(dir))), " ") + "\n", nil
	case "cgroup.subtree_control":
		return strings.Join(slices.Sorted(maps.Keys(g.subtree)), " ") + "\n", nil
	case "cgroup.events":
		return fmt.Sprintf("populated %d\nfrozen 0\n", min(1, f.tasks(dir))), nil
	case "memory.current":
		return fmt.Sprintln(g.current), nil
	case "memory.peak":
		return fmt.Sprintln(g.peak), nil
	case "pids.current":
		return fmt.Sprintln(f.tasks(dir)), nil
	}
	if value, ok := g.values[base]; ok {
		return value, nil
	}
	return map[string]string{
		"cpu.stat":         "usage_usec 0\nuser_usec 0\nsystem_usec 0\nnice_usec 0\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0\n",
		"memory.events":    "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n",
		"memory.max":       "max\n",
		"memory.swap.max":  "max\n",
		"memory.oom.group": "0\n",
		"pids.max":         "max\n",
		"pids.events":      "max 0\n",
		"pids.peak":        "0\n",
		"cpu.max":          "max 100000\n",
	}[base], nil
}

// tasks counts the group's and those below.
func (f *tree) tasks(dir string) int {
	n := 0
	for name, g := range f.groups {
		if name == dir || strings.HasPrefix(name, dir+"/") {
			n += len(g.procs)
		}
	}
	return n
}

func (f *tree) WriteFile(name, value string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	dir, base := path.Split(name)
	dir = path.Clean(dir)
	g := f.groups[dir]
	switch {
	case g == nil || !f.has(dir, base):
		return fail("open", name, syscall.ENOENT)
	case strings.Contains(f.mountinfo, "cgroup2 ro") || strings.Contains(f.mountinfo, " ro,"):
		return fail("open", name, syscall.EROFS)
	case !f.mayWrite(dir):
		return fail("open", name, syscall.EACCES)
	case f.broken[strings.TrimPrefix(name, mount)] != nil:
		return f.broken[strings.TrimPrefix(name, mount)]
	}
	if err := f.write(g, dir, base, value); err != nil {
		return &fs.PathError{Op: "write", Path: name, Err: err}
	}
	f.writes = append(f.writes, strings.TrimPrefix(name, mount)+" "+value)
	return nil
}

func (f *tree) write(g *group, dir, base, value string) error {
	switch base {
	case "cgroup.subtree_control":
		return f.control(g, dir, value)
	case "cgroup.procs":
		return f.enter(g, dir, value)
	case "cgroup.kill":
		if value != "1" {
			return syscall.EINVAL
		}
		for name, below := range f.groups {
			if name == dir || strings.HasPrefix(name, dir+"/") {
				below.procs = nil
			}
		}
	case "memory.max":
		if n, err := strconv.ParseInt(value, 10, 64); err == nil && g.current > n {
			// The kernel reclaims what it can and then succeeds.
			g.current = max(n, g.pinned)
		} else if err != nil && value != "max" {
			return syscall.EINVAL
		}
		g.values[base] = value
	case "memory.reclaim":
		freed := g.current - g.pinned
		wanted, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return syscall.EINVAL
		}
		g.current = g.pinned
		if freed < wanted {
			return syscall.EAGAIN
		}
	case "memory.swap.max", "memory.oom.group", "pids.max":
		if _, err := strconv.ParseInt(value, 10, 64); err != nil && value != "max" {
			return syscall.EINVAL
		}
		g.values[base] = value
	case "cpu.max":
		var quota, period int64
		if _, err := fmt.Sscanf(value, "%d %d", &quota, &period); err != nil && value != "max 100000" {
			return syscall.EINVAL
		}
		g.values[base] = value
	default:
		return syscall.EACCES
	}
	return nil
}

func (f *tree) control(g *group, dir, value string) error {
	for word := range strings.FieldsSeq(value) {
		name, on := strings.CutPrefix(word, "+")
		if !on {
			name = strings.TrimPrefix(word, "-")
			for below, child := range f.groups {
				if path.Dir(below) == dir && child.subtree[name] {
					return syscall.EBUSY
				}
			}
			delete(g.subtree, name)
			continue
		}
		if !f.available(dir)[name] {
			return syscall.ENOENT
		}
		if len(g.procs) > 0 && !f.isRealRoot(dir) {
			// Threaded controllers are let through, and spoil the group.
			if name == "memory" && (g.subtree["pids"] || g.subtree["cpu"]) {
				return syscall.EOPNOTSUPP
			}
			if name == "memory" {
				return syscall.EBUSY
			}
		}
		g.subtree[name] = true
	}
	return nil
}

func (f *tree) enter(g *group, dir, value string) error {
	pid, err := strconv.Atoi(value)
	if err != nil {
		return syscall.EINVAL
	}
	if pid == 0 {
		pid = self
	}
	if len(g.subtree) > 0 && !f.isRealRoot(dir) {
		return syscall.EBUSY
	}
	for name, other := range f.groups {
		if i := slices.Index(other.procs, pid); i >= 0 {
			// Who moves a process has to own the groups' common ancestor.
			common := name
			for common != dir && !strings.HasPrefix(dir, common+"/") {
				common = path.Dir(common)
			}
			if !f.mayWrite(common) {
				return syscall.EACCES
			}
			other.procs = slices.Delete(other.procs, i, i+1)
		}
	}
	g.procs = append(g.procs, pid)
	return nil
}

func (f *tree) Mkdir(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.beforeMkdir != nil {
		f.beforeMkdir(name)
	}
	switch parent := path.Dir(name); {
	case f.groups[parent] == nil:
		return fail("mkdir", name, syscall.ENOENT)
	case f.groups[name] != nil:
		return fail("mkdir", name, syscall.EEXIST)
	case strings.Contains(f.mountinfo, " ro,"):
		return fail("mkdir", name, syscall.EROFS)
	case !f.mayWrite(parent):
		return fail("mkdir", name, syscall.EACCES)
	case f.broken[strings.TrimPrefix(name, mount)] != nil:
		return f.broken[strings.TrimPrefix(name, mount)]
	}
	f.add(name)
	return nil
}

func (f *tree) Rmdir(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	g := f.groups[name]
	if g == nil {
		return fail("rmdir", name, syscall.ENOENT)
	}
	if !f.mayWrite(path.Dir(name)) {
		return fail("rmdir", name, syscall.EACCES)
	}
	for below := range f.groups {
		if path.Dir(below) == name {
			return fail("rmdir", name, syscall.EBUSY)
		}
	}
	if len(g.procs) > 0 {
		return fail("rmdir", name, syscall.EBUSY)
	}
	if f.busy > 0 {
		f.busy--
		return fail("rmdir", name, syscall.EBUSY)
	}
	delete(f.groups, name)
	return nil
}

func (f *tree) Chown(name string, uid int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.groups[path.Dir(name)] == nil {
		return fail("chown", name, syscall.ENOENT)
	}
	f.owners[name] = uid
	return nil
}

func (f *tree) Subdirs(name string) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.groups[name] == nil {
		return nil, fail("open", name, syscall.ENOENT)
	}
	var names []string
	for below := range f.groups {
		if path.Dir(below) == name {
			names = append(names, path.Base(below))
		}
	}
	slices.Sort(names)
	return names, nil
}

// Open gives a file that is really open, for the tests that hand it on.
func (f *tree) Open(name string, _ int) (*os.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	dir, base := path.Split(name)
	if f.groups[name] == nil && (f.groups[path.Clean(dir)] == nil || !f.has(path.Clean(dir), base)) {
		return nil, fail("open", name, syscall.ENOENT)
	}
	return os.CreateTemp(f.t.TempDir(), "cgroup")
}

func (f *tree) OpenCounter(name string, resettable bool) (cgroup.Counter, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	dir, base := path.Split(name)
	g := f.groups[path.Clean(dir)]
	if g == nil || !f.has(path.Clean(dir), base) {
		return nil, fail("open", name, syscall.ENOENT)
	}
	return &counter{tree: f, group: g, name: name, resettable: resettable}, nil
}

type counter struct {
	tree       *tree
	group      *group
	name       string
	resettable bool
	closed     bool
}

func (c *counter) Read(p []byte) (int, error) {
	c.tree.mu.Lock()
	defer c.tree.mu.Unlock()
	if c.closed {
		return 0, fs.ErrClosed
	}
	if c.tree.groups[path.Dir(c.name)] != c.group {
		return 0, fail("read", c.name, syscall.ENODEV)
	}
	text, err := c.tree.read(c.name)
	return copy(p, text), err
}

func (c *counter) Reset() error {
	c.tree.mu.Lock()
	defer c.tree.mu.Unlock()
	if !c.resettable || c.tree.absent["peak reset"] {
		return fail("write", c.name, syscall.EINVAL)
	}
	c.group.peak = c.group.current
	return nil
}

func (c *counter) Close() error {
	c.tree.mu.Lock()
	defer c.tree.mu.Unlock()
	if c.closed {
		return fs.ErrClosed
	}
	c.closed = true
	return nil
}

func fail(op, name string, errno syscall.Errno) error {
	return &fs.PathError{Op: op, Path: name, Err: errno}
}
