#!/usr/bin/env bash
# Installs dedupfs for all users: programs, the helpers of mount(8), man pages, completions, systemd units.
#
#   tools/install.sh [--prefix DIR] [--destdir DIR] [--sbindir DIR] [--programs DIR]
#   tools/install.sh --uninstall [--prefix DIR] [--destdir DIR]
#
#   --prefix DIR    directory to install in; /usr/local by default
#   --destdir DIR   put everything below DIR, for packages
#   --sbindir DIR   the directory in which mount(8) looks for helpers; /sbin, or /usr/sbin if /sbin is a link to it
#   --programs DIR  use the built programs in DIR instead of building them
#   --uninstall     remove exactly the installed files, as PREFIX/share/dedupfs/installed lists them
#
# A second run replaces the installed files, and removes files that only an older version had. Active mounts go on with
# the old program.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/prerequisites.sh
. tools/prerequisites.sh

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' tools/install.sh; }

prefix=/usr/local destdir='' sbindir='' programs='' uninstall=
while [ $# -gt 0 ]; do
    case $1 in
        --prefix | --destdir | --sbindir | --programs)
            [ $# -ge 2 ] || fail "$1 needs a directory"
            case $2 in /*) ;; *) fail "$1 needs an absolute path, not $2" ;; esac
            printf -v "${1#--}" %s "${2%/}"
            shift 2
            ;;
        --uninstall) uninstall=1; shift ;;
        -h | --help) usage; exit ;;
        *) usage >&2; fail "unknown argument $1" ;;
    esac
done
[ -n "$sbindir" ] || { [ -L /sbin ] && sbindir=/usr/sbin || sbindir=/sbin; }

manifest=$prefix/share/dedupfs/installed
# Installed paths, without DESTDIR; directories end with a slash.
installed=()

# remove PATH ...: removes the paths in this order; directories only if they are empty.
remove() {
    local path
    for path in "$@"; do
        case $path in
            */) [ ! -d "$destdir$path" ] || rmdir --ignore-fail-on-non-empty "$destdir$path" ;;
            *) rm -f "$destdir$path" ;;
        esac
    done
}

# Lists the files of an earlier installation, the last first.
listed() { [ ! -e "$destdir$manifest" ] || tac "$destdir$manifest"; }

if [ -n "$uninstall" ]; then
    [ -e "$destdir$manifest" ] || fail "nothing is installed: there is no $destdir$manifest"
    mapfile -t paths < <(listed)
    remove "${paths[@]}"
    # The list goes last, so that an interrupted run can be repeated; then its directories go.
    rm "$destdir$manifest"
    for path in "${paths[@]}"; do case $path in */) remove "$path" ;; esac; done
    say "removed dedupfs from $destdir$prefix"
    exit
fi

if [ -z "$programs" ]; then
    need_rust
    say "building"
    cargo build --release --locked --package dedupfs-tools
    programs=$(cargo metadata --format-version 1 --no-deps --offline | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/release
fi
names=(dedupfs dedupfs-stats dedupfs-gc)
for name in "${names[@]}"; do
    [ -x "$programs/$name" ] || fail "there is no program $programs/$name"
done

mapfile -t earlier < <(listed)
was_installed() { printf '%s\n' "${earlier[@]}" | grep -qxF -- "$1"; }

# directory PATH: makes the directory and its parents. Only those that did not exist are ours to remove.
directory() {
    [ "$1" != "" ] || return 0
    if [ -d "$destdir$1" ]; then
        if was_installed "$1/"; then directory "${1%/*}"; installed+=("$1/"); fi
        return 0
    fi
    directory "${1%/*}"
    mkdir "$destdir$1"
    installed+=("$1/")
}

# file MODE SOURCE TARGET: replaces the target by renaming, because the old program may be running.
file() {
    directory "${3%/*}"
    install -m "$1" "$2" "$destdir$3.new"
    mv -f "$destdir$3.new" "$destdir$3"
    installed+=("$3")
}

# link TARGET NAME
link() {
    directory "${2%/*}"
    if [ -e "$destdir$2" ] && [ ! -L "$destdir$2" ]; then fail "$destdir$2 is there, and no link of ours"; fi
    ln -sfn "$1" "$destdir$2"
    installed+=("$2")
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
share=$prefix/share
# The directory of each shell, and the name of its completion file.
"$programs/dedupfs" generate --man "$scratch/man" --bash "$scratch/bash" --zsh "$scratch/zsh" --fish "$scratch/fish"
mkdir "$scratch/units"
for unit in tools/systemd/*; do
    sed "s|@bindir@|$prefix/bin|g" "$unit" >"$scratch/units/${unit##*/}"
done

mkdir -p "${destdir:-/}"
# The links come first, because a user without rights fails at them.
for name in mount.dedupfs mount.fuse.dedupfs umount.fuse.dedupfs mkfs.dedupfs fsck.dedupfs; do
    link "$prefix/bin/dedupfs" "$sbindir/$name"
done
for name in "${names[@]}"; do file 755 "$programs/$name" "$prefix/bin/$name"; done
all() { local source; for source in "$1"/*; do file 644 "$source" "$2/${source##*/}"; done; }
all "$scratch/man" "$share/man/man8"
all "$scratch/bash" "$share/bash-completion/completions"
all "$scratch/zsh" "$share/zsh/site-functions"
all "$scratch/fish" "$share/fish/vendor_completions.d"
all "$scratch/units" "$prefix/lib/systemd/system"
directory "${manifest%/*}"
printf '%s\n' "${installed[@]}" | awk '!seen[$0]++' >"$destdir$manifest.new"
mv -f "$destdir$manifest.new" "$destdir$manifest"

gone=()
for path in "${earlier[@]}"; do
    grep -qxF -- "$path" "$destdir$manifest" || gone+=("$path")
done
[ ${#gone[@]} = 0 ] || remove "${gone[@]}"
if [ -z "$destdir" ] && [ -d /run/systemd/system ]; then systemctl daemon-reload; fi

say "installed dedupfs in $destdir$prefix, its helpers in $destdir$sbindir"
