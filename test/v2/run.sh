#!/bin/sh
# Runs the tests of the local provider and of its control groups on a kernel with
# nothing but cgroup v2, in a virtual machine: as root, as an ordinary user to whom
# a group is delegated, and as one who has none. The exit code is that of the tests.
#
# SALLYPORT_V2_KERNEL  a vmlinuz to boot instead of Debian's (with overlayfs built in,
#                      or its modules in SALLYPORT_V2_MODULES)
# SALLYPORT_V2_ACCEL   tcg (default: works everywhere) or kvm
# SALLYPORT_V2_RUN     the tests to run (a -test.run pattern; default: all)
# SALLYPORT_V2_CACHE   where what is downloaded stays (default: bin/v2)
set -eu

here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
cache=${SALLYPORT_V2_CACHE:-$top/bin/v2}
accel=${SALLYPORT_V2_ACCEL:-tcg}
pattern=${SALLYPORT_V2_RUN:-.}
# All of it, the slow tests too, takes some minutes; a machine that hangs is ended.
bound=${SALLYPORT_V2_TIMEOUT:-2400}

die() { echo "test-v2: $*" >&2; exit 2; }

# need COMMAND PACKAGE installs a package for a missing command, or says that it is missing.
need() {
	command -v "$1" >/dev/null 2>&1 && return
	missing="$missing $2"
}

install_missing() {
	missing=
	need qemu-system-x86_64 qemu-system-x86
	need cpio cpio
	need busybox busybox-static
	need perl perl-base
	need ldd libc-bin
	[ -n "$missing" ] || return 0
	if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
		echo "test-v2: installing$missing"
		apt-get update -qq
		# shellcheck disable=SC2086 # a list of packages
		DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $missing >/dev/null
		return 0
	fi
	die "missing:$missing (apt-get install$missing, or run this as root where there is apt-get)"
}

# fetch_kernel downloads and unpacks Debian's kernel, once; nothing is installed.
fetch_kernel() {
	if [ -n "${SALLYPORT_V2_KERNEL:-}" ]; then
		kernel=$SALLYPORT_V2_KERNEL
		modules=${SALLYPORT_V2_MODULES:-}
		return 0
	fi
	kernel=$(find "$cache/kernel/boot" -name 'vmlinuz-*' 2>/dev/null | head -n 1)
	if [ -z "$kernel" ]; then
		command -v apt-get >/dev/null || die "no kernel: set SALLYPORT_V2_KERNEL to a vmlinuz (no apt-get here to download Debian's)"
		package=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)$/\1/p' | head -n 1)
		[ -n "$package" ] || die "no kernel: apt knows no linux-image-cloud-amd64 (apt-get update?); or set SALLYPORT_V2_KERNEL to a vmlinuz"
		echo "test-v2: downloading $package"
		rm -rf "$cache/kernel" "$cache/deb"
		mkdir -p "$cache/deb"
		(cd "$cache/deb" && apt-get download -qq "$package" 2>/dev/null) || die "cannot download $package"
		dpkg-deb -x "$cache"/deb/linux-image-*.deb "$cache/kernel"
		kernel=$(find "$cache/kernel/boot" -name 'vmlinuz-*' | head -n 1)
	fi
	modules=$(find "$cache/kernel/lib/modules" -name overlay.ko* | head -n 1)
}

# take PROGRAM… copies programs with the libraries that they need.
take() {
	for program; do
		path=$(command -v "$program" || true)
		case $path in
		/*) ;;
		*) path=/usr/bin/$program ;; # a shell builtin
		esac
		[ -e "$path" ] || continue
		put "$path"
		for library in $(ldd "$path" 2>/dev/null | sed -n 's/.*[ \t]\(\/[^ ]*\) (0x.*/\1/p'); do
			put "$library"
		done
	done
}

# put copies one file to where it is, with everything under /usr as Debian has it.
put() {
	to=$root/usr${1#/usr}
	[ -e "$to" ] && return
	mkdir -p "$(dirname "$to")"
	cp -L "$1" "$to"
}

build_root() {
	root=$work/root
	mkdir -p "$root/usr/bin" "$root/usr/lib" "$root/usr/lib64" "$root/usr/sbin" "$root/proc" "$root/sys" "$root/dev" \
		"$root/tmp" "$root/mnt" "$root/root" "$root/etc" "$root/var" "$root/srv" "$root/v2"
	chmod 755 "$root" "$root/v2"
	chmod 1777 "$root/tmp"
	for name in bin lib lib64 sbin; do ln -s "usr/$name" "$root/$name"; done
	# The tests use what is on every Debian, and nothing else.
	base=$(dpkg -L coreutils dash diffutils findutils grep perl-base sed util-linux 2>/dev/null | sed -n 's,^\(/usr\)\?/s\?bin/,,p')
	# shellcheck disable=SC2086 # a list of names
	take sh cat chmod cut du grep hostname head id ipcmk ipcs ls md5sum mkdir perl setpriv setsid sleep stat tee true wc $base
	for dir in $(perl -e 'print "@INC"'); do
		case $dir in */perl-base) mkdir -p "$root$(dirname "$dir")" && cp -a "$dir" "$root$dir" ;; esac
	done
	cp "$(command -v busybox)" "$root/usr/bin/busybox"
	printf 'root:x:0:0:root:/root:/bin/sh\nuser:x:1234:1234:user:/tmp:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n' >"$root/etc/passwd"
	printf 'root:x:0:\nuser:x:1234:\nnogroup:x:65534:\n' >"$root/etc/group"
	ldconfig -r "$root" 2>/dev/null || true
	if [ -n "$modules" ]; then cp "$modules" "$root/v2/"; fi
	cp "$here/inside.sh" "$root/v2/inside.sh"
	cp "$here/init.sh" "$root/init"
	chmod 755 "$root/init" "$root/v2/inside.sh"
	printf '%s\n' "$pattern" >"$root/v2/pattern"
	(cd "$top" && CGO_ENABLED=0 go test -c -trimpath -o "$root/v2/local.test" ./internal/sandbox/local &&
		CGO_ENABLED=0 go test -c -trimpath -o "$root/v2/cgroup.test" ./internal/sandbox/local/cgroup)
	chmod 755 "$root"/v2/*.test
	(cd "$root" && find . -print0 | cpio --null --quiet -o -H newc) >"$work/initramfs"
}

boot() {
	started=$(date +%s)
	log=$cache/last.log
	cpu=max
	if [ "$accel" = kvm ]; then cpu=host,arch-capabilities=off; fi
	echo "test-v2: booting $(basename "$kernel") under qemu ($accel)"
	timeout "$bound" qemu-system-x86_64 -accel "$accel" -cpu "$cpu" -smp 2 -m 2048 -nodefaults -display none -no-reboot \
		-serial stdio -kernel "$kernel" -initrd "$work/initramfs" \
		-append "console=ttyS0 quiet loglevel=3 panic=-1 cgroup_no_v1=all systemd.unified_cgroup_hierarchy=1" </dev/null |
		sed -u 's/\r//g' | tee "$log" | sed -u -n 's/^v2: //p' || true
	ended=$(date +%s)
	code=$(sed -n 's/^v2-exit: \([0-9]*\)$/\1/p' "$log" | tail -n 1)
	echo "test-v2: $((ended - started)) s, all output in $log"
	[ -n "$code" ] || die "the machine ended without a verdict (see $log)"
	exit "$code"
}

[ "$(uname -m)" = x86_64 ] || die "this builds a virtual machine for x86_64 only"
mkdir -p "$cache"
exec 9>"$cache/lock"
flock -n 9 || die "another run uses $cache (SALLYPORT_V2_CACHE chooses another)"
work=$(mktemp -d "${TMPDIR:-/tmp}/sallyport-v2-XXXXXX")
trap 'rm -rf "$work"' EXIT
install_missing
fetch_kernel
build_root
boot
