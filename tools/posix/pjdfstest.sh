#!/usr/bin/env bash
# Runs pjdfstest, the suite for POSIX rules about names, attributes and permissions, on a mount, as root; then checks
# the pool.
#
#   tools/posix/pjdfstest.sh [--dir DIR] [--mount OPTIONS] [PATTERN...]
#
#   --dir DIR         directory for the pools [default: TMPDIR or /var/tmp]
#   --mount OPTIONS   for dedupfs mount [default: --memory 256M]
#   PATTERN           only cases whose names contain it
#
# Uses the programs in DEDUPFS_BIN, or builds them, and pjdfstest in the path, or installs it with cargo. The suite
# switches to two other users: these are made, with a group each, and removed again. No case may fail but
# open::etxtbsy; docs/semantics.md has the reason, and names the case that is left out.
# shellcheck disable=SC2154 # common.sh has the other side
set -euo pipefail
# shellcheck source=tools/prerequisites.sh
. "$(dirname "$0")/../prerequisites.sh"
# shellcheck source=tools/common.sh
. "$(dirname "$0")/../common.sh"

version=0.2.2
users=(dedupfs-posix-a dedupfs-posix-b)
dir=${TMPDIR:-/var/tmp} mount_options=(--memory 256M) patterns=()
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) help ;;
        --*) [ $# -ge 2 ] || usage "$1 needs a value" ;;&
        --dir) dir=$2 ;;
        --mount) read -r -a mount_options <<<"$2" ;;
        --*) usage "unknown argument $1" ;;
        *)
            patterns+=("$1")
            shift
            continue
            ;;
    esac
    shift 2
done
[ "$(id -u)" = 0 ] || fail "this needs root: other users' permissions, device nodes, mounting anew for reading only"

find_programs dedupfs
need_fuse
need useradd=passwd
command -v pjdfstest >/dev/null || PATH=$PATH:$HOME/.cargo/bin
command -v pjdfstest >/dev/null || {
    need_rust
    # It links the library of access lists.
    [ -e /usr/include/sys/acl.h ] || need no-such-command=libacl1-dev
    say "installing pjdfstest $version"
    cargo install --locked --debug --version "=$version" pjdfstest
}

made_users=()
remove_users() {
    local status=$? user
    for user in "${made_users[@]}"; do userdel "$user" 2>/dev/null || say "user $user could not be removed"; done
    set +e
    trap - ERR
    # clean_up reads this exit code.
    (exit $status)
    clean_up
}
trap remove_users EXIT
for user in "${users[@]}"; do
    id "$user" >/dev/null 2>&1 && continue
    useradd --no-create-home --user-group --home-dir / --shell /usr/sbin/nologin "$user"
    made_users+=("$user")
done

make_scratch "$dir" && work=$REPLY
# A short path, because addresses of sockets have at most 107 bytes.
make_scratch /tmp && mnt=$REPLY
chmod 755 "$mnt"
for name in tested other; do
    mkdir "$mnt/$name"
    dedupfs mkfs "$work/$name" >/dev/null
    mount_pool "$work/$name" "$mnt/$name" -o allow_other,dev,suid "${mount_options[@]}"
done
chmod 777 "$mnt"/*

# The suite remounts read-only in between, for EROFS. mount(8) would ask a helper for it, and the helper of the package
# fuse3 starts a new filesystem instead.
mkdir "$work/bin"
printf '#!/bin/sh\nexec %s -i "$@"\n' "$(command -v mount)" >"$work/bin/mount"
chmod +x "$work/bin/mount"

# The same cases once more, with a version in place of a mount for reading only: "remounting" makes a version of the
# directory and binds it over that.
mkdir "$work/freezing" "$mnt/tested/live"
chmod 777 "$mnt/tested/live"
cat >"$work/freezing/mount" <<END
#!/bin/sh
set -e
case \$2 in
    remount,ro)
        ${programs[dedupfs]} snapshot "$mnt/tested/live" "$mnt/tested/version"
        $(command -v mount) --bind "$mnt/tested/version" "$mnt/tested/live"
        ;;
    remount,rw)
        umount "$mnt/tested/live"
        ${programs[dedupfs]} forget "$mnt/tested/version"
        ;;
    *) exit 1 ;;
esac
END
chmod +x "$work/freezing/mount"

# config ALLOW_REMOUNT: writes the configuration to standard output.
config() {
    printf '[features]\nposix_fallocate = {}\nrename_ctime = {}\nutime_now = {}\nutimensat = {}\n'
    printf '[settings]\nnaptime = 0.02\nallow_remount = %s\n[dummy_auth]\nentries = [' "$1"
    for user in "${users[@]}"; do printf '["%s", "%s"], ' "$user" "$user"; done
    printf ']\n'
}
# run ALLOW_REMOUNT MOUNT PATH EXPECTED [PATTERN...]: with the program in the directory MOUNT as mount(8). Only the case
# EXPECTED may fail.
run() {
    local mount=$work/$2 path=$3 expected=$4
    config "$1" >"$work/pjdfstest.toml"
    shift 4
    PATH=$mount:$PATH timed pjdfstest -c "$work/pjdfstest.toml" -p "$path" -s "$mnt/other" -- "$@" >"$work/log" 2>&1 || {
        grep -A1 'FAILED$' "$work/log" >&2 || cat "$work/log" >&2
        if ! grep -q '^Summary: 1 failed' "$work/log" || ! grep -q "^$expected .*FAILED\$" "$work/log"; then
            fail "pjdfstest: $(grep '^Summary' "$work/log" || echo 'no summary')"
        fi
        say "$expected may fail"
    }
    grep 'skipped$' "$work/log" || true
    printf '%s, in %s s\n' "$(grep '^Summary' "$work/log")" "$TAKEN"
}

# Some cases leave files open, which prevents a remount to read-only: the cases that need one run separately.
if [ ${#patterns[@]} = 0 ]; then
    say "cases of mounts for reading only"
    run true bin "$mnt/tested" none erofs
    say "the same cases on versions"
    # The kernel refuses rmdir(2) of a file before it asks the filesystem.
    run true freezing "$mnt/tested/live" rmdir::erofs_named erofs
fi
say "all other cases"
# The case passes only if the program that it runs outlives the truncation: docs/semantics.md, Deviations.
run false bin "$mnt/tested" open::etxtbsy "${patterns[@]}"
for name in tested other; do
    unmount_pool "$mnt/$name"
    dedupfs fsck --read-data "$work/$name" >"$work/fsck" 2>&1 || { cat "$work/fsck" >&2; fail "fsck found damage"; }
done
say "fsck: $(tail -n 1 "$work/fsck")"
