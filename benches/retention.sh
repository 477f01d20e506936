#!/usr/bin/env bash
# Reclaiming under retention: versions of one tree are backed up one after the other, the oldest is deleted whenever more
# than so many are kept, and dedupfs-gc gives its space back while the next version is being written. Tells what the pool
# takes on disk against what a fresh pool with the same versions takes, what is copied for what is freed, what a backup
# loses to gc beside it, and how fast the newest and the oldest version are restored as the pool ages; for several policies.
#
#   benches/retention.sh [OPTIONS] [SERIES]
#
#   SERIES               a directory with one directory for each version [default: synthetic trees of the example aged_tree]
#   --versions NUMBER    that are backed up [default: 100, or as many as SERIES has]
#   --keep NUMBER        that are kept [default: 20]
#   --size SIZE          of a synthetic version [default: 256M]
#   --tree OPTIONS       for aged_tree, such as "--seed 2 --modified 0.2"
#   --policies LIST      some of default,perfect,half,marker, in turn [default: all]
#                           default   dedupfs-gc as it is
#                           perfect   --threshold 100 --leave 0: everything dead is freed
#                           half      --threshold 50
#                           marker    --threshold 0: only containers that are wholly dead
#   --gc OPTIONS         one more policy: dedupfs-gc with these options; without --policies the only one. Can be repeated
#   --fresh-every N      a fresh pool is made at every Nth step, at the first one with gc and at the last [default: 10]
#   --restore-every N    restores are measured at every Nth step and at the last one [default: 10]
#   --restore-repeat N   restores of each version then, of which the median counts [default: 3]
#   --tsv FILE           writes every step there, too: what benches/plots/plots.sh draws
#   --dir DIR            for the pools; the content of the versions once, compressed and without what repeats, and half a
#                        version for each one kept [default: TMPDIR or /var/tmp]
#   --mkfs OPTIONS       for dedupfs mkfs, such as "--container-size 1M"
#   --mount OPTIONS      for dedupfs mount, such as "--memory 1G"
#   --drop-caches        empty all caches of the machine before restores (root), not only those of the pool
#
# A step: the next version is copied into the mount (cp -a) and synced, in a time that is measured, from memory. The gc of
# what the step before deleted runs beside that, or, in every other step, before it; both have ended when the pool is
# measured. Then the oldest version is deleted, if more than --keep are there. So the versions in the mount are compared
# with a fresh pool of just these, which was written oldest first. Between steps with a fresh pool its size is estimated: that of
# the last one, changed as the bytes of the chunks in use have changed. The highest size is sampled while the step runs.
# Bytes moved and bytes freed are of chunks, uncompressed; what was moved does not count as freed.
#
# Restores are cold: after a new mount, with nothing of the pool in the page cache, everything is read by cat. In the end the
# versions kept are compared with their sources, and dedupfs fsck checks the pool.
#
# Uses the programs in DEDUPFS_BIN, or builds them. Progress goes to the standard error output.
# shellcheck disable=SC2016,SC2154 # awk and Markdown; common.sh has the other side
set -euo pipefail
# shellcheck source=benches/common.sh
. "$(dirname "$0")/common.sh"

versions='' keep=20 size=256M tree_options=() policies='' own_policies=() fresh_every=10 restore_every=10 restore_repeat=3
tsv='' dir=${TMPDIR:-/var/tmp} mkfs_options=() mount_options=() drop_caches='' series=''
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) help ;;
        --drop-caches)
            drop_caches=1
            shift
            continue
            ;;
        --*) [ $# -ge 2 ] || usage "$1 needs a value" ;;&
        --versions) parse_count "$2" && versions=$REPLY ;;
        --keep) parse_count "$2" && keep=$REPLY ;;
        --size) size=$2 ;;
        --tree) read -r -a tree_options <<<"$2" ;;
        --policies) policies=$2 ;;
        --gc) own_policies+=("$2") ;;
        --fresh-every) parse_count "$2" && fresh_every=$REPLY ;;
        --restore-every) parse_count "$2" && restore_every=$REPLY ;;
        --restore-repeat) parse_count "$2" && restore_repeat=$REPLY ;;
        --tsv) tsv=$(realpath -m -- "$2") ;;
        --dir) dir=$2 ;;
        --mkfs) read -r -a mkfs_options <<<"$2" ;;
        --mount) read -r -a mount_options <<<"$2" ;;
        --*) usage "unknown option $1" ;;
        *)
            [ -z "$series" ] || usage "there is one SERIES at most"
            series=$(realpath -e -- "$1") || usage "no such directory: $1"
            shift
            continue
            ;;
    esac
    shift 2
done
parse_size "$size" && size_bytes=$REPLY
[ "$size_bytes" -ge 1048576 ] || usage "--size must be 1M or more"
[ -z "$tsv" ] || [ -d "$(dirname "$tsv")" ] || usage "no such directory: $(dirname "$tsv")"

# Policies: name and options of dedupfs-gc.
policy_names=() policy_options=()
add_policy() {
    [[ " ${policy_names[*]} " != *" $1 "* ]] || usage "policy $1 twice"
    policy_names+=("$1")
    policy_options+=("$2")
}
if [ -z "$policies" ] && [ ${#own_policies[@]} = 0 ]; then policies=default,perfect,half,marker; fi
for policy in ${policies//,/ }; do
    case $policy in
        default) add_policy default '' ;;
        perfect) add_policy perfect '--threshold 100 --leave 0' ;;
        half) add_policy half '--threshold 50' ;;
        marker) add_policy marker '--threshold 0' ;;
        *) usage "there is no policy $policy; known are default, perfect, half and marker" ;;
    esac
done
# A name without spaces: threshold=60,leave=2.
for policy in "${own_policies[@]}"; do
    name=${policy#--} && name=${name// --/,} && add_policy "${name// /=}" "$policy"
done

programs_needed=(dedupfs dedupfs-stats dedupfs-gc)
[ -n "$series" ] || programs_needed+=(aged_tree)
find_programs "${programs_needed[@]}"
need_commands cat cp diff du find findmnt stat xargs

# ---- versions

if [ -n "$series" ]; then
    mapfile -d '' -t names < <(cd "$series" && find . -mindepth 1 -maxdepth 1 -type d -printf '%P\0' | sort -z)
    [ ${#names[@]} -gt 0 ] || usage "$series has no directories"
    versions=${versions:-${#names[@]}}
    [ "$versions" -le ${#names[@]} ] || usage "$series has only ${#names[@]} versions"
    all_bytes=$(cd "$series" && content_bytes .)
    version_bytes=$((2 * all_bytes / ${#names[@]}))
    # What does not repeat, if nothing is known of it.
    unique_bytes=$((all_bytes / 2))
else
    versions=${versions:-100}
    version_bytes=$((2 * size_bytes))
    # A version brings some percent that are new.
    unique_bytes=$((size_bytes * (10 + versions) / 10))
fi
[ "$versions" -gt "$keep" ] || usage "nothing is ever deleted: --versions must be more than --keep"

make_scratch "$dir" && work=$REPLY
need_room "$work" $((unique_bytes + keep * version_bytes / 4 + (256 << 20))) "the measurement"
need_memory $((2 * version_bytes + (1 << 30)))
make_scratch /dev/shm && ram=$REPLY
pool=$work/pool mnt=$work/mnt fresh_pool=$work/fresh fresh_mnt=$work/fresh-mnt results=$work/results.tsv
mkdir "$mnt" "$fresh_mnt"

# put_version NUMBER DIRECTORY: the content of a version into a directory that is not there yet.
put_version() {
    if [ -n "$series" ]; then
        cp -a "$series/${names[$1 - 1]}" "$2"
    else
        "${programs[aged_tree]}" --size "$size_bytes" "${tree_options[@]}" --generation "$1" "$2"
    fi
}
version_name() { printf 'v%06d' "$1"; }

# ---- what runs in the background, ended before the mounts are

gc_pid='' sampler_pid=''
finish() {
    local status=$?
    set +e
    touch "$work/stop" 2>/dev/null
    [ -z "$gc_pid" ] || kill "$gc_pid" 2>/dev/null
    [ -z "$sampler_pid" ] || wait "$sampler_pid" 2>/dev/null
    [ -z "$gc_pid" ] || wait "$gc_pid" 2>/dev/null
    (exit "$status")
    clean_up
}
trap finish EXIT

# Slots and logs come and go while du reads.
pool_bytes() { disk_bytes "$1" 2>/dev/null || disk_bytes "$1" 2>/dev/null || disk_bytes "$1"; }

# start_sampler; stop_sampler: sets PEAK to the most that the pool took meanwhile.
start_sampler() {
    rm -f "$work/stop"
    sample_peak &
    sampler_pid=$!
}
sample_peak() {
    trap - ERR
    local peak=0 now
    while [ ! -e "$work/stop" ]; do
        now=$(pool_bytes "$pool" 2>/dev/null) || now=0
        [ "$now" -le "$peak" ] || peak=$now
        sleep 0.25
    done
    echo "$peak" >"$work/peak"
}
stop_sampler() {
    touch "$work/stop"
    wait "$sampler_pid"
    sampler_pid=''
    PEAK=$(<"$work/peak")
}

# start_gc OPTION...; wait_gc: sets GC_JSON to the report, GC_BEGIN and GC_END to times, GC_SECONDS.
start_gc() {
    GC_BEGIN=$EPOCHREALTIME
    "${programs[dedupfs-gc]}" --json "$@" "$mnt" >"$work/gc.json" 2>"$work/gc.err" &
    gc_pid=$!
}
wait_gc() {
    wait "$gc_pid" || fail "dedupfs-gc: $(<"$work/gc.err")"
    gc_pid=''
    # The report is the last thing that it writes. It may have ended long before anybody waits for it.
    GC_END=$(stat -c %.6Y "$work/gc.json")
    GC_SECONDS=$(calculate "($GC_END > $GC_BEGIN ? $GC_END - $GC_BEGIN : 0)" %.3f)
    # The last object, of one line or of several; what came before it told progress.
    GC_JSON=$(awk '/^\{/ { text = "" } { text = text $0 " " } END { print text }' "$work/gc.json")
}
# gc_field NAME: sets REPLY to a number of the report, or to nothing if the report has no such field.
gc_field() {
    REPLY=''
    [[ ! $GC_JSON =~ \"$1\":\ *([0-9]+) ]] || REPLY=${BASH_REMATCH[1]}
}

# ---- measuring

copy_in() {
    cp -a "$1" "$2"
    dedupfs sync "$3"
}
read_all() { find "$1" -type f -print0 | xargs -0 -r cat >/dev/null; }
median_of() {
    printf '%s\n' "$@" | sort -g | awk '{ v[NR] = $1 } END { if (NR) print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'
}
# cold_mount POOL MNT
cold_mount() {
    if [ -n "$drop_caches" ]; then
        sync
        echo 3 >/proc/sys/vm/drop_caches || fail "--drop-caches needs root"
    else
        evict "$1"
    fi
    mount_pool "$1" "$2" "${mount_options[@]}"
}
# restore_rate POOL MNT VERSION: of a mounted pool, which is mounted anew each time; sets RATE to MB/s.
restore_rate() {
    local bytes round rates=()
    bytes=$(content_bytes "$2/$(version_name "$3")")
    for ((round = 0; round < restore_repeat; round++)); do
        unmount_pool "$2"
        cold_mount "$1" "$2"
        timed read_all "$2/$(version_name "$3")"
        rates+=("$(calculate "$bytes / 1e6 / $TAKEN" %.1f)")
    done
    RATE=$(median_of "${rates[@]}")
}

# Of a step, for all policies: the versions are the same.
declare -A fresh_physical fresh_du fresh_rate fresh_parts
# make_fresh STEP OLDEST: the versions from the oldest to that of the step in a new pool.
make_fresh() {
    local number
    [ -z "${fresh_physical[$1]-}" ] || return 0
    dedupfs mkfs "${mkfs_options[@]}" "$fresh_pool" >/dev/null
    mount_pool "$fresh_pool" "$fresh_mnt" "${mount_options[@]}"
    for ((number = $2; number <= $1; number++)); do
        put_version "$number" "$ram/fresh"
        cp -a "$ram/fresh" "$fresh_mnt/$(version_name "$number")"
        rm -rf "$ram/fresh"
    done
    # It nets what an unmount writes: index and export. The pool in use has both.
    unmount_pool "$fresh_mnt"
    mount_pool "$fresh_pool" "$fresh_mnt" "${mount_options[@]}"
    read_stats "$fresh_mnt"
    stat_field physical_bytes && fresh_physical[$1]=$REPLY
    fresh_du[$1]=$(pool_bytes "$fresh_pool")
    fresh_parts[$1]=$(parts_of_stats)
    restore_rate "$fresh_pool" "$fresh_mnt" "$1" && fresh_rate[$1]=$RATE
    unmount_pool "$fresh_mnt"
    rm -rf "$fresh_pool"
}

columns=(policy step gc_when versions logical_bytes physical_bytes du_bytes highest_du_bytes live_bytes live_du_bytes live_by ratio
    moved_bytes freed_bytes gc_read_bytes gc_written_bytes garbage_left_bytes containers_freed gc_seconds
    write_mb_per_s beside_percent restore_newest_mb_per_s restore_oldest_mb_per_s restore_fresh_mb_per_s)
# What the physical bytes are made of, of the pool and, where there is one, of the fresh pool.
parts=(data_container_bytes recipe_container_bytes namespace_bytes index_bytes export_bytes export_recipe_bytes)
columns+=("${parts[@]}" "${parts[@]/#/live_}")
# parts_of_stats: the parts as fields, a tab before each.
parts_of_stats() {
    local part
    for part in "${parts[@]}"; do stat_field "$part" && printf '\t%s' "$REPLY"; done
}
# Those of a fresh pool where there is none.
no_parts=$(printf '\t%.0s' "${parts[@]}")
header=$(IFS=$'\t' && printf '%s' "${columns[*]}")

# is_due STEP EVERY
is_due() { [ $(($1 % $2)) = 0 ] || [ "$1" = "$versions" ]; }

# one_step STEP: of the policy $policy with $gc_options; $oldest is the first version in the mount, $is_deleted tells whether
# gc has something to do, $anchor_physical and $anchor_used belong to the last fresh pool.
one_step() {
    local step=$1 when=none begin written_end bytes logical stored_before session_before stored used physical on_disk own_parts
    local live live_by=fresh moved='' freed='' read='' written='' left='' containers='' newest='' oldest_rate='' beside=''
    local source=$ram/source
    GC_SECONDS=''
    put_version "$step" "$source"
    bytes=$(content_bytes "$source")
    read_stats "$mnt"
    stat_field data_containers.stored_bytes && stored_before=$REPLY
    stat_field session.bytes_stored && session_before=$REPLY
    start_sampler
    if [ -n "$is_deleted" ]; then
        # In turns; every tenth step the turns change, so that what follows restores does not always strike the same.
        if [ $(((step + step / restore_every) % 2)) = 0 ]; then when=beside; else when=before; fi
        start_gc "${gc_options[@]}"
        [ $when = beside ] || wait_gc
    fi
    begin=$EPOCHREALTIME
    timed copy_in "$source" "$mnt/$(version_name "$step")" "$mnt"
    local write_seconds=$TAKEN
    written_end=$EPOCHREALTIME
    if [ $when = beside ]; then
        wait_gc
        beside=$(calculate "100 * (($GC_END < $written_end ? $GC_END : $written_end) - $begin) / ($written_end - $begin)" %.0f)
        [ "$beside" -ge 0 ] || beside=0
    fi
    stop_sampler
    dedupfs sync "$mnt"
    rm -rf "$source"

    read_stats "$mnt"
    stat_field logical_bytes && logical=$REPLY
    stat_field physical_bytes && physical=$REPLY
    stat_field unique_chunk_bytes && used=$REPLY
    own_parts=$(parts_of_stats)
    on_disk=$(pool_bytes "$pool")
    [ "$PEAK" -ge "$on_disk" ] || PEAK=$on_disk
    if [ "$when" != none ]; then
        stat_field data_containers.stored_bytes && stored=$REPLY
        stat_field session.bytes_stored && freed=$((stored_before + REPLY - session_before - stored))
        gc_field moved_bytes && moved=$REPLY
        gc_field read_bytes && read=$REPLY
        gc_field written_bytes && written=$REPLY
        gc_field garbage_left_bytes && left=$REPLY
        gc_field containers_freed && containers=$REPLY
    fi
    if [ "$when" = none ]; then
        # Nothing was deleted yet: this is what a fresh pool is.
        live=$physical live_by=same anchor_by=same
    elif [ "$anchor_by" = same ] || is_due "$step" "$fresh_every"; then
        say "$policy: a fresh pool with versions $oldest to $step"
        make_fresh "$step" "$oldest"
        live=${fresh_physical[$step]} anchor_physical=$live anchor_used=$used anchor_by=fresh
    else
        live=$(calculate "$anchor_physical * $used / $anchor_used" %.0f) live_by=estimate
    fi
    if is_due "$step" "$restore_every"; then
        restore_rate "$pool" "$mnt" "$step" && newest=$RATE
        restore_rate "$pool" "$mnt" "$oldest" && oldest_rate=$RATE
    fi
    local row=("$policy" "$step" "$when" $((step - oldest + 1)) "$logical" "$physical" "$on_disk" "$PEAK" "$live" "${fresh_du[$step]-}" "$live_by"
        "$(calculate "$physical / $live" %.4f)" "$moved" "$freed" "$read" "$written" "$left" "$containers" "$GC_SECONDS"
        "$(calculate "$bytes / 1e6 / $write_seconds" %.1f)" "$beside" "$newest" "$oldest_rate" "${fresh_rate[$step]-}")
    (IFS=$'\t' && printf '%s%s%s\n' "${row[*]}" "$own_parts" "${fresh_parts[$step]-$no_parts}") | tee -a "$results" >>"${tsv:-/dev/null}"
    say "$policy: step $step of $versions: $(human "$physical"), $(calculate "$physical / $live") of $live_by, gc $when" \
        "${GC_SECONDS:--} s, moved $(human "${moved:-0}"), freed $(human "${freed:-0}"), written at $(rate "$bytes" "$write_seconds") MB/s" \
        "${newest:+, restored at $newest and $oldest_rate MB/s}"

    is_deleted=''
    if [ $((step - oldest + 1)) -gt "$keep" ]; then
        rm -r "${mnt:?}/$(version_name "$oldest")"
        dedupfs sync "$mnt"
        oldest=$((oldest + 1))
        is_deleted=1
    fi
}

# verify OLDEST: what is kept is what was backed up, and the pool is sound.
verify() {
    local number
    for ((number = $1; number <= versions; number++)); do
        put_version "$number" "$ram/source"
        diff -r --no-dereference "$ram/source" "$mnt/$(version_name "$number")" >&2 || fail "version $number differs"
        rm -rf "$ram/source"
    done
    unmount_pool "$mnt"
    dedupfs fsck "$pool" >&2 || fail "dedupfs fsck finds something"
}

run_policy() {
    local oldest=1 is_deleted='' anchor_physical='' anchor_used='' anchor_by='' step
    dedupfs mkfs "${mkfs_options[@]}" "$pool" >/dev/null
    mount_pool "$pool" "$mnt" "${mount_options[@]}"
    for ((step = 1; step <= versions; step++)); do one_step "$step"; done
    say "$policy: comparing and checking"
    verify "$oldest"
    rm -rf "$pool"
}

# ---- tables

# What both tables need of awk: a field by its name, and figures as cells.
awk_functions='
    BEGIN { fields = split(header, name, "\t"); for (i = 1; i <= fields; i++) at[name[i]] = i }
    function field(name) { return $at[name] }
    function cell(value, format) { return value == "" ? "-" : sprintf(format, value) }
    function mb(value, format) { return value == "" ? "-" : sprintf(format, value / 1e6) }
'
# print_steps POLICY
print_steps() {
    awk -F'\t' -v header="$header" -v policy="$1" -v every="$restore_every" -v last="$versions" "$awk_functions"'
        BEGIN {
            print "\n| step | versions | physical, MB | live minimum, MB | ratio | highest, MB | moved, MB | freed, MB | gc, s |" \
                " gc was | written, MB/s | restored, MB/s: newest | oldest | newest of a fresh pool |"
            print "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"
        }
        field("policy") == policy && (field("step") % every == 0 || field("step") == last) {
            printf "| %d | %d | %s | %s%s | %.2f | %s | %s | %s | %s | %s | %.0f | %s | %s | %s |\n", \
                field("step"), field("versions"), mb(field("physical_bytes"), "%.1f"), mb(field("live_bytes"), "%.1f"), \
                field("live_by") == "estimate" ? " (estimate)" : "", field("ratio"), mb(field("highest_du_bytes"), "%.1f"), \
                mb(field("moved_bytes"), "%.1f"), mb(field("freed_bytes"), "%.1f"), cell(field("gc_seconds"), "%.2f"), \
                field("gc_when") == "none" ? "-" : field("gc_when"), field("write_mb_per_s"), \
                cell(field("restore_newest_mb_per_s"), "%.0f"), cell(field("restore_oldest_mb_per_s"), "%.0f"), \
                cell(field("restore_fresh_mb_per_s"), "%.0f")
        }
    ' "$results"
}

# print_summary: a column for each policy, over the steps with gc.
print_summary() {
    awk -F'\t' -v header="$header" -v names="${policy_names[*]}" "$awk_functions"'
        function note(name, value) { if (value != "") noted[name, ++count[name]] = value + 0 }
        # Of what was noted under this name: least, median or most; nothing if nothing was.
        function of(name, which,    i, j, n, value, values) {
            n = count[name]
            for (i = 1; i <= n; i++) {
                value = noted[name, i]
                for (j = i - 1; j >= 1 && values[j] > value; j--) values[j + 1] = values[j]
                values[j + 1] = value
            }
            if (!n) return ""
            if (which == "least") return values[1]
            if (which == "most") return values[n]
            return n % 2 ? values[(n + 1) / 2] : (values[n / 2] + values[n / 2 + 1]) / 2
        }
        function range(name, format) {
            return cell(of(name, "median"), format) " (" cell(of(name, "least"), format) " to " cell(of(name, "most"), format) ")"
        }
        function divided(a, b) { return a == "" || b == "" || b <= 0 ? "" : a / b }
        { here = field("policy") }
        field("gc_when") != "none" {
            note(here " ratio", field("ratio"))
            if (field("live_by") == "fresh") note(here " fresh", field("ratio"))
            if (field("live_by") == "fresh") {
                note(here " content", field("data_container_bytes") / field("live_data_container_bytes"))
                note(here " recipes", field("recipe_container_bytes") / field("live_recipe_container_bytes"))
                note(here " rest", (field("physical_bytes") - field("data_container_bytes") - field("recipe_container_bytes")) \
                    / (field("live_bytes") - field("live_data_container_bytes") - field("live_recipe_container_bytes")))
            }
            note(here " highest", field("highest_du_bytes") / field("live_bytes"))
            note(here " gc " field("gc_when"), field("gc_seconds"))
            note(here " write " field("gc_when"), field("write_mb_per_s"))
            note(here " beside", field("beside_percent"))
            moved[here] += field("moved_bytes"); freed[here] += field("freed_bytes")
            if (field("gc_read_bytes") != "") { read[here] += field("gc_read_bytes"); written[here] += field("gc_written_bytes") }
        }
        field("restore_newest_mb_per_s") != "" {
            note(here " newest", field("restore_newest_mb_per_s"))
            note(here " oldest", field("restore_oldest_mb_per_s"))
            note(here " restored fresh", field("restore_fresh_mb_per_s"))
            if (!(here in first)) first[here] = field("restore_newest_mb_per_s")
            last[here] = field("restore_newest_mb_per_s")
        }
        # One row, a function of the policy.
        function figure(row, here) {
            if (row == 1) return cell(of(here " fresh", "most"), "%.2f")
            if (row == 2) return range(here " ratio", "%.2f")
            if (row == 3) return cell(of(here " content", "most"), "%.2f") ", " cell(of(here " recipes", "most"), "%.2f") ", " \
                cell(of(here " rest", "most"), "%.2f")
            if (row == 4) return range(here " highest", "%.2f")
            if (row == 5) return sprintf("%.1f, %.1f", moved[here] / 1e6, freed[here] / 1e6)
            if (row == 6) return cell(divided(moved[here], freed[here]), "%.2f")
            if (row == 7) return here in read ? sprintf("%.1f, %.1f", read[here] / 1e6, written[here] / 1e6) : "-"
            if (row == 8) return cell(of(here " gc before", "median"), "%.2f") ", " cell(of(here " gc beside", "median"), "%.2f")
            if (row == 9) return range(here " write before", "%.0f")
            if (row == 10) return range(here " write beside", "%.0f")
            if (row == 11) return cell(divided(of(here " write beside", "median"), of(here " write before", "median")), "%.2f")
            if (row == 12) return cell(of(here " beside", "median"), "%.0f")
            if (row == 13) return cell(first[here], "%.0f") ", " cell(last[here], "%.0f")
            if (row == 14) return range(here " newest", "%.0f")
            if (row == 15) return range(here " oldest", "%.0f")
            return range(here " restored fresh", "%.0f")
        }
        END {
            rows = split("physical against fresh pools, worst;the same in all steps, estimates too;" \
                "of its content, recipes, all else: worst;" \
                "highest size within a step against the minimum;moved, freed, MB;moved for each byte freed;gc read, wrote, MB;" \
                "gc before a backup, beside one, median seconds;backup after gc, MB/s;backup beside gc, MB/s;" \
                "beside against after, medians;part of the backup during which gc ran, median %;" \
                "restore of the newest, first and last, MB/s;restore of the newest, MB/s;restore of the oldest, MB/s;" \
                "restore of the newest of a fresh pool, MB/s", title, ";")
            policies = split(names, policy, " ")
            line = "\n| median (least to most) |"
            rule = "|---|"
            for (p = 1; p <= policies; p++) { line = line " " policy[p] " |"; rule = rule "---|" }
            print line; print rule
            for (row = 1; row <= rows; row++) {
                line = "| " title[row] " |"
                for (p = 1; p <= policies; p++) line = line " " figure(row, policy[p]) " |"
                print line
            }
        }
    ' "$results"
}

# ---- the run

[ -z "$tsv" ] || printf '%s\n' "$header" >"$tsv"
: >"$results"
describe_machine "$work"
if [ -n "$series" ]; then
    printf -- '- %d versions of a real series, %s in all; %d are kept\n' "$versions" "$(human "$all_bytes")" "$keep"
else
    printf -- '- %d synthetic versions of about %s (aged_tree %s); %d are kept\n' "$versions" "$(human "$size_bytes")" \
        "${tree_options[*]:-as it is}" "$keep"
fi
printf -- '- pool: %s; mount: %s\n' "${mkfs_options[*]:-as by default}" "${mount_options[*]:-as by default}"

gc_help=$("${programs[dedupfs-gc]}" --help)
for ((turn = 0; turn < ${#policy_names[@]}; turn++)); do
    policy=${policy_names[turn]}
    options=${policy_options[turn]}
    if [[ $options == *--leave* && $gc_help != *--leave* ]]; then
        say "$policy: this dedupfs-gc does not know --leave"
        options=$(sed -E 's/ *--leave[ =][^ ]+//' <<<"$options")
    fi
    read -r -a gc_options <<<"$options"
    SECONDS=0
    run_policy
    printf '\n**%s**: `dedupfs-gc%s`, %d s\n' "$policy" "${options:+ $options}" "$SECONDS"
    print_steps "$policy"
done
print_summary
[ -z "$tsv" ] || say "all steps are in $tsv"
