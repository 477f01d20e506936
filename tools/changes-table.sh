#!/usr/bin/env bash
# Changes a source in many ways between two backups, and prints which of them the second backup holds: those of dedupfs
# put, restic and borg, each as it works by default, and put --reread.
#
#   tools/changes-table.sh [--dir DIR]
#
#   --dir DIR   directory for the source, pools and repositories [default: TMPDIR or /var/tmp]
#
# As root, on a machine with FUSE and loop devices. Uses the programs in DEDUPFS_BIN, or builds them, and restic and
# borg from the path; a program that is missing gets no column. The source is an ext4 image. For the second backup a
# copy of it is mounted, with another device number. What is restored of the second backup is compared with what is
# restored of a backup by the same program that reads everything. Takes two minutes: all files are older than the margin
# of put but those that shall not be.
# shellcheck disable=SC2154 # common.sh has the other side
set -euo pipefail
# shellcheck source=tools/prerequisites.sh
. "$(dirname "$0")/prerequisites.sh"
# shellcheck source=tools/common.sh
. "$(dirname "$0")/common.sh"

dir=${TMPDIR:-/var/tmp}
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) help ;;
        --dir) [ $# -ge 2 ] || usage "$1 needs a value"; dir=$2; shift 2 ;;
        *) usage "unknown argument $1" ;;
    esac
done
[ "$(id -u)" = 0 ] || fail "this needs root: loop devices, other owners"
find_programs dedupfs
need_fuse
need rsync=rsync setfattr=attr setfacl=acl python3=python3 debugfs=e2fsprogs mkfs.ext4=e2fsprogs

# Seconds in which a change is not trusted to be told by times (docs/decisions/0038).
margin_secs=60

# ---- changes: "what is done|commands", run in a directory of their own, made by make_case.

changes=(
    "nothing|:"
    "appended|echo more >>file"
    "overwritten in place, same size|overwrite file 0 CONTENT"
    "same size, time of content set back|keep_time file overwrite file 0 CONTENT"
    "one byte in the middle of a large file, time of content set back|keep_time large overwrite large 500000 x"
    "truncated|truncate -s 500 large"
    "extended by a hole|truncate -s 1M file"
    "a hole filled, same size, time of content set back|keep_time sparse overwrite sparse 0 x"
    "written through a mapping|store file CONTENT"
    "renamed over by a file of the same size and time|printf 'CONTENT 1' >new; touch -r file new; mv new file"
    "removed and made again, same size and time|touch -r file time; rm file; printf 'CONTENT 1' >file; touch -r time file; rm time"
    "two files of the same size and time exchanged|touch -r file second; mv file x; mv second file; mv x second"
    "a file became a directory|rm file; mkdir file; echo inner >file/inner"
    "a directory became a file|rm -r directory; echo flat >directory"
    "a file became a symbolic link|rm file; ln -s 'content 1' file"
    "a symbolic link leads elsewhere, same length|rm symlink; ln -s bbbb symlink"
    "mode|chmod 600 file"
    "mode of a directory|chmod 711 directory"
    "owner|chown 7:7 file"
    "extended attribute|setfattr -n user.new -v value file"
    "access list|setfacl -m u:7:r file"
    "only the time of content|touch -d '2001-01-01 01:01:01' file"
    "a hard link more|ln file directory/linked"
    "a hard link less|rm linked"
    "a hard link leads to another file of the same size and time|touch -r linked second; rm linked; ln second linked"
    "a new file|echo new >file-new"
    "a file less|rm file"
    "a file of another name|mv file renamed"
    "a directory of another name|mv directory renamed"
    "a directory moved|mv directory other/"
    "directories exchanged|mv directory x; mv other directory; mv x other"
    "all removed|rm -r ./*"
    "a pipe|mkfifo pipe"
)
# The same with more steps: see below.
while_read='written again while the first backup ran, same size'
mapped='stored again, through a mapping, in a page that was changed before the first backup and is not written yet'
young="content, with size and both times as before; the file was less than a minute old at the first backup"
forged='content, with size and both times as before: the clock was set back, or the disk was written below its filesystem'
forged_mode='mode, with both times as before'
forged_attribute='extended attribute, with both times as before'

# keep_time FILE COMMAND...: sets the time of content back afterwards.
keep_time() {
    local file=$1 time
    time=$(stat -c %.9Y "$file")
    shift
    "$@"
    touch -d "@$time" "$file"
}
# overwrite FILE OFFSET TEXT
overwrite() { printf %s "$3" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none; }
# store FILE TEXT: through a mapping.
store() { python3 -c 'import mmap, sys
file = open(sys.argv[1], "r+b")
mapped = mmap.mmap(file.fileno(), 0)
mapped[:len(sys.argv[2])] = sys.argv[2].encode()' "$1" "$2"; }

# make_case DIRECTORY: a small tree with something for each change.
make_case() {
    mkdir "$1"
    (
        cd "$1"
        mkdir directory other
        printf 'content 1' >file
        printf 'content 2' >second
        printf 'content 3' >third
        ln third linked
        ln -s aaaa symlink
        echo inner >directory/inner
        echo inner >other/inner
        random_bytes "$1" 1000000 >large
        truncate -s 1M sparse
        printf end >>sparse
    )
}

# ---- the source

make_scratch "$dir" && work=$REPLY
mnt=$work/mnt source=$work/source
mkdir "$mnt" "$source"
truncate -s 1G "$work/image"
mkfs.ext4 -q -F "$work/image"
mount -o loop "$work/image" "$source"
mounted+=("$source")
cases=()
for ((number = 0; number < ${#changes[@]}; number++)); do cases+=("case-$number"); done
cases+=(while-read young forged forged-mode forged-attribute)
rows=("${cases[@]}" mapped)
cases+=(mapped-put mapped-restic mapped-borg)
for name in "${cases[@]}"; do make_case "$source/$name"; done
sync -f "$source"

columns=(put reread)
for name in restic borg; do
    if command -v "$name" >/dev/null; then columns+=("$name"); else say "NOT RUN: $name is not installed"; fi
done
dedupfs mkfs "$work/pool" >/dev/null
mount_pool "$work/pool" "$mnt" --memory 256M
mkdir "$mnt/series" "$work/restored"
export RESTIC_REPOSITORY=$work/restic RESTIC_PASSWORD=none RESTIC_CACHE_DIR=$work/restic-cache
export BORG_REPO=$work/borg BORG_BASE_DIR=$work/borg-base BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK=yes
for name in "${columns[@]}"; do
    case $name in
        restic) restic init --quiet ;;
        borg) borg init --encryption none ;;
    esac
done

# backup COLUMN NAME: a backup as the program makes it by default.
backup() {
    case $1 in
        put) dedupfs put "$source" "$mnt/series/$2" >&2 ;;
        restic) restic backup --quiet --tag "$2" "$source" ;;
        borg) borg create "::$2" "$source" ;;
    esac
}
# backup_all COLUMN NAME: one that reads everything.
backup_all() {
    case $1 in
        put | reread) dedupfs put --reread "$source" "$mnt/series/$2" >&2 ;;
        restic) restic backup --quiet --force --tag "$2" "$source" ;;
        borg) borg create --files-cache disabled "::$2" "$source" ;;
    esac
}
# restore COLUMN NAME: sets REPLY to a directory with the source as this backup has it.
restore() {
    REPLY=$work/restored/$1-$2
    case $1 in
        put | reread) REPLY=$mnt/series/$2; return ;;
        restic) restic restore --quiet --tag "$2" --target "$REPLY" latest >&2 ;;
        borg) mkdir "$REPLY" && (cd "$REPLY" && borg extract "::$2") ;;
    esac
    REPLY+=$source
}

# ---- two backups

say "waiting until the source is older than the margin"
sleep $((margin_secs + 2))
printf 'content 1' >"$source/young/file"
# Stores a text in the file of a directory when it reads a line with both.
coproc mapper { python3 -c 'import mmap, sys
mapped = {}
for line in sys.stdin:
    case, text = line.split()
    if case not in mapped:
        with open(sys.argv[1] + "/" + case + "/file", "r+b") as file:
            mapped[case] = mmap.mmap(file.fileno(), 0)
    mapped[case][:7] = text.encode()
    print("stored", flush=True)' "$source"; }
map_store() {
    local answer
    echo "$1 $2" >&"${mapper[1]}"
    read -r answer <&"${mapper[0]}"
    [ "$answer" = stored ] || fail "nothing was stored through the mapping"
}
for name in "${columns[@]}"; do
    [ "$name" != reread ] || continue
    say "first backup: $name"
    map_store "mapped-$name" before1
    (sleep 0.1 && overwrite "$source/while-read/file" 0 "$(printf %-7.7s "$name")") &
    writer=$!
    backup "$name" first
    wait $writer
    map_store "mapped-$name" behind2
done
exec {mapper[1]}>&-
wait "$mapper_PID"

say "changes"
for ((number = 0; number < ${#changes[@]}; number++)); do
    (cd "$source/case-$number" && eval "${changes[number]#*|}")
done
# forge FILE COMMAND...: keeps both times.
forgeries=()
forge() {
    local file=$source/$1
    forgeries+=("$(stat -c '%i %.9Z' "$file")")
    shift
    keep_time "$file" "$@"
}
forge young/file overwrite "$source/young/file" 0 CONTENT
forge forged/file overwrite "$source/forged/file" 0 CONTENT
forge forged-mode/file chmod 600 "$source/forged-mode/file"
forge forged-attribute/file setfattr -n user.new -v value "$source/forged-attribute/file"
umount "$source"
forget_mount "$source"
for forgery in "${forgeries[@]}"; do
    read -r ino time <<<"$forgery"
    nanos=$((10#${time#*.}))
    debugfs -w -R "set_inode_field <$ino> ctime @${time%.*}" "$work/image" 2>/dev/null
    debugfs -w -R "set_inode_field <$ino> ctime_extra $((nanos * 4))" "$work/image" 2>/dev/null
done
# The first image keeps its number until the copy has another one.
held=$(losetup --find --show "$work/image")
cp --sparse=always "$work/image" "$work/copy"
mount -o loop "$work/copy" "$source"
mounted+=("$source")
losetup -d "$held"
for forgery in "${forgeries[@]}"; do
    read -r ino time <<<"$forgery"
    [ "$(find "$source" -inum "$ino" -printf '%C@\n' | head -c 20)" = "${time:0:20}" ] || fail "the time of change of inode $ino was not set back"
done

declare -A holds
for name in "${columns[@]}"; do
    say "second backup: $name"
    if [ "$name" = reread ]; then
        # Of what it reads nothing may be missing: it is compared with the source.
        incremental=$mnt/series/put-full whole=$source
    else
        backup "$name" second
        backup_all "$name" "$name-full"
        restore "$name" second && incremental=$REPLY
        restore "$name" "$name-full" && whole=$REPLY
    fi
    for case in "${cases[@]}"; do
        differences=$(rsync -aHAXnc --numeric-ids --delete --itemize-changes "$whole/$case/" "$incremental/$case/")
        if [ -z "$differences" ]; then holds[$name,$case]=holds; else holds[$name,$case]="**misses**"; fi
    done
done

# ---- the table

row() { printf '|%s' "$@"; printf '|\n'; }
printf '%s' "dedupfs put"
for name in "${columns[@]:2}"; do "$name" version 2>/dev/null || "$name" --version; done | cut -d' ' -f1,2 | sed 's/^/, /' | tr -d '\n'
printf '\n\n'
titles=(" change " " \`put\` " " \`put --reread\` ")
for name in "${columns[@]:2}"; do titles+=(" $name "); done
row "${titles[@]}"
row "${titles[@]//*/---}"
missed=0
for ((number = 0; number < ${#rows[@]}; number++)); do
    case=${rows[number]}
    case $case in
        case-*) text=${changes[number]%%|*} ;;
        while-read) text=$while_read ;;
        mapped) text=$mapped ;;
        young) text=$young ;;
        forged) text=$forged ;;
        forged-mode) text=$forged_mode ;;
        forged-attribute) text=$forged_attribute ;;
    esac
    cells=(" $text ")
    for name in "${columns[@]}"; do
        # Each program has a file of its own, whose page no other has caused to be written.
        [ "$case" != mapped ] || holds[$name,mapped]=${holds[$name,mapped-${name/reread/put}]}
        cells+=(" ${holds[$name,$case]} ")
    done
    row "${cells[@]}"
    [ "${holds[reread,$case]}" = holds ] || fail "put --reread misses: $text"
    case $case in forged | forged-attribute) continue ;; esac
    [ "${holds[put,$case]}" = holds ] || missed=$((missed + 1))
done
[ $missed = 0 ] || fail "put misses $missed changes that the source tells"
unmount_pool "$mnt"
dedupfs fsck --read-data "$work/pool" >&2 || fail "fsck found damage"
say "put missed only what the source does not tell"
