# What the comparisons share: sources in memory, cold caches, a FUSE mount that stores nothing, and figures with medians.
# shellcheck shell=bash disable=SC2034,SC2154 # the scripts that source this and common.sh have the other sides

# ---- sources, in $ram

# make_sources BYTES FILES: random/, real/ and small/ with small.tar; sets random_total, real_total, small_total.
make_sources() {
    local first sub prefix
    say "making the data: $(human "$1") random, $(human "$1") of real files, $2 files of 4 KiB"
    mkdir "$ram/random" "$ram/small"
    random_bytes bench "$1" | split -b 256M -a 3 - "$ram/random/part-"
    real_data "$ram/real" "$1"
    # 100 files a directory, each of them different.
    random_bytes small $(($2 * 4096)) | (cd "$ram/small" && split -b 4096 -a 7 -d - f)
    (
        cd "$ram/small" || exit
        for ((first = 0; first < $2; first += 100)); do
            printf -v sub 'd%05d' $((first / 100))
            mkdir "$sub"
            printf -v prefix 'f%05d' $((first / 100))
            mv "$prefix"?? "$sub/"
        done
    )
    tar -C "$ram" -cf "$ram/small.tar" small
    random_total=$(content_bytes "$ram/random") real_total=$(content_bytes "$ram/real") small_total=$(($2 * 4096))
}
# The same content under other names, for those that know files by their path: real-NAME for each NAME.
alias_sources() {
    local name
    for name in "$@"; do cp -rl "$ram/real" "$ram/real-$name"; done
}

# touch_memory BYTES: the first touch of memory is slow on a virtual machine, which may give what is free back to its host within seconds.
# So what is about to be filled, caches of the kernel too, is touched just before, whoever is measured.
touch_memory() {
    head -c "$1" /dev/zero >"$ram/touched"
    rm "$ram/touched"
}
# A restored file is in the page cache and in memory.
empty_out() {
    rm -rf "$ram/out"
    mkdir "$ram/out"
    touch_memory $((2 * restored_bytes))
}
same() { diff -r "$1" "$2" >&2 || fail "$3: $2 is not what was backed up"; }

# cold DIRECTORY...: the page cache forgets them; with --drop-caches, it forgets everything.
cold() {
    if [ -n "$drop_caches" ]; then
        sync
        echo 3 >/proc/sys/vm/drop_caches || fail "--drop-caches needs root"
    else
        evict "$@"
    fi
}

# ---- copying

# Every file synced by itself: syncfs of a FUSE mount does not reach its daemon.
copy_in() {
    cp -r "$1" "$2"
    sync "$2"/* "$2"
}
copy_out() { cp -r "$1" "$ram/out"; }
# durable TARGET DIRECTORY: syncfs and `dedupfs sync` make many small files durable at once.
durable() {
    case $1 in
        dedupfs) dedupfs sync "$2" ;;
        *) sync -f "$2" ;;
    esac
}

# ---- a FUSE filesystem that stores nothing, at $mnt

null_start() {
    "${programs[null_mount]}" "$mnt" >&2 &
    null_pid=$!
    processes=("$null_pid")
    mounted+=("$mnt")
    for ((wait = 0; wait < 200; wait++)); do
        ! mountpoint -q "$mnt" || return 0
        kill -0 "$null_pid" 2>/dev/null || break
        sleep 0.05
    done
    fail "null_mount does not mount"
}
null_stop() {
    fusermount3 -u "$mnt"
    wait "$null_pid" || fail "null_mount failed"
    processes=()
    forget_mount "$mnt"
}

# ---- figures

# cpu_ticks [PID]: sets REPLY to what this script's commands, and that process, have used of the processors so far, in ticks.
cpu_ticks() {
    local own other=(0 0 0 0 0 0 0 0 0 0 0 0 0 0 0)
    read -r -a own <"/proc/$$/stat"
    [ -z "${1-}" ] || read -r -a other <"/proc/$1/stat"
    REPLY=$((own[15] + own[16] + other[13] + other[14]))
}
ticks_per_second=$(getconf CLK_TCK)

# record WORKLOAD TARGET UNITS PID COMMAND...: one figure, UNITS (bytes, or files) a second, and the processor's seconds that
# COMMAND and the daemon PID (if it is not empty) took, to $results.
record() {
    local workload=$1 target=$2 units=$3 pid=$4 value before cpu
    shift 4
    cpu_ticks "$pid" && before=$REPLY
    timed "$@"
    cpu_ticks "$pid" && cpu=$(calculate "($REPLY - $before) / $ticks_per_second")
    value=$(calculate "$units / ($TAKEN > 0 ? $TAKEN : 1e-6)" %.1f)
    note "$workload" "$target" "$value"
    note "$workload cpu" "$target" "$cpu"
    say "run $run: $target: $workload: $TAKEN s, $value a second, $cpu s of the processors"
}
# note NAME TARGET VALUE
note() { printf '%s\t%s\t%s\n' "$1" "$2" "$3" >>"$results"; }
# values NAME TARGET: in order of size.
values() { awk -F'\t' -v name="$1" -v target="$2" '$1 == name && $2 == target { print $3 }' "$results" | sort -g; }
# median NAME TARGET: nothing if nothing was noted.
median() {
    values "$1" "$2" | awk '{ v[NR] = $1 } END { if (NR) print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'
}
# peak_bytes PID: sets REPLY to the most memory that it had resident.
peak_bytes() { REPLY=$(awk '/^VmHWM:/ { print $2 * 1024 }' "/proc/$1/status"); }
