package guest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// base is where the root is made. Every host has it, and nothing below it is shown.
const base = "/tmp"

// makeRoot makes a root in memory, shows the host's system directories in it, and
// changes into it.
func makeRoot(s Setup) error {
	if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("private mounts: %w", err)
	}
	options := fmt.Sprintf("mode=755,size=%d", s.Bytes)
	if err := unix.Mount(s.Name, base, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return fmt.Errorf("root: %w", err)
	}
	for _, dir := range []string{"/proc", "/dev", "/dev/shm", "/tmp", "/root", "/home", "/run", "/var", "/var/tmp", "/var/log", "/mnt", "/srv"} {
		if err := unix.Mkdir(base+dir, 0o755); err != nil {
			return fmt.Errorf("directory %s: %w", dir, err)
		}
	}
	for _, dir := range []string{"/dev/shm", "/tmp", "/var/tmp"} {
		if err := unix.Chmod(base+dir, 0o1777); err != nil {
			return fmt.Errorf("directory %s: %w", dir, err)
		}
	}
	for _, dir := range []string{"/usr", "/etc", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"} {
		if err := show(dir); err != nil {
			return fmt.Errorf("showing %s: %w", dir, err)
		}
	}
	if err := makeDevices(); err != nil {
		return err
	}
	if err := unix.Mount("proc", base+"/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("proc: %w", err)
	}
	return enter()
}

// show makes a directory of the host visible, or the link that it is.
func show(dir string) error {
	info, err := os.Lstat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode()&os.ModeSymlink != 0:
		target, err := os.Readlink(dir)
		if err != nil {
			return err
		}
		return os.Symlink(target, base+dir)
	}
	if err := unix.Mkdir(base+dir, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(dir, base+dir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	readOnly := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	return unix.MountSetattr(unix.AT_FDCWD, base+dir, unix.AT_RECURSIVE, &readOnly)
}

func makeDevices() error {
	for _, node := range []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"} {
		if err := os.WriteFile(base+node, nil, 0o644); err != nil {
			return err
		}
		if err := unix.Mount(node, base+node, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("device %s: %w", node, err)
		}
	}
	for name, target := range map[string]string{"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"} {
		if err := os.Symlink(target, base+"/dev/"+name); err != nil {
			return err
		}
	}
	return nil
}

// enter leaves the host's files behind.
func enter() error {
	if err := unix.Chdir(base); err != nil {
		return fmt.Errorf("root: %w", err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("old root: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return fmt.Errorf("root: %w", err)
	}
	return unix.Sethostname([]byte("createos"))
}

// open opens a file for the server, as a program inside would.
func open(o Order) (int, error) {
	name := string(o.Path)
	// Not to hang on a pipe that nobody has the other end of.
	flags := unix.O_CLOEXEC | unix.O_NONBLOCK
	if !o.Write {
		return unix.Open(name, flags|unix.O_RDONLY, 0)
	}
	if o.Parents {
		if err := os.MkdirAll(path.Dir(name), 0o755); err != nil {
			return -1, err
		}
	}
	return unix.Open(name, flags|unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o644)
}
