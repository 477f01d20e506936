#!/usr/bin/env bash
# What each filter of the lookup chain is worth: the newest backup of a series into a pool that holds the ones before, after a
# new mount, once with all filters, once without each of them, and once with the byte compare filter, which reads every chunk
# that is found.
#
#   benches/ablation.sh [--size 2G] [--generations 3] [--series DIR] [--newest 4] [--dir DIR] [--memory 128M]
#                       [--mkfs OPTIONS]
#
#   --size SIZE           of each generation of the synthetic aged stream (examples/aged_stream); 0 leaves it out. The
#                         newest one lies in memory; three times SIZE is needed on disk
#   --generations NUMBER  of it, the newest one is measured
#   --series DIR          also a real series, one directory for each version, each backed up as a tar
#   --newest NUMBER       versions of the real series that are measured; the ones before are there already
#   --dir DIR             [default: TMPDIR or /var/tmp]
#   --memory SIZE         of the mount: the less, the more of the index is read from disk
#   --mkfs OPTIONS        [default: --chunk-size 4K --tanker-cells 16K --tanker-buckets 32, so that small series fill tankers]
#
# Uses the programs in DEDUPFS_BIN, or builds them. Each line compares with the chain as it is by default; "reads" are
# buckets of the index read from disk.
# shellcheck disable=SC2154 # common.sh has the other side
set -euo pipefail
# shellcheck source=benches/common.sh
. "$(dirname "$0")/common.sh"

size=2G generations=3 series='' newest=4 dir=${TMPDIR:-/var/tmp} memory=128M
mkfs_options=(--chunk-size 4K --tanker-cells 16K --tanker-buckets 32)
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) help ;;
        --*) [ $# -ge 2 ] || usage "$1 needs a value" ;;&
        --size) size=$2 ;;
        --generations) generations=$2 ;;
        --series) series=$(realpath -e -- "$2") || usage "no such directory: $2" ;;
        --newest) newest=$2 ;;
        --dir) dir=$2 ;;
        --memory) memory=$2 ;;
        --mkfs) read -r -a mkfs_options <<<"$2" ;;
        *) usage "unknown argument $1" ;;
    esac
    shift 2
done
parse_size "$size" && size_bytes=$REPLY
parse_count "$generations" && generations=$REPLY
parse_count "$newest" && newest=$REPLY
[ "$size_bytes" -gt 0 ] || [ -n "$series" ] || usage "nothing is left to measure"

find_programs dedupfs dedupfs-stats aged_stream
need_commands cp tar findmnt
make_scratch "$dir" && work=$REPLY
need_memory $((size_bytes + (512 << 20)))
need_room "$work" $((3 * size_bytes + (1 << 30))) "the measurement"
make_scratch /dev/shm && ram=$REPLY
mnt=$work/mnt
mkdir "$mnt"

all=(zero block open bloom locality)
# plan_without NAME: sets REPLY to a list of filters.
plan_without() {
    local filter
    REPLY=''
    for filter in "${all[@]}"; do [ "$filter" = "$1" ] || REPLY+=$filter,; done
    REPLY+=sealed
}
# filter_field FILTER FIELD: sets REPLY, to nothing if the filter was not asked.
filter_field() {
    REPLY=$(awk -v name="$1" -v field="$2" '
        $1 == "\"name\":" { gsub(/[",]/, "", $2); here = $2 == name }
        here { key = $1; gsub(/[":]/, "", key) }
        here && key == field { sub(/,$/, "", $2); print $2; exit }
    ' <<<"$STATS")
}

# measure TITLE BYTES COMMAND...: one line of the table for each plan, of the command in copies of $work/base.
measure() {
    local title=$1 bytes=$2 without plan line rate reads full_rate='' filter cells
    shift 2
    printf '\n**%s**: %s\n\n' "$title" "$(exact "$bytes")"
    printf '| filters | MB/s | against all | bucket reads | for each GB | container tables read |'
    for filter in zero block open bloom locality sealed; do printf ' %s decided |' "$filter"; done
    printf '\n|---|---|---|---|---|---|---|---|---|---|---|---|\n'
    for without in nothing "${all[@]}" compare; do
        plan_without "$without" && plan=$REPLY
        [ "$without" != compare ] || plan+=,compare
        rm -rf "$work/pool"
        cp -a --sparse=always "$work/base" "$work/pool"
        sync
        evict "$work/pool"
        mount_pool "$work/pool" "$mnt" --memory "$memory" --filters "$plan"
        read_stats "$mnt"
        stat_field chunk_index.bucket_reads && local before=$REPLY
        timed "$@"
        read_stats "$mnt"
        stat_field chunk_index.bucket_reads && reads=$((REPLY - before))
        stat_field chunk_index.locality_tables_read && local tables=$REPLY
        line='' cells=0
        for filter in zero block open bloom locality sealed; do
            filter_field $filter existing && local existing=${REPLY:--}
            filter_field $filter non_existing && local new=${REPLY:-0}
            if [ "$existing" = - ]; then line+=' - |'; else line+=" $((existing + new)) |"; fi
        done
        unmount_pool "$mnt"
        rate=$(rate "$bytes" "$TAKEN")
        full_rate=${full_rate:-$rate}
        case $without in nothing) without=all ;; compare) without='with compare' ;; *) without="without $without" ;; esac
        printf '| %s | %s | %s | %s | %s | %s |%s\n' "$without" "$rate" "$(calculate "$rate / $full_rate")" "$reads" \
            "$(calculate "$reads / ($bytes / 1e9)" %.0f)" "$tables" "$line"
    done
    rm -rf "$work/pool" "$work/base"
}

describe_machine "$work"
printf -- '- pool: %s; mount: --memory %s\n' "${mkfs_options[*]}" "$memory"

if [ "$size_bytes" -gt 0 ]; then
    generation() { "${programs[aged_stream]}" --generation "$1" --size "$size_bytes"; }
    dedupfs mkfs "${mkfs_options[@]}" "$work/base" >&2
    mount_pool "$work/base" "$mnt" --memory 1G
    for ((number = 1; number < generations; number++)); do
        say "generation $number"
        generation "$number" >"$mnt/$number"
    done
    unmount_pool "$mnt"
    say "generation $generations"
    generation "$generations" >"$ram/newest"
    by_copy() {
        cp "$ram/newest" "$mnt/newest"
        dedupfs sync "$mnt"
    }
    measure "generation $generations of the aged stream" "$size_bytes" by_copy
    rm "$ram/newest"
fi

if [ -n "$series" ]; then
    mapfile -d '' -t versions < <(cd "$series" && find . -mindepth 1 -maxdepth 1 -type d -printf '%P\0' | sort -z)
    [ ${#versions[@]} -gt "$newest" ] || fail "$series has only ${#versions[@]} versions"
    old=$((${#versions[@]} - newest))
    dedupfs mkfs "${mkfs_options[@]}" "$work/base" >&2
    mount_pool "$work/base" "$mnt" --memory 1G
    say "$old versions"
    for version in "${versions[@]:0:old}"; do tar -C "$series" --sort=name -cf "$mnt/$version.tar" "./$version"; done
    unmount_pool "$mnt"
    bytes=0
    for version in "${versions[@]:old}"; do
        tar -C "$series" --sort=name -cf "$ram/$version.tar" "./$version"
        bytes=$((bytes + $(stat -c %s "$ram/$version.tar")))
    done
    by_tar() {
        cp "$ram"/*.tar "$mnt/"
        dedupfs sync "$mnt"
    }
    measure "the newest $newest of ${#versions[@]} versions of the real series, as tars" "$bytes" by_tar
fi
