#!/usr/bin/env bash
# Damages real pools in every way, gives them to mount, get, fsck, repair, rebuild and recover, and judges the results.
#
#   tools/damage-soak.sh [ROUNDS] [--seed S] [--directory DIR]       [default: 500 rounds]
#
#   DEDUPFS_DAMAGE=KINDS    of "accidents nonsense" [default: both]; ROUNDS pools of each
#   DEDUPFS_DAMAGE_JOBS=N   pools at the same time [default: one for each core]
#   DEDUPFS_DAMAGE_ONLY=N   only pool N of each kind: repeats a failure, with its seed
#
# tools/examples/damage_pool makes the damage: accidents (flipped bytes, lost and misplaced blocks, cut, swapped,
# missing files), or other values under checksums that fit. Every program must end in time, within its memory, without a
# panic or a signal, with an exit code of docs/guide.md. Every read gives right bytes or an error, before and after repair,
# rebuild and recovery. A pool that fsck calls corrected is clean afterwards. See tools/soak/common.sh for the
# variables.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/soak/common.sh
. tools/soak/common.sh

soak_arguments 500 "$@"
need_fuse >&2
need openssl=openssl prlimit=util-linux >&2
soak_begin dedupfs dedupfs-gc dedupfs-stats damage_pool
read -r -a kinds <<<"${DEDUPFS_DAMAGE-accidents nonsense}"

limit_s=90
# Address space of each program, which reserves much more memory than it uses.
memory_bytes=$((4 << 30))

# ---- pools: template-N; known-N holds the checksums and paths of all contents that it ever had

# note_known NUMBER: records the current content of the mount as right.
note_known() {
    (cd "$mnt" && find . -type f -print0 | xargs -0 -r sha256sum) >>"$work/known-$1"
    sort -u -o "$work/known-$1" "$work/known-$1"
}

# make_template NUMBER MKFS-ARGUMENTS...: makes a pool with reclaimed garbage, other garbage, links and attributes.
make_template() {
    local number=$1 pool=$work/template-$1
    shift
    dedupfs mkfs "$@" "$pool" >/dev/null
    mount_pool "$pool" "$mnt"
    make_files "$work/source" "template $number" 40 15000
    cp -a "$work/source" "$mnt/first"
    cp -a "$work/source" "$mnt/second"
    ln "$mnt/first/large" "$mnt/link"
    ln -s first/large "$mnt/symlink"
    setfattr -n user.colour -v green "$mnt/first/numbers" 2>/dev/null || true
    truncate -s 3M "$mnt/hole"
    printf 'end' >>"$mnt/hole"
    note_known "$number"
    dedupfs sync "$mnt"
    rm -r "$mnt/second/a"
    "${programs[dedupfs-gc]}" --threshold 95 "$mnt" >/dev/null
    random_bytes "changed $number" 40000 | dd of="$mnt/first/large" bs=4000 seek=7 conv=notrunc status=none
    note_known "$number"
    unmount_pool "$mnt"
    mount_pool "$pool" "$mnt"
    random_bytes "later $number" 500000 | split -b 20k - "$mnt/later-"
    rm -r "$mnt/first/b"
    note_known "$number"
    dedupfs sync "$mnt"
    rm -rf "$work/source"
}

make_templates() {
    mnt=$work/mnt
    mkdir "$mnt"
    make_template 0 --container-size 1M
    unmount_pool "$mnt"
    make_template 1 --data "$work/template-1/data" --container-size 1M --compression none --chunker fastcdc --fingerprint sha1 \
        --chunk-size 4K --tanker-cells 1K --tanker-buckets 4
    unmount_pool "$mnt"
    make_template 2 --container-size 1M --compression none --chunk-size 4K --tanker-cells 1K --tanker-buckets 4
    unmount_pool "$mnt"
    # The daemon of this pool is killed, which leaves rows to replay and open containers.
    make_template 3 --data "$work/template-3/data" --container-size 1M --compression none
    kill -9 "$(daemon_of "$work/template-3")"
    sleep 0.2
    umount -l "$mnt"
    forget_mount "$mnt"
    tar -C "$work" -xzf fixtures/format-1.tar.gz
    mv "$work/pool" "$work/template-4"
    mount_pool "$work/template-4" "$mnt" -o ro
    note_known 4
    unmount_pool "$mnt"
    make_files "$work/fresh" fresh 20 30000
    sums "$work/fresh" fresh >"$work/fresh.sums"
}
templates=5

# ---- one pool, in a directory of its own: $case

problem() { printf '%s\n' "$*" >>"$case/problems"; }

# step CODES COMMAND...: runs a command that must end in time with one of these exit codes, and sets STATUS to it.
step() {
    local codes=" $1 " log=$case/step
    shift
    STATUS=0
    within $limit_s prlimit --as=$memory_bytes -- "$@" >"$log" 2>&1 </dev/null || STATUS=$?
    { printf -- '-- %s: %s\n' "$STATUS" "$*" && cat "$log"; } >>"$case/log"
    if [[ $codes != *" $STATUS "* ]]; then
        if [ $STATUS = 124 ] || [ $STATUS = 137 ]; then problem "takes longer than $limit_s s: $*"; else problem "ends with $STATUS: $*: $(tail -n 2 "$log")"; fi
    fi
    [ -z "$(panics "$log")" ] || problem "panics: $*: $(panics "$log" | head -n 2)"
}

# right WHAT DIRECTORY: every readable file there has content that the pool had, under its name or, after a repair,
# another.
right() {
    local wrong
    within $limit_s find "$2" -type f -print0 >"$case/paths" 2>>"$case/log" || [ $? != 124 ] || problem "$1: takes longer than $limit_s s to list"
    (cd "$2" && within $limit_s xargs -0 -r -a "$case/paths" sha256sum) >"$case/read" 2>>"$case/log" || true
    wrong=$(sed 's/^\\//' "$case/read" | awk -v known="$work/known-$template" -v prefix="$2/" '
        BEGIN { while ((getline line < known) > 0) { right[substr(line, 1, 64)] = 1; of[substr(line, 69)] = of[substr(line, 69)] " " substr(line, 1, 64) } }
        {
            path = substr($0, 67 + length(prefix)); sum = substr($0, 1, 64)
            if (!(sum in right) || (path in of && !index(of[path], sum))) print path
        }')
    [ "$wrong" ] || return 0
    # Forged content differs. Rows of names, sizes and roots affect few files, a region any number.
    [ "$reach" != content ] && { [ "$reach" != names ] || [ "$(wc -l <<<"$wrong")" -gt 6 ]; } || return 0
    problem "$1: other bytes in $(head -n 5 <<<"$wrong" | tr '\n' ' ')"
}

# mounted_as WHAT POOL OPTIONS...: mounts and reads everything, and with `write` writes as well. A refused mount is no
# failure.
mounted_as() {
    local what=$1 pool=$2 write=$3 name found
    shift 3
    step "0 1 3 5 6" "${programs[dedupfs]}" mount "$pool" "$case/mnt" --memory 128M "$@"
    [ $STATUS = 0 ] || return 0
    right "$what" "$case/mnt"
    rm -rf "$case/got"
    mkdir "$case/got"
    for name in first second; do
        step "0 1 3 6 9" "${programs[dedupfs]}" get "$case/mnt/$name" "$case/got/$name"
    done
    right "$what, get" "$case/got"
    if [ "$write" ]; then
        step "0 1 5 6 9" "${programs[dedupfs]}" put "$work/fresh" "$case/mnt/fresh"
        if [ $STATUS = 0 ] && ! (cd "$case/mnt" && within $limit_s sha256sum --quiet -c "$work/fresh.sums") >"$case/fresh.log" 2>&1; then
            # Reading may fail where the new files rest on damaged chunks, and differ where they rest on forged ones.
            [ "$reach" = content ] || ! grep -q ': FAILED$' "$case/fresh.log" || problem "$what: what was put is other: $(grep ': FAILED$' "$case/fresh.log" | head -n 3)"
        fi
        step "0 1 5 6" "${programs[dedupfs-gc]}" "$case/mnt"
        right "$what, after gc" "$case/mnt/first"
        rm -rf "$case/mnt/fresh" 2>>"$case/log" || true
    fi
    step "0 1 5 6" "${programs[dedupfs]}" umount "$case/mnt"
    ! mountpoint -q "$case/mnt" || { problem "$what: still mounted"; umount -l "$case/mnt"; }
    found=$(panics "$pool"/dedupfs.log*)
    [ -z "$found" ] || problem "$what: $(head -n 2 <<<"$found")"
}

judge() {
    local pool=$case/pool root
    root=$pool
    [ ! -d "$pool/data" ] || root=$pool/data
    step "0 4 8" "${programs[dedupfs]}" fsck --read-data "$pool"
    mounted_as "read-only" "$pool" '' -o ro
    cp -a "$pool" "$case/other"
    mounted_as "mounted" "$case/other" write
    step "0 4 8" "${programs[dedupfs]}" fsck --read-data "$case/other"
    rm -rf "$case/other"
    cp -a "$pool" "$case/other"
    step "0 1 4 8" "${programs[dedupfs]}" fsck --repair --yes "$case/other"
    if [ $STATUS -le 1 ]; then
        step "0" "${programs[dedupfs]}" fsck "$case/other"
    fi
    mounted_as "repaired" "$case/other" write
    rm -rf "$case/other"
    cp -a "$pool" "$case/other"
    step "0 1 4 8" "${programs[dedupfs]}" fsck --rebuild-index --read-data "$case/other"
    mounted_as "rebuilt" "$case/other" write
    rm -rf "$case/other"
    if [ "$root" = "$pool" ]; then
        cp -a "$pool" "$case/other"
        step "0 1 3 6" "${programs[dedupfs]}" recover --force --yes "$case/other"
    else
        step "0 1 3 6" "${programs[dedupfs]}" recover "$case/other" --data "$root"
        if [ $STATUS = 6 ]; then
            step "0 1 3 6" "${programs[dedupfs]}" recover --force --yes "$case/other" --data "$root"
        fi
    fi
    [ $STATUS != 0 ] || mounted_as "recovered" "$case/other" write
    rm -rf "$case/other"
}

# round KIND NUMBER
round() {
    local kind=$1 number=$2 seed_of_round
    choose "$number" ${#kind} $templates && template=$REPLY
    mix "$number" ${#kind} 7 && seed_of_round=$REPLY
    case=$work/$kind-$number
    mkdir -p "$case/mnt"
    cp -a "$work/template-$template" "$case/pool"
    rm -f "$case"/pool/dedupfs.log* "$case/pool/control.sock"
    mounted=("$case/mnt")
    damage=$("${programs[damage_pool]}" "$kind" "$case/pool" --seed "$seed_of_round" 2>&1) || problem "damage_pool: $damage"
    reach=$(tail -n 1 <<<"$damage")
    judge
    if [ -e "$case/problems" ]; then
        { printf 'FAILED: %s %s (template %s, seed %s):\n' "$kind" "$number" "$template" "$seed"
            sed "s|$case/||g; s/^/    damage: /" <<<"$damage"
            sed "s|$case/||g; s/^/    /" "$case/problems"; } >>"$work/failures"
        [ "${DEDUPFS_SOAK_KEEP-}" != 1 ] || { mkdir -p "$work/failed" && cp -a "$case" "$work/failed/"; }
    fi
    printf '%s %s\n' "$kind" "$reach" >>"$work/done"
    rm -rf "$case"
}

# rounds_of FIRST JOBS: runs every JOBS-th round, from FIRST on
rounds_of() {
    local number kind
    for ((number = $1; number <= last; number += $2)); do
        for kind in "${kinds[@]}"; do round "$kind" "$number"; done
    done
}

# canary: the check accepts right content and notices one other byte.
canary() {
    case=$work/canary template=0 reach=strict
    mkdir -p "$case/mnt"
    make_files "$case/mnt/first" "template 0" 40 15000
    right canary "$case/mnt"
    [ ! -e "$case/problems" ] || fail "right bytes are called wrong: $(cat "$case/problems")"
    printf x >>"$case/mnt/first/a/faab"
    right canary "$case/mnt"
    grep -q 'first/a/faab' "$case/problems" || fail "wrong bytes are not noticed"
}

make_templates
canary
jobs=${DEDUPFS_DAMAGE_JOBS-$(nproc)}
first=1 last=$rounds
[[ ${DEDUPFS_DAMAGE_ONLY-1} =~ ^[1-9][0-9]{0,6}$ ]] || usage "DEDUPFS_DAMAGE_ONLY needs a number"
[ -z "${DEDUPFS_DAMAGE_ONLY-}" ] || { first=$DEDUPFS_DAMAGE_ONLY last=$DEDUPFS_DAMAGE_ONLY jobs=1; }
first_job=${#processes[@]}
for ((job = first; job < first + jobs; job++)); do start rounds_of $job "$jobs"; done
wait "${processes[@]:first_job}" || true
processes=()
[ ! -e "$work/failures" ] || cat "$work/failures"
sort "$work/done" | uniq -c | sed "s/^/$script: pools: /" >&2
[ "$(wc -l <"$work/done")" = $(((last - first + 1) * ${#kinds[@]})) ] || fail "only $(wc -l <"$work/done") pools were judged"
[ ! -e "$work/failures" ] || fail "$(grep -c '^FAILED' "$work/failures") of $(wc -l <"$work/done") pools"
soak_end "$(wc -l <"$work/done") damaged pools; nothing read wrong, nothing hung, nothing panicked"
