#!/usr/bin/env bash
# Backs a series of versions of one tree up twice into one pool: each version by rsync into a directory of its own, then
# each as one tar. Compares the unique chunk bytes of dedupfs-stats with an independent count over the same files, to the
# byte, states what all of it takes on disk, and verifies all content after a new mount.
#
#   benches/series.sh [OPTIONS] SERIES [POOL]
#
#   SERIES            a directory with one directory for each version
#   POOL              an empty or absent directory, formatted here and kept [default: a temporary one that is removed]
#   --versions N      only the first N versions
#   --dir DIR         for temporary files; the tars need as much space as the series, a temporary pool half of it
#                     [default: TMPDIR or /var/tmp]
#   --mkfs OPTIONS    for dedupfs mkfs, such as "--compression none" (the chunker and its size are passed to the count)
#   --mount OPTIONS   for dedupfs mount
#
# Uses the programs in DEDUPFS_BIN, or builds them. Fails if any figure or byte differs.
# shellcheck disable=SC2154 # common.sh has the other side
set -euo pipefail
# shellcheck source=benches/common.sh
. "$(dirname "$0")/common.sh"

dir=${TMPDIR:-/var/tmp} limit=1000000 mkfs_options=() mount_options=() positional=()
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) help ;;
        --*) [ $# -ge 2 ] || usage "$1 needs a value" ;;&
        --versions) parse_count "$2" && limit=$REPLY ;;
        --dir) dir=$2 ;;
        --mkfs) read -r -a mkfs_options <<<"$2" ;;
        --mount) read -r -a mount_options <<<"$2" ;;
        --*) usage "unknown option $1" ;;
        *)
            positional+=("$1")
            shift
            continue
            ;;
    esac
    shift 2
done
[ ${#positional[@]} = 1 ] || [ ${#positional[@]} = 2 ] || usage "one directory with the series is needed, and at most one pool"
series=$(realpath -e -- "${positional[0]}") || usage "no such directory: ${positional[0]}"
mapfile -d '' -t versions < <(cd "$series" && find . -mindepth 1 -maxdepth 1 -type d -printf '%P\0' | sort -z | head -z -n "$limit")
[ ${#versions[@]} -gt 0 ] || usage "$series has no directories"

find_programs dedupfs dedupfs-stats offline_count
need_commands rsync tar cmp diff findmnt
make_scratch "$dir" && work=$REPLY
mnt=$work/mnt tars=$work/tars pool=${positional[1]-$work/pool}
mkdir "$mnt" "$tars"
sources=()
for version in "${versions[@]}"; do sources+=("$series/$version"); done
need_room "$work" $(($(content_bytes "${sources[@]}") * 2)) "the series"

# The chunker and its size, for the count.
count_options=()
for ((i = 0; i < ${#mkfs_options[@]}; i++)); do
    case ${mkfs_options[i]} in --chunker | --chunk-size) count_options+=("${mkfs_options[i]}" "${mkfs_options[i + 1]}") ;; esac
done
# count PATH...: sets COUNT.
count() { COUNT=$("${programs[offline_count]}" "${count_options[@]}" "$@") || fail "offline_count"; }
count_field() {
    REPLY=$(awk -v name="$1" '$1 == name { print $2 }' <<<"$COUNT")
    [ -n "$REPLY" ] || fail "offline_count prints no $1"
}

failures=0
# compare WHAT EXPECTED FOUND
compare() {
    if [ "$2" = "$3" ]; then
        printf '| %s | %s | equal |\n' "$1" "$2"
    else
        printf '| %s | %s counted, %s said | **differs by %s** |\n' "$1" "$2" "$3" $(($3 - $2))
        failures=$((failures + 1))
    fi
}
# stat_is STATISTIC COUNTED WHAT
check_stats() {
    local pair
    for pair in files:files logical_bytes:total_bytes unique_chunks:distinct_chunks unique_chunk_bytes:distinct_chunk_bytes; do
        count_field "${pair#*:}" && local counted=$REPLY
        stat_field "${pair%:*}"
        compare "$1, ${pair%:*}" "$counted" "$REPLY"
    done
}
# Nothing was deleted or overwritten: nothing may be stored that is not referred to.
check_garbage() {
    stat_field unreferenced_chunks
    compare "$1, chunks without reference" 0 "$REPLY"
}

describe_machine "$work"
printf '\n| | bytes or number | offline count and dedupfs-stats |\n|---|---|---|\n'
dedupfs mkfs "${mkfs_options[@]}" "$pool" >&2
mount_pool "$pool" "$mnt" "${mount_options[@]}"

mkdir "$mnt/directories" "$mnt/tars"
by_rsync() {
    for version in "${versions[@]}"; do rsync -aHAX "$series/$version/" "$mnt/directories/$version/"; done
    dedupfs sync "$mnt"
}
say "rsync of ${#versions[@]} versions"
timed by_rsync
directories_seconds=$TAKEN
read_stats "$mnt"
stat_field logical_bytes && directories_logical=$REPLY
stat_field unique_chunk_bytes && directories_unique=$REPLY
stat_field physical_bytes && directories_physical=$REPLY
say "counting"
count "${sources[@]}"
check_stats directories
check_garbage directories

# The order of names is the only thing that a tar of the same tree could do differently.
make_tar() { tar -C "$series" --sort=name --format=gnu -cf "$1" "./$2"; }
by_tar() {
    for version in "${versions[@]}"; do make_tar "$mnt/tars/$version.tar" "$version"; done
    dedupfs sync "$mnt"
}
say "tar of ${#versions[@]} versions"
timed by_tar
tars_seconds=$TAKEN
for version in "${versions[@]}"; do make_tar "$tars/$version.tar" "$version"; done
read_stats "$mnt"
count "${sources[@]}" "$tars"
check_stats "directories and tars"
check_garbage "directories and tars"

unmount_pool "$mnt"
read_stats "$pool"
check_stats "after the unmount"
check_garbage "after the unmount"
stat_field logical_bytes && logical=$REPLY
stat_field unique_chunk_bytes && unique=$REPLY
stat_field physical_bytes && physical=$REPLY
stat_field data_container_bytes && content=$REPLY
stat_field recipe_container_bytes && recipes=$REPLY
stat_field namespace_bytes && namespace=$REPLY
stat_field index_bytes && index=$REPLY
on_disk=$(disk_bytes "$pool")
count "$tars"
count_field distinct_chunk_bytes && tars_alone=$REPLY

say "verifying after a new mount"
evict "$pool"
mount_pool "$pool" "$mnt" "${mount_options[@]}"
verify() {
    for version in "${versions[@]}"; do
        diff -r --no-dereference "$series/$version" "$mnt/directories/$version" >&2 || fail "directories/$version differs"
        cmp "$tars/$version.tar" "$mnt/tars/$version.tar" || fail "tars/$version.tar differs"
    done
    local differences
    differences=$(rsync -aHAXn --delete --itemize-changes "$series/${versions[0]}/" "$mnt/directories/${versions[0]}/")
    [ -z "$differences" ] || fail "attributes of directories/${versions[0]} differ: $differences"
}
timed verify
verify_seconds=$TAKEN
unmount_pool "$mnt"
timed dedupfs fsck --read-data "$pool" >&2
fsck_seconds=$TAKEN

cat <<END

| | |
|---|---|
| versions, as directories and as tars | ${#versions[@]} |
| logical, directories | $(exact "$directories_logical") |
| logical, all | $(exact "$logical") |
| unique chunks, directories | $(exact "$directories_unique") |
| unique chunks, all | $(exact "$unique") |
| the tars added | $(exact $((unique - directories_unique))), $(calculate "100 * ($unique - $directories_unique) / $directories_unique")% of the directories' unique chunks; alone they have $(exact "$tars_alone") |
| deduplication | $(calculate "$logical / $unique") |
| content on disk, compressed | $(exact "$content") |
| recipes, namespace, index on disk | $(exact "$recipes"), $(exact "$namespace"), $(exact "$index") |
| physical, all, as dedupfs-stats says | $(exact "$physical"); with the directories alone $(exact "$directories_physical") |
| physical, all, as du says | $(exact "$on_disk") |
| logical against physical | $(calculate "$logical / $on_disk") |
| rsync of the directories | $directories_seconds s, $(rate "$directories_logical" "$directories_seconds") MB/s |
| tars | $tars_seconds s, $(rate "$((logical - directories_logical))" "$tars_seconds") MB/s |
| compared after a new mount | $verify_seconds s, $(rate "$logical" "$verify_seconds") MB/s |
| fsck --read-data | clean, $fsck_seconds s |
END
[ $failures = 0 ] || fail "$failures figures differ from the offline count"
say "all content is identical, all figures equal the offline count"
