package local

import (
	"context"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"github.com/sallyport/sallyport/internal/sandbox"
)

const (
	// placeBytes is how much of a file is written or read at once.
	placeBytes = 256 << 10
	// defaultMode is that of a file without one.
	defaultMode = 0o644
	dirMode     = 0o755
)

// place puts the process's files into the workspace. The gate is closed, so that
// nobody else is there.
func (r *run) place(ctx context.Context, files []sandbox.File) error {
	if len(files) == 0 {
		return nil
	}
	buffer := make([]byte, placeBytes)
	for i := range files {
		if err := r.box.placeFile(ctx, &files[i], buffer); err != nil {
			return &sandbox.FileError{Path: files[i].Path, Err: fmt.Errorf("%w%s", err, placeHint(err))}
		}
	}
	return nil
}

// placeHint says what usually stands behind an error.
func placeHint(err error) string {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return " (the files exceed the workspace's disk_bytes or inodes)"
	}
	return ""
}

// placeFile makes one file.
func (b *box) placeFile(ctx context.Context, f *sandbox.File, buffer []byte) error {
	mode := uint32(f.Mode)
	if mode == 0 {
		mode = defaultMode
	}
	if err := b.inWorkspace(func(w *workspaceDir) error { return w.makeFile(f.Path) }); err != nil {
		return err
	}
	for {
		// The source may be far away: while it is waited for, nothing is open.
		n, readErr := io.ReadFull(f.Content, buffer)
		if n > 0 {
			if err := b.inWorkspace(func(w *workspaceDir) error { return w.write(f.Path, buffer[:n]) }); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(readErr, io.EOF), errors.Is(readErr, io.ErrUnexpectedEOF):
			return b.inWorkspace(func(w *workspaceDir) error { return w.setMode(f.Path, mode) })
		case readErr != nil:
			return fmt.Errorf("read its source: %w", readErr)
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
	}
}

// makeFile makes an empty file that nobody else can open yet, with the directories
// on its way.
func (w *workspaceDir) makeFile(name string) error {
	for i := range name {
		if name[i] != '/' {
			continue
		}
		err := w.inDir(name[:i], func(dir int, base string) error {
			if err := unix.Mkdirat(dir, base, dirMode); err != nil {
				return err
			}
			return unix.Fchmodat(dir, base, dirMode, 0) // whatever the worker's umask is
		})
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	fd, err := open(w.fd, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, defaultMode)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// write appends p.
func (w *workspaceDir) write(name string, p []byte) error {
	fd, err := open(w.fd, name, unix.O_WRONLY|unix.O_APPEND, 0)
	if err != nil {
		return err
	}
	for len(p) > 0 {
		n, err := unix.Write(fd, p)
		if err != nil && err != unix.EINTR {
			unix.Close(fd)
			return err
		}
		p = p[max(n, 0):]
	}
	return unix.Close(fd)
}

// setMode gives the file its permissions, whatever the worker's umask is.
func (w *workspaceDir) setMode(name string, mode uint32) error {
	return w.inDir(name, func(dir int, base string) error {
		var st unix.Stat_t
		if err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFREG {
			return unix.EINVAL
		}
		return unix.Fchmodat(dir, base, mode, 0)
	})
}

// unplaced takes back a run whose files could not be placed: the sandbox is then as
// it was before.
func (r *run) unplaced(ctx context.Context, cause error) error {
	ctx, cancel := cleanup(ctx, closeTimeout)
	defer cancel()
	_, err := r.Terminate(ctx, 0)
	if err == nil {
		_, err = r.Wait(ctx)
	}
	if err == nil {
		err = r.box.Reset(ctx)
	}
	if err != nil {
		return r.box.unusable("prepare", fmt.Errorf("%w; and taken back: %w", cause, err))
	}
	return sandbox.Errorf(sandbox.Refused, "prepare", "%w", cause)
}
