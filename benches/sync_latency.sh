#!/usr/bin/env bash
# How long small synced writes take while the index is busy beside them: with sealing a tanker, or with counting what is freed.
#
#   benches/sync_latency.sh [--while write|free] [--size 5G] [--dir DIR] [--memory 1G]
#
#   --while write  while random data is written [default]
#   --while free   while dedupfs-gc frees the recipes of such data, which was written and deleted before
#   --size SIZE    of the random data, in chunks of 4 KiB: 4G fill a tanker of 2^20 fingerprints (with `free` tankers are a quarter of that)
#   --dir DIR      [default: TMPDIR or /var/tmp]
#   --memory SIZE  of the mount; with less than 1G tankers are sealed before they are full
#
# Uses the programs in DEDUPFS_BIN, or builds them.
# shellcheck disable=SC2154 # common.sh has the other side
set -euo pipefail
# shellcheck source=benches/common.sh
. "$(dirname "$0")/common.sh"

what=write size=5G dir=${TMPDIR:-/var/tmp} memory=1G
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) help ;;
        --*) [ $# -ge 2 ] || usage "$1 needs a value" ;;&
        --while) what=$2 ;;
        --size) size=$2 ;;
        --dir) dir=$2 ;;
        --memory) memory=$2 ;;
        *) usage "unknown argument $1" ;;
    esac
    shift 2
done
[ "$what" = write ] || [ "$what" = free ] || usage "--while write or free, not $what"
parse_size "$size" && size_bytes=$REPLY
find_programs dedupfs dedupfs-stats dedupfs-gc
need_commands dd openssl findmnt
make_scratch "$dir" && work=$REPLY
need_room "$work" $((size_bytes + (2 << 30))) "the measurement"
mnt=$work/mnt
mkdir "$mnt"

describe_machine "$work"
# Random bytes as fast as the processor makes them.
write_big() {
    { openssl enc -aes-128-ctr -K 00112233445566778899aabbccddeeff -iv 0 -in /dev/zero 2>/dev/null || true; } |
        dd of="$mnt/big" bs=1M count="$size_bytes" iflag=fullblock,count_bytes 2>"$work/beside"
}
if [ "$what" = write ]; then
    dedupfs mkfs --chunk-size 4K "$work/pool" >&2
    mount_pool "$work/pool" "$mnt" --memory "$memory"
    write_big &
else
    dedupfs mkfs --chunk-size 4K --tanker-cells 262144 "$work/pool" >&2
    mount_pool "$work/pool" "$mnt" --memory "$memory"
    write_big
    # Nothing of the index is in memory but what it keeps there.
    unmount_pool "$mnt"
    mount_pool "$work/pool" "$mnt" --memory "$memory"
    rm "$mnt/big"
    dedupfs-gc "$mnt" >"$work/beside" &
fi
writer=$!
number=0
while kill -0 "$writer" 2>/dev/null; do
    # Not in the pipeline, whose parts are shells of their own: it would be the same file again and again.
    number=$((number + 1))
    start=${EPOCHREALTIME/./}
    printf 'synced %d' "$number" | dd of="$mnt/$number" conv=fsync status=none
    printf '%d\n' $((${EPOCHREALTIME/./} - start)) >>"$work/times_us"
    sleep 0.05
done
wait "$writer"
read_stats "$mnt"
stat_field chunk_index.sealed_tankers && tankers=$REPLY
unmount_pool "$mnt"
sort -n "$work/times_us" | awk -v tankers="$tankers" '
    { times[NR] = $1 / 1000 }
    END {
        printf "%d synced files of some bytes, %d tankers sealed meanwhile: median %.0f ms, 90%% %.0f ms, 99%% %.0f ms, longest %.0f ms\n",
            NR, tankers, times[int((NR + 1) / 2)], times[int(NR * 0.9)], times[int(NR * 0.99)], times[NR]
    }'
tail -n 1 "$work/beside"
