#!/usr/bin/env bash
# Measures a directory of very many files through the mount, beside the same commands on the backing filesystem: creating
# them, listing, stat of each, reading each, removing all; and what memory the daemon takes. Prints a Markdown table.
#
#   benches/million.sh [--files 1000000] [--bytes 100] [--dir DIR] [--mount OPTIONS]
#
#   --files NUMBER    in one directory
#   --bytes NUMBER    content of each, all different; 0: empty files
#   --dir DIR         on the filesystem to measure; 6 KiB for each file are needed there [default: TMPDIR or /var/tmp]
#   --mount OPTIONS   for dedupfs mount [default: --memory 512M]
#
# Uses the programs in DEDUPFS_BIN, or builds them. Progress goes to the standard error output. Changes nothing outside of
# temporary directories, which it removes.
# shellcheck disable=SC2016,SC2154 # Perl; common.sh has the other side
set -euo pipefail
# shellcheck source=benches/common.sh
. "$(dirname "$0")/common.sh"

files=1000000 bytes=100 dir=${TMPDIR:-/var/tmp} mount_options=(--memory 512M)
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) help ;;
        --*) [ $# -ge 2 ] || usage "$1 needs a value" ;;&
        --files) files=$2 ;;
        --bytes) bytes=$2 ;;
        --dir) dir=$2 ;;
        --mount) read -r -a mount_options <<<"$2" ;;
        *) usage "unknown argument $1" ;;
    esac
    shift 2
done
[[ $files =~ ^[1-9][0-9]{0,7}$ ]] || usage "$files is not a number of files"
[[ $bytes =~ ^[0-9]{1,5}$ ]] || usage "$bytes is not a number of bytes"

find_programs dedupfs dedupfs-stats
need_commands perl find ls rm
make_scratch "$dir" && work=$REPLY
need_room "$work" $((files * (6144 + 2 * bytes))) "the measurement"
pool=$work/pool mnt=$work/mnt
mkdir "$mnt" "$work/native"
dedupfs mkfs "$pool" >/dev/null

# One process for all, and no more system calls than it takes: open, write, close; open, read, close.
create='
    my ($directory, $files, $bytes) = @ARGV;
    chdir($directory) or die "$directory: $!";
    for my $number (1 .. $files) {
        open(my $file, ">", "file-$number") or die "file-$number: $!";
        if ($bytes) { syswrite($file, substr("$number " x ($bytes / 2 + 1), 0, $bytes)) == $bytes or die "file-$number: $!" }
        close($file) or die "file-$number: $!";
    }'
read_all='
    my ($directory, $files, $bytes) = @ARGV;
    chdir($directory) or die "$directory: $!";
    for my $number (1 .. $files) {
        open(my $file, "<", "file-$number") or die "file-$number: $!";
        my $got = sysread($file, my $content, 65536);
        defined($got) && $got == $bytes or die "file-$number: $got bytes";
        close($file);
    }'

memory() { # VmRSS | VmHWM: MiB of the daemon
    awk -v field="$1:" '$1 == field { printf "%.0f", $2 / 1024 }' "/proc/$(daemon_of "$pool")/status"
}

results=$work/results
# measure TARGET STEP COMMAND...
measure() {
    local target=$1 step=$2 rate resident=''
    shift 2
    timed "$@" || fail "$step: $*"
    rate=$(calculate "$files / ($TAKEN > 0 ? $TAKEN : 1e-6)" %.0f)
    [ "$target" = native ] || resident=$(memory VmRSS)
    printf '%s\t%s\t%s\t%s\t%s\n' "$step" "$target" "$TAKEN" "$rate" "$resident" >>"$results"
    say "$target: $step: $TAKEN s, $rate a second${resident:+, $resident MiB}"
}
make() {
    perl -e "$create" "$1" "$files" "$bytes"
    if [ "$1" = "$work/native/files" ]; then sync -f "$1"; else dedupfs sync "$mnt"; fi
}
# Every name once, and nothing else.
list() {
    local got
    # shellcheck disable=SC2012 # it is ls that is measured
    got=$(ls -f "$1" | awk '/^file-/ { count++ } END { print count + 0 }')
    [ "$got" = "$files" ] || fail "$got names instead of $files"
}
stat_all() {
    local sum
    sum=$(find "$1" -type f -printf '%s\n' | awk '{ sum += $1 } END { printf "%.0f", sum }')
    [ "$sum" = $((files * bytes)) ] || fail "$sum bytes instead of $((files * bytes))"
}
steps() {
    local target=$1 directory=$2
    mkdir "$directory"
    measure "$target" "create and sync" make "$directory"
    measure "$target" "ls -f" list "$directory"
    measure "$target" "stat of each" stat_all "$directory"
    if [ "$target" = dedupfs ]; then
        unmount_pool "$mnt"
        mount_pool "$pool" "$mnt" "${mount_options[@]}"
        measure "$target" "ls -f, mounted anew" list "$directory"
        measure "$target" "stat of each, mounted anew" stat_all "$directory"
    fi
    if [ "$bytes" != 0 ]; then
        measure "$target" "read each" perl -e "$read_all" "$directory" "$files" "$bytes"
        measure "$target" "read each again" perl -e "$read_all" "$directory" "$files" "$bytes"
    fi
    measure "$target" "rm -r" rm -r "$directory"
}

describe_machine "$work"
printf -- '- %d files of %d bytes in one directory, %s\n\n' "$files" "$bytes" "${mount_options[*]}"
steps native "$work/native/files"
mount_pool "$pool" "$mnt" "${mount_options[@]}"
steps dedupfs "$mnt/files"
peak=$(memory VmHWM)
unmount_pool "$mnt"
timed dedupfs fsck "$pool" >/dev/null
printf '| | dedupfs | files a second | memory | backing filesystem | files a second |\n|---|---|---|---|---|---|\n'
awk -F'\t' '
    $2 == "native" { native[$1] = $3 " s | " $4 }
    $2 == "dedupfs" {
        printf "| %s | %s s | %s | %s MiB | %s |\n", $1, $3, $4, $5, ($1 in native) ? native[$1] : "- | -"
    }' "$results"
printf '\nPeak memory of the daemon since it was mounted anew: %s MiB. fsck afterwards: %s s.\n' "$peak" "$TAKEN"
