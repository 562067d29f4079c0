#!/bin/sh
# Runs the tests inside the virtual machine. Lines that begin with "v2: " are its
# report; "v2-exit: N" is the verdict.
export PATH=/usr/bin:/usr/sbin:/bin HOME=/tmp TMPDIR=/tmp
b=/usr/bin/busybox
say() { echo "v2: $*"; }

$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b mount -t devtmpfs dev /dev
$b mkdir -p /dev/shm && $b mount -t tmpfs -o mode=1777 tmpfs /dev/shm
$b mount -t cgroup2 none /sys/fs/cgroup
$b ip link set lo up 2>/dev/null
# A machine without a generator would let the first reader of random numbers wait.
for module in /v2/overlay.ko*; do
	[ -e "$module" ] && ($b insmod "$module" || say "cannot load $module")
done
ln -s /proc/self/fd /dev/fd

# No program of the host's may be started for what a job leaves when it crashes: this
# one, which the kernel starts for a core dump, says that it was.
printf '#!/usr/bin/sh\n: >/tmp/core-handler\n' >/v2/core && chmod 755 /v2/core
echo '|/v2/core' >/proc/sys/kernel/core_pattern
core_handler() {
	rm -f /tmp/core-handler
	sh -c 'kill -SEGV $$' 2>/dev/null
	sleep 2
	[ -e /tmp/core-handler ] || return 1
	rm -f /tmp/core-handler
}

pattern=$(cat /v2/pattern)
tree=/sys/fs/cgroup
say "$(uname -sr), up after $(cut -d. -f1 /proc/uptime) s, $(cat $tree/cgroup.controllers)"
grep -q overlay /proc/filesystems && say "overlayfs is there"
echo "+memory +pids +cpu" >$tree/cgroup.subtree_control
code=0
core_handler && handled=yes || handled=no
say "a handler of core dumps is set up; it is started for others: $handled"
[ $handled = yes ] || code=1

# try NAME COMMAND… runs tests and says how they ended.
try() {
	name=$1
	shift
	began=$(cut -d. -f1 /proc/uptime)
	{
		"$@" 2>&1
		echo $? >/tmp/result
	} | tee /tmp/out | sed -u "s/^/[$name] /"
	result=$(cat /tmp/result)
	took=$(($(cut -d. -f1 /proc/uptime) - began))
	passed=$(grep -c '^ *--- PASS' /tmp/out)
	failed=$(grep -c '^ *--- FAIL' /tmp/out)
	if [ $result = 0 ]; then
		say "ok    $name: $passed passed, $took s"
		return
	fi
	code=1
	say "FAIL  $name: exit $result, $passed passed, $failed failed, $took s"
	grep -E '^ *--- FAIL|^panic|Error:|Error Trace:' /tmp/out | sed 's/^/v2:       /'
	grep -A 12 -E 'Error Trace' /tmp/out | head -n 120 | sed 's/^/v2:       /'
}

# in_group DIR COMMAND… runs a command in a control group.
in_group() {
	group=$1
	shift
	sh -c 'echo 0 >"$1/cgroup.procs" || exit 9; shift; exec "$@"' sh "$group" "$@"
}

# left DIR says which groups the tests have left behind. The leaf into which the
# worker moved itself is none: it stays as long as the process that moved there.
left() {
	groups=$(find "$1" -mindepth 1 -type d ! -path "$1/worker")
	[ -z "$groups" ] && return
	code=1
	say "FAIL  groups left: $groups"
}

# What makes more at once than an emulated processor does within the provider's
# bounds of time, and says nothing about control groups. TestUnprivileged runs all
# tests again as a user: that is done below.
skip='^(TestPlacedProgramsAreNeverBusy|TestCollectIsBounded|TestThreadsComeAndGo|TestUnprivileged)$'
say "left out: $skip"
flags="-test.v -test.timeout=30m -test.run=$pattern -test.skip=$skip"
as="setpriv --reuid=1234 --regid=1234 --clear-groups"
cd /tmp

# As root in a service's group, where the worker is alone.
for tests in cgroup local; do
	mkdir $tree/service-$tests
	try "root, $tests" in_group $tree/service-$tests /v2/$tests.test $flags
	left $tree/service-$tests
done

# As pid 1 of a container with a group, and the namespace of groups, of its own. What
# counts zombies or needs a parent of its own is left to the others.
mkdir $tree/container
inside='b=/usr/bin/busybox; echo 0 >/sys/fs/cgroup/container/cgroup.procs || exit 9
	exec unshare --cgroup sh -c "$b mount -t proc proc /proc && $b umount /sys/fs/cgroup && $b mount -t cgroup2 none /sys/fs/cgroup && exec \"\$@\"" sh "$@"'
try "root, pid 1 of a container, local" unshare --pid --fork --mount \
	sh -c "$inside" sh /v2/local.test -test.v -test.timeout=10m '-test.run=^(TestProbe|TestProofAndUsage|TestCgroupLimits|TestPidsLimit|TestFirstActIsWithinLimits|TestMountsAreTheLeasesOwn|TestNothingIsWritable|TestForkBombs)$'
left $tree/container

# As root in a group with a process of somebody else's, which keeps the worker from
# handing controllers down.
mkdir $tree/shared
beside='
	sleep 100000 & other=$!
	"$@"
	result=$?
	kill $other
	exit $result'
try "root beside another process, cgroup" in_group $tree/shared sh -c "$beside" sh /v2/cgroup.test $flags
try "root beside another process, local" in_group $tree/shared sh -c "$beside" sh /v2/local.test -test.v '-test.run=^(TestProbe|TestProofAndUsage|TestConformance)$'
left $tree/shared

# As an ordinary user to whom a subtree is delegated, as systemd does it
# (Delegate=yes): the group itself, cgroup.procs and cgroup.subtree_control. The
# worker sits in a leaf of its own (DelegateSubgroup=worker).
mkdir /tmp/user && chown 1234:1234 /tmp/user
export TMPDIR=/tmp/user
for tests in cgroup local; do
	dir=$tree/user-$tests
	mkdir $dir $dir/worker
	chown 1234:1234 $dir $dir/cgroup.procs $dir/cgroup.subtree_control $dir/cgroup.threads $dir/worker $dir/worker/cgroup.procs
	try "delegated to a user, $tests" in_group $dir/worker $as /v2/$tests.test $flags
	left $dir
done

# As an ordinary user in a group of somebody else's.
mkdir $tree/other
for tests in cgroup local; do
	try "user without delegation, $tests" in_group $tree/other $as /v2/$tests.test $flags
done
left $tree/other

sleep 2
if [ -e /tmp/core-handler ]; then
	code=1
	say "FAIL  the host's handler of core dumps was started for a job"
fi
say "kernel warnings: $($b dmesg | grep -c -E 'WARNING:|BUG:|Oops')"
echo "v2-exit: $code"
$b sync
$b poweroff -f
