package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/oklog/ulid/v2"

	"github.com/sallyport/sallyport/internal/wire"
)

// Instance is this process among those that share a state directory and a host.
type Instance struct {
	// Host is the host's name as a token.
	Host string
	// Name is the state directory of this instance within the shared one.
	Name string
	// Worker is "<host>-<ulid>": new for each process, so that no record of an
	// earlier one can be taken for this one's.
	Worker string
	// Dir is this instance's own state directory.
	Dir string

	lock *os.File
}

// maxInstances bounds how many processes may share one state directory.
const maxInstances = 64

// TakeInstance locks the first free instance below stateDir. Two processes never
// hold the same one: each cleans up only after the dead holders of its own.
func TakeInstance(stateDir string) (*Instance, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("host name: %w", err)
	}
	i := &Instance{Host: wire.Token(host)}
	i.Worker = wire.Token(i.Host + "-" + strings.ToLower(ulid.Make().String()))
	for n := range maxInstances {
		i.Name = fmt.Sprintf("instance-%02d", n)
		i.Dir = filepath.Join(stateDir, i.Name)
		if err := os.MkdirAll(i.Dir, 0o700); err != nil {
			return nil, fmt.Errorf("state directory: %w (choose another with --state-dir)", err)
		}
		i.lock, err = tryLock(filepath.Join(i.Dir, "lock"))
		if err != nil {
			return nil, fmt.Errorf("state directory: %w", err)
		}
		if i.lock != nil {
			return i, nil
		}
	}
	return nil, fmt.Errorf("state directory %s: all %d instances are in use", stateDir, maxInstances)
}

// tryLock returns nil without an error when another process holds the lock. The
// kernel drops a flock(2) with its last descriptor, so a crash leaves none.
func tryLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	switch {
	case err == nil:
		return f, nil
	case errors.Is(err, syscall.EWOULDBLOCK):
		return nil, f.Close()
	default:
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
}

// Close gives the instance back.
func (i *Instance) Close() error { return i.lock.Close() }
