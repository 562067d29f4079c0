#!/usr/bin/busybox sh
# pid 1 of the virtual machine: moves off the initramfs, on which no root can be
# changed (pivot_root(2)), and goes on with what runs the tests.
export PATH=/usr/bin:/usr/sbin
b=/usr/bin/busybox
$b mount -t tmpfs -o mode=755,size=1500m tmpfs /mnt
for entry in bin lib lib64 sbin usr etc v2 root; do $b cp -a /$entry /mnt/; done
$b mkdir -p /mnt/proc /mnt/sys /mnt/dev /mnt/tmp /mnt/mnt /mnt/run /mnt/var /mnt/srv
$b chmod 1777 /mnt/tmp
exec $b switch_root /mnt /usr/bin/sh /v2/inside.sh
