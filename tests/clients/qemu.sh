#!/usr/bin/env bash
# Images of virtual machines in the mount, by qemu-img and qemu-io: raw (sparse) and qcow2, created with all kinds of
# preallocation, written at random, converted, snapshots, backing files, compared, checked; through the page cache and
# past it (O_DIRECT).
#
#   tests/clients/qemu.sh [DIRECTORY]     parent of the scratch directory [default: TMPDIR or /var/tmp]
#
# See common.sh for the variables.
# shellcheck disable=SC2154 # common.sh has them
set -euo pipefail
# shellcheck source=tests/clients/common.sh
. "$(dirname "$0")/common.sh"
client_arguments "$@"
need qemu-img=qemu-utils qemu-io=qemu-utils setfattr=attr mkfs.ext4=e2fsprogs >&2
PATH=$PATH:/usr/sbin:/sbin
open_pool

# image_io IMAGE FORMAT CACHE COMMAND...: runs qemu-io, which reports a failed verification only in words.
image_io() {
    local image=$1 format=$2 cache=$3 command arguments=()
    shift 3
    for command in "$@"; do arguments+=(-c "$command"); done
    qemu-io -f "$format" -t "$cache" "${arguments[@]}" "$image" >"$work/qemu-io.log" 2>&1 || fail "qemu-io $image: $(tail -n 3 "$work/qemu-io.log")"
    ! grep -qiE 'failed|error|invalid' "$work/qemu-io.log" || fail "qemu-io $image: $(grep -iE -m 3 'failed|error|invalid' "$work/qemu-io.log")"
}

step "a filesystem of 300 MiB in a raw sparse image"
make_tree "$work/tree"
# More than an inode of ext4 holds.
setfattr -x user.large "$work/tree/directory 9/file-aa" 2>/dev/null || true
raw=$mnt/disk.raw
truncate -s 300M "$raw"
mkfs.ext4 -q -F -d "$work/tree" "$raw"
e2fsck -f -n "$raw" >"$work/e2fsck.log" 2>&1 || fail "e2fsck: $(tail -n 5 "$work/e2fsck.log")"
[ "$(stat -c %b "$raw")" -lt $((250 * 2048)) ] || fail "the raw image has no holes"
cp --sparse=always "$raw" "$work/disk.raw"

step "converted: qcow2, compressed, with all preallocations, past the cache, and back"
number=0
for options in '-O qcow2' '-O qcow2 -c' '-O qcow2 -o preallocation=metadata' '-O qcow2 -o preallocation=falloc' \
    '-O qcow2 -o preallocation=full' '-O qcow2 -o cluster_size=4k,lazy_refcounts=on' '-O qcow2 -t none -T none' '-O qcow2 -W -m 8' \
    '-O raw' '-O raw -S 0' '-O raw -t none -T none' '-O raw -o preallocation=falloc' '-O vmdk' '-O vdi'; do
    number=$((number + 1))
    read -r -a arguments <<<"$options"
    qemu-img convert -f raw "${arguments[@]}" "$raw" "$mnt/converted-$number"
    format=${arguments[1]}
    qemu-img compare -f raw -F "$format" "$work/disk.raw" "$mnt/converted-$number" >/dev/null || fail "converted by $options it differs"
    [ "$format" = raw ] || qemu-img check -q -f "$format" "$mnt/converted-$number" || fail "qemu-img check after $options"
    echo "$format" >"$work/converted-$number.format"
done
qemu-img convert -f qcow2 -O raw -S 4k "$mnt/converted-2" "$mnt/back.raw"
cmp "$mnt/back.raw" "$work/disk.raw"
qemu-img map --output=json -f raw "$mnt/back.raw" >"$work/map"
grep -q '"data": false' "$work/map" || fail "the image that was converted back has no holes"

step "written at random, verified"
for cache in writeback none directsync; do
    for format in raw qcow2; do
        image=$mnt/io-$cache.$format
        qemu-img create -q -f $format "$image" 256M
        commands=()
        for ((at = 0; at < 60; at++)); do
            # Units of 4 KiB, lengths up to 2 MiB, in no order and side by side.
            offset=$((at * 37 % 60 * 4 * 1048576 + at * 4096)) length=$(((at % 500 + 1) * 4096))
            commands+=("write -P $((at + 1)) $offset $length" "read -P $((at + 1)) $offset $length")
            [ $((at % 5)) != 0 ] || commands+=("write -z $((offset + 4096)) 8192" "read -P 0 $((offset + 4096)) 8192")
            [ $((at % 7)) != 0 ] || commands+=("discard $((offset + 2097152)) 1048576" flush)
        done
        image_io "$image" $format $cache "${commands[@]}" "aio_write -P 200 1M 2M" "aio_write -P 201 9M 2M" aio_flush \
            "read -P 200 1M 2M" "read -P 201 9M 2M"
        qemu-img convert -f $format -O raw "$image" "$work/io-$cache.$format.raw"
    done
    cmp "$work/io-$cache.raw.raw" "$work/io-$cache.qcow2.raw"
done
cmp "$work/io-writeback.raw.raw" "$work/io-none.raw.raw"

step "snapshots, backing files, commit, rebase, resize"
image=$mnt/layers.qcow2
qemu-img convert -f raw -O qcow2 "$raw" "$image"
qemu-img snapshot -c first "$image"
image_io "$image" qcow2 writeback "write -P 77 10M 5M"
qemu-img snapshot -c second "$image"
image_io "$image" qcow2 writeback "write -P 78 12M 5M"
qemu-img snapshot -a first "$image"
qemu-img compare -f raw -F qcow2 "$work/disk.raw" "$image" >/dev/null || fail "the first snapshot is not what it was"
qemu-img snapshot -a second "$image"
image_io "$image" qcow2 none "read -P 77 10M 5M"
qemu-img snapshot -d first "$image"
qemu-img create -q -f qcow2 -b "$image" -F qcow2 "$mnt/top.qcow2"
image_io "$mnt/top.qcow2" qcow2 none "write -P 79 20M 9M"
qemu-img commit -q -d "$mnt/top.qcow2"
image_io "$image" qcow2 none "read -P 79 20M 9M" "read -P 77 10M 5M"
qemu-img rebase -f qcow2 -b '' "$mnt/top.qcow2"
qemu-img resize -q -f qcow2 "$mnt/top.qcow2" 20G
qemu-img resize -q -f raw "$raw" 20G
qemu-img resize -q --shrink -f raw "$raw" 300M
cmp "$raw" "$work/disk.raw"
qemu-img amend -f qcow2 -o compat=0.10 "$image" 2>/dev/null || qemu-img check -q "$image"
qemu-img check -q "$image"
qemu-img check -q "$mnt/top.qcow2"
qemu-img convert -f qcow2 -O raw "$image" "$work/layers.raw"

step "qemu-img bench: writes past the cache, with flushes"
qemu-img create -q -f qcow2 "$mnt/bench.qcow2" 256M
qemu-img bench -q -f qcow2 -t none -w -c 5000 -d 16 -s 16k -S 49152 --flush-interval=500 "$mnt/bench.qcow2"
qemu-img check -q "$mnt/bench.qcow2"

reclaim
remount
step "all of it again"
cmp "$raw" "$work/disk.raw"
for format_file in "$work"/converted-*.format; do
    number=$(basename "$format_file" .format)
    format=$(cat "$format_file")
    qemu-img compare -f raw -F "$format" "$work/disk.raw" "$mnt/$number" >/dev/null || fail "$number differs after a remount"
    [ "$format" = raw ] || qemu-img check -q -f "$format" "$mnt/$number"
done
for cache in writeback none directsync; do
    for format in raw qcow2; do
        qemu-img compare -f $format -F raw "$mnt/io-$cache.$format" "$work/io-$cache.$format.raw" >/dev/null || fail "io-$cache.$format differs after a remount"
    done
done
qemu-img compare -f qcow2 -F raw "$image" "$work/layers.raw" >/dev/null || fail "the layers differ after a remount"
close_pool
