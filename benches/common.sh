# Sourced by the bench scripts: programs, scratch space that is always removed, mounts that are always ended, figures.
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

# parse_size TEXT: sets REPLY to bytes; 512M, 1G, powers of 1024.
parse_size() {
    REPLY=$(numfmt --from=iec "$(tr -d 'iB' <<<"${1^^}" | tr -d 'I')" 2>/dev/null) || usage "$1 is not a size such as 64M or 1G"
}
parse_count() {
    [[ $1 =~ ^[1-9][0-9]{0,6}$ ]] || usage "$1 is not a number from 1 up"
    REPLY=$1
}
human() { numfmt --to=iec-i --suffix=B --format=%.1f "$1"; }
exact() { printf '%s (%d bytes)' "$(human "$1")" "$1"; }
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
        (cd "$repository" && cargo build --release --locked --workspace --bins --examples >&2) || fail "cannot build"
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

need_commands() {
    local name
    for name in "$@"; do
        command -v "$name" >/dev/null || fail "$name is missing: please install it"
    done
    [ -e /dev/fuse ] || fail "no /dev/fuse: load the module fuse, or start the container with --device /dev/fuse --cap-add SYS_ADMIN"
}

# ---- scratch space and mounts, ended and removed however the script ends

scratch_directories=()
mounted=()
processes=()

# make_scratch PARENT: sets REPLY to a new directory there.
make_scratch() {
    REPLY=$(mktemp -d "$1/dedupfs-bench.XXXXXX") || fail "cannot make a directory in $1"
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
# need_memory BYTES
need_memory() {
    local available
    available=$(awk '/^MemAvailable/ { printf "%.0f", $2 * 1024 }' /proc/meminfo)
    [ "$available" -ge "$1" ] || fail "this size needs $(human "$1") of memory, there are $(human "$available"): choose a smaller size"
    need_room /dev/shm "$1" "the data in memory"
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

# real_files libraries|sources: paths, NUL between, of real files that this machine has.
real_files() {
    local directory existing=() candidates=("$HOME"/.rustup/toolchains/*/lib /usr/lib /usr/bin)
    [ "$1" = libraries ] || candidates=("$HOME/.cargo/registry/src" /usr/share /usr/include)
    for directory in "${candidates[@]}"; do
        [ ! -d "$directory" ] || existing+=("$directory")
    done
    find "${existing[@]}" -xdev -type f -size +0 -readable ! -name '*.gz' ! -name '*.xz' ! -name '*.crate' -print0 2>/dev/null
}

# real_data DIRECTORY BYTES: files of at most 256 MiB in DIRECTORY, half of libraries and half of sources, without those
# that come twice.
real_data() {
    local got kind
    mkdir -p "$1"
    for kind in libraries sources; do
        # Readers end early when there is enough: that is no failure.
        { real_files $kind | xargs -0 md5sum 2>/dev/null || true; } |
            { awk '/^[0-9a-f]/ && !seen[$1]++ { print substr($0, 35) }' | tr '\n' '\0' | xargs -0 cat 2>/dev/null || true; } |
            head -c $(($2 / 2)) | split -b 256M -a 3 - "$1/$kind-"
    done
    got=$(content_bytes "$1")
    [ "$got" -gt 0 ] || fail "no real files found for the compressible data"
    [ "$got" -ge $(($2 / 2 * 2)) ] || say "only $(human "$got") of distinct real files on this machine"
}

# content_bytes DIRECTORY
content_bytes() { find "$1" -type f -printf '%s\n' | awk '{ sum += $1 } END { printf "%.0f", sum }'; }
# disk_bytes DIRECTORY: what it takes on disk, the daemon's log left out.
disk_bytes() { du -s -B1 --exclude=dedupfs.log "$1" | cut -f1; }

# evict DIRECTORY...: the page cache forgets the files there (which must be synced).
evict() {
    find "$@" -type f -print0 | xargs -0 -r -I{} -P 2 dd if={} iflag=nocache count=0 status=none
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
# rate BYTES SECONDS: MB/s.
rate() { calculate "$1 / 1e6 / ($2 > 0 ? $2 : 1e-6)" %.0f; }

# read_stats POOL|MNT: sets STATS to the JSON text.
read_stats() {
    STATS=$("${programs[dedupfs-stats]}" --json "$1") || fail "dedupfs-stats $1"
}
# stat_field NAME: sets REPLY to a number of STATS; a NAME of session.NAME, data_containers.NAME... is one in that object.
stat_field() {
    local group='' name=$1
    [[ $1 != *.* ]] || { group=${1%%.*} name=${1#*.}; }
    REPLY=$(awk -v group="$group" -v name="$name" '
        match($0, /^  "[a-z_]+": \{/) { inside = $1; gsub(/[":{]/, "", inside) }
        /^  \}/ { inside = "" }
        { field = $1; gsub(/[":]/, "", field); depth = match($0, /[^ ]/) - 1 }
        field == name && inside == group && depth == (group == "" ? 2 : 4) { sub(/,$/, "", $2); print $2; exit }
    ' <<<"$STATS")
    [ -n "$REPLY" ] || fail "dedupfs-stats --json has no $1"
}

# describe_machine DIRECTORY: what the figures were measured on, as Markdown lines.
describe_machine() {
    local cpu memory device type
    cpu=$(awk -F': ' '/^model name/ { print $2; exit }' /proc/cpuinfo)
    memory=$(awk '/^MemTotal/ { printf "%.0f", $2 / 1048576 }' /proc/meminfo)
    read -r device type < <(findmnt -n -o SOURCE,FSTYPE -T "$1")
    printf -- '- machine: %s, %s cores, %s GiB of memory, Linux %s\n' "${cpu:-unknown CPU}" "$(nproc)" "$memory" "$(uname -r)"
    printf -- '- backing filesystem: %s on %s\n' "$type" "$device"
    printf -- '- %s; load average at the start %s\n' "$(dedupfs --version)" "$(cut -d' ' -f1-3 /proc/loadavg)"
}
