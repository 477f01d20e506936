#!/usr/bin/env bash
# rsync -aHAX --inplace of a changing tree, and a chain of backups by --link-dest, the older half deleted and reclaimed.
#
#   tests/clients/rsync.sh [DIRECTORY] [BACKUPS]
#
# DIRECTORY: parent of the scratch directory [default: TMPDIR or /var/tmp]; BACKUPS: length of the chain [default: 50].
# See common.sh for the variables.
# shellcheck disable=SC2154 # common.sh has them
set -euo pipefail
# shellcheck source=tests/clients/common.sh
. "$(dirname "$0")/common.sh"
client_arguments "${@:1:1}"
backups=50
if [ $# -ge 2 ]; then parse_count "$2" && backups=$REPLY; fi
need rsync=rsync setfattr=attr setfacl=acl >&2
open_pool

# -@-1: otherwise rsync takes times within one second for equal.
step "rsync -aHAX --inplace --no-whole-file, ten times"
make_tree "$work/tree"
for day in {1..10}; do
    rsync -@-1 -aHAX --numeric-ids --inplace --no-whole-file --delete "$work/tree/" "$mnt/inplace/"
    [ "$day" = 10 ] || change_tree "$work/tree" "$day"
done
expect_same_trees "$work/tree" "$mnt/inplace"

step "other ways: --sparse, --append-verify, --partial, --delay-updates, --fuzzy, --checksum"
rsync -@-1 -aHAX --numeric-ids --sparse "$work/tree/" "$mnt/sparse/"
[ "$(stat -c %b "$mnt/sparse/sparse")" -le 1024 ] || fail "rsync --sparse made no holes"
head -c 5000000 "$work/tree/large" >"$mnt/append"
rsync -@-1 --append-verify -t "$work/tree/large" "$mnt/append"
cmp "$work/tree/large" "$mnt/append"
change_tree "$work/tree" 10
rsync -@-1 -aHAX --numeric-ids --delay-updates --fuzzy --partial-dir=.partial --delete-after --checksum "$work/tree/" "$mnt/sparse/"
expect_same_trees "$work/tree" "$mnt/sparse"

step "a chain of $backups backups by --link-dest"
# The oldest, and the oldest that stays: their listings from the time of the backup.
oldest_kept=$((backups / 2 + 1))
previous=''
for ((backup = 1; backup <= backups; backup++)); do
    link=()
    [ -z "$previous" ] || link=(--link-dest="../$previous")
    rsync -@-1 -aHAX --numeric-ids --delete "${link[@]}" "$work/tree/" "$mnt/$backup.new/"
    mv "$mnt/$backup.new" "$mnt/$backup"
    previous=$backup
    # The number of links differs: the chain adds some.
    case $backup in
        1 | "$oldest_kept") listing "$work/tree" '' >"$work/listing.of.$backup" ;;
    esac
    [ $backup = "$backups" ] || change_tree "$work/tree" $((10 + backup))
done
# A file that never changed is one inode under all names.
expect "$(stat -c %h "$mnt/1/empty")" "$backups" "links of a file that is in all backups"
verify_backup() {
    listing "$mnt/$1" '' >"$work/listing.found"
    expect_same "$work/listing.of.$1" "$work/listing.found" "backup $1 is not what was backed up"
}
verify_last() {
    local differences
    differences=$(rsync -@-1 -aHAXnc --numeric-ids --delete --itemize-changes "$work/tree/" "$1/")
    expect "$differences" '' "differences of the last backup"
}
verify_backup 1
verify_backup $oldest_kept
verify_last "$mnt/$backups"
remount

step "the older half deleted, reclaimed, the rest restored"
for ((backup = 1; backup < oldest_kept; backup++)); do rm -rf "${mnt:?}/$backup"; done
expect "$(stat -c %h "$mnt/$backups/empty")" $((backups - oldest_kept + 1)) "links of a file that is in the other half"
reclaim
verify_backup $oldest_kept
mkdir "$work/restored"
rsync -@-1 -aHAX --numeric-ids "$mnt/$backups/" "$work/restored/"
verify_last "$work/restored"
remount
verify_backup $oldest_kept
verify_last "$mnt/$backups"
close_pool
