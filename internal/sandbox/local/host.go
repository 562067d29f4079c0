package local

import (
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/sallyport/sallyport/internal/sandbox/local/leaseinit"
)

const (
	// jobUID is the uid and gid of jobs as they see it.
	jobUID = 1000
	// rangeSize is the number of uids that a lease has in root mode.
	rangeSize = 1 << 16
	// firstRange is where systemd's table of uids (systemd.io/UIDS-GIDS) has
	// nobody: 0x70000000 to 0x7fffffff.
	firstRange = 0x70000000
	ranges     = 0x1000 - 1
	// copyBytes is the size up to which a file is copied into the sandbox's root.
	// The cache of the dynamic linker, by far the largest, has some tens of KiB.
	copyBytes = 128 << 10
)

// host is what has to be known of the host before a sandbox can be made.
type host struct {
	bootID string
	// root says that the worker may map uid ranges. If not, its own uid is mapped.
	root     bool
	uid, gid int
	// rangeBase is the first uid of the first range, rangeCount their number.
	rangeBase, rangeCount uint32
	// hardFiles is the greatest limit on open files that may be given.
	hardFiles uint64
}

func inspectHost() (host, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return host{}, err
	}
	h := host{bootID: strings.TrimSpace(string(boot)), uid: os.Geteuid(), gid: os.Getegid()}
	h.root = h.uid == 0
	if h.hardFiles, err = hardLimitFiles(); err != nil {
		return host{}, err
	}
	if !h.root {
		return h, nil
	}
	uidMap, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return host{}, err
	}
	h.rangeBase, h.rangeCount = freeRanges(string(uidMap))
	return h, nil
}

// freeRanges finds where uid ranges for leases can lie, in the worker's own view
// of uids, which in a container may be a small one: the reserved place where the
// whole is mapped, else the last whole ranges above the first.
func freeRanges(uidMap string) (base, count uint32) {
	for line := range strings.Lines(uidMap) {
		f := strings.Fields(line)
		if len(f) != 3 {
			continue
		}
		first, err1 := strconv.ParseUint(f[0], 10, 32)
		length, err2 := strconv.ParseUint(f[2], 10, 32)
		if err1 != nil || err2 != nil {
			continue
		}
		end := first + length
		if first <= firstRange && end >= firstRange+ranges*rangeSize {
			return firstRange, ranges
		}
		start := max((first+rangeSize-1)/rangeSize, 1) * rangeSize
		if n := (end - min(start, end)) / rangeSize; n > uint64(count) {
			base, count = uint32(start), uint32(n)
		}
	}
	return base, count
}

// firstUID is the uid that is root in the sandbox with a slot, where the worker is
// root.
func (h *host) firstUID(slot uint32) int { return int(h.rangeBase + slot*rangeSize) }

// slot chooses a uid range that no other lease of this worker has. Leases of other
// workers may have the same by chance; user namespaces keep them apart all the
// same.
func (h *host) slot(lease string, taken map[uint32]bool) (uint32, error) {
	if !h.root {
		return 0, nil
	}
	if h.rangeCount == 0 {
		return 0, errors.New("no 65,536 uids above 65,535 are mapped where the worker runs (see /proc/self/uid_map): run it as an ordinary user, or map more uids into its container")
	}
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(lease))
	for i := range h.rangeCount {
		if slot := (hash.Sum32()%h.rangeCount + i) % h.rangeCount; !taken[slot] {
			return slot, nil
		}
	}
	return 0, fmt.Errorf("all %d uid ranges are in use", h.rangeCount)
}

// view is the root of sandboxes that show the host's system directories.
func hostView() []leaseinit.Op {
	var ops []leaseinit.Op
	for _, name := range []string{"bin", "lib", "lib32", "lib64", "libx32", "sbin", "usr"} {
		ops = show(ops, "/"+name, "/"+name)
	}
	ops = append(ops, leaseinit.Op{Kind: leaseinit.OpDir, Path: "/etc"})
	made := map[string]bool{"/etc": true}
	for _, path := range []string{
		"/etc/alternatives", "/etc/crypto-policies", "/etc/ld.so.cache", "/etc/localtime", "/etc/pki/ca-trust/extracted",
		"/etc/pki/tls/certs", "/etc/protocols", "/etc/services", "/etc/ssl/certs", "/etc/ssl/openssl.cnf",
	} {
		if _, err := os.Lstat(path); err == nil {
			ops = parents(ops, made, filepath.Dir(path))
			ops = show(ops, path, path)
		}
	}
	for _, file := range []struct{ path, content string }{
		{"/etc/passwd", "root:x:0:0:root:/:/usr/sbin/nologin\njob:x:1000:1000:job:/workspace:/bin/sh\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n"},
		{"/etc/group", "root:x:0:\njob:x:1000:\nnogroup:x:65534:\n"},
		{"/etc/hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n"},
		{"/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n"},
		{"/etc/resolv.conf", ""},
	} {
		ops = append(ops, leaseinit.Op{Kind: leaseinit.OpFile, Path: file.path, Arg: file.content})
	}
	ops = append(ops, leaseinit.Op{Kind: leaseinit.OpDir, Path: "/var"},
		leaseinit.Op{Kind: leaseinit.OpLink, Path: "/var/tmp", Arg: "/tmp"})
	return append(ops, ownDirs()...)
}

// imageView is the root of sandboxes that show the directory root.
func imageView(root string) ([]leaseinit.Op, error) {
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, err
	}
	var ops []leaseinit.Op
	for _, entry := range entries {
		switch name := entry.Name(); name {
		case "dev", "proc", "sys", "tmp", "workspace":
		default:
			ops = show(ops, filepath.Join(root, name), "/"+name)
		}
	}
	return append(ops, ownDirs()...), nil
}

// ownDirs are the places that the sandbox makes itself.
func ownDirs() []leaseinit.Op {
	ops := []leaseinit.Op{
		{Kind: leaseinit.OpDir, Path: "/dev"},
		{Kind: leaseinit.OpDir, Path: "/proc"},
		{Kind: leaseinit.OpDir, Path: "/workspace"},
		{Kind: leaseinit.OpDirSticky, Path: "/tmp"},
		{Kind: leaseinit.OpDirSticky, Path: "/dev/shm"},
		{Kind: leaseinit.OpLink, Path: "/dev/fd", Arg: "/proc/self/fd"},
		{Kind: leaseinit.OpLink, Path: "/dev/stdin", Arg: "/proc/self/fd/0"},
		{Kind: leaseinit.OpLink, Path: "/dev/stdout", Arg: "/proc/self/fd/1"},
		{Kind: leaseinit.OpLink, Path: "/dev/stderr", Arg: "/proc/self/fd/2"},
	}
	for _, name := range []string{"full", "null", "random", "urandom", "zero"} {
		ops = append(ops, leaseinit.Op{Kind: leaseinit.OpDevice, Path: "/dev/" + name, Arg: "/dev/" + name})
	}
	return ops
}

// show makes source visible at path, if it is there: a symbolic link as one, a
// file or directory bound read-only.
func show(ops []leaseinit.Op, source, path string) []leaseinit.Op {
	info, err := os.Lstat(source)
	if err != nil {
		return ops
	}
	switch mode := info.Mode(); {
	case mode&os.ModeSymlink != 0:
		target, err := os.Readlink(source)
		if err != nil {
			return ops
		}
		return append(ops, leaseinit.Op{Kind: leaseinit.OpLink, Path: path, Arg: target})
	case mode.IsDir():
		ops = append(ops, leaseinit.Op{Kind: leaseinit.OpDir, Path: path})
	case mode.IsRegular() && info.Size() <= copyBytes && strings.HasPrefix(path, "/etc/"):
		return append(ops, leaseinit.Op{Kind: leaseinit.OpCopy, Path: path, Arg: source})
	case mode.IsRegular():
		ops = append(ops, leaseinit.Op{Kind: leaseinit.OpFile, Path: path})
	default:
		return ops
	}
	return append(ops, leaseinit.Op{Kind: leaseinit.OpBind, Path: path, Arg: source})
}

// parents makes the directories that lead to dir.
func parents(ops []leaseinit.Op, made map[string]bool, dir string) []leaseinit.Op {
	if made[dir] {
		return ops
	}
	ops = parents(ops, made, filepath.Dir(dir))
	made[dir] = true
	return append(ops, leaseinit.Op{Kind: leaseinit.OpDir, Path: dir})
}

// basePath finds a directory of the host over which the new root can be mounted:
// nothing that the view binds may be below it.
func basePath(view []leaseinit.Op) (string, error) {
	for _, dir := range []string{"/mnt", "/media", "/srv", "/opt", "/run", "/tmp", "/var"} {
		if info, err := os.Lstat(dir); err != nil || !info.IsDir() {
			continue
		}
		inUse := false
		for _, op := range view {
			if op.Kind == leaseinit.OpBind && strings.HasPrefix(resolved(op.Arg)+"/", dir+"/") {
				inUse = true
			}
		}
		if !inUse {
			return dir, nil
		}
	}
	return "", errors.New("no directory to mount the root on: none of /mnt, /media, /srv, /opt, /run, /tmp and /var is a directory that leads to nothing of the sandbox's root")
}

func resolved(path string) string {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		return target
	}
	return path
}
