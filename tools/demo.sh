#!/usr/bin/env bash
# Shows dedupfs at work on a real directory and a temporary pool. Changes nothing else.
#
#   tools/demo.sh [DIRECTORY]     default: a system directory of moderate size
#
# Installs missing packages (fuse3, rsync), builds, formats a pool, mounts it, backs the directory up twice by rsync
# and once by tar, shows the statistics, deletes two backups, reclaims, restores the third, compares, unmounts.
# The pool lies in TMPDIR (default /var/tmp) and is removed at the end.
set -euo pipefail
cd "$(dirname "$0")/.."
repository=$PWD
cd - >/dev/null
# shellcheck source=tools/prerequisites.sh
. "$repository/tools/prerequisites.sh"

case "${1-}" in -h | --help)
    sed -n '2,9s/^# \{0,1\}//p' "$0"
    exit 0
    ;;
esac

# Large enough to be telling, small enough for two minutes.
default_directory() {
    local directory
    for directory in /usr/share "/usr/lib/$(uname -m)-linux-gnu" /usr/lib/python3 /usr/share/doc /etc; do
        if [ -d "$directory" ] && [ "$(du -sm "$directory" 2>/dev/null | cut -f1)" -le 600 ] &&
            [ "$(find "$directory" 2>/dev/null | wc -l)" -le 25000 ]; then
            echo "$directory"
            return
        fi
    done
    echo "$repository/src"
}

need_rust
need_fuse
need rsync=rsync tar=tar cmp=diffutils

source_directory=$(realpath -e -- "${1:-$(default_directory)}") || fail "no such directory: ${1-}"
[ -d "$source_directory" ] || fail "not a directory: $source_directory"

say "building (the first time this takes some minutes)"
(cd "$repository" && cargo build --release --locked -p dedupfs-tools)
target=$(cd "$repository" && cargo metadata --format-version 1 --no-deps --offline | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
export PATH=$target/release:$PATH

work=$(mktemp -d "${TMPDIR:-/var/tmp}/dedupfs-demo.XXXXXX")
pool=$work/pool mnt=$work/mnt restored=$work/restored
mkdir "$mnt" "$restored"

clean_up() {
    local status=$?
    if mountpoint -q "$mnt" 2>/dev/null; then
        dedupfs umount "$mnt" || dedupfs umount --lazy "$mnt" || true
    fi
    if [ $status != 0 ] && [ -e "$pool/dedupfs.log" ]; then
        say "the demo failed; the daemon's log ends with"
        tail -n 20 "$pool/dedupfs.log"
    fi
    # Never delete through a mount that is still there.
    mountpoint -q "$mnt" 2>/dev/null || rm -rf "$work"
    exit $status
}
trap clean_up EXIT

started=$SECONDS
timed() {
    local begin=$EPOCHREALTIME end
    printf '+ %s\n' "$*"
    "$@"
    end=$EPOCHREALTIME
    awk -v a="$begin" -v b="$end" 'BEGIN { printf "  (%.1f s)\n", b - a }'
}

size=$(du -sb --apparent-size "$source_directory" 2>/dev/null | cut -f1)
say "the directory: $source_directory, $((size / 1048576)) MiB, $(find "$source_directory" 2>/dev/null | wc -l) names"

say "a pool, mounted"
timed dedupfs mkfs "$pool"
timed dedupfs mount "$pool" "$mnt"
df -h "$mnt"

say "two backups by rsync and one by tar"
timed rsync -aHAX "$source_directory/" "$mnt/monday/"
timed rsync -aHAX "$source_directory/" "$mnt/tuesday/"
timed tar -C "$source_directory" -cf "$mnt/wednesday.tar" .
timed dedupfs sync "$mnt"

say "what it takes"
timed dedupfs-stats "$mnt"

say "the tar compared with the directory"
timed tar -C "$source_directory" --compare -f "$mnt/wednesday.tar"
echo "identical"

say "two backups deleted, space reclaimed (what the third shares with them stays)"
timed rm -rf "$mnt/monday" "$mnt/wednesday.tar"
timed dedupfs-gc --dry-run "$mnt"
timed dedupfs-gc "$mnt"

say "unmounted, checked, mounted again"
timed dedupfs umount "$mnt"
timed dedupfs fsck "$pool"
timed dedupfs mount "$pool" "$mnt"

say "restored and compared"
timed rsync -aHAX "$mnt/tuesday/" "$restored/"
differences=$(rsync -aHAXnc --delete --itemize-changes "$source_directory/" "$restored/")
[ -z "$differences" ] || fail "the restored directory differs: $differences"
echo "identical, attributes included"

say "unmounted"
timed dedupfs umount "$mnt"
printf '\nAll of it took %d seconds after the build.\n' $((SECONDS - started))
