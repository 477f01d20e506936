#!/usr/bin/env bash
# The filesystem against its goals: backup and restore through the mount, beside the same commands on the backing filesystem
# and on a FUSE filesystem that stores nothing, and beside what the processors can compress and decompress. Prints a
# Markdown table of rates, ratios and goals, those that are missed included.
#
#   benches/targets.sh [--size 1G] [--files 20000] [--runs 5] [--series DIR] [--dir DIR] [--mkfs OPTIONS] [--mount OPTIONS]
#                      [--drop-caches]
#
#   --size SIZE       of each of the two data sets, random and real; both lie in memory, four times SIZE is needed there
#   --files NUMBER    small files of 4 KiB
#   --runs NUMBER     medians are of so many runs; every run starts with a new, empty pool
#   --series DIR      versions of one tree, a directory each: the newest is restored beside the first
#   --dir DIR         on the filesystem to measure; four times SIZE is needed there [default: TMPDIR or /var/tmp]
#   --mkfs OPTIONS    for dedupfs mkfs, such as "--compression none"
#   --mount OPTIONS   for dedupfs mount, such as "--memory 1G"
#   --drop-caches     empty all caches of the machine before cold reads (root), not only those of the files read
#
# Uses the programs in DEDUPFS_BIN, or builds them. Progress and every single figure go to the standard error output.
# Changes nothing outside of temporary directories, which it removes.
# shellcheck disable=SC2034,SC2154,SC2317 # common.sh has the other side; functions are called through others
set -euo pipefail
# shellcheck source=benches/common.sh
. "$(dirname "$0")/common.sh"
# shellcheck source=benches/workloads.sh
. "$(dirname "$0")/workloads.sh"

size=1G files=20000 runs=5 series='' dir=${TMPDIR:-/var/tmp} mkfs_options=() mount_options=() drop_caches=
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) help ;;
        --drop-caches)
            drop_caches=1
            shift
            continue
            ;;
        --*) [ $# -ge 2 ] || usage "$1 needs a value" ;;&
        --size) size=$2 ;;
        --files) files=$2 ;;
        --runs) runs=$2 ;;
        --series) series=$(realpath -e -- "$2") || usage "no such directory: $2" ;;
        --dir) dir=$2 ;;
        --mkfs) read -r -a mkfs_options <<<"$2" ;;
        --mount) read -r -a mount_options <<<"$2" ;;
        *) usage "unknown argument $1" ;;
    esac
    shift 2
done
parse_size "$size" && size_bytes=$REPLY
parse_count "$files" && files=$REPLY
parse_count "$runs" && runs=$REPLY
[ "$size_bytes" -ge 1048576 ] || usage "--size must be 1M or more"

find_programs dedupfs dedupfs-stats null_mount limits
need_commands tar cp dd sync rsync mountpoint fusermount3 findmnt split md5sum
need_memory $((4 * size_bytes + files * 4096 * 5 + (1 << 30)))
make_scratch "$dir" && work=$REPLY
make_scratch /dev/shm && ram=$REPLY
need_room "$work" $((4 * size_bytes + files * 4096 * 4 + (256 << 20))) "the measurement"
pool=$work/pool mnt=$work/mnt results=$work/results run=0 daemon=''
mkdir "$mnt"
machine=$(describe_machine "$work")
make_sources "$size_bytes" "$files"
restored_bytes=$size_bytes

say "what the processors can do with the real data"
"${programs[limits]}" "$ram/real" >"$work/limits"
limit() { awk -F'\t' -v name="$1" '$1 == name { print $2 * 1e6 }' "$work/limits"; }

# ---- one filesystem after the other

unpack() {
    tar -C "$2" -xf "$ram/small.tar"
    durable "$1" "$2"
}
unchanged() { rsync -a "$ram/small/" "$mnt/small/"; }

start() {
    case $1 in
        dedupfs)
            mount_pool "$pool" "$mnt" "${mount_options[@]}"
            daemon=$(daemon_of "$pool")
            ;;
        native) daemon='' ;;
        null) null_start && daemon=$null_pid ;;
    esac
}
end() {
    case $1 in
        dedupfs)
            peak_bytes "$daemon" && note memory dedupfs "$REPLY"
            unmount_pool "$mnt"
            ;;
        native) ;;
        null) null_stop ;;
    esac
}
# What lies under the mount is read anew; what the mount itself remembers is gone.
again() {
    [ "$1" != null ] || return 0
    end "$1"
    if [ "$1" = dedupfs ]; then cold "$pool"; else cold "$mnt"; fi
    start "$1"
}

measure() {
    local target=$1 workload total
    [ "$target" != dedupfs ] || dedupfs mkfs "${mkfs_options[@]}" "$pool" >&2
    start "$target"
    touch_memory "$size_bytes"
    record random "$target" "$random_total" "$daemon" copy_in "$ram/random" "$mnt/random"
    touch_memory "$size_bytes"
    record real "$target" "$real_total" "$daemon" copy_in "$ram/real" "$mnt/real"
    touch_memory "$size_bytes"
    record repeated "$target" "$real_total" "$daemon" copy_in "$ram/real" "$mnt/repeated"
    again "$target"
    touch_memory "$size_bytes"
    record later "$target" "$real_total" "$daemon" copy_in "$ram/real" "$mnt/later"
    record small "$target" "$files" "$daemon" unpack "$target" "$mnt"
    if [ "$target" != null ]; then
        record unchanged "$target" "$files" "$daemon" unchanged
        again "$target"
        record "unchanged, cold" "$target" "$files" "$daemon" unchanged
        again "$target"
    fi
    for workload in random real; do
        empty_out
        total=${workload}_total
        record "restore $workload" "$target" "${!total}" "$daemon" copy_out "$mnt/$workload"
        [ "$target" = null ] || same "$ram/$workload" "$ram/out/$workload" "$target"
    done
    empty_out
    record "restore small" "$target" "$files" "$daemon" copy_out "$mnt/small"
    [ "$target" = null ] || same "$ram/small" "$ram/out/small" "$target"
    [ "$target" != dedupfs ] || measure_get
    rm -rf "$ram/out"
    end "$target"
    case $target in
        dedupfs) rm -rf "$pool" ;;
        native) find "$mnt" -mindepth 1 -delete ;;
    esac
}

# The same restores by `dedupfs get`, and small files by `dedupfs put`.
measure_get() {
    local workload total
    again dedupfs
    for workload in random real small; do
        empty_out
        if [ "$workload" = small ]; then total=files; else total=${workload}_total; fi
        record "get $workload" dedupfs "${!total}" "$daemon" get_out "$workload"
        same "$ram/$workload" "$ram/out/$workload" dedupfs
    done
    record 'put small' dedupfs "$files" "$daemon" put_in small put
}
get_out() { dedupfs get "$mnt/$1" "$ram/out/$1" >&2; }
put_in() { dedupfs put "$ram/$1" "$mnt/$2" >&2; }

# The newest and the first version of the series are read cold, in turns.
measure_series() {
    local names first newest version bytes
    mapfile -d '' -t names < <(cd "$series" && find . -mindepth 1 -maxdepth 1 -type d -printf '%P\0' | sort -z)
    [ ${#names[@]} -ge 2 ] || fail "$series has fewer than two directories"
    first=${names[0]} newest=${names[-1]}
    dedupfs mkfs "${mkfs_options[@]}" "$pool" >&2
    start dedupfs
    for version in "${names[@]}"; do cp -a "$series/$version" "$mnt/$version"; done
    dedupfs sync "$mnt"
    for ((run = 1; run <= runs; run++)); do
        for version in "$first" "$newest"; do
            bytes=$(content_bytes "$series/$version") restored_bytes=$bytes
            again dedupfs
            empty_out
            record "restore $version" dedupfs "$bytes" "$daemon" copy_out "$mnt/$version"
            same "$series/$version" "$ram/out/$version" dedupfs
            again dedupfs
            empty_out
            record "get $version" dedupfs "$bytes" "$daemon" get_out "$version"
            same "$series/$version" "$ram/out/$version" dedupfs
        done
    done
    end dedupfs
    rm -rf "$pool"
    series_rows="$(
        goal_row "restore the newest of ${#names[@]} versions, against the first" 1e6 MB/s "restore $newest" \
        "$(median "restore $first" dedupfs)" 0.9 "$(content_bytes "$series/$newest")"
        goal_row 'the same by dedupfs get' 1e6 MB/s "get $newest" \
            "$(median "get $first" dedupfs)" 0.9 "$(content_bytes "$series/$newest")")"
}

# ---- the table

# goal_row TITLE DIVISOR UNIT WORKLOAD REFERENCE GOAL [BYTES]: BYTES are those of the workload, for the processors' time of each GB.
goal_row() {
    local own cpu='-' ratio
    own=$(median "$4" dedupfs)
    [ -z "${7-}" ] || cpu=$(calculate "$(median "$4 cpu" dedupfs) / ($7 / 1e9)")
    ratio=$(calculate "$own / $5")
    printf '| %s | %s %s | %s | %s | %s%s | %s |\n' "$1" "$(calculate "$own / $2" %.0f)" "$3" "$(calculate "$5 / $2" %.0f)" "$ratio" "$6" \
        "$(awk -v own="$own" -v reference="$5" -v goal="$6" 'BEGIN { if (own / reference < goal) print ", **missed**" }')" "$cpu"
}
# against TITLE WORKLOAD TARGET GOAL: bytes a second.
against() {
    local total=${2##* }_total
    [ -n "${!total-}" ] || total=real_total
    goal_row "$1" 1e6 MB/s "$2" "$(median "$2" "$3")" "$4" "${!total}"
}
against_files() { goal_row "$1" 1 files/s "$2" "$(median "$2" "$3")" "$4" "$small_total"; }

for ((run = 1; run <= runs; run++)); do
    for target in dedupfs native null; do measure $target; done
done
series_rows=''
[ -z "$series" ] || measure_series

printf '%s\n' "$machine"
printf -- '- medians of %d runs, %s; load average at the end %s\n' "$runs" "$(date -u +%Y-%m-%d)" "$(cut -d' ' -f1-3 /proc/loadavg)"
printf -- '- sources and restored files in memory, which is touched before; all that was written is synced within the time; restores are cold\n'
printf -- '- %s of random and %s of real data (libraries and sources) by cp, %d files of 4 KiB by tar\n' \
    "$(human "$random_total")" "$(human "$real_total")" "$files"
printf -- '- most memory of the daemon: %s\n' "$(human "$(values memory dedupfs | tail -n 1)")"
printf '\n| | dedupfs | held against | ratio | goal | CPU s/GB |\n|---|---|---|---|---|---|\n'
against 'stored already, against cp and fsync on the backing filesystem' repeated native 1.5
against 'stored already, against FUSE that stores nothing' repeated null 0.5
against 'stored already, a new mount, against the backing filesystem' later native 1.5
against 'new random data, against the backing filesystem' random native 0.8
goal_row 'new real data, against zstd:1 alone on all cores' 1e6 MB/s real "$(limit compress_all)" 0.6 "$real_total"
against 'restore random data, cold, against the backing filesystem' 'restore random' native 0.8
goal_row 'the same by dedupfs get' 1e6 MB/s 'get random' "$(median 'restore random' native)" 0.8 "$random_total"
goal_row 'restore real data, cold, against decompressing alone on all cores' 1e6 MB/s 'restore real' "$(limit decompress_all)" 0.7 "$real_total"
goal_row 'the same by dedupfs get' 1e6 MB/s 'get real' "$(limit decompress_all)" 0.7 "$real_total"
[ -z "$series_rows" ] || printf '%s\n' "$series_rows"
against_files 'unpack small files, against FUSE that stores nothing' small null 0.5
goal_row 'dedupfs put of the small files, against tar on the backing filesystem' 1 files/s 'put small' "$(median small native)" 0.5 "$small_total"
against_files 'rsync of the unchanged small files, against the backing filesystem' unchanged native 0.7
against_files 'the same after a new mount, cold' 'unchanged, cold' native 0.7
against_files 'restore small files, cold, against the backing filesystem' 'restore small' native 0.5
goal_row 'the same by dedupfs get' 1 files/s 'get small' "$(median 'restore small' native)" 0.5 "$small_total"

printf '\n| rates | dedupfs | backing filesystem | FUSE that stores nothing |\n|---|---|---|---|\n'
all() {
    local target value
    printf '| %s |' "$1"
    for target in dedupfs native null; do
        value=$(median "$2" $target)
        if [ -n "$value" ]; then printf ' %s |' "$(calculate "$value / $3" %.0f)"; else printf ' - |'; fi
    done
    printf '\n'
}
all 'new random data, MB/s' random 1e6
all 'new real data, MB/s' real 1e6
all 'the same again, MB/s' repeated 1e6
all 'and after a new mount, cold, MB/s' later 1e6
all 'small files by tar, files/s' small 1
all 'rsync, nothing changed, files/s' unchanged 1
all 'the same after a new mount, cold, files/s' 'unchanged, cold' 1
all 'restore random data, MB/s' 'restore random' 1e6
all 'restore real data, MB/s' 'restore real' 1e6
all 'restore small files, files/s' 'restore small' 1

printf '\n| stage alone, on the real data | MB/s |\n|---|---|\n'
awk -F'\t' '{ printf "| %s | %s |\n", $1, $2 }' "$work/limits"
