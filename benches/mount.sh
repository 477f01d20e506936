#!/usr/bin/env bash
# Measures backup and restore through the mount beside the same commands on the backing filesystem, on a FUSE filesystem
# that stores nothing, and beside restic and borg where they are installed. Prints a Markdown table.
#
#   benches/mount.sh [--size 1G] [--files 10000] [--runs 3] [--dir DIR] [--without NAMES] [--mkfs OPTIONS] [--mount OPTIONS]
#
#   --size SIZE       of each of the two data sets, random and real; both lie in memory, three times SIZE is needed there
#   --files NUMBER    small files of 4 KiB
#   --runs NUMBER     medians are of so many runs; every run starts with new, empty pools and repositories
#   --dir DIR         on the filesystem to measure; four times SIZE is needed there [default: TMPDIR or /var/tmp]
#   --without NAMES   leave out any of native,null,restic,borg
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

size=1G files=10000 runs=3 dir=${TMPDIR:-/var/tmp} without='' mkfs_options=() mount_options=() drop_caches=
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
        --dir) dir=$2 ;;
        --without) without=,$2, ;;
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

find_programs dedupfs dedupfs-stats null_mount
need_commands tar cp dd sync mountpoint fusermount3 findmnt split md5sum
need_memory $((3 * size_bytes + files * 4096 * 4 + (1 << 30)))
make_scratch "$dir" && work=$REPLY
make_scratch /dev/shm && ram=$REPLY
need_room "$work" $((4 * size_bytes + files * 4096 * 4 + (256 << 20))) "the measurement"

targets=(dedupfs)
with() { [[ $without != *",$1,"* ]]; }
! with native || targets+=(native)
! with null || targets+=(null)
for name in restic borg; do
    if with "$name" && command -v "$name" >/dev/null; then targets+=("$name"); fi
done

# ---- sources, in memory

say "making the data: $(human "$size_bytes") random, $(human "$size_bytes") of real files, $files files of 4 KiB"
mkdir "$ram/random" "$ram/small"
random_bytes bench "$size_bytes" | split -b 256M -a 3 - "$ram/random/part-"
real_data "$ram/real" "$size_bytes"
# 100 files a directory, each of them different.
random_bytes small $((files * 4096)) | (cd "$ram/small" && split -b 4096 -a 6 -d - f)
(
    cd "$ram/small"
    for ((first = 0; first < files; first += 100)); do
        printf -v sub 'd%04d' $((first / 100))
        mkdir "$sub"
        printf -v prefix 'f%04d' $((first / 100))
        mv "$prefix"?? "$sub/"
    done
)
tar -C "$ram" -cf "$ram/small.tar" small
# The same content under other names, for those that know files by their path.
for again in again later; do cp -rl "$ram/real" "$ram/real-$again"; done
random_total=$(content_bytes "$ram/random") real_total=$(content_bytes "$ram/real") small_total=$((files * 4096))

# ---- measuring

results=$work/results
# record WORKLOAD TARGET UNITS COMMAND...: UNITS are bytes, or files for the small ones.
record() {
    local workload=$1 target=$2 units=$3 value
    shift 3
    timed "$@"
    value=$(calculate "$units / ($TAKEN > 0 ? $TAKEN : 1e-6)" %.1f)
    printf '%s\t%s\t%s\n' "$workload" "$target" "$value" >>"$results"
    say "run $run: $target: $workload: $TAKEN s, $value a second"
}
record_space() { printf 'space\t%s\t%s\n' "$1" "$2" >>"$results"; }

# Every file synced by itself: syncfs of a FUSE mount does not reach its daemon.
copy_in() {
    cp -r "$1" "$2"
    sync "$2"/* "$2"
}
# syncfs and `dedupfs sync` make many small files durable at once.
unpack() {
    tar -C "$2" -xf "$ram/small.tar"
    if [ "$1" = dedupfs ]; then dedupfs sync "$2"; else sync -f "$2"; fi
}
copy_out() { cp -r "$1" "$ram/out"; }
# The first touch of memory is slow on a virtual machine: what was just freed is touched again.
empty_out() {
    rm -rf "$ram/out"
    cp -r "$ram/random" "$ram/out"
    rm -rf "$ram/out"
    mkdir "$ram/out"
}
# cold DIRECTORY...
cold() {
    if [ -n "$drop_caches" ]; then
        sync
        echo 3 >/proc/sys/vm/drop_caches || fail "--drop-caches needs root"
    else
        evict "$@"
    fi
}
same() { diff -r "$1" "$2" >&2 || fail "$3: $2 is not what was backed up"; }

pool=$work/pool mnt=$work/mnt
null_start() {
    "${programs[null_mount]}" "$mnt" >&2 &
    null_pid=$!
    processes=("$null_pid")
    mounted+=("$mnt")
    for ((wait = 0; wait < 200; wait++)); do
        ! mountpoint -q "$mnt" || return 0
        kill -0 "$null_pid" 2>/dev/null || break
        sleep 0.05
    done
    fail "null_mount does not mount"
}
null_stop() {
    fusermount3 -u "$mnt"
    wait "$null_pid" || fail "null_mount failed"
    processes=()
    forget_mount "$mnt"
}

# What lies under the mount is read anew; what the mount itself remembers is gone.
remount() {
    case $1 in
        dedupfs)
            unmount_pool "$mnt"
            cold "$pool"
            mount_pool "$pool" "$mnt" "${mount_options[@]}"
            ;;
        native) cold "$mnt" ;;
        null) ;;
    esac
}

measure_filesystem() {
    local target=$1
    mkdir -p "$mnt"
    case $target in
        dedupfs)
            dedupfs mkfs "${mkfs_options[@]}" "$pool" >&2
            mount_pool "$pool" "$mnt" "${mount_options[@]}"
            ;;
        null) null_start ;;
    esac
    record random "$target" "$random_total" copy_in "$ram/random" "$mnt/random"
    record real "$target" "$real_total" copy_in "$ram/real" "$mnt/real"
    record again "$target" "$real_total" copy_in "$ram/real" "$mnt/real-again"
    remount "$target"
    record later "$target" "$real_total" copy_in "$ram/real" "$mnt/real-later"
    record small "$target" "$files" unpack "$target" "$mnt"
    remount "$target"
    for workload in random real; do
        empty_out
        local total=${workload}_total
        record "restore $workload" "$target" "${!total}" copy_out "$mnt/$workload"
        [ "$target" = null ] || same "$ram/$workload" "$ram/out/$workload" "$target"
    done
    empty_out
    record "restore small" "$target" "$files" copy_out "$mnt/small"
    [ "$target" = null ] || same "$ram/small" "$ram/out/small" "$target"
    rm -rf "$ram/out"
    case $target in
        dedupfs)
            if [ "$run" = 1 ]; then describe_pool; fi
            unmount_pool "$mnt"
            record_space dedupfs "$(disk_bytes "$pool")"
            rm -rf "$pool"
            ;;
        native)
            record_space native "$(disk_bytes "$mnt")"
            find "$mnt" -mindepth 1 -delete
            ;;
        null) null_stop ;;
    esac
}

describe_pool() {
    read_stats "$mnt"
    stat_field unique_chunk_bytes && local unique=$REPLY
    stat_field compression_ratio
    pool_note="dedupfs found $(human "$unique") unique in the $(human $((random_total + 3 * real_total + small_total))) and compressed them by $(calculate "$REPLY")"
}

# restic reads everything again, as the path is new to it; so does borg.
measure_restic() {
    export RESTIC_REPOSITORY=$work/restic RESTIC_PASSWORD=none RESTIC_CACHE_DIR=$work/restic-cache
    restic init -q
    restic_in() { restic backup -q --tag "$1" "$ram/$2"; }
    record random restic "$random_total" restic_in random random
    record real restic "$real_total" restic_in real real
    record again restic "$real_total" restic_in again real-again
    cold "$work/restic" "$work/restic-cache"
    record later restic "$real_total" restic_in later real-later
    record small restic "$files" restic_in small small
    cold "$work/restic" "$work/restic-cache"
    for workload in random real small; do
        empty_out
        local units=$files total=${workload}_total
        [ $workload = small ] || units=${!total}
        record "restore $workload" restic "$units" restic restore -q latest --tag $workload --target "$ram/out"
        same "$ram/$workload" "$ram/out$ram/$workload" restic
    done
    rm -rf "$ram/out"
    record_space restic "$(disk_bytes "$work/restic")"
    rm -rf "$work/restic" "$work/restic-cache"
}

measure_borg() {
    export BORG_REPO=$work/borg BORG_BASE_DIR=$work/borg-home BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK=yes
    mkdir "$work/borg-home"
    borg init -e none
    borg_in() { (cd "$ram" && borg create -C zstd,1 "::$1" "$2"); }
    borg_out() { (cd "$ram/out" && borg extract "::$1"); }
    record random borg "$random_total" borg_in random random
    record real borg "$real_total" borg_in real real
    record again borg "$real_total" borg_in again real-again
    cold "$work/borg" "$work/borg-home"
    record later borg "$real_total" borg_in later real-later
    record small borg "$files" borg_in small small
    cold "$work/borg" "$work/borg-home"
    for workload in random real small; do
        empty_out
        local units=$files total=${workload}_total
        [ $workload = small ] || units=${!total}
        record "restore $workload" borg "$units" borg_out $workload
        same "$ram/$workload" "$ram/out/$workload" borg
    done
    rm -rf "$ram/out"
    record_space borg "$(disk_bytes "$work/borg")"
    rm -rf "$work/borg" "$work/borg-home"
}

machine=$(describe_machine "$work")
pool_note=

for ((run = 1; run <= runs; run++)); do
    for target in "${targets[@]}"; do
        case $target in
            restic | borg) "measure_$target" ;;
            *) measure_filesystem "$target" ;;
        esac
    done
done

# ---- the table

median() {
    awk -F'\t' -v workload="$1" -v target="$2" '$1 == workload && $2 == target { print $3 }' "$results" | sort -g |
        awk '{ v[NR] = $1 } END { if (NR) print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'
}
# row TITLE WORKLOAD DIVISOR HIGHER_IS_BETTER
row() {
    local target value own cell
    own=$(median "$2" dedupfs)
    printf '| %s |' "$1"
    for target in "${targets[@]}"; do
        value=$(median "$2" "$target")
        if [ -z "$value" ]; then
            cell='-'
        else
            cell=$(calculate "$value / $3" %.0f)
            [ "$target" = dedupfs ] || cell="$cell ($(calculate "$own / $value"))"
        fi
        printf ' %s |' "$cell"
    done
    printf '\n'
}
# range TARGET: of the small files' rate, which depends on which cores client and daemon happen to run.
range() {
    awk -F'\t' -v target="$1" '$1 == "small" && $2 == target { print $3 }' "$results" | sort -g |
        awk '{ v[NR] = $1 } END { if (NR) printf "%.0f to %.0f", v[1], v[NR] }'
}
declare -A titles=([dedupfs]=dedupfs [native]="backing filesystem" [null]="FUSE that stores nothing")
! with restic || titles[restic]="$(restic version 2>/dev/null | cut -d' ' -f1,2)"
! with borg || titles[borg]="$(borg --version 2>/dev/null)"

printf '%s\n' "$machine"
printf -- '- medians of %d runs, %s; load average at the end %s\n' "$runs" "$(date -u +%Y-%m-%d)" "$(cut -d' ' -f1-3 /proc/loadavg)"
printf -- '- sources and restored files in memory; all that was written is synced within the time; restores are cold\n'
printf -- '- %s of random and %s of real data (libraries and sources) by cp, %d files of 4 KiB by tar; %s\n' \
    "$(human "$random_total")" "$(human "$real_total")" "$files" "$pool_note"
[[ " ${targets[*]} " != *" restic "* ]] || printf -- '- restic encrypts and compresses as it does by default; borg with zstd,1 and without encryption\n'
printf -- '- in brackets: dedupfs as a multiple of that column\n\n'
printf '| |'
for target in "${targets[@]}"; do printf ' %s |' "${titles[$target]}"; done
printf '\n|---|'
for target in "${targets[@]}"; do printf -- '---|'; done
printf '\n'
row 'back up new random data, MB/s' random 1e6
row 'back up new real data, MB/s' real 1e6
row 'the same again under another name, MB/s' again 1e6
row 'and again after a new mount, cold, MB/s' later 1e6
row 'unpack small files, files/s' small 1
row 'restore random data, MB/s' 'restore random' 1e6
row 'restore real data, MB/s' 'restore real' 1e6
row 'copy small files out, files/s' 'restore small' 1
row 'all of it on disk, MB' space 1e6
printf '\nA request of a small file is answered several times faster when client and daemon run on one core. Unpacked over the runs:'
separator=' '
for target in "${targets[@]}"; do
    printf '%s%s %s' "$separator" "${titles[$target]}" "$(range "$target")"
    separator='; '
done
printf ' files/s.\n'
