#!/usr/bin/env bash
# rdiff-backup into the mount: a mirror with increments, one run killed and regressed, verified, each version restored
# and compared, the older ones removed.
#
#   tests/clients/rdiff-backup.sh [DIRECTORY]     parent of the scratch directory [default: TMPDIR or /var/tmp]
#
# See common.sh for the variables.
# shellcheck disable=SC2154 # common.sh has them
set -euo pipefail
# shellcheck source=tests/clients/common.sh
. "$(dirname "$0")/common.sh"
client_arguments "$@"
need rdiff-backup=rdiff-backup setfattr=attr setfacl=acl >&2
open_pool

repository=$mnt/repository
make_tree "$work/tree"
# Limits of rdiff-backup: it keeps times in whole seconds, from 1970 on, and only those of files and directories. Access
# lists and attributes need modules that Debian does not install with it. With the modules it removes the default list
# of each directory, whether there is one or not.
/usr/bin/python3 -c 'import posix1e, xattr' || fail "install python3-pylibacl and python3-pyxattr"
find "$work/tree" ! -newermt '1970-01-02' -exec touch -h -d '2020-01-01' {} +
shown() { listing "$1" | sed -E -e 's/^(\.\/?.* [0-9-]+)\.[0-9]+( .*|)$/\1\2/' -e 's/^(\.\/.* [lbc] [0-7]+ [0-9:]+ [0-9]+) [0-9-]+ /\1 /'; }
run() { rdiff-backup "$@" >"$work/rdiff.log" 2>&1 || fail "rdiff-backup $*: $(tail -n 5 "$work/rdiff.log")"; }
# Versions are told apart by seconds; these are an hour apart.
at() { echo $((1700000000 + $1 * 3600)); }

step "eight backups"
for version in {1..8}; do
    run --current-time "$(at "$version")" backup "$work/tree" "$repository"
    shown "$work/tree" >"$work/listing.$version"
    [ "$version" = 8 ] || change_tree "$work/tree" "$version"
done

step "a backup killed in its midst, regressed, and once more"
change_tree "$work/tree" 8
cp "$work/tree/large" "$work/tree/another"
rdiff-backup --current-time "$(at 9)" backup "$work/tree" "$repository" >/dev/null 2>&1 &
killed=$!
sleep 1
kill -9 $killed 2>/dev/null || true
wait $killed 2>/dev/null || true
# Reports that there is nothing to do if the backup had finished before the kill.
rdiff-backup regress "$repository" >"$work/regress.log" 2>&1 || true
run --current-time "$(at 10)" backup "$work/tree" "$repository"
shown "$work/tree" >"$work/listing.10"

verify_version() {
    rm -rf "$2"
    run restore --at "$(at "$1")" "$repository" "$2"
    shown "$2" >"$work/listing.found"
    expect_same "$work/listing.$1" "$work/listing.found" "version $1 is not what was backed up"
}
step "verified; versions restored out of the mount and within"
run verify --at "$(at 10)" "$repository"
run verify --at "$(at 1)" "$repository"
for version in 1 2 5 8; do verify_version $version "$work/restored"; done
verify_version 10 "$mnt/restored"

step "what is older than version 5 removed, reclaimed"
run --force remove increments --older-than "$(at 5)" "$repository"
reclaim
remount
run verify --at "$(at 5)" "$repository"
for version in 5 8 10; do verify_version $version "$work/restored"; done
close_pool
