#!/usr/bin/env bash
# rsnapshot with its snapshot root in the mount: hourly and daily snapshots that rotate, each compared with the tree of
# its hour.
#
#   tests/clients/rsnapshot.sh [DIRECTORY]     parent of the scratch directory [default: TMPDIR or /var/tmp]
#
# See common.sh for the variables.
# shellcheck disable=SC2154 # common.sh has them
set -euo pipefail
# shellcheck source=tests/clients/common.sh
. "$(dirname "$0")/common.sh"
client_arguments "$@"
need rsnapshot=rsnapshot rsync=rsync setfattr=attr setfacl=acl >&2
open_pool

# configure LINK_DEST: 1 for rsync --link-dest, 0 for cp -al.
configure() {
    # Fields are separated by tabs.
    tr '|' '\t' >"$work/rsnapshot.conf" <<CONF
config_version|1.2
snapshot_root|$mnt/snapshots/
no_create_root|1
cmd_cp|$(command -v cp)
cmd_rm|$(command -v rm)
cmd_rsync|$(command -v rsync)
retain|hourly|6
retain|daily|3
verbose|2
loglevel|3
logfile|$work/rsnapshot.log
lockfile|$work/rsnapshot.pid
rsync_short_args|-aHAX
rsync_long_args|--modify-window=-1 --delete --numeric-ids --relative --delete-excluded
link_dest|$1
backup|$work/./tree/|here/
CONF
    rsnapshot -c "$work/rsnapshot.conf" configtest >/dev/null
}
run() { rsnapshot -c "$work/rsnapshot.conf" "$1" || fail "rsnapshot $1: $(tail -n 3 "$work/rsnapshot.log")"; }

# Makes fourteen hourly and four daily snapshots; each hour's tree contains its hour.
snapshots() {
    local hour
    for hour in {1..14}; do
        change_tree "$work/tree" "$hour"
        echo "$hour" >"$work/tree/hour"
        run hourly
        # The number of links differs: other snapshots have the same files.
        listing "$work/tree" '' >"$work/listing.$hour"
        case $hour in 6 | 8 | 10 | 12) run daily ;; esac
    done
}
verify_snapshots() {
    local snapshot hour hours=''
    for snapshot in hourly.{0..5} daily.{0..2}; do
        hour=$(cat "$mnt/snapshots/$snapshot/here/tree/hour")
        hours+="$hour "
        listing "$mnt/snapshots/$snapshot/here/tree" '' >"$work/listing.found"
        expect_same "$work/listing.$hour" "$work/listing.found" "$snapshot is not what was there at hour $hour"
    done
    # A daily snapshot is the oldest of six hourly ones.
    expect "$hours" "14 13 12 11 10 9 7 5 3 " "hours of the snapshots"
    expect "$(find "$mnt/snapshots" -mindepth 1 -maxdepth 1 | wc -l)" 9 "snapshots that are kept"
}

for link_dest in 1 0; do
    case $link_dest in
        1) step "fourteen hourly and four daily snapshots, by rsync --link-dest" ;;
        0) step "the same by cp -al" ;;
    esac
    rm -rf "$work/tree" "$mnt/snapshots"
    make_tree "$work/tree"
    mkdir "$mnt/snapshots"
    configure $link_dest
    snapshots
    verify_snapshots
    reclaim
    remount
    verify_snapshots
done
close_pool
