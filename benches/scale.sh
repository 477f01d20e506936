#!/usr/bin/env bash
# What the size of a pool and the number of writers do to rates: at each size a file of new random data is backed up, backed up
# again, and restored after a new mount; at the largest size as many files as there are writers are written at the same time.
# Prints Markdown tables.
#
#   benches/scale.sh [--sizes "1G 10G 40G"] [--probe 1G] [--writers "1 2 4 8"] [--runs 3] [--dir DIR] [--mkfs OPTIONS] [--mount OPTIONS]
#                    [--drop-caches]
#
#   --sizes LIST      of the pool, ascending: so much random data is in it before the file is written
#   --probe SIZE      of the file, which lies in memory, and of what all writers together write; three times SIZE is needed there
#   --writers LIST    at the same time; empty: none
#   --runs NUMBER     medians are of so many runs; each writes other data
#   --dir DIR         on the filesystem to measure; it needs the largest of the sizes and some ten times SIZE [default: TMPDIR or /var/tmp]
#   --mkfs OPTIONS    for dedupfs mkfs
#   --mount OPTIONS   for dedupfs mount
#   --drop-caches     empty all caches of the machine before restores (root), not only those of the pool
#
# Uses the programs in DEDUPFS_BIN, or builds them. Progress and every single figure go to the standard error output.
# Changes nothing outside of temporary directories, which it removes.
# shellcheck disable=SC2034,SC2154,SC2317 # common.sh has the other side; functions are called through others
set -euo pipefail
# shellcheck source=benches/common.sh
. "$(dirname "$0")/common.sh"
# shellcheck source=benches/workloads.sh
. "$(dirname "$0")/workloads.sh"

sizes='1G 10G 40G' probe=1G writers='1 2 4 8' runs=3 dir=${TMPDIR:-/var/tmp} mkfs_options=() mount_options=() drop_caches=
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) help ;;
        --drop-caches)
            drop_caches=1
            shift
            continue
            ;;
        --*) [ $# -ge 2 ] || usage "$1 needs a value" ;;&
        --sizes) sizes=$2 ;;
        --probe) probe=$2 ;;
        --writers) writers=$2 ;;
        --runs) runs=$2 ;;
        --dir) dir=$2 ;;
        --mkfs) read -r -a mkfs_options <<<"$2" ;;
        --mount) read -r -a mount_options <<<"$2" ;;
        *) usage "unknown argument $1" ;;
    esac
    shift 2
done
parse_size "$probe" && probe_bytes=$REPLY
parse_count "$runs" && runs=$REPLY
[ "$probe_bytes" -ge 1048576 ] || usage "--probe must be 1M or more"
sizes_bytes=() before=0
for size in $sizes; do
    parse_size "$size"
    [ "$REPLY" -gt "$before" ] || usage "--sizes must ascend"
    sizes_bytes+=("$REPLY") before=$REPLY
done
[ ${#sizes_bytes[@]} -gt 0 ] || usage "--sizes is empty"
writer_counts=()
for count in $writers; do parse_count "$count" && writer_counts+=("$REPLY"); done

find_programs dedupfs dedupfs-stats
need_commands cat cp cmp sync mountpoint findmnt
need_memory $((3 * probe_bytes + (1 << 30)))
make_scratch "$dir" && work=$REPLY
make_scratch /dev/shm && ram=$REPLY
need_room "$work" $((before + (${#sizes_bytes[@]} + ${#writer_counts[@]} + 2) * runs * probe_bytes + (1 << 30))) "the measurement"
pool=$work/pool mnt=$work/mnt results=$work/results run=0 daemon=''
mkdir "$mnt"
machine=$(describe_machine "$work")

write_file() {
    cp "$1" "$2"
    sync "$2"
}
read_file() { cp "$1" "$2"; }
write_all() {
    local at pids=()
    for ((at = 1; at <= $1; at++)); do
        write_file "$ram/part-$at" "$mnt/$2-$at" &
        pids+=($!)
    done
    for at in "${pids[@]}"; do wait "$at"; done
}
mount_cold() {
    cold "$pool"
    timed mount_pool "$pool" "$mnt" "${mount_options[@]}"
    daemon=$(daemon_of "$pool")
}
end_mount() {
    peak_bytes "$daemon" && note "memory $1" dedupfs "$REPLY"
    unmount_pool "$mnt"
}

dedupfs mkfs "${mkfs_options[@]}" "$pool" >&2
mount_cold
held=0 piece=$((256 << 20))
for size in "${sizes_bytes[@]}"; do
    say "filling the pool to $(human "$size")"
    while [ "$held" -lt "$size" ]; do
        now=$((size - held < piece ? size - held : piece))
        random_bytes "fill $held" "$now" >"$mnt/fill-$held"
        held=$((held + now))
    done
    dedupfs sync "$mnt"
    unmount_pool "$mnt"
    mount_cold
    note "mount $size" dedupfs "$TAKEN"
    for ((run = 1; run <= runs; run++)); do
        random_bytes "probe $size $run" "$probe_bytes" >"$ram/probe"
        record "new $size" dedupfs "$probe_bytes" "$daemon" write_file "$ram/probe" "$mnt/probe-$run"
        record "repeated $size" dedupfs "$probe_bytes" "$daemon" write_file "$ram/probe" "$mnt/again-$run"
        end_mount "$size"
        mount_cold
        # What was just freed is touched again.
        cp "$ram/probe" "$ram/out" && rm "$ram/out"
        record "restore $size" dedupfs "$probe_bytes" "$daemon" read_file "$mnt/probe-$run" "$ram/out"
        cmp "$ram/probe" "$ram/out" || fail "what was restored is not what was backed up"
        rm "$ram/out" "$mnt/probe-$run" "$mnt/again-$run"
    done
done
for count in "${writer_counts[@]}"; do
    for ((run = 1; run <= runs; run++)); do
        for ((at = 1; at <= count; at++)); do random_bytes "writer $count $run $at" $((probe_bytes / count)) >"$ram/part-$at"; done
        record "writers $count" dedupfs $((probe_bytes / count * count)) "$daemon" write_all "$count" "writer-$count-$run"
        record "writers again $count" dedupfs $((probe_bytes / count * count)) "$daemon" write_all "$count" "again-$count-$run"
        rm "$ram"/part-*
    done
done
unmount_pool "$mnt"

printf '%s\n' "$machine"
printf -- '- medians of %d runs, %s; load average at the end %s\n' "$runs" "$(date -u +%Y-%m-%d)" "$(cut -d' ' -f1-3 /proc/loadavg)"
printf -- '- a file of %s of random data, in memory; what was written is synced within the time; restores are cold\n' "$(human "$probe_bytes")"
printf '\n| random data in the pool | new, MB/s | again, MB/s | restored, MB/s | memory at most, MiB | mounted in, s |\n|---|---|---|---|---|---|\n'
for size in "${sizes_bytes[@]}"; do
    printf '| %s | %s | %s | %s | %s | %s |\n' "$(human "$size")" "$(calculate "$(median "new $size" dedupfs) / 1e6" %.0f)" \
        "$(calculate "$(median "repeated $size" dedupfs) / 1e6" %.0f)" "$(calculate "$(median "restore $size" dedupfs) / 1e6" %.0f)" \
        "$(calculate "$(values "memory $size" dedupfs | tail -n 1) / 1048576" %.0f)" "$(calculate "$(median "mount $size" dedupfs)")"
done
if [ ${#writer_counts[@]} -gt 0 ]; then
    printf '\n| writers at the same time | new, MB/s in all | again, MB/s in all |\n|---|---|---|\n'
    for count in "${writer_counts[@]}"; do
        printf '| %s | %s | %s |\n' "$count" "$(calculate "$(median "writers $count" dedupfs) / 1e6" %.0f)" \
            "$(calculate "$(median "writers again $count" dedupfs) / 1e6" %.0f)"
    done
fi
