#!/usr/bin/env bash
# A borg repository in the mount, with its cache: backups of a changing tree, prune, compact, check --verify-data,
# restored and compared; one backup is killed while it runs.
#
#   tests/clients/borg.sh [DIRECTORY]     parent of the scratch directory [default: TMPDIR or /var/tmp]
#
# See common.sh for the variables.
# shellcheck disable=SC2154 # common.sh has them
set -euo pipefail
# shellcheck source=tests/clients/common.sh
. "$(dirname "$0")/common.sh"
client_arguments "$@"
need borg=borgbackup setfattr=attr setfacl=acl >&2
open_pool

mkdir "$work/home"
export BORG_BASE_DIR=$work/home BORG_CACHE_DIR=$mnt/cache BORG_SECURITY_DIR=$work/home/security
export BORG_PASSPHRASE=client BORG_RELOCATED_REPO_ACCESS_IS_OK=yes BORG_REPO=$mnt/repository
make_tree "$work/tree"
# borg stores no times from 2038 on or before 1970.
touch -d '2037-01-19 03:14:08.5' "$work/tree/directory 6/file-aa" "$work/tree/directory 7/file-aa"

# Gives each backup its own day: prune keeps one for each day, and at most one for each second.
backup_of() { (cd "$work" && borg create --compression lz4 --timestamp "2026-01-0${1}T12:00:00" "::day-$1" tree); }

step "a repository, six backups"
borg init --encryption=repokey-blake2
for day in {1..6}; do
    backup_of "$day"
    [ "$day" = 6 ] || change_tree "$work/tree" "$day"
done

step "a backup killed in its midst, and once more"
random_bytes killed 60000000 >"$work/tree/killed"
(cd "$work" && exec borg create --checkpoint-interval 1 ::killed tree) 2>/dev/null &
killed=$!
sleep 1
kill -9 $killed 2>/dev/null || true
wait $killed 2>/dev/null || true
borg break-lock
backup_of 7

step "prune, compact, check --verify-data"
borg prune --keep-daily 3 --glob-archives 'day-*'
borg delete --glob-archives 'killed*'
borg compact --threshold 0
reclaim
borg check --verify-data
expect "$(borg list --short | tr '\n' ' ')" "day-5 day-6 day-7 " "archives after prune"

verify_restored() {
    mkdir "$1"
    (cd "$1" && borg extract ::day-7)
    expect_same_trees "$work/tree" "$1/tree"
}
step "restored into the mount and outside of it"
verify_restored "$work/restored"
verify_restored "$mnt/restored"

remount
step "all of it again"
borg check --verify-data
expect_same_trees "$work/tree" "$mnt/restored/tree"
rm -r "$work/restored"
verify_restored "$work/restored"
close_pool
