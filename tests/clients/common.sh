# Sourced by the client scripts: a pool and a mount in a scratch directory for one client, trees for it, and the
# verdict.
#
# A script calls open_pool, uses $mnt (and $work, which is outside of the mount), may call remount, crash_daemon and
# reclaim, and ends with close_pool, which unmounts, reads and checks every byte, and finds no warning in the daemon's
# log. However the script ends, nothing is left.
#
#   DEDUPFS_BIN                  directory with the programs (otherwise they are built)
#   DEDUPFS_CLIENT_MKFS, _MOUNT  more arguments for mkfs and mount
#   DEDUPFS_CLIENT_QUICK=1       with small trees and short waits
#   DEDUPFS_CLIENT_KEEP=1        keeps the pool of a client that failed
#   DEDUPFS_CLIENT_LIMIT_S       seconds after which the daemon counts as hanging: its stacks are shown and it is killed
#                                [default: 1800]
# shellcheck shell=bash disable=SC2034,SC2154

clients=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tools/prerequisites.sh
. "$clients/../../tools/prerequisites.sh"
# Programs, scratch directories and mounts that are always cleaned up.
# shellcheck source=tools/common.sh
. "$clients/../../tools/common.sh"

# ---- the pool

# client_arguments "$@": parses [DIRECTORY], the parent of the scratch directory.
client_arguments() {
    case ${1-} in
        -h | --help) help ;;
        -*) usage "unknown argument $1" ;;
    esac
    [ $# -le 1 ] || usage "one directory at most"
    scratch_parent=${1:-${TMPDIR:-/var/tmp}}
    [ -d "$scratch_parent" ] || usage "no directory $scratch_parent"
}

# open_pool: formats and mounts a pool; sets work, pool and mnt.
open_pool() {
    local arguments=()
    need_fuse >&2
    need cmp=diffutils find=findutils awk=mawk >&2
    find_programs dedupfs dedupfs-gc dedupfs-stats
    make_scratch "$scratch_parent" && work=$REPLY
    # Lets clients of other users pass through it.
    chmod 755 "$work"
    pool=$work/pool mnt=$work/mnt
    mkdir "$mnt"
    [ ! "$DEDUPFS_CLIENT_MKFS" ] || read -r -a arguments <<<"$DEDUPFS_CLIENT_MKFS"
    dedupfs mkfs "${arguments[@]}" "$pool" >/dev/null
    begun=$SECONDS memory_kib=0 step_begun=''
    mount_client
    watch_for_hangs &
    processes+=($!)
}
: "${DEDUPFS_CLIENT_MKFS=}" "${DEDUPFS_CLIENT_MOUNT=}"

mount_client() {
    local arguments=()
    # Without these options device nodes and setuid bits in a backup have no effect.
    [ "$(id -u)" != 0 ] || arguments=(-o "allow_other,dev,suid")
    # shellcheck disable=SC2206 # words
    arguments+=($DEDUPFS_CLIENT_MOUNT)
    mount_pool "$pool" "$mnt" "${arguments[@]}"
}

# Adds the daemon's peak of resident memory to the maximum.
note_memory() {
    local daemon peak
    daemon=$(daemon_of "$pool")
    peak=$(awk '/^VmHWM/ { print $2 }' "/proc/$daemon/status" 2>/dev/null) || peak=0
    [ "${peak:-0}" -le "$memory_kib" ] || memory_kib=$peak
}

unmount_client() {
    note_memory
    unmount_pool "$mnt"
}

remount() {
    step "remounting"
    unmount_client
    mount_client
}

# Reclaims space while the client works.
reclaim() { "${programs[dedupfs-gc]}" "$mnt" >>"$work/gc.log" 2>&1 || fail "dedupfs-gc: $(tail -n 3 "$work/gc.log")"; }

# is_running PID: whether the process exists and is not a zombie that waits for its parent.
is_running() { grep -qs '^State:[[:space:]]*[^ZX]' "/proc/$1/status"; }

# crash_daemon: kills it as a crash would. Processes that use the mount get errors from then on.
crash_daemon() {
    local daemon
    note_memory
    daemon=$(daemon_of "$pool")
    [ -n "$daemon" ] || fail "no daemon to kill"
    kill -9 "$daemon"
    while is_running "$daemon"; do sleep 0.05; done
}

# Mounts again, which removes the dead mount and recovers.
mount_after_crash() {
    forget_mount "$mnt"
    mount_client
}

# close_pool: the verdict; failed_before holds earlier failures.
close_pool() {
    local problems
    step "unmounting and checking"
    unmount_client
    dedupfs fsck --read-data "$pool" >"$work/fsck.log" 2>&1 || fail "fsck: $(tail -n 20 "$work/fsck.log")"
    grep -q clean "$work/fsck.log" || fail "fsck does not say clean: $(cat "$work/fsck.log")"
    # Rotated logs count as well. Other programs may fill the disk, which is no failure of the client, and crash_daemon
    # leaves a dead mount.
    problems=$(grep -hE ' (WARN|ERROR) |panicked' "$pool"/dedupfs.log* | grep -vE '[0-9]% full|removing the dead mount' || true)
    [ -z "$problems" ] || fail "the daemon's log has: $(head -n 10 <<<"$problems")"
    step ''
    [ -z "${failed_before-}" ] || fail "the pool is clean, but: $failed_before"
    say "PASSED in $((SECONDS - begun)) s; the daemon's memory was $((memory_kib / 1024)) MiB at most"
}

# step TEXT: prints the time of the last step and the name of the next.
step() {
    [ -z "$step_begun" ] || say "    $(calculate "$EPOCHREALTIME - $step_begun" %.1f) s"
    step_begun=''
    [ -z "$1" ] || { say "$1" && step_begun=$EPOCHREALTIME; }
}

# expect_same FILE FILE WHAT
expect_same() {
    cmp -s "$1" "$2" && return
    diff -a "$1" "$2" | head -n 20 >&2 || true
    fail "$3"
}
# expect VALUE EXPECTED WHAT
expect() { [ "$1" = "$2" ] || fail "$3: $1, and not $2"; }

# Ends the daemon if the script takes so long that it must hang: every call into the mount then fails.
watch_for_hangs() {
    local deadline=$((SECONDS + ${DEDUPFS_CLIENT_LIMIT_S:-1800})) daemon
    trap - EXIT ERR
    while [ $SECONDS -lt $deadline ]; do
        sleep 2
        # The parent may have been killed.
        kill -0 $$ 2>/dev/null || exit 0
    done
    daemon=$(daemon_of "$pool")
    say "takes longer than ${DEDUPFS_CLIENT_LIMIT_S:-1800} s; the daemon $daemon was doing:"
    show_stacks "$daemon"
    kill -9 "$daemon"
}
show_stacks() {
    local task
    if command -v gdb >/dev/null; then
        gdb -p "$1" -batch -ex 'thread apply all bt 25' 2>/dev/null | grep -E '^(Thread|#)' >&2
    fi
    for task in /proc/"$1"/task/*; do
        printf '%s: %s\n' "$(cat "$task/comm")" "$(cat "$task/wchan")" >&2
        cat "$task/stack" >&2
    done 2>/dev/null
}

# Stops the processes of a script (set on_exit to a function), and keeps the pool if that is asked for.
end_client() {
    local status=$?
    trap - EXIT
    if [ -n "${on_exit-}" ]; then (set +e; trap - ERR; $on_exit); fi
    if [ $status != 0 ] && [ "${DEDUPFS_CLIENT_KEEP-}" = 1 ] && [ -n "${pool-}" ]; then
        dedupfs umount --lazy "$mnt" 2>/dev/null || umount -l "$mnt" || true
        mounted=()
        say "kept: $work"
        scratch_directories=()
    fi
    trap - ERR
    set +e
    # clean_up reads this exit code.
    (exit $status)
    clean_up
}
trap end_client EXIT

# ---- trees

# Directories of a tree, and files in each.
directories=40 files_each=40
[ "${DEDUPFS_CLIENT_QUICK-}" != 1 ] || directories=12 files_each=12

# make_tree DIRECTORY: makes the usual content of backups: many small files, some large, holes, links, odd names,
# attributes, special files.
make_tree() {
    local number
    mkdir -p "$1"
    for ((number = 1; number <= directories; number++)); do
        mkdir "$1/directory $number"
        random_bytes "tree $number" $((files_each * 10240)) | split -b 10k -a 2 - "$1/directory $number/file-"
    done
    random_bytes large $((files_each * 500000)) >"$1/large"
    seq 1 $((files_each * 40000)) >"$1/numbers"
    : >"$1/empty"
    truncate -s 100M "$1/sparse"
    printf 'in the middle' | dd of="$1/sparse" bs=1 seek=50000000 conv=notrunc status=none
    printf 'end' >>"$1/sparse"
    ln "$1/large" "$1/hard link"
    ln "$1/numbers" "$1/directory 1/hard link"
    ln -s numbers "$1/symlink"
    ln -s "nowhere/at all" "$1/dangling"
    mkdir "$1/no files" "$1/"$'odd \n\t\\ \xff\xfe *?'
    printf odd >"$1/"$'odd \n\t\\ \xff\xfe *?/'"$(printf 'n%.0s' {1..255})"
    mkfifo "$1/fifo"
    chmod 4755 "$1/directory 2/file-aa"
    chmod 2770 "$1/directory 3"
    chmod 1777 "$1/directory 4"
    touch -d '1969-07-20 20:17:40.123456789' "$1/directory 6/file-aa"
    touch -d '2106-02-07 06:28:17.5' "$1/directory 7/file-aa"
    touch -h -d '2001-01-01 01:01:01.25' "$1/symlink"
    if [ "$(id -u)" = 0 ]; then
        chmod 000 "$1/directory 5/file-aa"
        mknod "$1/character device" c 1 3
        mknod "$1/block device" b 7 200
        chown 12345:54321 "$1/directory 8" "$1/directory 8"/*
        chown -h 1:2 "$1/dangling"
    fi
    # Not every scratch filesystem has extended attributes.
    if setfattr -n user.client -v value "$1/directory 9" 2>/dev/null; then
        setfattr -n user.large -v "$(printf 'v%.0s' {1..1500})" "$1/directory 9/file-aa"
    fi
    if setfacl -m u:12345:rwx,g:54321:r-x "$1/directory 10/file-aa" 2>/dev/null; then
        setfacl -d -m u:12345:rwx "$1/directory 10"
    fi
    touch -d '2020-02-02 02:02:02.222' "$1/directory 11" "$1"
}

# change_tree DIRECTORY NUMBER: makes the changes of a day: new files, and files changed in place, longer, renamed,
# removed.
change_tree() {
    local at=$(($2 % directories + 1)) next=$((($2 + 1) % directories + 1))
    random_bytes "new $2" $((30000 + $2 * 777)) >"$1/directory $at/new $2"
    random_bytes "change $2" 5000 | dd of="$1/large" bs=1000 seek=$(($2 * 300 % (files_each * 480))) conv=notrunc status=none
    seq "$2" $(($2 + 1000)) >>"$1/numbers"
    [ ! -e "$1/directory $at/file-ab" ] || mv "$1/directory $at/file-ab" "$1/directory $next/renamed $2"
    rm -f "$1/directory $next/file-ac"
    rm -f "$1/directory $at/new $(($2 - directories))"
    touch "$1/directory $next/file-ad"
}

# listing DIRECTORY [LINKS]: prints everything about it, sorted: names, attributes with nanoseconds, extended ones,
# checksums. LINKS is the format of hard links in find's notation [default: their number].
listing() {
    (
        cd "$1" || exit
        # The size and the links of a directory depend on its filesystem.
        find . \( -type d -printf '%p d %m %U:%G %T@\0' \) -o -printf "%p %y %m %U:%G %s %T@ ${2-%n} %l\0" | sort -z | tr '\0\n' '\n?'
        getfattr -R -P -h -d -m - . 2>/dev/null | sort
        find . -type f -print0 | sort -z | xargs -0 -r sha256sum
    )
}

# expect_same_trees DIRECTORY DIRECTORY
expect_same_trees() {
    listing "$1" >"$work/listing.1"
    listing "$2" >"$work/listing.2"
    expect_same "$work/listing.1" "$work/listing.2" "$2 is not what $1 is"
}
