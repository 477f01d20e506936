#!/usr/bin/env bash
# GNU tar with everything that it can store (--acls --xattrs --selinux -S): extracted into the mount, read from it,
# archives kept in it, incremental backups with a snapshot file in it.
#
#   tests/clients/tar.sh [DIRECTORY]     parent of the scratch directory [default: TMPDIR or /var/tmp]
#
# See common.sh for the variables.
# shellcheck disable=SC2154 # common.sh has them
set -euo pipefail
# shellcheck source=tests/clients/common.sh
. "$(dirname "$0")/common.sh"
client_arguments "$@"
need tar=tar setfattr=attr setfacl=acl >&2
open_pool

carry=(--warning=no-timestamp --acls --xattrs '--xattrs-include=*' --selinux -S --numeric-owner)
step "a tree archived into the mount, extracted there, archived from there"
make_tree "$work/tree"
# Only the superuser can set these, and only some filesystems have them.
setfattr -n trusted.client -v trusted "$work/tree/large" 2>/dev/null || true
setfattr -n security.client -v security "$work/tree/numbers" 2>/dev/null || true
tar "${carry[@]}" --format=posix -C "$work/tree" -cf "$mnt/tree.tar" .
tar "${carry[@]}" -C "$work/tree" --compare -f "$mnt/tree.tar"
mkdir "$mnt/extracted"
tar "${carry[@]}" -C "$mnt/extracted" -xpf "$mnt/tree.tar"
expect_same_trees "$work/tree" "$mnt/extracted"
[ "$(stat -c %b "$mnt/extracted/sparse")" -le 1024 ] || fail "the extracted file has lost its holes"
[ "$(stat -c %s "$mnt/tree.tar")" -le 80000000 ] || fail "tar -S did not see the holes"
tar "${carry[@]}" --format=posix --sort=name -C "$mnt/extracted" -cf "$work/back.tar" .
[ "$(stat -c %s "$work/back.tar")" -le 80000000 ] || fail "tar -S did not see the holes of a file in the mount"
mkdir "$work/restored"
tar "${carry[@]}" -C "$work/restored" -xpf "$work/back.tar"
expect_same_trees "$work/tree" "$work/restored"
rm -rf "$work/restored" "$work/back.tar"

step "extracted over itself, unlinking first and not"
tar "${carry[@]}" -C "$mnt/extracted" -xpf "$mnt/tree.tar" --overwrite
# When it overwrites a file with a setuid bit, tar leaves the bit out, on every filesystem.
expect "$(stat -c %a "$mnt/extracted/directory 2/file-aa")" 755 "the mode of a file that tar has overwritten"
tar "${carry[@]}" -C "$mnt/extracted" -xpf "$mnt/tree.tar" --unlink-first --recursive-unlink
# The one directory that cannot be unlinked does not get its time either.
touch -r "$work/tree" "$mnt/extracted"
expect_same_trees "$work/tree" "$mnt/extracted"

step "appended, updated and deleted members"
tar --format=gnu -C "$work/tree" -cf "$mnt/members.tar" "directory 1" numbers
tar --format=gnu -C "$work/tree" -rf "$mnt/members.tar" large "directory 2"
tar --format=gnu --delete -f "$mnt/members.tar" numbers
tar -tf "$mnt/members.tar" >"$work/members"
grep -q '^large$' "$work/members" || fail "an appended member is missing"
! grep -q '^numbers$' "$work/members" || fail "a deleted member is there"

step "ten incremental backups of a tree in the mount"
mkdir "$mnt/incremental"
for day in {1..10}; do
    tar --format=posix --listed-incremental="$mnt/incremental/snar" -C "$mnt/extracted" -S -cf "$mnt/incremental/$day.tar" .
    [ "$day" = 10 ] || change_tree "$mnt/extracted" "$day"
done
# The first has everything, the others only the changes.
[ "$(stat -c %s "$mnt/incremental/5.tar")" -lt "$(stat -c %s "$mnt/incremental/1.tar")" ] || fail "an incremental backup is a full one"
listing "$mnt/extracted" | grep -vE '^(# file|user\.|system\.|trusted\.|security\.|$)' >"$work/last"
reclaim
remount

step "the incremental backups extracted in turn"
mkdir "$mnt/again"
for day in {1..10}; do
    tar --warning=no-timestamp --listed-incremental=/dev/null --numeric-owner -C "$mnt/again" -xpf "$mnt/incremental/$day.tar"
done
listing "$mnt/again" | grep -vE '^(# file|user\.|system\.|trusted\.|security\.|$)' >"$work/again"
expect_same "$work/last" "$work/again" "the incremental backups do not add up to the tree"
tar "${carry[@]}" -C "$work/tree" --compare -f "$mnt/tree.tar"
close_pool
