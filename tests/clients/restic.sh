#!/usr/bin/env bash
# A restic repository in the mount, with its cache: backups of a changing tree, forget --prune, check --read-data,
# restored and compared; one backup is killed while it runs.
#
#   tests/clients/restic.sh [DIRECTORY]     parent of the scratch directory [default: TMPDIR or /var/tmp]
#
# See common.sh for the variables.
# shellcheck disable=SC2154 # common.sh has them
set -euo pipefail
# shellcheck source=tests/clients/common.sh
. "$(dirname "$0")/common.sh"
client_arguments "$@"
need restic=restic setfattr=attr setfacl=acl >&2
open_pool

export RESTIC_REPOSITORY=$mnt/repository RESTIC_PASSWORD=client RESTIC_CACHE_DIR=$mnt/cache
make_tree "$work/tree"

step "a repository, six backups"
restic -q init
for day in {1..6}; do
    (cd "$work" && restic -q backup --tag "day-$day" tree)
    [ "$day" = 6 ] || change_tree "$work/tree" "$day"
done

step "a backup killed in its midst, and once more"
random_bytes killed 60000000 >"$work/tree/killed"
(cd "$work" && exec restic -q backup --tag killed tree) 2>/dev/null &
killed=$!
sleep 1.5
kill -9 $killed 2>/dev/null || true
wait $killed 2>/dev/null || true
restic -q unlock --remove-all
(cd "$work" && restic -q backup --tag day-7 tree)

step "forget --prune, rebuild-index, check --read-data"
restic -q forget --group-by host --keep-last 3 --prune --max-unused 0
restic -q rebuild-index
reclaim
restic -q check --read-data
expect "$(restic -q snapshots --json | grep -o '"short_id"' | wc -l)" 3 "snapshots after forget"

verify_restored() {
    restic -q restore latest --tag day-7 --target "$1"
    expect_same_trees "$work/tree" "$1/tree"
}
step "restored into the mount and outside of it"
verify_restored "$work/restored"
verify_restored "$mnt/restored"

remount
step "all of it again"
restic -q check --read-data
expect_same_trees "$work/tree" "$mnt/restored/tree"
rm -r "$work/restored"
verify_restored "$work/restored"
close_pool
