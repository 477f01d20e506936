#!/usr/bin/env bash
# Cuts the power of a real block device under a pool at random moments, and checks the device's content.
#
#   tools/power-soak.sh [ROUNDS] [--seed S] [--directory DIR]       [default: 50 rounds]; as root
#
# The device is a loop device with ext4 or XFS (in turns, with and without a separate data root), whose image lies on a
# separate XFS. A reflink of the image holds everything that the device holds at that moment, and nothing that the
# kernel still caches for it (the loop device writes past the page cache). Such a copy is made amid fsync, rsync, put,
# appending, deleting and reclaiming. It is mounted beside the original: everything acknowledged before must be there
# byte for byte; the pool is clean, and takes new files. A volatile cache of the device itself is not simulated, for a
# write that the device acknowledged is in the image (tests/crash does that). See tools/soak/common.sh for the
# variables.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/soak/common.sh
. tools/soak/common.sh

soak_arguments 50 "$@"
[ "$(id -u)" = 0 ] || fail "this needs root: it attaches loop devices"
need_fuse >&2
need mkfs.xfs=xfsprogs mkfs.ext4=e2fsprogs losetup=mount rsync=rsync openssl=openssl >&2
# Programs of sbin, in case root's path lacks it.
PATH=$PATH:/usr/sbin:/sbin
need_room "$scratch_parent" $((8 << 30)) "the images"
soak_begin dedupfs dedupfs-gc dedupfs-stats

# Power losses of one filesystem before the next is made.
losses_of_a_life=5
kept_trees=4

goes_on() { [ ! -e "$life/stop" ]; }
stopped() { goes_on || exit 0; }

# ---- the work. Acknowledged files are noted at once in $life/acked: lists of checksums. Files about to be deleted are
# noted in $life/leaving before. A writer that fails before it is told to stop is a failure of the soak.

failed_writer() {
    stopped
    printf '%s\n' "$*" >>"$life/failed"
    exit 1
}

# Writes small and larger files, each synced; deletes the oldest directories.
sync_files() {
    local directory number file bytes sum
    for ((directory = 0; ; directory++)); do
        mkdir -p "$mnt/synced/$directory" || failed_writer "mkdir synced/$directory"
        for ((number = 0; number < 30; number++)); do
            stopped
            choose "$lives" "$directory" "$number" 60000
            bytes=$((REPLY + 1))
            [ $((number % 13)) != 7 ] || bytes=$((bytes * 25))
            file=synced/$directory/$number
            random_bytes "$lives $file" "$bytes" >"$life/content"
            sum=$(sha256sum <"$life/content")
            dd if="$life/content" of="$mnt/$file" bs=50k conv=fsync status=none || failed_writer "$file is not synced"
            printf '%s  %s\n' "${sum%% *}" "$file" >>"$life/acked/synced-$directory"
        done
        if [ $directory -ge 6 ]; then
            : >"$life/leaving/synced-$((directory - 6))"
            rm -rf "$mnt/synced/$((directory - 6))" || failed_writer "rm synced/$((directory - 6))"
        fi
    done
}

# Appends pieces to one file, each synced: any crash leaves a beginning of it.
append() {
    local piece
    random_bytes "$lives stream" $((48 << 20)) >"$life/stream"
    for ((piece = 0; piece < 1200; piece++)); do
        stopped
        dd if="$life/stream" of="$mnt/appended" bs=40000 skip=$piece seek=$piece count=1 conv=notrunc,fsync status=none ||
            failed_writer "piece $piece is not synced"
        printf '%s\n' $(((piece + 1) * 40000)) >"$life/appended.new"
        mv "$life/appended.new" "$life/appended"
    done
}

# copy_trees KIND: copies a changing tree again and again: by rsync and `dedupfs sync`, or by put.
copy_trees() {
    local kind=$1 number source=$life/source-$1 name
    make_files "$source" "$lives $kind" 100 12000
    for ((number = 0; ; number++)); do
        stopped
        name=$kind-$number
        random_bytes "$lives $name" 300000 >"$source/new-$((number % 5))"
        random_bytes "$lives $name" 9000 | dd of="$source/large" bs=9000 seek=$((number % 30)) conv=notrunc status=none
        sums "$source" "$name" >"$life/list-$kind"
        if [ "$kind" = put ]; then
            dedupfs put "$source" "$mnt/$name" >"$life/put.log" 2>&1 || failed_writer "put: $(cat "$life/put.log")"
        else
            rsync -a "$source/" "$mnt/$name/" >"$life/rsync.log" 2>&1 || failed_writer "rsync: $(cat "$life/rsync.log")"
            dedupfs sync "$mnt" >"$life/sync.log" 2>&1 || failed_writer "sync: $(cat "$life/sync.log")"
        fi
        mv "$life/list-$kind" "$life/acked/$name"
        if [ $number -ge $kept_trees ]; then
            name=$kind-$((number - kept_trees))
            : >"$life/leaving/$name"
            rm -rf "${mnt:?}/$name" || failed_writer "rm $name"
        fi
    done
}

reclaim() {
    while goes_on; do
        "${programs[dedupfs-gc]}" --threshold 60 "$mnt" >"$life/gc.log" 2>&1 || failed_writer "gc: $(tail -n 3 "$life/gc.log")"
        sleep 0.3
    done
}

# ---- a life: a new filesystem and pool, work, and power losses amid it

begin_life() {
    lives=$((lives + 1))
    life=$work/life-$lives
    mkdir -p "$life/acked" "$life/leaving" "$life/mnt"
    mnt=$life/mnt
    type=ext4
    [ $((lives % 2)) = 1 ] || type=xfs
    truncate -s 5G "$work/store/disk"
    attach "$work/store/disk" && disk=$REPLY
    case $type in
        ext4) mkfs.ext4 -q "$disk" ;;
        xfs) mkfs.xfs -q "$disk" ;;
    esac
    mount_image "$disk" "$work/disk"
    data=()
    [ $((lives % 4)) -lt 2 ] || data=(--data "$work/disk/pool/data")
    dedupfs mkfs --container-size 1M --tanker-cells 4K --tanker-buckets 16 "${data[@]}" "$work/disk/pool" >/dev/null
    mount_pool "$work/disk/pool" "$mnt"
    first_of_life=${#processes[@]}
    start sync_files
    start append
    start copy_trees rsync
    start copy_trees put
    start reclaim
}

end_life() {
    : >"$life/stop"
    wait "${processes[@]:first_of_life}" || true
    processes=("${processes[@]:0:first_of_life}")
    check_writers
    unmount_pool "$mnt"
    unmount_image "$work/disk"
    detach "$disk"
    rm -rf "$life" "$work/store/disk"
}

check_writers() { [ ! -e "$life/failed" ] || fail "a writer failed: $(cat "$life/failed")"; }

# Everything acknowledged when the copy began is in it, unless its deletion had begun when the copy ended.
cut_power() {
    local appended=0 list
    rm -rf "$work/cut"
    mkdir -p "$work/cut/mnt"
    [ ! -e "$life/appended" ] || appended=$(cat "$life/appended")
    cp -r "$life/acked" "$work/cut/acked"
    cp --reflink=always "$work/store/disk" "$work/store/cut"
    for list in "$life"/leaving/*; do rm -f "$work/cut/acked/${list##*/}"; done
    : >"$work/cut/list"
    cat "$work"/cut/acked/* >"$work/cut/list" 2>/dev/null || true
    check_cut "$appended"
    rm -f "$work/store/cut"
}

check_cut() {
    local options=() pool=$work/image/pool mnt=$work/cut/mnt device log=$work/cut/log found files
    local what="round $round ($type, seed $seed)"
    attach "$work/store/cut" && device=$REPLY
    # Its twin with the same UUID is mounted.
    [ $type = ext4 ] || options=(-o nouuid)
    mount_image "$device" "$work/image" "${options[@]}"
    within 120 "${programs[dedupfs]}" fsck "$pool" >"$log" 2>&1 || fail "$what: fsck before the mount: $(tail -n 20 "$log")"
    # A data root within the meta root moves with it: this is the copy's.
    mount_pool "$pool" "$mnt"
    if ! (cd "$mnt" && sha256sum --quiet -c "$work/cut/list") >"$log" 2>&1; then
        fail "$what: what was acknowledged is not there: $(head -n 10 "$log")"
    fi
    found=$(stat -c %s "$mnt/appended" 2>/dev/null || echo 0)
    [ "$found" -ge "$1" ] || fail "$what: $1 bytes were appended and synced, $found are there"
    [ "$found" = 0 ] || cmp -n "$found" "$mnt/appended" "$life/stream" || fail "$what: what was appended is other now"
    files=$(wc -l <"$work/cut/list")
    dedupfs put "$work/fresh" "$mnt/fresh" >"$log" 2>&1 || fail "$what: no put afterwards: $(cat "$log")"
    diff -r "$work/fresh" "$mnt/fresh" >"$log" || fail "$what: the new tree is other: $(head "$log")"
    "${programs[dedupfs-gc]}" "$mnt" >"$log" 2>&1 || fail "$what: no gc afterwards: $(cat "$log")"
    unmount_pool "$mnt"
    within 300 "${programs[dedupfs]}" fsck --read-data "$pool" >"$log" 2>&1 || fail "$what: fsck: $(tail -n 20 "$log")"
    grep -q clean "$log" || fail "$what: fsck does not say clean: $(cat "$log")"
    found=$(panics "$pool"/dedupfs.log*)
    [ -z "$found" ] || fail "$what: $found"
    unmount_image "$work/image"
    detach "$device"
    checked=$((checked + files))
    say "$what: $files files and $1 bytes appended were acknowledged and are there"
}

make_files "$work/fresh" fresh 40 20000
truncate -s 20G "$work/store.img"
attach "$work/store.img" && store=$REPLY
mkfs.xfs -q -m reflink=1 "$store"
mount_image "$store" "$work/store"
lives=0 checked=0
for ((round = 1; round <= rounds; round++)); do
    [ $(((round - 1) % losses_of_a_life)) != 0 ] || begin_life
    choose "$round" 4500
    sleep "$(calculate "0.3 + $REPLY / 1000")"
    check_writers
    cut_power
    [ $((round % losses_of_a_life)) != 0 ] || end_life
done
[ $((rounds % losses_of_a_life)) = 0 ] || end_life
[ $checked -gt $((rounds * 10)) ] || fail "only $checked files were checked: hardly anything was tested"
soak_end "$rounds power losses, $checked acknowledged files, none lost and none other"
