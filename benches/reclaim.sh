#!/usr/bin/env bash
# A pool measured empty, filled, everything deleted, reclaimed, and measured again: it must be back within 2% of its empty
# size (reclaimed too), by du and by dedupfs-stats, mounted and not.
#
#   benches/reclaim.sh [--size 512M] [--files 5000] [--rounds 2] [--dir DIR] [--mkfs OPTIONS] [--mount OPTIONS]
#
#   --size SIZE       of the random and of the real data that fill it; about twice SIZE is needed in memory and on disk
#   --files NUMBER    small files that fill it besides
#   --rounds NUMBER   of filling and deleting, in one pool
#   --dir DIR         [default: TMPDIR or /var/tmp]
#
# Uses the programs in DEDUPFS_BIN, or builds them.
# shellcheck disable=SC2154 # common.sh has the other side
set -euo pipefail
# shellcheck source=benches/common.sh
. "$(dirname "$0")/common.sh"

size=512M files=5000 rounds=2 dir=${TMPDIR:-/var/tmp} mkfs_options=() mount_options=()
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) help ;;
        --*) [ $# -ge 2 ] || usage "$1 needs a value" ;;&
        --size) size=$2 ;;
        --files) files=$2 ;;
        --rounds) rounds=$2 ;;
        --dir) dir=$2 ;;
        --mkfs) read -r -a mkfs_options <<<"$2" ;;
        --mount) read -r -a mount_options <<<"$2" ;;
        *) usage "unknown argument $1" ;;
    esac
    shift 2
done
parse_size "$size" && size_bytes=$REPLY
parse_count "$files" && files=$REPLY
parse_count "$rounds" && rounds=$REPLY

find_programs dedupfs dedupfs-stats dedupfs-gc
need_commands cp findmnt split
make_scratch "$dir" && work=$REPLY
need_memory $((2 * size_bytes + files * 4096 + (512 << 20)))
need_room "$work" $((2 * size_bytes + files * 4096 + (256 << 20))) "the measurement"
make_scratch /dev/shm && ram=$REPLY
pool=$work/pool mnt=$work/mnt
mkdir "$mnt" "$ram/source" "$ram/source/small"
random_bytes reclaim "$size_bytes" >"$ram/source/random"
real_data "$ram/source/real" "$size_bytes"
random_bytes small $((files * 4096)) | (cd "$ram/source/small" && split -b 4096 -a 6 -d - f)

describe_machine "$work"
printf '\n| | by dedupfs-stats | by du | content | recipes | namespace | index |\n|---|---|---|---|---|---|---|\n'
# measure TITLE TARGET: sets STATS_BYTES and DU_BYTES.
measure() {
    local cells='' name
    read_stats "$2"
    stat_field physical_bytes && STATS_BYTES=$REPLY
    DU_BYTES=$(disk_bytes "$pool")
    for name in data_container_bytes recipe_container_bytes namespace_bytes index_bytes; do
        stat_field $name && cells+=" $REPLY |"
    done
    printf '| %s | %s | %s |%s\n' "$1" "$STATS_BYTES" "$DU_BYTES" "$cells"
}
failures=0
# back_to EMPTY NOW WHAT
back_to() {
    if [ $(($2 * 100)) -gt $(($1 * 102)) ]; then
        say "$3: $2 bytes, $(calculate "100 * ($2 - $1) / $1" %.1f)% over the empty pool's $1"
        failures=$((failures + 1))
    fi
}

dedupfs mkfs "${mkfs_options[@]}" "$pool" >&2
measure 'as formatted' "$pool"
mount_pool "$pool" "$mnt" "${mount_options[@]}"
measure 'empty, mounted' "$mnt"
reclaim() { timed "${programs[dedupfs-gc]}" "$1" >&2; }
reclaim "$mnt"
measure 'empty, mounted, reclaimed' "$mnt"
empty_stats=$STATS_BYTES empty_du=$DU_BYTES
unmount_pool "$mnt"
# Pages that the commit before the last one replaced are still there: an empty pool's size changes a little with every
# mount. What it comes to by itself is what it may come to again.
empty_closed_stats=0 empty_closed_du=0
for ((time = 1; time <= 5; time++)); do
    measure "empty, not mounted, $time" "$pool"
    [ "$empty_closed_stats" -ge "$STATS_BYTES" ] || empty_closed_stats=$STATS_BYTES
    [ "$empty_closed_du" -ge "$DU_BYTES" ] || empty_closed_du=$DU_BYTES
    mount_pool "$pool" "$mnt" "${mount_options[@]}"
    reclaim "$mnt"
    unmount_pool "$mnt"
done
for ((round = 1; round <= rounds; round++)); do
    mount_pool "$pool" "$mnt" "${mount_options[@]}"
    cp -r "$ram/source" "$mnt/first"
    cp -r "$ram/source/real" "$mnt/second"
    dedupfs sync "$mnt"
    measure "round $round, filled" "$mnt"
    diff -r "$ram/source" "$mnt/first" >&2 || fail "round $round: content differs"
    # A half-deleted pool keeps what is left.
    rm -rf "$mnt/first"
    reclaim "$mnt"
    diff -r "$ram/source/real" "$mnt/second" >&2 || fail "round $round: what was left differs after reclaiming"
    measure "round $round, half deleted, reclaimed in $TAKEN s" "$mnt"
    rm -rf "$mnt/second"
    reclaim "$mnt"
    measure "round $round, all deleted, reclaimed in $TAKEN s" "$mnt"
    back_to "$empty_stats" "$STATS_BYTES" "round $round, mounted, dedupfs-stats"
    back_to "$empty_du" "$DU_BYTES" "round $round, mounted, du"
    unmount_pool "$mnt"
    measure "round $round, not mounted" "$pool"
    back_to "$empty_closed_stats" "$STATS_BYTES" "round $round, not mounted, dedupfs-stats"
    back_to "$empty_closed_du" "$DU_BYTES" "round $round, not mounted, du"
    dedupfs fsck "$pool" >&2
done
[ $failures = 0 ] || fail "$failures sizes are more than 2% over the empty pool's"
say "back to the empty size after every round"
