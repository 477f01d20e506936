# Sourced by the soaks and the client scripts: programs, scratch space that is always removed, mounts that are always ended.
# shellcheck shell=bash disable=SC2034

# EPOCHREALTIME and awk with a decimal point, sort by bytes.
export LC_ALL=C
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
script=${0##*/}

say() { printf '%s: %s\n' "$script" "$*" >&2; }
fail() {
    say "FAILED: $*"
    exit 1
}
# usage TEXT: a wrong command line.
usage() {
    printf '%s: %s; see --help\n' "$script" "$*" >&2
    exit 2
}
# The comment at the head of the script.
help() {
    sed -n -e '/^# shellcheck/d' -e '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$0"
    exit 0
}

parse_count() {
    [[ $1 =~ ^[1-9][0-9]{0,6}$ ]] || usage "$1 is not a number from 1 up"
    REPLY=$1
}
human() { numfmt --to=iec-i --suffix=B --format=%.1f "$1"; }
# calculate EXPRESSION [FORMAT]
calculate() { awk "BEGIN { printf \"${2:-%.2f}\", $1 }"; }

# ---- programs

# find_programs NAME...: sets programs[NAME], from DEDUPFS_BIN or built here.
declare -A programs
find_programs() {
    local directory name
    if [ -n "${DEDUPFS_BIN-}" ]; then
        directory=$(realpath -e -- "$DEDUPFS_BIN") || fail "DEDUPFS_BIN is not a directory: $DEDUPFS_BIN"
    else
        say "building (set DEDUPFS_BIN to a directory with the programs to use those)"
        # The programs are built last: together with examples they would get what only tests need.
        (cd "$repository" && cargo build --release --locked --workspace --examples >&2 &&
            cargo build --release --locked --bins >&2) || fail "cannot build"
        directory=$(cd "$repository" && cargo metadata --format-version 1 --no-deps --offline |
            sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/release
    fi
    for name in "$@"; do
        if [ -x "$directory/$name" ]; then
            programs[$name]=$directory/$name
        elif [ -x "$directory/examples/$name" ]; then
            programs[$name]=$directory/examples/$name
        else
            fail "no program $name in $directory"
        fi
    done
}
dedupfs() { "${programs[dedupfs]}" "$@"; }

# ---- scratch space and mounts, ended and removed however the script ends

scratch_directories=()
mounted=()
processes=()

# make_scratch PARENT: sets REPLY to a new directory there.
make_scratch() {
    REPLY=$(mktemp -d "$1/dedupfs-scratch.XXXXXX") || fail "cannot make a directory in $1"
    REPLY=$(realpath "$REPLY")
    scratch_directories+=("$REPLY")
}

# pid of the daemon that holds a pool, empty without one.
daemon_of() { [ ! -e "$1/lock" ] || sed -n '1s/^\([0-9]\{1,\}\).*/\1/p' "$1/lock"; }

forget_mount() {
    local entry kept=()
    for entry in "${mounted[@]}"; do [ "$entry" = "$1" ] || kept+=("$entry"); done
    mounted=("${kept[@]}")
}

# mount_pool POOL MNT [OPTION...]
mount_pool() {
    mounted+=("$2")
    dedupfs mount "$@" || fail "cannot mount $1"
    mountpoint -q "$2" || fail "dedupfs mount returned without a mount"
}
# unmount_pool MNT
unmount_pool() {
    dedupfs umount "$1" || fail "cannot unmount $1"
    ! mountpoint -q "$1" || fail "dedupfs umount returned with the mount still there"
    forget_mount "$1"
}

clean_up() {
    local status=$? directory pid
    set +e
    trap - EXIT
    trap '' INT TERM HUP
    local point
    for point in "${mounted[@]}"; do
        grep -qF " $point " /proc/self/mountinfo || continue
        say "unmounting $point"
        timeout 120 "${programs[dedupfs]}" umount "$point" 2>/dev/null || fusermount3 -u -z "$point" 2>/dev/null || umount -l "$point"
    done
    for pid in "${processes[@]}"; do kill "$pid" 2>/dev/null && wait "$pid" 2>/dev/null; done
    for directory in "${scratch_directories[@]}"; do
        # Never through a mount that is still there.
        if grep -qF " $directory/" /proc/self/mountinfo; then
            say "a mount is left below $directory: not removed"
            status=1
            continue
        fi
        if [ $status != 0 ]; then
            while IFS= read -r log; do
                say "the end of $log:"
                tail -n 15 "$log" >&2
            done < <(find "$directory" -maxdepth 3 -name dedupfs.log 2>/dev/null)
        fi
        rm -rf "$directory"
    done
    exit $status
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
# With -e alone a failure is silent.
set -E
trap 'say "FAILED at line $LINENO: $BASH_COMMAND"' ERR

# need_room DIRECTORY BYTES WHAT
need_room() {
    local available
    available=$(df --output=avail -B1 "$1" | tail -n 1)
    [ "$available" -ge "$2" ] || fail "$3 needs $(human "$2") in $1, there are $(human "$available"): choose a smaller size or another directory"
}
# ---- data

# random_bytes SEED BYTES: pseudo-random, the same for the same seed where openssl is installed.
random_bytes() {
    if command -v openssl >/dev/null; then
        # head ends openssl, which says so.
        { openssl enc -aes-128-ctr -nosalt -md sha256 -pass "pass:$1" </dev/zero 2>/dev/null || true; } | head -c "$2"
    else
        head -c "$2" /dev/urandom
    fi
}

# ---- figures

# timed COMMAND...: sets TAKEN to seconds; fails as the command does.
timed() {
    local begin=$EPOCHREALTIME status end
    "$@"
    # Where errexit is off (timed ... || fail), a failure goes on to here.
    status=$?
    end=$EPOCHREALTIME
    TAKEN=$(calculate "$end - $begin" %.4f)
    return $status
}
