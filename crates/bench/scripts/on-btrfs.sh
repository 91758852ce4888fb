#!/bin/sh
# Runs a command while a folder is a btrfs file system that compresses, on a loop device, and prints
# what the device wrote and what the file system stores.
#
#   on-btrfs.sh MOUNT SIZE COMMAND [ARGUMENT ...]
#
#   MOUNT  an empty folder; the image is a file beside it, MOUNT.img, and is removed at the end
#   SIZE   of the image, such as 8G; the file system of the image needs as much space
#
# Needs root, loop devices, btrfs in the kernel, and mkfs.btrfs (package btrfs-progs). Stores that
# allocate the space of their files in advance are not compressed, as `compsize` shows (install
# btrfs-compsize): btrfs writes to allocated space as it is.
set -eu

fail() {
    echo "on-btrfs: $1" >&2
    exit 3
}

[ $# -ge 3 ] || fail "usage: on-btrfs.sh MOUNT SIZE COMMAND [ARGUMENT ...]"
mount_point=$1
size=$2
shift 2
[ -d "$mount_point" ] || fail "$mount_point is no folder: create it"
[ -z "$(ls -A "$mount_point")" ] || fail "$mount_point is not empty"
[ "$(id -u)" = 0 ] || fail "mounting needs root"
command -v mkfs.btrfs >/dev/null || fail "mkfs.btrfs is missing: install btrfs-progs"
command -v losetup >/dev/null || fail "losetup is missing: install util-linux"
grep -qw btrfs /proc/filesystems || modprobe btrfs 2>/dev/null || fail "this kernel has no btrfs"

image=$mount_point.img
[ ! -e "$image" ] || fail "$image exists: remove it"
device=
end() {
    ! mountpoint -q "$mount_point" || umount "$mount_point"
    [ -z "$device" ] || losetup -d "$device"
    rm -f "$image"
}
trap end EXIT
trap 'exit 3' INT TERM
truncate -s "$size" "$image"
mkfs.btrfs -q -m single -d single "$image" >/dev/null 2>&1 || fail "mkfs.btrfs: $size is too small"
device=$(losetup -f --show "$image") || fail "no loop device is free, or allowed here"
mount -t btrfs -o compress-force=zlib:1,noatime "$device" "$mount_point" || fail "cannot mount btrfs"

# Sectors of 512 bytes that the device has written.
written() {
    sync -f "$mount_point"
    awk '{print $7}' "/sys/block/${device#/dev/}/stat"
}

before=$(written)
status=0
"$@" || status=$?
after=$(written)
echo "btrfs, zlib: the device wrote $(((after - before) / 2048)) MiB"
if command -v compsize >/dev/null; then
    compsize "$mount_point" || true
else
    btrfs filesystem df "$mount_point"
fi
exit $status
