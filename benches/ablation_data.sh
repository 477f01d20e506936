# Sourced by ablation.sh: the workloads. measure_NAME makes the pool $work/base that holds what came before, puts the newest
# data into memory ($ram), and calls `measure` with a command that copies it into the mount.
# shellcheck shell=bash disable=SC2154,SC2317 # ablation.sh has the other side; functions are called through others

# begin_base: mounts a new pool at $mnt.
begin_base() {
    rm -rf "$work/base"
    dedupfs mkfs "${mkfs_options[@]}" "$work/base" >&2
    mount_pool "$work/base" "$mnt" --memory 1G
}
# end_base: writes the other data, numbers, which are new chunks throughout and take little on disk, and unmounts. They come
# last, so that what the workload repeats lies in sealed tankers.
end_base() {
    local first=10000000000 line_bytes=12
    say "other data"
    [ "$beside_bytes" -lt $line_bytes ] || seq $first $((first + beside_bytes / line_bytes - 1)) >"$mnt/beside"
    unmount_pool "$mnt"
}
# What is in memory becomes new files.
feed_as_new() {
    cp --sparse=never "$ram"/newest/* "$mnt/"
    dedupfs sync "$mnt"
}
fresh_newest() {
    rm -rf "$ram/newest"
    mkdir "$ram/newest"
}

# ---- the synthetic aged stream

measure_stream() {
    local number
    generation() { "${programs[aged_stream]}" --generation "$1" --size "$size_bytes"; }
    begin_base
    for ((number = 1; number < generations; number++)); do
        say "generation $number"
        generation "$number" >"$mnt/$number"
    done
    end_base
    fresh_newest
    say "generation $generations"
    generation "$generations" >"$ram/newest/newest"
    measure "Generation $generations of the aged stream" "$size_bytes" feed_as_new
}

# ---- pages of a file, as a database writes them

page_bytes=16384
# write_pages FROM TO COUNT: pages of FROM at random places, 64 bytes of each changed, are written to TO. The same pages each time.
write_pages() {
    perl -e '
        my ($from, $to, $page_bytes, $count) = @ARGV;
        open my $source, "<:raw", $from or die "$from: $!\n";
        open my $target, "+<:raw", $to or die "$to: $!\n";
        my $pages = int((-s $source) / $page_bytes);
        srand 1;
        for (1 .. $count) {
            my ($at, $page) = ($page_bytes * int rand $pages);
            sysseek $source, $at, 0 and sysread($source, $page, $page_bytes) == $page_bytes or die "$from: $!\n";
            substr($page, int rand($page_bytes - 64), 64) = pack "L16", map { int rand 4294967296 } 1 .. 16;
            sysseek $target, $at, 0 and syswrite($target, $page) == $page_bytes or die "$to: $!\n";
        }
        close $target or die "$to: $!\n";
    ' "$1" "$2" "$page_bytes" "$3"
}
measure_pages() {
    local count=$((pages_bytes / page_bytes / 2))
    fresh_newest
    "${programs[aged_stream]}" --seed 2 --size "$pages_bytes" >"$ram/newest/pages"
    begin_base
    cp "$ram/newest/pages" "$mnt/pages"
    end_base
    feed_pages() {
        write_pages "$ram/newest/pages" "$mnt/pages" "$count"
        dedupfs sync "$mnt"
    }
    measure "$count pages written into a file of $(human "$pages_bytes"), in place" $((count * page_bytes)) feed_pages
}

# ---- the real series

# find_versions: sets versions.
find_versions() {
    mapfile -d '' -t versions < <(cd "$series" && find . -mindepth 1 -maxdepth 1 -type d -printf '%P\0' | sort -z)
}

measure_tars() {
    local version old
    find_versions
    [ ${#versions[@]} -gt "$newest" ] || fail "$series has only ${#versions[@]} versions"
    old=$((${#versions[@]} - newest))
    begin_base
    say "$old versions"
    for version in "${versions[@]:0:old}"; do tar -C "$series" --sort=name -cf "$mnt/$version.tar" "./$version"; done
    end_base
    fresh_newest
    for version in "${versions[@]:old}"; do tar -C "$series" --sort=name -cf "$ram/newest/$version.tar" "./$version"; done
    measure "The newest $newest of ${#versions[@]} versions of the real series, as tars" "$(content_bytes "$ram/newest")" feed_as_new
}

# make_image VERSION IMAGE: a filesystem with that version in it, a quarter larger than its content. The same bytes each time.
make_image() {
    local bytes uuid=5eed0000-0000-4000-8000-000000000000
    bytes=$(du -s -B1 "$series/$1" | cut -f1)
    truncate -s $(((bytes + bytes / 4) / 4096 * 4096 + (16 << 20))) "$2"
    E2FSPROGS_FAKE_TIME=1700000000 mke2fs -q -F -t ext4 -b 4096 -U $uuid -E hash_seed=$uuid,root_owner=0:0 \
        -d "$series/$1" "$2" || fail "mke2fs of $1"
}
# prepare_images: the first of each two versions goes into the pool, the second into memory, under one name.
prepare_images() {
    local pair
    [ -z "${images_bytes-}" ] || return 0
    find_versions
    [ ${#versions[@]} -ge 2 ] || fail "$series has only ${#versions[@]} versions"
    begin_base
    fresh_newest
    say "images of ${#versions[@]} versions"
    for ((pair = 0; 2 * pair + 1 < ${#versions[@]}; pair++)); do
        make_image "${versions[2 * pair]}" "$ram/image"
        # Zeros are written as such: with holes left out there would be none to see.
        cp --sparse=never "$ram/image" "$mnt/$pair.img"
        rm "$ram/image"
        make_image "${versions[2 * pair + 1]}" "$ram/newest/$pair.img"
    done
    end_base
    images_bytes=$(content_bytes "$ram/newest")
    images=$pair
    zero_bytes=$((images_bytes - $(du -s -B1 "$ram/newest" | cut -f1)))
}
measure_images() {
    prepare_images
    feed_beside() {
        local image
        for image in "$ram"/newest/*; do cp --sparse=never "$image" "$mnt/new-${image##*/}"; done
        dedupfs sync "$mnt"
    }
    measure "Images of $images versions as new files, $(human "$zero_bytes") of them zeros" "$images_bytes" feed_beside
}
measure_inplace() {
    prepare_images
    feed_over() {
        local image
        for image in "$ram"/newest/*; do dd if="$image" of="$mnt/${image##*/}" bs=1M conv=notrunc status=none; done
        dedupfs sync "$mnt"
    }
    measure "The same $images images, each written over the one of the version before" "$images_bytes" feed_over
}
