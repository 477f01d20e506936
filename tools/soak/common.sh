# Sourced by the soaks that work on real pools: arguments, reproducible random numbers, loop devices that are always
# released, and the closing line.
#
#   soak_arguments ROUNDS "$@"     [ROUNDS] [--seed S] [--directory DIR]: sets rounds, seed, scratch_parent
#   soak_begin PROGRAM...          sets work to a scratch directory; the programs are found or built
#   soak_end TEXT                  prints the closing line of a passed soak
#
#   DEDUPFS_BIN                    directory with the programs (otherwise they are built)
#   DEDUPFS_SOAK_KEEP=1            keeps the scratch directory of a soak that failed
# shellcheck shell=bash disable=SC2034,SC2154

# shellcheck source=tools/prerequisites.sh
. "$(dirname "${BASH_SOURCE[0]}")/../prerequisites.sh"
# Programs, scratch directories and mounts that are always cleaned up.
# shellcheck source=tools/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

soak_arguments() {
    local text
    rounds=$1 seed='' scratch_parent=${TMPDIR:-/var/tmp}
    shift
    while [ $# != 0 ]; do
        case $1 in
            -h | --help) help ;;
            --seed) [[ ${2-} =~ ^[0-9]{1,9}$ ]] || usage "--seed needs a number"; seed=$2; shift 2 ;;
            --directory) scratch_parent=${2-}; shift 2 || usage "--directory needs a directory" ;;
            *) [[ $1 =~ ^[1-9][0-9]{0,6}$ ]] || usage "unknown argument $1"; rounds=$1; shift ;;
        esac
    done
    [ -d "$scratch_parent" ] || usage "no directory $scratch_parent"
    : "${seed:=$((EPOCHSECONDS % 1000000))}"
}

soak_begin() {
    find_programs "$@"
    make_scratch "$scratch_parent" && work=$REPLY
    begun=$SECONDS
    say "$rounds rounds, seed $seed (again with --seed $seed), in $work"
}

soak_end() { say "PASSED in $((SECONDS - begun)) s: $*"; }

# mix NUMBER...: sets REPLY to 31 bits that depend only on the seed and these numbers.
mix() {
    local number
    REPLY=$seed
    for number in "$@"; do
        REPLY=$(((REPLY ^ number) * 6364136223846793005 + 1442695040888963407))
        REPLY=$(((REPLY ^ (REPLY >> 29 & 0x7ffffffff)) * 0x5851f42d4c957f2d))
    done
    REPLY=$((REPLY >> 31 & 0x7fffffff))
}
# choose NUMBER... BELOW: sets REPLY to one of 0 to BELOW - 1.
choose() {
    mix "${@:1:$#-1}"
    REPLY=$((REPLY % ${!#}))
}

# ---- loop devices and filesystems on them, released in the opposite order

loops=()
filesystems=()

# attach IMAGE: sets REPLY to a loop device that hands every write to the image at once. A copy that shares blocks with
# another image can only be written in whole blocks, so all devices have sectors of that size.
attach() {
    REPLY=$(losetup --find --show --direct-io=on --sector-size 4096 "$1") || fail "no loop device for $1"
    loops+=("$REPLY")
}
detach() {
    local entry kept=()
    losetup -d "$1"
    for entry in "${loops[@]}"; do [ "$entry" = "$1" ] || kept+=("$entry"); done
    loops=("${kept[@]}")
}
# mount_image DEVICE DIRECTORY [OPTION...]
mount_image() {
    mkdir -p "$2"
    mount "${@:3}" "$1" "$2" || fail "the filesystem on $1 does not mount: $(dmesg 2>/dev/null | tail -n 3)"
    filesystems+=("$2")
}
unmount_image() {
    local entry kept=()
    umount "$1"
    for entry in "${filesystems[@]}"; do [ "$entry" = "$1" ] || kept+=("$entry"); done
    filesystems=("${kept[@]}")
}

end_soak() {
    local status=$? pid point place
    set +e
    trap - EXIT ERR
    trap '' INT TERM HUP
    if [ $status != 0 ] && [ "${DEDUPFS_SOAK_KEEP-}" = 1 ] && [ -n "${work-}" ]; then
        say "kept: $work"
        scratch_directories=()
    fi
    for pid in "${processes[@]}"; do kill "$pid" 2>/dev/null && wait "$pid" 2>/dev/null; done
    processes=()
    for point in "${mounted[@]}"; do
        grep -qF " $point " /proc/self/mountinfo || continue
        timeout 60 "${programs[dedupfs]}" umount "$point" 2>/dev/null || umount -l "$point"
    done
    mounted=()
    # An interrupted copy may hold the last of them.
    wait
    for ((place = ${#filesystems[@]} - 1; place >= 0; place--)); do umount "${filesystems[place]}" || umount -l "${filesystems[place]}"; done
    for ((place = ${#loops[@]} - 1; place >= 0; place--)); do losetup -d "${loops[place]}"; done
    (exit $status)
    clean_up
}
trap end_soak EXIT

# start FUNCTION ARGUMENTS...: runs it in the background, without the traps of this shell. It ends with this shell.
start() {
    (
        trap - EXIT ERR INT TERM HUP
        set +e
        "$@"
    ) &
    processes+=($!)
}

# ---- pools

# within SECONDS COMMAND...: runs the command; kills it and returns 124 if it takes longer.
within() { timeout -k 5 "$@"; }

# make_files DIRECTORY NAME COUNT BYTES: makes files of random bytes that depend on NAME, some of them alike, one
# larger.
make_files() {
    mkdir -p "$1/a" "$1/b"
    random_bytes "$2" $(($3 * $4)) | split -b "$4" -a 3 - "$1/a/f"
    cp "$1"/a/faa[a-f] "$1/b/"
    random_bytes "large $2" $(($4 * 30)) >"$1/large"
    seq 1 20000 >"$1/numbers"
    : >"$1/empty"
}

# sums DIRECTORY PREFIX: prints checksums of all files there, for `sha256sum -c` in a directory that has them below
# PREFIX.
sums() { (cd "$1" && find . -type f -print0 | sort -z | xargs -0 -r sha256sum | sed "s|  \./|  $2/|"); }

# panics LOG...: prints the lines that report a panic.
panics() { grep -hE 'panicked|internal error: entered unreachable' "$@" 2>/dev/null || true; }
