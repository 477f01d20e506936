#!/usr/bin/env bash
# Backup tools side by side: the first backup of a series of versions, the second one when versions have been added, the full
# restore; and the same of one large file through a pipe, whose second generation has changed. Those of
# restic, rustic, kopia, borg and s3ql that are installed take part. Prints a Markdown table of rates, processors' time, memory and sizes.
#
#   benches/rivals.sh [--series DIR] [--size 2G] [--runs 3] [--dir DIR] [--tools LIST] [--mkfs OPTIONS] [--mount OPTIONS]
#                     [--drop-caches]
#
#   --series DIR      versions of one tree, a directory each: the older half is backed up first, then all of them; they are
#                     copied into memory
#   --size SIZE       of the large file, two generations of it (examples/aged_stream); three times SIZE is needed in memory
#   --runs NUMBER     medians are of so many runs; every run starts with new, empty pools and repositories
#   --dir DIR         of the repositories; twice what is backed up is needed there [default: TMPDIR or /var/tmp]
#   --tools LIST      some of dedupfs,cp,cp2,restic,rustic,kopia,borg,s3ql [default: those that are installed]; cp is the series copied through
#                     the mount by cp -a, cp2 by two of them at once, a version each
#   --mkfs OPTIONS    for dedupfs mkfs
#   --mount OPTIONS   for dedupfs mount
#   --drop-caches     empty all caches of the machine before restores (root), not only those of the files read
#
# All compress with zstd, borg and rustic at level 1, kopia as fast as it can, restic as it does by default; s3ql has no zstd, and compresses with
# zlib at level 1. Those that can do without encryption do (borg, s3ql, dedupfs). dedupfs is mounted already; its times are of dedupfs put and get
# for the series, of cat and `dedupfs sync` for the pipe. s3ql is a filesystem that is mounted, too: its times are of cp -a or cat and of writing its
# cache out, into a directory beside it.
#
# Uses the programs in DEDUPFS_BIN, or builds them. Progress and every single figure go to the standard error output.
# Changes nothing outside of temporary directories, which it removes.
# shellcheck disable=SC2034,SC2154,SC2317 # common.sh has the other side; functions are called through others
set -euo pipefail
# shellcheck source=benches/common.sh
. "$(dirname "$0")/common.sh"
# shellcheck source=benches/workloads.sh
. "$(dirname "$0")/workloads.sh"

series='' size=2G runs=3 dir=${TMPDIR:-/var/tmp} tools='' mkfs_options=() mount_options=() drop_caches=
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) help ;;
        --drop-caches)
            drop_caches=1
            shift
            continue
            ;;
        --*) [ $# -ge 2 ] || usage "$1 needs a value" ;;&
        --series) series=$(realpath -e -- "$2") || usage "no such directory: $2" ;;
        --size) size=$2 ;;
        --runs) runs=$2 ;;
        --dir) dir=$2 ;;
        --tools) tools=$2 ;;
        --mkfs) read -r -a mkfs_options <<<"$2" ;;
        --mount) read -r -a mount_options <<<"$2" ;;
        *) usage "unknown argument $1" ;;
    esac
    shift 2
done
parse_size "$size" && size_bytes=$REPLY
parse_count "$runs" && runs=$REPLY
[ "$size_bytes" -ge 1048576 ] || usage "--size must be 1M or more"

# What is run of a tool.
command_of() { case $1 in s3ql) echo mount.s3ql ;; *) echo "$1" ;; esac }
known=(dedupfs cp cp2 restic rustic kopia borg s3ql) participants=()
for tool in "${known[@]}"; do
    if [ -n "$tools" ]; then
        [[ ,$tools, != *",$tool,"* ]] || participants+=("$tool")
        continue
    fi
    case $tool in
        dedupfs) participants+=("$tool") ;;
        cp | cp2) [ -z "$series" ] || participants+=("$tool") ;;
        *) ! command -v "$(command_of "$tool")" >/dev/null || participants+=("$tool") ;;
    esac
done
[ -n "$series" ] || [[ " ${participants[*]} " != *" cp"* ]] || usage "cp and cp2 need --series"
[ ${#participants[@]} -gt 0 ] || usage "none of ${known[*]} is in --tools $tools"

find_programs dedupfs dedupfs-stats aged_stream
rivals=() owns=()
for tool in "${participants[@]}"; do
    case $tool in
        dedupfs | cp*) owns+=("$tool") ;;
        *) rivals+=("$(command_of "$tool")") ;;
    esac
done
need_commands cat cp diff cmp sync mountpoint findmnt xargs "${rivals[@]}"
series_bytes=0
[ -z "$series" ] || series_bytes=$(content_bytes "$series")
need_memory $((4 * size_bytes + 3 * series_bytes + (1 << 30)))
make_scratch "$dir" && work=$REPLY
make_scratch /dev/shm && ram=$REPLY
need_room "$work" $((2 * size_bytes + series_bytes + (512 << 20))) "the measurement"
mnt=$work/mnt results=$work/results run=0 daemon=''
mkdir "$mnt"
machine=$(describe_machine "$work")

# ---- sources, in memory

say "making two generations of a file of $(human "$size_bytes")"
"${programs[aged_stream]}" --generation 1 --size "$size_bytes" >"$ram/first"
"${programs[aged_stream]}" --generation 2 --size "$size_bytes" >"$ram/second"
if [ -n "$series" ]; then
    mapfile -d '' -t names < <(cd "$series" && find . -mindepth 1 -maxdepth 1 -type d -printf '%P\0' | sort -z)
    [ ${#names[@]} -ge 2 ] || usage "$series has fewer than two directories"
    half=$(((${#names[@]} + 1) / 2))
    mkdir "$ram/half" "$ram/all"
    for name in "${names[@]}"; do cp -a "$series/$name" "$ram/all/$name"; done
    for name in "${names[@]:0:half}"; do cp -al "$ram/all/$name" "$ram/half/$name"; done
    half_total=$(content_bytes "$ram/half") all_total=$(content_bytes "$ram/all")
fi

# ---- the tools: NAME_new, NAME_end, NAME_tree WHAT, NAME_tree_out WHAT, NAME_pipe WHAT (reads it), NAME_pipe_out WHAT (writes it)

repository=$work/repository

dedupfs_new() {
    dedupfs mkfs "${mkfs_options[@]}" "$repository" >&2
    dedupfs_cold
}
dedupfs_cold() {
    [ -z "$daemon" ] || dedupfs_end
    cold "$work"
    mount_pool "$repository" "$mnt" "${mount_options[@]}"
    daemon=$(daemon_of "$repository")
}
dedupfs_end() {
    peak_bytes "$daemon" && note memory "$tool" "$REPLY"
    daemon=''
    unmount_pool "$mnt"
}
dedupfs_tree() { dedupfs put "$ram/$1" "$mnt/tree-$1" >/dev/null; }
dedupfs_tree_out() { rmdir "$ram/out" && dedupfs get "$mnt/tree-$1" "$ram/out" >/dev/null; }
for tool in cp cp2; do
    eval "${tool}_new() { dedupfs_new; }; ${tool}_cold() { dedupfs_cold; }; ${tool}_end() { dedupfs_end; }"
done
cp_tree() { cp -a "$ram/$1" "$mnt/tree-$1" && dedupfs sync "$mnt"; }
cp_tree_out() { cp -a "$mnt/tree-$1/." "$ram/out"; }
cp2_tree() { mkdir "$mnt/tree-$1" && two_copies "$ram/$1" "$mnt/tree-$1" && dedupfs sync "$mnt"; }
cp2_tree_out() { two_copies "$mnt/tree-$1" "$ram/out"; }
# two_copies FROM TO: what is in FROM, one by one, two at a time.
two_copies() { find "$1" -mindepth 1 -maxdepth 1 -print0 | sort -z | xargs -0 -P 2 -I '{}' cp -a '{}' "$2"; }
dedupfs_pipe() { cat >"$mnt/pipe-$1" && dedupfs sync "$mnt"; }
dedupfs_pipe_out() { cat "$mnt/pipe-$1"; }

restic_new() {
    export RESTIC_REPOSITORY=$repository RESTIC_PASSWORD=none RESTIC_CACHE_DIR=$work/cache
    restic init -q >&2
}
restic_tree() { (cd "$ram/$1" && restic backup -q --tag "tree-$1" .); }
restic_tree_out() { restic restore -q latest --tag "tree-$1" --target "$ram/out" >/dev/null; }
restic_pipe() { restic backup -q --tag "pipe-$1" --stdin --stdin-filename pipe; }
restic_pipe_out() { restic dump -q latest --tag "pipe-$1" /pipe; }

rustic_new() {
    export RUSTIC_REPOSITORY=$repository RUSTIC_PASSWORD=none RUSTIC_CACHE_DIR=$work/cache RUSTIC_NO_PROGRESS=true RUSTIC_LOG_LEVEL=warn
    rustic init --set-compression 1 >&2
}
rustic_tree() { (cd "$ram/$1" && rustic backup --tag "tree-$1" . >/dev/null); }
rustic_tree_out() { rustic restore --filter-tags "tree-$1" latest "$ram/out" >/dev/null; }
# By the same name, version 0.11.4 takes the second one for unchanged and does not read it.
rustic_pipe() { rustic backup --tag "pipe-$1" --stdin-filename "pipe-$1" - >/dev/null; }
rustic_pipe_out() { rustic dump --filter-tags "pipe-$1" "latest:pipe-$1"; }

kopia_new() {
    export KOPIA_CONFIG_PATH=$work/cache/kopia.config KOPIA_CACHE_DIRECTORY=$work/cache/kopia KOPIA_LOG_DIR=$work/cache/logs
    export KOPIA_PASSWORD=none KOPIA_CHECK_FOR_UPDATES=false
    mkdir -p "$work/cache"
    kopia repository create filesystem --path "$repository" >/dev/null 2>&1
    kopia policy set --global --compression=zstd-fastest >/dev/null 2>&1
}
kopia_tree() { kopia snapshot create --no-progress --json "$ram/$1" >"$work/cache/tree-$1.json" 2>/dev/null; }
kopia_tree_out() { kopia restore --no-progress "$(kopia_root "tree-$1")" "$ram/out" >/dev/null 2>&1; }
kopia_pipe() { kopia snapshot create --no-progress --json --stdin-file pipe "pipe-$1" >"$work/cache/pipe-$1.json" 2>/dev/null; }
kopia_pipe_out() { kopia show "$(kopia_root "pipe-$1")/pipe"; }
# kopia_root SNAPSHOT: what it calls the snapshot's root.
kopia_root() { grep -o '"obj":"[^"]*"' "$work/cache/$1.json" | head -n 1 | cut -d'"' -f4; }

borg_new() {
    export BORG_REPO=$repository BORG_BASE_DIR=$work/cache BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK=yes
    mkdir -p "$work/cache"
    borg init -e none >&2
}
borg_tree() { (cd "$ram/$1" && borg create -C zstd,1 "::tree-$1" .); }
borg_tree_out() { (cd "$ram/out" && borg extract "::tree-$1"); }
borg_pipe() { borg create -C zstd,1 --stdin-name pipe "::pipe-$1" -; }
borg_pipe_out() { borg extract --stdout "::pipe-$1" pipe; }

s3ql_new() {
    mkdir -p "$repository" "$work/cache"
    mkfs.s3ql --plain --cachedir "$work/cache" "local://$repository" >/dev/null
    s3ql_cold
}
s3ql_cold() {
    [ -z "$daemon" ] || s3ql_end
    cold "$work"
    mounted+=("$mnt")
    mount.s3ql --cachedir "$work/cache" --compress zlib-1 "local://$repository" "$mnt" >/dev/null
    daemon=$(pgrep -fo "mount.s3ql.*local://$repository")
}
s3ql_end() {
    peak_bytes "$daemon" && note memory "$tool" "$REPLY"
    daemon=''
    umount.s3ql "$mnt"
    forget_mount "$mnt"
}
s3ql_tree() { cp -a "$ram/$1" "$mnt/tree-$1" && s3qlctrl flushcache "$mnt"; }
s3ql_tree_out() { cp -a "$mnt/tree-$1/." "$ram/out"; }
s3ql_pipe() { cat >"$mnt/pipe-$1" && s3qlctrl flushcache "$mnt"; }
s3ql_pipe_out() { cat "$mnt/pipe-$1"; }

for tool in restic rustic kopia borg; do
    eval "${tool}_cold() { cold \"\$repository\" \"\$work/cache\"; }; ${tool}_end() { :; }"
done

# with_peak TOOL COMMAND...: notes the most memory that a process below this script had resident.
with_peak() {
    local tool=$1 pid peak=0 now children
    shift
    if [ -n "$daemon" ]; then
        "$@"
        return
    fi
    "$@" &
    pid=$!
    while kill -0 "$pid" 2>/dev/null; do
        # The tool, or a shell and then the tool; either may end meanwhile.
        children=$(cat "/proc/$pid/task/$pid/children" 2>/dev/null) || children=''
        for now in $(for child in $pid $children; do awk '/^VmHWM:/ { print $2 * 1024 }' "/proc/$child/status" 2>/dev/null || true; done); do
            [ "$now" -le "$peak" ] || peak=$now
        done
        sleep 0.1
    done
    wait "$pid"
    note memory "$tool" "$peak"
}
from() { "$1_pipe" "$2" <"$ram/$2"; }
into() { "$1_pipe_out" "$2" >"$ram/out/pipe"; }
empty() {
    rm -rf "$ram/out"
    mkdir "$ram/out"
    touch_memory $((2 * (size_bytes > series_bytes ? size_bytes : series_bytes)))
}

measure() {
    local tool=$1 what
    if [ -n "$series" ]; then
        "${tool}_new"
        record "tree first" "$tool" "$half_total" "$daemon" with_peak "$tool" "${tool}_tree" half
        "${tool}_cold"
        record "tree second" "$tool" "$all_total" "$daemon" with_peak "$tool" "${tool}_tree" all
        "${tool}_cold"
        empty
        record "tree restore" "$tool" "$all_total" "$daemon" with_peak "$tool" "${tool}_tree_out" all
        same "$ram/all" "$ram/out" "$tool"
        "${tool}_end"
        note "tree size" "$tool" "$(disk_bytes "$repository")"
        rm -rf "$repository" "$work/cache" "$ram/out"
    fi
    [[ $tool != cp* ]] || return 0
    "${tool}_new"
    record "pipe first" "$tool" "$size_bytes" "$daemon" with_peak "$tool" from "$tool" first
    "${tool}_cold"
    record "pipe second" "$tool" "$size_bytes" "$daemon" with_peak "$tool" from "$tool" second
    "${tool}_cold"
    empty
    record "pipe restore" "$tool" "$size_bytes" "$daemon" with_peak "$tool" into "$tool" second
    cmp "$ram/second" "$ram/out/pipe" || fail "$tool: the pipe is not what was backed up"
    "${tool}_end"
    note "pipe size" "$tool" "$(disk_bytes "$repository")"
    rm -rf "$repository" "$work/cache" "$ram/out"
}

for ((run = 1; run <= runs; run++)); do
    for tool in "${participants[@]}"; do measure "$tool"; done
done

# ---- the table

version_of() {
    case $1 in
        dedupfs) dedupfs --version ;;
        cp) echo 'its mount, cp -a' ;;
        cp2) echo 'two cp -a at once' ;;
        restic) restic version | cut -d' ' -f1,2 ;;
        kopia) kopia --version | cut -d' ' -f1 | sed 's/^/kopia /' ;;
        s3ql) echo s3ql ;;
        *) "$1" --version ;;
    esac
}
# row TITLE NAME DIVISOR FORMAT LESS: LESS is not empty if less is better. In brackets how many times dedupfs is better.
row() {
    local tool value own
    own=$(median "$2" dedupfs)
    printf '| %s |' "$1"
    for tool in "${participants[@]}"; do
        value=$(median "$2" "$tool")
        if [ -z "$value" ]; then
            printf ' - |'
        elif [[ " ${owns[*]} " = *" $tool "* ]] || [ -z "$own" ]; then
            printf ' %s |' "$(calculate "$value / $3" "$4")"
        else
            printf ' %s (%s) |' "$(calculate "$value / $3" "$4")" "$(calculate "${5:+1 / }(${own:-1} / ($value > 0 ? $value : 1e-6))")"
        fi
    done
    printf '\n'
}
per_gb() { calculate "$1 / 1e9"; }

printf '%s\n' "$machine"
printf -- '- medians of %d runs, %s; load average at the end %s\n' "$runs" "$(date -u +%Y-%m-%d)" "$(cut -d' ' -f1-3 /proc/loadavg)"
[ -z "$series" ] || printf -- '- a series of %d versions, %s: the first backup is of %d versions, %s, the second of all\n' "${#names[@]}" \
    "$(human "$all_total")" "$half" "$(human "$half_total")"
printf -- '- a file of %s by a pipe; of its second generation nine tenths are redundant\n' "$(human "$size_bytes")"
printf -- '- sources and restored files in memory, which is touched before; second backups and restores are cold; in brackets: how many times better dedupfs is\n\n'
printf '| |'
for tool in "${participants[@]}"; do printf ' %s |' "$(version_of "$tool")"; done
printf '\n|---|'
for tool in "${participants[@]}"; do printf -- '---|'; done
printf '\n'
if [ -n "$series" ]; then
    row 'series: first backup, MB/s' 'tree first' 1e6 %.0f
    row 'series: second backup, MB/s' 'tree second' 1e6 %.0f
    row 'series: full restore, MB/s' 'tree restore' 1e6 %.0f
    row 'series: CPU s/GB of the first' 'tree first cpu' "$(per_gb "$half_total")" %.2f less
    row 'series: CPU s/GB of the second' 'tree second cpu' "$(per_gb "$all_total")" %.2f less
    row 'series: CPU s/GB of the restore' 'tree restore cpu' "$(per_gb "$all_total")" %.2f less
    row 'series: on disk, MB' 'tree size' 1e6 %.1f less
fi
row 'pipe: first backup, MB/s' 'pipe first' 1e6 %.0f
row 'pipe: second backup, MB/s' 'pipe second' 1e6 %.0f
row 'pipe: restore, MB/s' 'pipe restore' 1e6 %.0f
row 'pipe: CPU s/GB of the first' 'pipe first cpu' "$(per_gb "$size_bytes")" %.2f less
row 'pipe: CPU s/GB of the second' 'pipe second cpu' "$(per_gb "$size_bytes")" %.2f less
row 'pipe: CPU s/GB of the restore' 'pipe restore cpu' "$(per_gb "$size_bytes")" %.2f less
row 'pipe: on disk, MB' 'pipe size' 1e6 %.1f less
row 'memory, MiB' memory 1048576 %.0f less
