#!/usr/bin/env bash
# Ordinary copying by hand: cp -a --sparse=always, cp --reflink=auto, install, mv into, within and out of the mount,
# dumps through pipelines (cat, dd with its ways to write), files written through shared mappings.
#
#   tests/clients/copies.sh [DIRECTORY]     parent of the scratch directory [default: TMPDIR or /var/tmp]
#
# See common.sh for the variables.
# shellcheck disable=SC2154 # common.sh has them
set -euo pipefail
# shellcheck source=tests/clients/common.sh
. "$(dirname "$0")/common.sh"
client_arguments "$@"
need dd=coreutils setfattr=attr setfacl=acl fio=fio >&2
open_pool

step "cp -a --sparse=always, --sparse=never, --reflink=auto, install, mv"
make_tree "$work/tree"
cp -a --sparse=always "$work/tree" "$mnt/always"
cp -a --sparse=never "$work/tree" "$mnt/never"
cp -a --reflink=auto "$mnt/always" "$mnt/reflink"
for copy in always never reflink; do expect_same_trees "$work/tree" "$mnt/$copy"; done
# Holes are holes however they came: a hundred MiB of them take next to nothing, and can be found.
for copy in always never reflink; do
    blocks=$(stat -c %b "$mnt/$copy/sparse")
    [ "$blocks" -le 1024 ] || fail "$copy/sparse has $blocks blocks of data"
done
cp -a --sparse=auto "$mnt/always/sparse" "$work/sparse.out"
cmp "$work/sparse.out" "$work/tree/sparse"
[ "$(stat -c %b "$work/sparse.out")" -le 4096 ] || fail "a copy out of the mount has lost its holes"
install -D -m 4751 "$work/tree/large" "$mnt/installed/a/b/large"
expect "$(stat -c %a "$mnt/installed/a/b/large")" 4751 "the mode that install set"
install -m 600 "$work/tree/numbers" "$mnt/installed/a/b/large"
cmp "$work/tree/numbers" "$mnt/installed/a/b/large"
install -d -m 2775 "$mnt/installed/directory"
expect "$(stat -c %a "$mnt/installed/directory")" 2775 "the mode of the directory that install made"
cp -a "$work/tree" "$work/moved"
mv "$work/moved" "$mnt/moved"
mv "$mnt/moved" "$mnt/installed/moved again"
mv -T "$mnt/installed/moved again" "$mnt/moved"
mv "$mnt/moved" "$work/moved"
expect_same_trees "$work/tree" "$work/moved"
expect_same_trees "$work/tree" "$mnt/never"
cp --backup=numbered "$work/tree/large" "$mnt/installed/backup"
cp --backup=numbered "$work/tree/numbers" "$mnt/installed/backup"
cmp "$work/tree/large" "$mnt/installed/backup.~1~"
ln -f "$mnt/installed/backup" "$mnt/installed/linked"
cp -fu "$work/tree/large" "$mnt/installed/linked"

step "dumps by pipelines"
random_bytes dump 60000000 >"$work/dump"
seq 1 3000000 >>"$work/dump"
sha256sum <"$work/dump" >"$work/dump.sum"
dump() { gzip -dc "$work/dump.gz"; }
gzip -1 <"$work/dump" >"$work/dump.gz"
dump | cat >"$mnt/cat"
dump | dd of="$mnt/dd" bs=1M iflag=fullblock status=none
dump | dd of="$mnt/dd-odd" bs=7777 status=none
dump | dd of="$mnt/dd-fsync" bs=64k conv=fsync status=none
dump | dd of="$mnt/dd-sparse" bs=64k iflag=fullblock conv=sparse status=none
dd if="$work/dump" of="$mnt/dd-direct" bs=1M oflag=direct status=none 2>/dev/null || fail "dd oflag=direct"
head -c 4000000 "$work/dump" | dd of="$mnt/dd-sync" bs=256k iflag=fullblock oflag=sync status=none
tee "$mnt/tee-1" "$mnt/tee-2" <"$work/dump" | gzip -1 >"$mnt/gzip.gz"
# Two halves by two concurrent writers, then in pieces in reverse order.
half=$((32 * 1048576))
dd if="$work/dump" of="$mnt/halves" bs=1M skip=$((half / 1048576)) seek=$((half / 1048576)) conv=notrunc status=none &
second=$!
dd if="$work/dump" of="$mnt/halves" bs=1M count=$((half / 1048576)) conv=notrunc status=none
wait $second
pieces=$((($(stat -c %s "$work/dump") + 1048575) / 1048576))
for ((piece = pieces - 1; piece >= 0; piece--)); do
    dd if="$work/dump" of="$mnt/reverse" bs=1M skip=$piece seek=$piece count=1 conv=notrunc status=none
done
# Concurrent appenders to one log lose no line.
appenders=()
for writer in 1 2 3 4; do
    (for line in {1..500}; do echo "writer $writer line $line" >>"$mnt/log"; done) &
    appenders+=($!)
done
wait "${appenders[@]}"
verify_dumps() {
    local name
    for name in cat dd dd-odd dd-fsync dd-sparse dd-direct tee-1 tee-2 halves reverse; do
        sha256sum <"$mnt/$name" | cmp -s - "$work/dump.sum" || fail "$name is not what was written"
    done
    head -c 4000000 "$work/dump" | cmp - "$mnt/dd-sync"
    gzip -dc "$mnt/gzip.gz" | sha256sum | cmp -s - "$work/dump.sum" || fail "gzip.gz is not what was written"
    expect "$(sort -u "$mnt/log" | wc -l)" 2000 "lines of four writers that append to one log"
}
verify_dumps

step "shared mappings (fio, verified)"
for engine in mmap psync; do
    # fio writes and verifies its own patterns: through a mapping, and read through the same or by read(2).
    fio --name="$engine" --directory="$mnt" --filename=mapped-$engine --size=48M --rw=randwrite --bsrange=4k-96k \
        --ioengine=mmap --verify=crc32c --verify_fatal=1 --do_verify=1 --verify_state_save=0 --fsync=64 --end_fsync=1 --randseed=7 \
        --output="$work/fio.$engine.log" || fail "fio: $(tail -n 20 "$work/fio.$engine.log")"
    sha256sum <"$mnt/mapped-$engine" >"$work/mapped-$engine.sum"
done

reclaim
remount
step "all of it again"
for copy in always never reflink; do expect_same_trees "$work/tree" "$mnt/$copy"; done
verify_dumps
for engine in mmap psync; do
    sha256sum <"$mnt/mapped-$engine" | cmp -s - "$work/mapped-$engine.sum" || fail "mapped-$engine changed by a remount"
done
close_pool
