package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// state is the directory by which a later worker finds what this one may leave:
//
//	<dir>/leases/<instance>/lock          held while the instance lives
//	<dir>/leases/<instance>/<lease>.json  from before its creation until its proof
//
// Files are renamed into place but not synced: they matter only when the worker
// dies and the host does not, and then the page cache is as good as the disk.
// After a boot nothing of a local lease is left but these files.
type state struct {
	root string // <dir>/leases
	dir  string
	lock *os.File
	base record
}

// record is one lease's file.
type record struct {
	Lease    string `json:"lease"`
	Instance string `json:"instance"`
	Boot     string `json:"boot_id"`
	// Worker and WorkerStart are the worker's pid and start time.
	Worker      int    `json:"worker_pid"`
	WorkerStart uint64 `json:"worker_start"`
	// Pid and Start are lease init's, 0 before it is forked. Start is in clock
	// ticks since boot (proc_pid_stat(5), field 22).
	Pid   int    `json:"pid,omitempty"`
	Start uint64 `json:"start,omitempty"`
	// Groups are its control groups.
	Groups []string `json:"groups,omitempty"`
}

// The keys of a handle's detail.
const (
	detailInstance = "instance"
	detailBoot     = "boot_id"
	detailPid      = "pid"
	detailStart    = "start"
	detailGroups   = "groups"
)

func (r record) detail() map[string]string {
	d := map[string]string{detailInstance: r.Instance, detailBoot: r.Boot}
	if r.Pid != 0 {
		d[detailPid], d[detailStart] = strconv.Itoa(r.Pid), strconv.FormatUint(r.Start, 10)
	}
	if len(r.Groups) > 0 {
		d[detailGroups] = strings.Join(r.Groups, "\n")
	}
	return d
}

// recordOf is the inverse of detail. Words that make no sense count as absent.
func recordOf(lease string, d map[string]string) record {
	r := record{Lease: lease, Instance: d[detailInstance], Boot: d[detailBoot]}
	pid, err1 := strconv.Atoi(d[detailPid])
	start, err2 := strconv.ParseUint(d[detailStart], 10, 64)
	if err1 == nil && err2 == nil && pid > 1 {
		r.Pid, r.Start = pid, start
	}
	if d[detailGroups] != "" {
		r.Groups = strings.Split(d[detailGroups], "\n")
	}
	return r
}

const (
	lockName   = "lock"
	recordExt  = ".json"
	newExt     = ".new"
	leasesName = "leases"

	// lockPatience is how long a worker may take to clean up after another.
	lockPatience = reconcileTimeout
)

var errInstanceLives = errors.New("another worker with this instance name uses the state directory")

func openState(dir, instance, boot string) (*state, error) {
	if !token(instance) {
		return nil, fmt.Errorf("instance %q is not a token of [A-Za-z0-9_-]{1,64}", instance)
	}
	start, err := startTime(os.Getpid())
	if err != nil {
		return nil, err
	}
	root := filepath.Join(dir, leasesName)
	s := &state{root: root, dir: filepath.Join(root, instance), base: record{
		Instance: instance, Boot: boot, Worker: os.Getpid(), WorkerStart: start,
	}}
	// Another worker may be cleaning up after this instance's last one, and then
	// remove the directory.
	ctx, cancel := ownContext(lockPatience)
	defer cancel()
	for {
		if err := os.MkdirAll(s.dir, 0o700); err != nil {
			return nil, fmt.Errorf("state directory: %w", err)
		}
		s.lock, err = lockInstance(s.dir)
		if err == nil {
			return s, nil
		}
		again := errors.Is(err, errInstanceLives) || errors.Is(err, fs.ErrNotExist)
		if !again || pause(ctx, foreignPause) != nil {
			return nil, fmt.Errorf("state directory %s: %w", s.dir, err)
		}
	}
}

// lockInstance takes an instance's lock, or says errInstanceLives. The kernel lets
// go of it when the worker ends in whatever way. Lease inits do not inherit it.
func lockInstance(dir string) (*os.File, error) {
	name := filepath.Join(dir, lockName)
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = errInstanceLives
	}
	if err == nil {
		// Who had it before may have removed it in between: then it locks nothing.
		err = sameFile(f, name)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// sameFile says fs.ErrNotExist when name is no longer f.
func sameFile(f *os.File, name string) error {
	ours, err := f.Stat()
	if err != nil {
		return err
	}
	named, err := os.Stat(name)
	if err == nil && !os.SameFile(ours, named) {
		return fs.ErrNotExist
	}
	return err
}

// sweep removes what the writing of a record leaves when it is cut off.
func (s *state) sweep(instance string) error {
	files, err := filepath.Glob(filepath.Join(s.root, instance, "*"+recordExt+newExt))
	for _, file := range files {
		err = errors.Join(err, os.Remove(file))
	}
	return err
}

// intend writes a lease down before anything of it exists. groups are the control
// groups that it will have: who finds the record may be in others.
func (s *state) intend(lease string, groups []string) (record, error) {
	r := s.base
	r.Lease, r.Groups = lease, groups
	return r, s.write(r)
}

// write replaces a lease's file.
func (s *state) write(r record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("state file: %w", err)
	}
	name := filepath.Join(s.dir, r.Lease+recordExt)
	if err := os.WriteFile(name+newExt, data, 0o600); err != nil {
		return fmt.Errorf("state file: %w", err)
	}
	if err := os.Rename(name+newExt, name); err != nil {
		return fmt.Errorf("state file: %w", err)
	}
	return nil
}

// remove forgets a lease that is surely gone.
func (s *state) remove(instance, lease string) error {
	err := os.Remove(filepath.Join(s.root, instance, lease+recordExt))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// all are the leases of all instances.
func (s *state) all() ([]record, error) {
	instances, err := os.ReadDir(s.root)
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	var records []record
	for _, entry := range instances {
		of, err := s.of(entry.Name())
		if err != nil {
			return nil, err
		}
		records = append(records, of...)
	}
	return records, nil
}

// of are the leases of one instance. A file that cannot be read as a record still
// names a lease.
func (s *state) of(instance string) ([]record, error) {
	files, err := os.ReadDir(filepath.Join(s.root, instance))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	var records []record
	for _, file := range files {
		lease, ok := strings.CutSuffix(file.Name(), recordExt)
		if !ok || !token(lease) {
			continue
		}
		data, err := os.ReadFile(filepath.Join(s.root, instance, file.Name()))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		var r record
		if err != nil || json.Unmarshal(data, &r) != nil || r.Lease != lease {
			r = record{Lease: lease}
		}
		if r.Pid <= 1 { // no lease init has such a number: who it was is not noted
			r.Pid, r.Start = 0, 0
		}
		r.Instance = instance
		records = append(records, r)
	}
	return records, nil
}

// close lets go of the lock. If no lease is left, nothing of the instance is.
func (s *state) close() error {
	if left, err := s.of(s.base.Instance); err != nil || len(left) > 0 {
		return errors.Join(err, s.lock.Close())
	}
	return errors.Join(removeInstance(s.dir), s.lock.Close())
}

// removeInstance removes the directory of an instance whose lock is held and that has
// no leases. With its lock gone, others may come in at once.
func removeInstance(dir string) error {
	err := os.Remove(filepath.Join(dir, lockName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err = os.Remove(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTEMPTY) {
		return nil
	}
	return err
}

// startTime is when the process pid started, in clock ticks since boot
// (proc_pid_stat(5), field 22). The name, in parentheses, may contain anything.
func startTime(pid int) (uint64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	line := string(data)
	fields := strings.Fields(line[strings.LastIndexByte(line, ')')+1:])
	const startField = 19
	if len(fields) <= startField {
		return 0, fmt.Errorf("/proc/%d/stat: too short", pid)
	}
	return strconv.ParseUint(fields[startField], 10, 64)
}
