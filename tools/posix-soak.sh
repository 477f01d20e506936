#!/usr/bin/env bash
# Exercises a mount with test tools of other filesystems, for long, and checks the pool after each part.
#
#   tools/posix-soak.sh PART... [--seed S] [--operations N] [--dir DIR] [--mount OPTIONS]
#
#   PART              fsx   random operations of all kinds on one file, checked at every read (the crate fsx, which is installed
#                           if it is missing): small, middle and large files up to 1 GiB, each with several seeds, while
#                           space is reclaimed, with remounts in between
#                     pjdfstest   POSIX rules for names, attributes and permissions (tools/posix/pjdfstest.sh)
#                     fio   writes at random, of mixed sizes, past the page cache, through mappings and by several processes,
#                           each verified by checksums, then once more after a remount
#                     all   all of these
#   --seed S          the first seed [default: 1]
#   --operations N    number of fsx operations, over all files [default: 1000000]
#   --dir DIR         directory for the pool [default: TMPDIR or /var/tmp]
#   --mount OPTIONS   for dedupfs mount [default: --memory 512M]
#
# Uses the programs in DEDUPFS_BIN, or builds them. The first failure ends the run; fsx prints how to repeat it.
# shellcheck disable=SC2154 # common.sh has the other side
set -euo pipefail
# shellcheck source=tools/prerequisites.sh
. "$(dirname "$0")/prerequisites.sh"
# shellcheck source=tools/common.sh
. "$(dirname "$0")/common.sh"

all_parts=(fsx pjdfstest fio)
parts=() seed=1 operations=1000000 dir=${TMPDIR:-/var/tmp} mount_options=(--memory 512M)
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) help ;;
        --*) [ $# -ge 2 ] || usage "$1 needs a value" ;;&
        --seed) [[ $2 =~ ^[0-9]+$ ]] || usage "$2 is no seed"; seed=$2; shift ;;
        --operations) [[ $2 =~ ^[1-9][0-9]*$ ]] || usage "$2 is no number of operations"; operations=$2; shift ;;
        --dir) dir=$2; shift ;;
        --mount) read -r -a mount_options <<<"$2"; shift ;;
        all) parts=("${all_parts[@]}") ;;
        *) [[ " ${all_parts[*]} " == *" $1 "* ]] || usage "no part $1: known are ${all_parts[*]} and all"; parts+=("$1") ;;
    esac
    shift
done
[ ${#parts[@]} -gt 0 ] || usage "which part? ${all_parts[*]} or all"

# ---- steps shared by all parts

# begin_pool: makes a new pool, mounted at $mnt.
begin_pool() {
    make_scratch "$dir" && work=$REPLY
    pool=$work/pool mnt=$work/mnt
    mkdir "$mnt"
    dedupfs mkfs "$pool" >/dev/null
    mount_pool "$pool" "$mnt" "${mount_options[@]}"
}

# Retries: a program that lists the mounts of this machine (df, say) uses the mount for a moment.
unmount() {
    local try
    for try in 1 2 3 4 5; do
        ! dedupfs umount "$mnt" || break
        sleep "$try"
    done
    ! mountpoint -q "$mnt" || fail "cannot unmount $mnt"
    forget_mount "$mnt"
}

remount() {
    unmount
    mount_pool "$pool" "$mnt" "${mount_options[@]}"
}

# end_pool: unmounts the pool, which must be sound to the last byte.
end_pool() {
    unmount
    dedupfs fsck --read-data "$pool" >"$work/fsck" 2>&1 || { cat "$work/fsck" >&2; fail "fsck found damage"; }
    say "fsck: $(tail -n 1 "$work/fsck")"
    rm -rf "$pool"
}

# reclaim_meanwhile: reclaims space every few seconds until end_reclaiming.
reclaim_meanwhile() {
    rm -f "$work/stop"
    (
        while [ ! -e "$work/stop" ]; do
            "${programs[dedupfs-gc]}" "$pool" >/dev/null 2>>"$work/gc" || exit 1
            for _ in {1..30}; do
                [ -e "$work/stop" ] || sleep 0.1
            done
        done
    ) &
    reclaimer=$!
    processes+=("$reclaimer")
}
# The loop ends by itself: reclaiming that meets the end of the mount would be an error.
end_reclaiming() {
    touch "$work/stop"
    wait "$reclaimer" || { cat "$work/gc" >&2; fail "reclaiming failed"; }
}

# ---- fsx

# For each case: its share of 1000 operations, the length of the file, and of the longest operation, in bytes.
fsx_cases=(
    "700 262144 65536"
    "200 4000000 65536"
    "80 16777216 262144"
    "18 134217728 1048576"
    "2 1073741824 4194304"
)
# Number of runs of each case, each with its own seed.
fsx_seeds=4

need_fsx() {
    need_rust
    command -v fsx >/dev/null || PATH=$PATH:$HOME/.cargo/bin
    command -v fsx >/dev/null || {
        say "installing fsx"
        cargo install --locked --debug fsx
    }
}

# fsx_config LENGTH LONGEST: writes the configuration to standard output.
fsx_config() {
    # Pages written through a mapping stay dirty, so that the other operations must handle them.
    cat <<END
flen = $1
nomsyncafterwrite = true
[opsize]
max = $2
[weights]
read = 10
write = 10
mapread = 10
mapwrite = 10
truncate = 5
punch_hole = 5
copy_file_range = 10
posix_fallocate = 2
sendfile = 3
posix_fadvise = 1
invalidate = 2
fsync = 0.3
fdatasync = 0.3
close_open = 2
END
}

part_fsx() {
    need_fsx
    local entry share length longest count turn sum
    begin_pool
    for entry in "${fsx_cases[@]}"; do
        read -r share length longest <<<"$entry"
        count=$((operations * share / 1000 / fsx_seeds))
        [ "$count" -gt 0 ] || continue
        fsx_config "$length" "$longest" >"$work/fsx.toml"
        for ((turn = 0; turn < fsx_seeds; turn++)); do
            reclaim_meanwhile
            timed fsx -f "$work/fsx.toml" -N "$count" -S $((seed + turn)) -P "$work" "$mnt/fsx" >"$work/fsx.log" 2>&1 || {
                tail -n 60 "$work/fsx.log" >&2
                fail "fsx with files of $length bytes and seed $((seed + turn))"
            }
            end_reclaiming
            sum=$(sha256sum <"$mnt/fsx")
            remount
            [ "$sum" = "$(sha256sum <"$mnt/fsx")" ] || fail "another file after mounting again, seed $((seed + turn))"
            say "fsx: $count operations on a file of up to $(human "$length"), seed $((seed + turn)): $TAKEN s"
        done
        rm "$mnt/fsx"
    done
    end_pool
}

# ---- fio

# name=options: the options of each job, added to the common ones.
fio_jobs=(
    "random=--rw=randwrite --bs=4k --ioengine=psync --size=256M"
    "mixed=--rw=randwrite --bsrange=512-256k --bs_unaligned=1 --ioengine=psync --size=256M"
    "direct=--rw=randwrite --bs=16k --direct=1 --ioengine=libaio --iodepth=16 --size=256M"
    "large=--rw=write --bs=4M --direct=1 --ioengine=libaio --iodepth=4 --size=512M"
    "mmap=--rw=randwrite --bs=4k --ioengine=mmap --size=128M"
    "sync=--rw=randwrite --bs=8k --ioengine=psync --sync=1 --size=8M"
    "fsync=--rw=randwrite --bs=64k --ioengine=psync --fsync=32 --size=128M"
    "jobs=--rw=randwrite --bsrange=4k-128k --ioengine=psync --size=64M --numjobs=4"
    "readwrite=--rw=randrw --bs=32k --direct=1 --ioengine=libaio --iodepth=8 --size=256M"
)

part_pjdfstest() {
    "$repository/tools/posix/pjdfstest.sh" --dir "$dir"
}

# each_fio_job WHEN ARGUMENTS...: runs all jobs with these arguments; WHEN is for the message of a failure.
each_fio_job() {
    local entry name options what=$1
    shift
    for entry in "${fio_jobs[@]}"; do
        name=${entry%%=*}
        read -r -a options <<<"${entry#*=}"
        timed fio --name="$name" --directory="$mnt" --verify=crc32c --verify_fatal=1 --verify_dump=0 --randseed="$seed" \
            --verify_state_save=0 --fallocate=none --group_reporting "${options[@]}" "$@" >"$work/fio.log" 2>&1 || {
            tail -n 60 "$work/fio.log" >&2
            fail "fio $name, $what"
        }
        say "fio $name: $what in $TAKEN s"
    done
}

part_fio() {
    need fio=fio
    begin_pool
    reclaim_meanwhile
    each_fio_job "written and verified" --do_verify=1
    end_reclaiming
    remount
    each_fio_job "verified again, mounted anew," --verify_only=1
    end_pool
}

find_programs dedupfs dedupfs-gc dedupfs-stats
need_fuse
for part in "${parts[@]}"; do
    say "part $part"
    "part_$part"
done
say "nothing failed"
