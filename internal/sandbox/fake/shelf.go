package fake

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sallyport/sallyport/internal/sandbox"
)

// shelf keeps a world in a directory: a file for each sandbox under live, an empty
// one for each lease id that was ever used under used, and world.json for the
// rest. The file lock is locked for each look and change, so that several
// processes see one world. Files are written beside and renamed: whoever dies,
// each is old or new. The death of the host is not survived.
type shelf struct {
	dir  string
	lock *os.File
}

const (
	liveDir   = "live"
	usedDir   = "used"
	stateFile = "world.json"
	lockFile  = "lock"
	// suffix of a sandbox's file; the others are being written.
	suffix = ".json"
)

// OpenWorld opens the world that is kept in dir, which it makes if need be. Its
// sandboxes outlive the process, their destroy knobs with them, also when it is
// killed: providers in other processes that open the same directory list and
// destroy them. Programs and workspaces are memory and die with their worker.
// The owner of a sandbox that another process destroyed sees it as lost within
// watchEvery.
func OpenWorld(dir string) (*World, error) {
	for _, sub := range []string{liveDir, usedDir} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return nil, fmt.Errorf("fake world: %w", err)
		}
	}
	lock, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("fake world: %w", err)
	}
	w := NewWorld()
	w.shelf = &shelf{dir: dir, lock: lock}
	w.open()()
	if w.err != nil {
		return nil, fmt.Errorf("fake world: %w", errors.Join(w.err, lock.Close()))
	}
	return w, nil
}

// load locks the directory and makes w what stands in it.
func (s *shelf) load(w *World) error {
	for {
		err := unix.Flock(int(s.lock.Fd()), unix.LOCK_EX)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("lock %s: %w", s.dir, err)
		}
	}
	found, err := s.read(&w.state)
	if err != nil {
		return err
	}
	for at, r := range w.residents {
		kept, there := found[at]
		if there && kept.Life == r.Life {
			r.saved = kept
			delete(found, at)
			continue
		}
		// Another process ended it.
		delete(w.residents, at)
		r.end(true)
	}
	for at, kept := range found {
		w.residents[at] = newResident(kept, nil)
	}
	return nil
}

func (s *shelf) read(st *state) (map[place]saved, error) {
	err := readJSON(filepath.Join(s.dir, stateFile), st)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	entries, err := os.ReadDir(filepath.Join(s.dir, liveDir))
	if err != nil {
		return nil, err
	}
	found := map[place]saved{}
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), suffix) {
			continue
		}
		var kept saved
		if err := readJSON(filepath.Join(s.dir, liveDir, entry.Name()), &kept); err != nil {
			return nil, err
		}
		found[placeOf(kept.Handle)] = kept
	}
	return found, nil
}

// done keeps the world's state where it has changed, and unlocks the directory.
func (s *shelf) done(st state, changed bool) (err error) {
	if changed {
		err = writeJSON(filepath.Join(s.dir, stateFile), st)
	}
	return errors.Join(err, unix.Flock(int(s.lock.Fd()), unix.LOCK_UN))
}

func (s *shelf) put(kept saved) error { return writeJSON(s.file(liveDir, kept.Handle)+suffix, kept) }

func (s *shelf) drop(h sandbox.Handle) error { return os.Remove(s.file(liveDir, h) + suffix) }

// reserve notes that a lease id is used, and says whether it was before.
func (s *shelf) reserve(h sandbox.Handle) (before bool, err error) {
	f, err := os.OpenFile(s.file(usedDir, h), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	return false, f.Close()
}

func (s *shelf) file(sub string, h sandbox.Handle) string {
	return filepath.Join(s.dir, sub, url.QueryEscape(h.Provider)+"@"+url.QueryEscape(h.Host)+"@"+url.QueryEscape(h.Lease))
}

func readJSON(name string, into any) error {
	data, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func writeJSON(name string, from any) error {
	data, err := json.Marshal(from)
	if err != nil {
		return err
	}
	if err := os.WriteFile(name+".new", data, 0o600); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}
