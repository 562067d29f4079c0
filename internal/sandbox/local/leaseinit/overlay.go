package leaseinit

import "golang.org/x/sys/unix"

// The places of an overlay in the lease's own root. No job sees them: its root is
// the overlay.
const (
	// LowerDir is where a view shows the lower directory of an overlay.
	LowerDir = "/.lower"
	// UpperDir is where each job has a file system for what it writes.
	UpperDir = "/.upper"
	// MergedDir is where the overlay is mounted before it becomes the job's root.
	MergedDir = "/.root"

	overlayOptions = "lowerdir=" + LowerDir + ",upperdir=" + UpperDir + "/up,workdir=" + UpperDir + "/work,userxattr"
)

const (
	textOverlay  = "overlay\x00"
	textOptions  = overlayOptions + "\x00"
	textUpper    = UpperDir + "\x00"
	textUpperDir = UpperDir + "/up\x00"
	textWorkDir  = UpperDir + "/work\x00"
	textMerged   = MergedDir + "\x00"
	textHere     = ".\x00"
	textRoot     = "/\x00"
)

// shown are the lease's own places that stay to be seen in an overlay.
var shown = [...]struct{ from, to string }{
	{"/dev\x00", MergedDir + "/dev\x00"},
	{textProc, MergedDir + "/proc\x00"},
	{textTmp, MergedDir + "/tmp\x00"},
	{textWorkspace, MergedDir + "/workspace\x00"},
}

// planOverlay makes an overlay the root of a job: the view's lower directory below
// a file system of the job's own, which has the bounds of its workspace and ends
// with its mount namespace.
func (l *lease) planOverlay(p *program, options uintptr) {
	if !l.setup.Overlay {
		return
	}
	p.add(StageOverlay, unix.SYS_MOUNT, text(textTmpfs), text(textUpper), text(textTmpfs), mountFlags, options)
	p.add(StageOverlay, unix.SYS_MKDIRAT, atCwd, text(textUpperDir), 0o755)
	p.add(StageOverlay, unix.SYS_MKDIRAT, atCwd, text(textWorkDir), 0o755)
	if l.setup.Switch {
		uid := uintptr(l.setup.JobUID)
		p.add(StageOverlay, unix.SYS_FCHOWNAT, atCwd, text(textUpperDir), uid, uid, 0)
	}
	p.add(StageOverlay, unix.SYS_MOUNT, text(textOverlay), text(textMerged), text(textOverlay), mountFlags, text(textOptions))
	for i := range shown {
		from, to := text(shown[i].from), text(shown[i].to)
		p.add(StageOverlay, unix.SYS_MKDIRAT, atCwd, to, 0o755).tolerate = unix.EEXIST
		p.add(StageOverlay, unix.SYS_MOUNT, from, to, 0, unix.MS_BIND|unix.MS_REC, 0)
	}
	p.add(StageOverlay, unix.SYS_CHDIR, text(textMerged))
	p.add(StageOverlay, unix.SYS_PIVOT_ROOT, text(textHere), text(textHere))
	p.add(StageOverlay, unix.SYS_UMOUNT2, text(textHere), unix.MNT_DETACH)
	p.add(StageOverlay, unix.SYS_CHDIR, text(textRoot))
}

// tryOverlay mounts the overlay once, in the finished root, so that a kernel or a
// file system that cannot is known before there is a job.
func (l *lease) tryOverlay() {
	if !l.setup.Overlay {
		return
	}
	l.must(StageOverlay, unix.Mount("tmpfs", UpperDir, "tmpfs", mountFlags, "size=64k,nr_inodes=64,mode=755"), UpperDir)
	l.must(StageOverlay, unix.Mkdir(UpperDir+"/up", 0o755), UpperDir)
	l.must(StageOverlay, unix.Mkdir(UpperDir+"/work", 0o755), UpperDir)
	l.must(StageOverlay, unix.Mount("overlay", MergedDir, "overlay", mountFlags, overlayOptions), "overlay")
	l.must(StageOverlay, unix.Unmount(MergedDir, unix.UMOUNT_NOFOLLOW), MergedDir)
	l.must(StageOverlay, unix.Unmount(UpperDir, unix.UMOUNT_NOFOLLOW), UpperDir)
}

// attach puts the tree that came with the set-up at path (move_mount(2)).
func (l *lease) attach(path, about string) {
	err := unix.MoveMount(l.tree, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH)
	l.must(StageView, err, about)
	closeFD(l.tree)
}

// takeFiles sorts the descriptors that came with the set-up.
func (l *lease) takeFiles(fds []int) {
	if l.setup.Tree {
		if len(fds) == 0 {
			l.die(StageProtocol, unix.EBADMSG, "tree")
		}
		l.tree, fds = fds[len(fds)-1], fds[:len(fds)-1]
	}
	if l.setup.Into {
		if len(fds) < 2 {
			l.die(StageProtocol, unix.EBADMSG, "control groups")
		}
		last := len(fds) - 1
		theJob.into = cloneArgs{flags: childFlags | unix.CLONE_INTO_CGROUP, exitSignal: uint64(unix.SIGCHLD), cgroup: uint64(fds[last])}
		fds = fds[:last]
	}
	l.groups = append([]int{}, fds...)
}
