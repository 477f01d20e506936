#!/usr/bin/env bash
# How fast a pool is checked: dedupfs scrub, fsck, fsck --read-data and fsck --rebuild-index (with and without --read-data),
# each with an empty page cache, beside reading the pool's slot files with cat and with dd past the cache.
#
#   benches/check.sh [--size 1G] [--dir DIR] [--mkfs OPTIONS] [--mount OPTIONS]
#
#   --size SIZE       of the content: half random, half real; about twice SIZE is needed on disk and once in memory
#   --dir DIR         [default: TMPDIR or /var/tmp]
#
# Uses the programs in DEDUPFS_BIN, or builds them.
# shellcheck disable=SC2154 # common.sh has the other side
set -euo pipefail
# shellcheck source=benches/common.sh
. "$(dirname "$0")/common.sh"

size=1G dir=${TMPDIR:-/var/tmp} mkfs_options=() mount_options=()
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) help ;;
        --*) [ $# -ge 2 ] || usage "$1 needs a value" ;;&
        --size) size=$2 ;;
        --dir) dir=$2 ;;
        --mkfs) read -r -a mkfs_options <<<"$2" ;;
        --mount) read -r -a mount_options <<<"$2" ;;
        *) usage "unknown argument $1" ;;
    esac
    shift 2
done
parse_size "$size" && size_bytes=$REPLY

find_programs dedupfs dedupfs-stats
need_commands cp findmnt split dd
make_scratch "$dir" && work=$REPLY
need_memory $((size_bytes + (512 << 20)))
need_room "$work" $((2 * size_bytes + (256 << 20))) "the measurement"
make_scratch /dev/shm && ram=$REPLY
pool=$work/pool mnt=$work/mnt
mkdir "$mnt" "$ram/source"
random_bytes check $((size_bytes / 2)) >"$ram/source/random"
real_data "$ram/source/real" $((size_bytes / 2))
dedupfs mkfs "${mkfs_options[@]}" "$pool" >/dev/null
mount_pool "$pool" "$mnt" "${mount_options[@]}"
cp -r "$ram/source" "$mnt/"
unmount_pool "$mnt"
rm -rf "$ram/source"
sync

read_stats "$pool"
stat_field unique_chunk_bytes && content=$REPLY
slots=("$pool"/containers/*.slots "$pool"/recipes/*.slots)
disk=$(du -c -B1 "${slots[@]}" | tail -n 1 | cut -f1)

describe_machine "$work"
printf -- '- %s of different content in %s of slot files\n' "$(exact "$content")" "$(exact "$disk")"
printf '\n| | seconds | MB/s of content | MB/s of disk |\n|---|---|---|---|\n'
# measure TITLE COMMAND...
measure() {
    local title=$1
    shift
    evict "$pool"
    timed "$@" >/dev/null
    printf '| %s | %s | %s | %s |\n' "$title" "$TAKEN" "$(rate "$content" "$TAKEN")" "$(rate "$disk" "$TAKEN")"
}
read_direct() {
    local file
    for file in "${slots[@]}"; do dd if="$file" of=/dev/null bs=4M iflag=direct status=none; done
}
measure 'cat of the slot files' cat "${slots[@]}"
measure 'dd of the slot files, direct' read_direct
measure 'scrub, not mounted' dedupfs scrub --restart "$pool"
mount_pool "$pool" "$mnt" "${mount_options[@]}"
measure 'scrub, mounted' dedupfs scrub --restart "$mnt"
unmount_pool "$mnt"
measure 'fsck' dedupfs fsck "$pool"
measure 'fsck --read-data' dedupfs fsck --read-data "$pool"
measure 'fsck --rebuild-index' dedupfs fsck --rebuild-index "$pool"
measure 'fsck --rebuild-index --read-data' dedupfs fsck --rebuild-index --read-data "$pool"
