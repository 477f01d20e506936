#!/usr/bin/env bash
# One large file: written twice (the second time nothing new may be stored), restored and compared; and one that is edited
# by dd at random places (overwritten, truncated, extended, appended to), compared with the same edits on the backing
# filesystem after each batch, and again after a new mount.
#
#   benches/big_file.sh [--size 4G] [--edit-size 1G] [--batches 6] [--edits 40] [--seed 1] [--dir DIR] [--mkfs OPTIONS]
#                       [--mount OPTIONS]
#
#   --size SIZE        of the file that is written twice; three times SIZE is needed on disk. 0 leaves it out
#   --edit-size SIZE   of the file that is edited; three times SIZE is needed on disk. 0 leaves it out
#   --batches NUMBER   of edits, each compared before and after a new mount
#   --edits NUMBER     in each batch
#   --seed NUMBER      of the list of edits
#   --dir DIR          [default: TMPDIR or /var/tmp]
#
# Uses the programs in DEDUPFS_BIN, or builds them.
# shellcheck disable=SC2034,SC2154 # common.sh has the other side
set -euo pipefail
# shellcheck source=benches/common.sh
. "$(dirname "$0")/common.sh"

size=4G edit_size=1G batches=6 edits=40 seed=1 dir=${TMPDIR:-/var/tmp} mkfs_options=() mount_options=()
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) help ;;
        --*) [ $# -ge 2 ] || usage "$1 needs a value" ;;&
        --size) size=$2 ;;
        --edit-size) edit_size=$2 ;;
        --batches) batches=$2 ;;
        --edits) edits=$2 ;;
        --seed) seed=$2 ;;
        --dir) dir=$2 ;;
        --mkfs) read -r -a mkfs_options <<<"$2" ;;
        --mount) read -r -a mount_options <<<"$2" ;;
        *) usage "unknown argument $1" ;;
    esac
    shift 2
done
parse_size "$size" && size_bytes=$REPLY
parse_size "$edit_size" && edit_bytes=$REPLY
parse_count "$batches" && batches=$REPLY
parse_count "$edits" && edits=$REPLY
[[ $seed =~ ^[0-9]{1,6}$ ]] || usage "--seed must be a number"

find_programs dedupfs dedupfs-stats
need_commands dd cmp truncate findmnt
make_scratch "$dir" && work=$REPLY
need_room "$work" $(((size_bytes > edit_bytes ? size_bytes : edit_bytes) * 3 + (256 << 20))) "the measurement"
pool=$work/pool mnt=$work/mnt source=$work/source
mkdir "$mnt"
describe_machine "$work"
printf '\n'

remount() {
    unmount_pool "$mnt"
    evict "$pool"
    mount_pool "$pool" "$mnt" "${mount_options[@]}"
}
new_pool() {
    rm -rf "$pool"
    dedupfs mkfs "${mkfs_options[@]}" "$pool" >&2
    mount_pool "$pool" "$mnt" "${mount_options[@]}"
}
# snapshot PREFIX: statistics into variables PREFIX_chunks, ...
snapshot() {
    dedupfs sync "$mnt"
    read_stats "$mnt"
    stat_field session.chunks_stored && printf -v "$1_chunks" %s "$REPLY"
    stat_field session.nodes_stored && printf -v "$1_nodes" %s "$REPLY"
    stat_field unique_chunks && printf -v "$1_unique" %s "$REPLY"
    stat_field recipe_nodes && printf -v "$1_recipe_nodes" %s "$REPLY"
    stat_field data_container_bytes && printf -v "$1_container_bytes" %s "$REPLY"
}

twice() {
    say "making $(human "$size_bytes") of pseudo-random data"
    random_bytes "big $seed" "$size_bytes" >"$source"
    sync "$source"
    new_pool
    local before_chunks before_nodes after_chunks after_nodes before_unique after_unique before_recipe_nodes \
        after_recipe_nodes before_container_bytes after_container_bytes new_chunks new_nodes copy pattern way
    printf '| written | seconds | MB/s | new chunks | new recipe nodes | content on disk |\n|---|---|---|---|---|---|\n'
    timed dd if="$source" of="$work/native" bs=1M conv=fsync status=none
    printf '| on the backing filesystem, dd bs=1M | %s | %s | | | |\n' "$TAKEN" "$(rate "$size_bytes" "$TAKEN")"
    rm "$work/native"
    snapshot before
    # The third time in pieces that fit no boundary, the fourth after a new mount: what is found may not depend on that.
    for copy in first second pieces remounted; do
        way=(dd if="$source" of="$mnt/$copy" bs=1M conv=fsync status=none)
        pattern='dd bs=1M'
        if [ $copy = pieces ]; then
            way=(dd if="$source" of="$mnt/$copy" bs=99991 conv=fsync status=none)
            pattern='dd bs=99991'
        elif [ $copy = remounted ]; then
            remount
            snapshot before
            pattern='dd bs=1M after a new mount'
        fi
        timed "${way[@]}"
        snapshot after
        new_chunks=$((after_chunks - before_chunks)) new_nodes=$((after_nodes - before_nodes))
        printf '| %s, %s | %s | %s | %d | %d | %s |\n' "$copy" "$pattern" "$TAKEN" "$(rate "$size_bytes" "$TAKEN")" \
            $new_chunks $new_nodes "$(exact "$after_container_bytes")"
        if [ $copy = first ]; then
            [ $((after_unique - before_unique)) = $new_chunks ] ||
                fail "$new_chunks chunks stored but $((after_unique - before_unique)) more unique ones: chunks were stored twice"
        else
            # The last segment of the file may end otherwise.
            if [ $new_chunks != 0 ] || [ "$after_unique" != "$before_unique" ]; then
                fail "the $copy copy stored $new_chunks new chunks"
            fi
            if [ $new_nodes -gt 1 ] || [ $((after_recipe_nodes - before_recipe_nodes)) -gt 1 ]; then
                fail "the $copy copy stored $new_nodes new recipe nodes"
            fi
        fi
        before_chunks=$after_chunks before_nodes=$after_nodes before_unique=$after_unique before_recipe_nodes=$after_recipe_nodes
    done
    evict "$source"
    timed cp "$source" "$work/restored"
    printf '| copied on the backing filesystem, cold | %s | %s | | | |\n' "$TAKEN" "$(rate "$size_bytes" "$TAKEN")"
    rm "$work/restored"
    for copy in first pieces; do
        remount
        timed cp "$mnt/$copy" "$work/restored"
        printf '| restored %s, cold | %s | %s | | | |\n' $copy "$TAKEN" "$(rate "$size_bytes" "$TAKEN")"
        cmp "$source" "$work/restored" || fail "the $copy copy differs after the restore"
        rm "$work/restored"
    done
    cmp "$source" "$mnt/second" || fail "the second copy differs"
    unmount_pool "$mnt"
    dedupfs fsck "$pool" >&2
    rm "$source"
}

# draw LIMIT: sets REPLY to a number below it. No subshell: that would not draw from the seeded sequence.
draw() { REPLY=$((((RANDOM << 45) ^ (RANDOM << 30) ^ (RANDOM << 15) ^ RANDOM) % $1)); }

# make_edits FILE: a batch as lines KIND OFFSET LENGTH DATA_OFFSET, from and to length_bytes.
make_edits() {
    local number kind offset bytes from limits=(64 5000 70000 1100000 4200000)
    for ((number = 0; number < edits; number++)); do
        draw 5 && draw "${limits[REPLY]}" && bytes=$((REPLY + 1))
        draw $((data_bytes - bytes)) && from=$REPLY
        draw 20
        case $REPLY in
            # Down by up to an eighth, up by up to an eighth: a hole.
            0) kind=shorten && draw $((length_bytes / 8 + 1)) && offset=$((length_bytes - REPLY)) && length_bytes=$offset ;;
            1) kind=lengthen && draw $((edit_bytes / 8 + 1)) && offset=$((length_bytes + REPLY)) && length_bytes=$offset ;;
            # Behind the end.
            2) kind='write' && draw 3000000 && offset=$((length_bytes + REPLY)) && length_bytes=$((offset + bytes)) ;;
            [3-6]) kind=append && offset=$length_bytes && length_bytes=$((length_bytes + bytes)) ;;
            *)
                kind='write' && draw $((length_bytes + 1)) && offset=$REPLY
                [ $((offset + bytes)) -le "$length_bytes" ] || length_bytes=$((offset + bytes))
                ;;
        esac
        printf '%s %s %s %s\n' "$kind" "$offset" "$bytes" "$from"
    done >"$1"
}
# apply_edits FILE: as many times open, write, close as there are edits; synced at the end.
apply_edits() {
    local kind offset bytes from
    while read -r kind offset bytes from; do
        case $kind in
            write) dd if="$data" of="$1" bs=1M iflag=skip_bytes,count_bytes oflag=seek_bytes conv=notrunc status=none skip="$from" count="$bytes" seek="$offset" ;;
            append) dd if="$data" of="$1" bs=1M iflag=skip_bytes,count_bytes oflag=append conv=notrunc status=none skip="$from" count="$bytes" ;;
            # dd truncates where it would begin to write.
            shorten | lengthen) dd if=/dev/null of="$1" bs=1 seek="$offset" count=0 status=none ;;
        esac
    done <"$work/edits"
    sync "$1"
}

edited() {
    local batch native=$work/native file=$mnt/file native_seconds seconds changed
    data=$work/data data_bytes=$((32 << 20))
    random_bytes "edits $seed" "$data_bytes" >"$data"
    say "making $(human "$edit_bytes") for the edits"
    { real_files libraries | xargs -0 cat 2>/dev/null || true; } | head -c $((edit_bytes / 2)) >"$native"
    length_bytes=$(stat -c %s "$native")
    random_bytes "edited $seed" $((edit_bytes - length_bytes)) >>"$native"
    length_bytes=$edit_bytes
    sync "$native"
    new_pool
    cp "$native" "$file"
    RANDOM=$seed
    printf '\n| batch of %d edits | MB written | backing filesystem, s | dedupfs, s | dedupfs took | new chunks | length after |\n' "$edits"
    printf '|---|---|---|---|---|---|---|\n'
    local before_chunks before_nodes after_chunks after_nodes before_unique after_unique before_recipe_nodes \
        after_recipe_nodes before_container_bytes after_container_bytes
    for ((batch = 1; batch <= batches; batch++)); do
        snapshot before
        make_edits "$work/edits"
        changed=$(awk '$1 == "write" || $1 == "append" { sum += $3 } END { printf "%.1f", sum / 1e6 }' "$work/edits")
        timed apply_edits "$native" && native_seconds=$TAKEN
        timed apply_edits "$file" && seconds=$TAKEN
        snapshot after
        printf '| %d | %s | %s | %s | %s times | %d | %s |\n' $batch "$changed" "$native_seconds" "$seconds" \
            "$(calculate "$seconds / $native_seconds" %.1f)" $((after_chunks - before_chunks)) "$length_bytes"
        [ "$(stat -c %s "$file")" = "$length_bytes" ] || fail "batch $batch: length $(stat -c %s "$file") instead of $length_bytes; edits: $(cat "$work/edits")"
        cmp "$native" "$file" || fail "batch $batch differs; edits: $(cat "$work/edits")"
        remount
        cmp "$native" "$file" || fail "batch $batch differs after a new mount; edits: $(cat "$work/edits")"
    done
    # Every second batch of a file that stays open in the daemon's caches: the same edits without a mount between.
    make_edits "$work/edits"
    apply_edits "$native"
    apply_edits "$file"
    make_edits "$work/edits"
    apply_edits "$native"
    apply_edits "$file"
    cmp "$native" "$file" || fail "two batches without a new mount between differ"
    unmount_pool "$mnt"
    dedupfs fsck "$pool" >&2
    rm -r "$native" "$data" "$pool"
}

[ "$size_bytes" = 0 ] || twice
[ "$edit_bytes" = 0 ] || edited
say "all content is identical"
