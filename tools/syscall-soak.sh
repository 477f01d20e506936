#!/usr/bin/env bash
# Lets one system call of the daemon fail at a time, on a real mount, and checks the pool afterwards.
#
#   tools/syscall-soak.sh [CHANCE] [--seed S] [--directory DIR]
#
#   CHANCE                           for each call on each kind of file, the first, the last, and this many random ones fail [default: 3]
#   DEDUPFS_SYSCALLS=CALL:KIND,...   only these; either side may be *
#   DEDUPFS_SYSCALL_CASES=N          at most N cases, chosen at random
#
# A run without a failure counts the calls (tools/examples/fail_syscall). Each case mounts a copy of a pool, writes
# trees and synced files, puts and deletes trees, reclaims space, and unmounts, while that one call fails; then it
# mounts without failures. Everything acknowledged is there byte for byte, and the pool is clean; nothing ever hangs,
# panics, or reads wrong bytes. The failed request may be an error to the client, and afterwards every command works.
# Ends with the number of cases by call and kind of file. See tools/soak/common.sh for the variables.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/soak/common.sh
. tools/soak/common.sh

soak_arguments 3 "$@"
need_fuse >&2
need openssl=openssl cmp=diffutils >&2
soak_begin dedupfs dedupfs-gc dedupfs-stats fail_syscall

# A step that takes longer hangs.
limit_s=90

# ---- the pool with which every case begins: content, garbage, sealed tankers, an export

make_pool() {
    pool=$work/template mnt=$work/mnt
    mkdir "$mnt"
    dedupfs mkfs --container-size 1M --chunk-size 4K --tanker-cells 1K --tanker-buckets 4 "$pool" >/dev/null
    make_files "$work/old" old 60 12000
    make_files "$work/gone" gone 60 12000
    make_files "$work/new" new 60 12000
    make_files "$work/put" put 60 12000
    mount_pool "$pool" "$mnt"
    cp -a "$work/old" "$work/gone" "$mnt/"
    mkdir "$mnt/leaving"
    cp -a "$work/old" "$mnt/leaving/"
    unmount_pool "$mnt"
    sums "$work/old" old >"$work/sums.old"
    sums "$work/gone" gone >"$work/sums.gone"
    sums "$work/new" new >"$work/sums.new"
    sums "$work/put" put >"$work/sums.put"
}

# ---- a case. It uses $case, a directory of its own.

# attempt COMMAND...: runs a step that may fail, but not hang, and keeps its output.
attempt() {
    local status=0
    within $limit_s "$@" >>"$case/client.log" 2>&1 || status=$?
    [ $status != 124 ] && [ $status != 137 ] || problem "hangs: $*"
    return $status
}
problem() { printf '%s\n' "$*" >>"$case/problems"; }

# begin_daemon FAILURE: starts a daemon whose calls are counted; waits until it serves or has ended.
begin_daemon() {
    local options=() end=$((SECONDS + limit_s))
    [ -z "$1" ] || options=(--fail "$1")
    "${programs[fail_syscall]}" --pool "$case/pool" --counts "$case/counts" "${options[@]}" -- \
        "${programs[dedupfs]}" mount --foreground --log-file "$case/pool/dedupfs.log" "$case/pool" "$mnt" >"$case/daemon.log" 2>&1 &
    daemon=$!
    processes+=("$daemon")
    [ "${mounted[*]}" ] || mounted=("$mnt")
    until mountpoint -q "$mnt"; do
        is_running "$daemon" || return 0
        [ $SECONDS -lt $end ] || { problem "hangs: mount"; return 0; }
        sleep 0.02
    done
}
is_running() { grep -qs '^State:[[:space:]]*[^ZX]' "/proc/$1/status"; }

# Unmounts. The daemon then ends by itself.
end_daemon() {
    local end=$((SECONDS + limit_s)) status=0 child
    if mountpoint -q "$mnt" 2>/dev/null && ! attempt "${programs[dedupfs]}" umount "$mnt"; then
        umount -l "$mnt" 2>>"$case/client.log" || true
    fi
    while is_running "$daemon"; do
        if [ $SECONDS -ge $end ]; then
            problem "hangs: the daemon after umount"
            child=$(pgrep -P "$daemon" || true)
            [ -z "$child" ] || kill -9 "$child"
        fi
        sleep 0.02
    done
    wait "$daemon" || status=$?
    processes=("${processes[@]/$daemon/}")
    [ $status -lt 128 ] || problem "the daemon ended with $status"
}

# Works on the mount, and notes acknowledged files in $case/acked.
work() {
    local number file whole=1 offset
    : >"$case/acked"
    is_running "$daemon" || return 0
    for number in 1 2 3 4 5 6; do
        file=$work/new/a/faa$(printf '\\x%x' $((96 + number)))
        file=$(printf '%b' "$file")
        if attempt dd if="$file" of="$mnt/synced-$number" bs=3000 conv=fsync status=none; then
            sed "s|^\([0-9a-f]*\).*|\1  synced-$number|" <(sha256sum "$file") >>"$case/acked"
        fi
    done
    # Changes parts of a file. If the sync succeeds, the new part must be there, else the old or the new one.
    offset=20000
    if attempt dd if="$work/new/large" of="$mnt/old/large" bs=5000 seek=$offset count=1 oflag=seek_bytes conv=notrunc,fsync status=none; then
        : >"$case/patched"
    fi
    attempt cp -r "$work/new" "$mnt/" || whole=''
    if attempt "${programs[dedupfs]}" sync "$mnt" && [ $whole ]; then cat "$work/sums.new" >>"$case/acked"; fi
    if attempt "${programs[dedupfs]}" put "$work/put" "$mnt/put"; then cat "$work/sums.put" >>"$case/acked"; fi
    read_all live
    : >"$case/deleted"
    attempt rm -rf "$mnt/gone" || true
    attempt "${programs[dedupfs-gc]}" --threshold 95 "$mnt" || true
    attempt "${programs[dedupfs]}" get "$mnt/old" "$case/got" || true
    [ ! -e "$case/got" ] || same_or_absent "$work/old" "$case/got" "what get copied"
    rm -rf "$case/got"
}

# same_or_absent SOURCE COPY WHAT: checks that no file of the copy has other bytes; large may be the patched one.
same_or_absent() {
    local file
    while IFS= read -r -d '' file; do
        [ -e "$2/$file" ] || continue
        cmp -s "$1/$file" "$2/$file" && continue
        [ "$file" = ./large ] && cmp -s "$work/patched" "$2/$file" && continue
        problem "$3: $file has other bytes"
    done < <(cd "$1" && find . -type f -print0)
}

# read_all WHEN: checks that old files have their bytes or give an error.
read_all() {
    local file
    for file in numbers large a/faab b/faac; do
        if attempt cp "$mnt/old/$file" "$case/read"; then
            cmp -s "$work/old/$file" "$case/read" || { [ $file = large ] && cmp -s "$work/patched" "$case/read"; } ||
                problem "$1: old/$file has other bytes"
        fi
    done
}

# Checks, without failures, everything that must be there.
verify() {
    local wanted=$case/wanted
    if ! attempt "${programs[dedupfs]}" mount "$case/pool" "$mnt"; then
        problem "the next mount fails"
        return 0
    fi
    grep -v '  old/large$' "$work/sums.old" >"$wanted"
    [ -e "$case/deleted" ] || cat "$work/sums.gone" >>"$wanted"
    cat "$case/acked" >>"$wanted"
    (cd "$mnt" && within $limit_s sha256sum --quiet -c "$wanted") >"$case/sums.log" 2>&1 || problem "acknowledged, and not there: $(head -n 4 "$case/sums.log")"
    if ! cmp -s "$work/patched" "$mnt/old/large"; then
        [ ! -e "$case/patched" ] || problem "the synced change of old/large is not there"
        cmp -s "$work/old/large" "$mnt/old/large" || problem "old/large is neither old nor new"
    fi
    attempt "${programs[dedupfs]}" put "$work/put" "$mnt/again" || problem "no put afterwards"
    diff -r "$work/put" "$mnt/again" >>"$case/client.log" 2>&1 || problem "what was put afterwards is other"
    attempt rm -rf "$mnt/again" || problem "no deleting afterwards"
    attempt "${programs[dedupfs-gc]}" "$mnt" || problem "no gc afterwards"
    attempt "${programs[dedupfs]}" umount "$mnt" || problem "no umount afterwards"
    if mountpoint -q "$mnt"; then umount -l "$mnt"; fi
    attempt "${programs[dedupfs]}" fsck --read-data "$case/pool" || problem "fsck ends with $?"
}

# run_case FAILURE: sets REPLY to the problems.
run_case() {
    local found
    case=$work/case
    rm -rf "$case"
    mkdir "$case"
    cp -a "$work/template" "$case/pool"
    begin_daemon "$1"
    work
    end_daemon
    found=$(panics "$case/daemon.log" "$case"/pool/dedupfs.log* "$case/client.log")
    [ -z "$found" ] || problem "$found"
    [ -z "$1" ] || verify
    REPLY=$(cat "$case/problems" 2>/dev/null || true)
}

errors_of() {
    case $1 in
        write | writev | pwrite* | fallocate | ftruncate | mkdir* | rename* | bind) REPLY="EIO ENOSPC EINTR" ;;
        open | openat) REPLY="EIO EMFILE ENOSPC" ;;
        fsync | fdatasync | sync_file_range) REPLY="EIO ENOSPC" ;;
        read | readv | pread* | flock) REPLY="EIO EINTR" ;;
        *) REPLY="EIO" ;;
    esac
}

# plan: prints a line CALL:KIND:NUMBER:ERROR for each case.
plan() {
    local call kind count number place numbers errors
    while read -r call kind count; do
        is_wanted "$call" "$kind" || continue
        errors_of "$call"
        read -r -a errors <<<"$REPLY"
        numbers=(1 "$count")
        for ((place = 0; place < rounds; place++)); do
            choose "$place" "$count" ${#call} "$count"
            numbers+=($((REPLY + 1)))
        done
        place=0
        for number in $(printf '%s\n' "${numbers[@]}" | awk '!seen[$0]++'); do
            printf '%s:%s:%s:%s\n' "$call" "$kind" "$number" "${errors[place % ${#errors[@]}]}"
            place=$((place + 1))
        done
    done <"$work/counts"
}
is_wanted() {
    local pair
    [ -n "${DEDUPFS_SYSCALLS-}" ] || return 0
    for pair in ${DEDUPFS_SYSCALLS//,/ }; do
        # shellcheck disable=SC2053 # patterns
        [[ $1:$2 == $pair ]] && return 0
    done
    return 1
}

make_pool
cp "$work/old/large" "$work/patched"
dd if="$work/new/large" of="$work/patched" bs=5000 seek=20000 count=1 oflag=seek_bytes conv=notrunc status=none
run_case ''
[ -z "$REPLY" ] || fail "without a failure: $REPLY"
verify
[ ! -e "$case/problems" ] || fail "without a failure: $(cat "$case/problems")"
[ -s "$case/acked" ] || fail "nothing was acknowledged"
cp "$case/counts" "$work/counts"
plan >"$work/plan"
if [ -n "${DEDUPFS_SYSCALL_CASES-}" ]; then
    random_bytes "$seed" 1000000 >"$work/random"
    shuf -n "$DEDUPFS_SYSCALL_CASES" --random-source="$work/random" "$work/plan" >"$work/chosen"
    mv "$work/chosen" "$work/plan"
fi
[ -s "$work/plan" ] || fail "no such calls"
say "$(wc -l <"$work/plan") cases"

declare -A cases
failed=0 came=0
while IFS= read -r -u 7 failure; do
    run_case "$failure"
    if ! grep -q '^failed' "$case/counts" 2>/dev/null && [ -z "$REPLY" ]; then
        # Threads do not always make the same number of calls: then the last call of this run serves as well.
        IFS=: read -r call kind number error <<<"$failure"
        number=$(awk -v call="$call" -v kind="$kind" '$1 == call && $2 == kind { print $3 }' "$case/counts")
        failure=$call:$kind:$number:$error
        [ -z "$number" ] || run_case "$failure"
    fi
    if grep -q '^failed' "$case/counts" 2>/dev/null; then
        came=$((came + 1))
        pair=${failure%:*:*}
        cases[$pair]=$((${cases[$pair]-0} + 1))
    fi
    [ -n "$REPLY" ] || continue
    failed=$((failed + 1))
    say "FAILED $failure ($(sed -n 's/^failed //p' "$case/counts" 2>/dev/null)): $REPLY"
    [ "${DEDUPFS_SOAK_KEEP-}" != 1 ] || cp -a "$case" "$work/failed-${failure//:/-}"
done 7<"$work/plan"

printf '| call | kind of file | cases |\n|---|---|---|\n'
for pair in "${!cases[@]}"; do printf '| %s | %s | %s |\n' "${pair%:*}" "${pair#*:}" "${cases[$pair]}"; done | sort
[ $((came * 10)) -ge $(($(wc -l <"$work/plan") * 7)) ] || fail "only $came of $(wc -l <"$work/plan") calls came"
[ $failed = 0 ] || fail "$failed of $came cases"
soak_end "$came calls failed, one at a time; nothing acknowledged was lost"
