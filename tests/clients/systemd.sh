#!/usr/bin/env bash
# The units under a separate systemd, which is process 1 of namespaces with overlays: nothing of the machine is changed.
# The mount is active when it serves, is mounted again when its daemon is killed, is reclaimed and scrubbed by services
# and timers, and stops clean. A unit without a pool reports that. A mount unit, as systemd makes it from a line in
# fstab, calls the helper.
#
#   tests/clients/systemd.sh [DIRECTORY]
#
# DIRECTORY: parent of the scratch directory [default: TMPDIR or /var/tmp]. Needs root, and overlayfs. See common.sh for
# the variables.
# shellcheck disable=SC2154 # common.sh has them
set -euo pipefail
# shellcheck source=tests/clients/common.sh
. "$(dirname "$0")/common.sh"
client_arguments "$@"
[ "$(id -u)" = 0 ] || fail "this needs root: namespaces and mounts"
need systemctl=systemd unshare=util-linux >&2
manager_program=/lib/systemd/systemd
[ -x $manager_program ] || fail "no $manager_program"
# Formats a pool and unmounts it: systemd does the mounting.
open_pool
unmount_client

# ---- the manager

cgroup=dedupfs-client-$$
cgroups=()
for hierarchy in /sys/fs/cgroup /sys/fs/cgroup/systemd /sys/fs/cgroup/unified; do
    [ ! -e "$hierarchy/cgroup.procs" ] || cgroups+=("$hierarchy/$cgroup")
done
[ ${#cgroups[@]} != 0 ] || fail "no cgroups at /sys/fs/cgroup"

cat >"$work/begin" <<'BEGIN'
set -eu
work=$1 manager=$2
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
mkdir -p /run/lock /run/mount /run/upper /run/work
# The manager's log.
mount --bind "$work/manager.log" /dev/console
# The manager sees only its own part of the cgroups.
if [ -e /sys/fs/cgroup/cgroup.procs ]; then
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
else
    mount -t tmpfs tmpfs /sys/fs/cgroup
    mkdir /sys/fs/cgroup/systemd /sys/fs/cgroup/unified
    mount -t cgroup -o none,name=systemd,xattr cgroup /sys/fs/cgroup/systemd
    mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified
fi
for directory in /etc /usr; do
    mkdir -p "/run/upper$directory" "/run/work$directory"
    mount -t overlay overlay -o "lowerdir=$directory,upperdir=/run/upper$directory,workdir=/run/work$directory" "$directory"
done
"$work/install" >"$work/install.log"
# The machine's own units stay out, so that none of them is started: these stand for the units that ours name.
mkdir /run/units
for target in sysinit basic shutdown umount timers multi-user local-fs local-fs-pre remote-fs remote-fs-pre network network-online; do
    printf '[Unit]\nDescription=%s\nDefaultDependencies=no\n' "$target" >"/run/units/$target.target"
done
cp "$work/units"/* /run/units
export SYSTEMD_UNIT_PATH=/run/units:/usr/local/lib/systemd/system container=dedupfs-client
exec "$manager" --system --unit=multi-user.target --log-target=kmsg --log-color=no --show-status=no
BEGIN

instance=$(systemd-escape --path "$mnt")
mkdir "$work/units"
# This mount unit never becomes active by itself.
mount_unit=$(systemd-escape --path --suffix=mount "$work/other")
mkdir "$work/other"
printf '[Unit]\nDefaultDependencies=no\n[Mount]\nWhat=%s\nWhere=%s\nType=dedupfs\nOptions=memory=256M,noatime,nofail,_netdev,x-systemd.requires=basic.target\n' \
    "$pool" "$work/other" >"$work/units/$mount_unit"
cat >"$work/install" <<INSTALL
#!/bin/sh
exec "$repository/tools/install.sh" --programs "$(dirname "${programs[dedupfs]}")"
INSTALL
chmod +x "$work/install"

on_exit=stop_manager
stop_manager() {
    local directory
    # All processes of its namespace end with it.
    [ -z "${manager-}" ] || kill -9 "$manager"
    # The kernel ends all processes inside.
    [ -z "${outer-}" ] || wait "$outer" 2>/dev/null || true
    for directory in "${cgroups[@]}"; do
        [ ! -d "$directory" ] || find "$directory" -depth -type d -exec rmdir {} +
    done
}

step "a systemd of its own"
mkdir "${cgroups[@]}"
cat >"$work/enter" <<'ENTER'
set -eu
work=$1 manager=$2
shift 2
for directory; do echo $$ >"$directory/cgroup.procs"; done
# The cgroup namespace begins at the cgroup of the process.
exec unshare --cgroup --mount --propagation private --uts --ipc --pid --fork --kill-child bash "$work/begin" "$work" "$manager"
ENTER
bash "$work/enter" "$work" "$manager_program" "${cgroups[@]}" >"$work/manager.log" 2>&1 </dev/null &
outer=$!
processes+=("$outer")
manager=''
for _ in {1..200}; do
    manager=$(pgrep -P "$outer" || true)
    [ -n "$manager" ] && [ "$(cat "/proc/$manager/comm" 2>/dev/null)" = systemd ] && break
    kill -0 "$outer" 2>/dev/null || fail "it did not begin: $(tail -n 5 "$work/manager.log")"
    sleep 0.1
done
inside() { nsenter --target "$manager" --mount --pid --cgroup -- "$@"; }
# until_true WHAT COMMAND...
until_true() {
    local what=$1 deadline=$((SECONDS + 60))
    shift
    until "$@"; do
        [ $SECONDS -lt $deadline ] || fail "not $what: $(tail -n 20 "$work/manager.log")"
        sleep 0.1
    done
}
is_up() { [ "$(inside systemctl is-system-running 2>/dev/null)" = running ]; }
until_true "running" is_up
is_mounted() { inside mountpoint -q "$1"; }
show() { inside systemctl show --value --property "$1" "$2"; }
the_service=dedupfs@the-backup.service

step "a unit without a pool is refused, and says what is missing"
! inside systemctl start "$the_service" 2>"$work/refused" || fail "it was started without a pool"
show AssertResult "$the_service" | grep -qx no || fail "no failed assertion: $(cat "$work/refused")"

step "started: it is active when it serves"
inside mkdir /etc/dedupfs
printf 'DEDUPFS_POOL=%s\nDEDUPFS_MOUNTPOINT=%s\nDEDUPFS_ARGUMENTS=--memory=256M --options=noatime\n' "$pool" "$mnt" |
    inside tee /etc/dedupfs/the-backup.conf >/dev/null
start() { inside systemctl start "$1" || fail "$(inside systemctl status --lines=0 "$1") $(tail -n 20 "$work/manager.log")"; }
start "$the_service"
is_mounted "$mnt" || fail "active, and not mounted"
expect "$(show ActiveState "$the_service")/$(show SubState "$the_service")" active/running "its state"
expect "$(show MainPID "$the_service")" "$(daemon_of "$pool")" "the main process"
show StatusText "$the_service" >&2
inside findmnt --noheadings --output OPTIONS "$mnt" | grep -q noatime || fail "mounted without its options"
random_bytes kept 20000000 | inside dd of="$mnt/kept" conv=fsync status=none

step "its daemon killed: mounted again, and what was synced is there"
inside kill -9 "$(daemon_of "$pool")"
again() { [ "$(show NRestarts "$the_service")" = 1 ] && [ "$(show SubState "$the_service")" = running ] && is_mounted "$mnt"; }
until_true "mounted again" again
random_bytes kept 20000000 | inside cmp - "$mnt/kept"

step "reclaimed and scrubbed, by services and by timers"
for unit in dedupfs-gc@"$instance" dedupfs-scrub@"$instance"; do
    start "$unit.service"
    expect "$(show Result "$unit.service")/$(show ExecMainStatus "$unit.service")" success/0 "$unit"
    inside systemctl enable --runtime --now "$unit.timer" 2>/dev/null
    [ -n "$(show NextElapseUSecRealtime "$unit.timer")" ] || fail "$unit.timer never elapses"
done

step "stopped: everything is durable and unmounted"
inside systemctl stop "$the_service"
! is_mounted "$mnt" || fail "stopped, and still mounted"
expect "$(show Result "$the_service")" success "how it ended"
dedupfs fsck "$pool" | grep -q clean || fail "not clean"

step "a mount unit, as of a line in fstab"
start "$mount_unit"
random_bytes kept 20000000 | inside cmp - "$work/other/kept"
inside findmnt --noheadings --output FSTYPE,OPTIONS "$work/other" | grep -q 'fuse.dedupfs.*noatime' || fail "mounted as something else"
inside systemctl stop "$mount_unit"
! is_mounted "$work/other" || fail "stopped, and still mounted"
expect "$(show Result "$mount_unit")" success "how it ended"

step "everything stopped"
stop_manager
manager=''
mount_client
random_bytes kept 20000000 | cmp - "$mnt/kept"
close_pool
