#!/usr/bin/env bash
# stress-ng's filesystem stressors (one after the other, then all together) and dbench in the mount, while space is
# reclaimed. No stressor may fail or report a wrong result; afterwards the pool must be clean.
#
#   tests/clients/stress.sh [--seconds N] [--dbench-seconds N] [--only STRESSOR[,STRESSOR...]] [DIRECTORY]
#
#   --seconds N          time of stress-ng, two thirds of it one after the other [default: 600]; 0: without
#   --dbench-seconds N   time of dbench with 8 clients; 0: without [default: half of that]
#   --only NAMES         only these stressors, one after the other
#   DIRECTORY            parent of the scratch directory [default: TMPDIR or /var/tmp]
#
# See common.sh for the variables.
# shellcheck disable=SC2154 # common.sh has them
set -euo pipefail
# shellcheck source=tests/clients/common.sh
. "$(dirname "$0")/common.sh"

# Stressors of the class that do not test this filesystem, with the reason. None is left out because it fails.
declare -A left_out
left_out=(
    [binderfs]="mounts a binderfs, makes no file elsewhere"
    [bind-mount]="mounts / on a directory and does not write in it"
    [eventfd]="uses no file but eventfds"
    [procfs]="reads /proc"
    [ioprio]="sets priorities of processes"
    [verity]="needs fs-verity, for which FUSE has no request"
)
# Stressors of other classes that use files.
further=(aio aiol msync readahead revio seek sendfile splice)
# Sizes that leave most of the time to changes, not to one large write.
sizes=(--hdd-bytes 96M --iomix-bytes 64M --fallocate-bytes 64M --copy-file-bytes 128M --sync-file-bytes 32M --fiemap-bytes 32M
    --readahead-bytes 64M --msync-bytes 32M --seek-size 64M --revio-bytes 64M --sendfile-size 16M --dirdeep-inodes 20000)

number() { if [[ ! ${1-} =~ ^[0-9]{1,6}$ ]]; then usage "${1-nothing} is not a number of seconds"; fi; }
seconds=600 dbench_seconds='' only=''
while [ $# != 0 ]; do
    case $1 in
        --seconds) number "${2-}"; seconds=$2; shift 2 ;;
        --dbench-seconds) number "${2-}"; dbench_seconds=$2; shift 2 ;;
        --only) only=${2-}; shift 2 || usage "--only needs names" ;;
        *) break ;;
    esac
done
client_arguments "$@"
: "${dbench_seconds:=$((seconds / 2))}"
need stress-ng=stress-ng dbench=dbench >&2
: "${DEDUPFS_CLIENT_LIMIT_S:=$((2 * seconds + 2 * dbench_seconds + 1800))}"
open_pool
directory=$mnt/stress
mkdir "$directory"

stressors=()
if [ -n "$only" ]; then
    IFS=, read -r -a stressors <<<"$only"
else
    for name in $(stress-ng --class 'filesystem?' 2>/dev/null | sed -n "s/^class 'filesystem' stressors: //p") "${further[@]}"; do
        if [ -n "${left_out[$name]-}" ]; then
            say "left out: $name ${left_out[$name]}"
        else
            stressors+=("$name")
        fi
    done
fi
[ ${#stressors[@]} != 0 ] || fail "stress-ng names no stressors of the class filesystem"

# Reclaims every now and then until told to end.
reclaim_meanwhile() {
    trap - EXIT ERR
    while [ ! -e "$work/end" ]; do
        "${programs[dedupfs-gc]}" "$mnt" >"$work/gc.log" 2>&1 || { cp "$work/gc.log" "$work/gc.failed" && exit; }
        for _ in {1..15}; do
            [ -e "$work/end" ] || sleep 1
        done
    done
}
resident_mib() { awk '/^VmRSS/ { printf "%d", $2 / 1024 }' "/proc/$(daemon_of "$pool")/status"; }

# stress TITLE SECONDS ARGUMENTS...: runs stress-ng with these arguments.
failures=()
stress() {
    local title=$1 limit=$2 status=0 said
    shift 2
    # One stressor leaves a file in the current directory.
    env --chdir="$directory" timeout --kill-after=60 $((limit + 300)) stress-ng --temp-path "$directory" --timeout "${limit}s" --verify --oomable "${sizes[@]}" "$@" \
        >"$work/stress.log" 2>&1 || status=$?
    said=$(grep -E ' (fail|error|warn):|skipped: [1-9]|not (supported|implemented)|does not support' "$work/stress.log" | sed 's/^stress-ng: //' | sort -u | head -n 6 || true)
    if { [ $status != 0 ] && [ $status != 3 ] && [ $status != 4 ]; } || grep -q ' fail:' "$work/stress.log"; then
        failures+=("$title (exit code $status)")
        cp "$work/stress.log" "$work/stress.$title.failed"
        # A wrong option gives no result.
        [ $status != 1 ] || fail "stress-ng: $(tail -n 3 "$work/stress.log")"
    fi
    say "    $title: exit code $status, daemon $(resident_mib) MiB${said:+; said:}"
    [ -z "$said" ] || printf '        %s\n' "$said" >&2
}

reclaim_meanwhile &
reclaiming=$!
processes+=("$reclaiming")
if [ "$seconds" != 0 ]; then
    each=$((seconds * 2 / 3 / ${#stressors[@]}))
    [ -z "$only" ] || each=$((seconds / ${#stressors[@]}))
    [ $each -ge 1 ] || each=1
    step "${#stressors[@]} stressors, two workers each, $each s each"
    for name in "${stressors[@]}"; do stress "$name" $each "--$name" 2; done
    if [ -z "$only" ]; then
        step "all stressors at a time, $((seconds - each * ${#stressors[@]})) s"
        together=()
        for name in "${stressors[@]}"; do
            # Runs only alone: it watches all mounts of the machine, and its queue holds removed files and whole mounts, so that
            # inotify and umount wait in vain.
            [ "$name" = fanotify ] || together+=("--$name" 1)
        done
        stress all $((seconds - each * ${#stressors[@]})) "${together[@]}"
    fi
fi

if [ "$dbench_seconds" != 0 ]; then
    step "dbench, 8 clients, $dbench_seconds s"
    mkdir "$mnt/dbench"
    status=0
    dbench -c /usr/share/dbench/client.txt -D "$mnt/dbench" -t "$dbench_seconds" 8 >"$work/dbench.log" 2>&1 || status=$?
    grep -E '^(Throughput|Operation)|^ +(NTCreateX|Close|Rename|Unlink|Qpathinfo|WriteX|ReadX|Flush) ' "$work/dbench.log" >&2 || true
    # Without semaphores its clients begin a moment apart.
    sed -i '/^failed to create barrier semaphore/d' "$work/dbench.log"
    if [ $status != 0 ] || grep -qiE 'fail|error|mismatch' "$work/dbench.log"; then
        grep -iE 'fail|error|mismatch' "$work/dbench.log" | head -n 10 >&2 || true
        failures+=("dbench (exit code $status)")
    fi
    say "    daemon $(resident_mib) MiB"
fi

touch "$work/end"
wait $reclaiming || true
[ ! -e "$work/gc.failed" ] || failures+=("dedupfs-gc: $(tail -n 3 "$work/gc.failed")")
for failed in "$work"/stress.*.failed; do
    [ ! -e "$failed" ] || { say "$failed:" && tail -n 25 "$failed" >&2; }
done
step "what is left, listed, removed and reclaimed"
find "$mnt" | wc -l >&2
remount
rm -rf "$directory" "$mnt/dbench"
expect "$(find "$mnt" -mindepth 1 | wc -l)" 0 "names that are left"
reclaim
failed_before=''
[ ${#failures[@]} = 0 ] || failed_before=$(printf '%s; ' "${failures[@]}")
close_pool
