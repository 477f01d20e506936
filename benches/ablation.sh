#!/usr/bin/env bash
# What each filter of the lookup chain is worth: the newest backup into a pool that holds the ones before, after a new mount,
# once with all filters and once without each of them, all of this in turns, so that a slow minute strikes all alike.
#
#   benches/ablation.sh [--size 1G] [--generations 3] [--pages 256M] [--series DIR] [--newest 12] [--beside 3G]
#                       [--repeat 3] [--workloads LIST] [--tsv FILE] [--dir DIR] [--memory 128M] [--mkfs OPTIONS]
#
#   --size SIZE           of each generation of the synthetic aged stream (examples/aged_stream). The newest one lies in
#                         memory; three times SIZE is needed on disk
#   --generations NUMBER  of it, the newest one is measured
#   --pages SIZE          of the file of pages
#   --series DIR          a real series, one directory for each version
#   --newest NUMBER       versions of it that are measured as tars; the ones before are there already
#   --beside SIZE         of other data in the pool, so that the index is larger than the cache of its buckets
#   --repeat NUMBER       measurements of each, of which the median is shown
#   --workloads LIST      some of stream,pages,tars,images,inplace [default: all; without --series, stream,pages]
#   --compare yes         also with the byte compare filter, which reads every chunk that is found
#   --tsv FILE            writes the figures there, too: what benches/plots/plots.sh draws
#   --dir DIR             [default: TMPDIR or /var/tmp]
#   --memory SIZE         of the mount: the less, the more of the index is read from disk
#   --mkfs OPTIONS        [default: --chunk-size 4K --tanker-cells 256K --tanker-buckets 512, so that tankers fill]
#
# The workloads:
#   stream    the newest generation of the aged stream, as a new file
#   pages     writes of 16 KiB at random places of one file, half as much as it holds, 64 bytes of each changed
#   tars      the newest versions of the series, each as a tar
#   images    every second version as an image of a filesystem, as new files; the versions before them are there as images
#   inplace   the same images, each written over the one of the version before
#
# Uses the programs in DEDUPFS_BIN, or builds them. "index reads" are buckets of the index read from
# disk: those of lookups, and those of counting references when a commit is consumed.
# shellcheck disable=SC2154 # common.sh has the other side
set -euo pipefail
# shellcheck source=benches/common.sh
. "$(dirname "$0")/common.sh"
# shellcheck source=benches/ablation_data.sh
. "$repository/benches/ablation_data.sh"

# The filters in the order in which they are shown, and what is compared: NAME=FILTERS, the first one with all the others.
filters=(zero block open bloom locality sealed)
plans=(
    "all=zero,block,open,bloom,locality,sealed"
    "without zero=block,open,bloom,locality,sealed"
    "without block=zero,open,bloom,locality,sealed"
    "without open=zero,block,bloom,locality,sealed"
    "without bloom=zero,block,open,locality,sealed"
    "without locality=zero,block,open,bloom,sealed"
)

size=1G generations=3 pages=256M series='' newest=12 beside=3G repeat=3 workloads='' tsv='' compare=''
dir=${TMPDIR:-/var/tmp} memory=128M mkfs_options=(--chunk-size 4K --tanker-cells 256K --tanker-buckets 512)
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) help ;;
        --*) [ $# -ge 2 ] || usage "$1 needs a value" ;;&
        --size) size=$2 ;;
        --generations) generations=$2 ;;
        --pages) pages=$2 ;;
        --series) series=$(realpath -e -- "$2") || usage "no such directory: $2" ;;
        --newest) newest=$2 ;;
        --beside) beside=$2 ;;
        --repeat) repeat=$2 ;;
        --workloads) workloads=$2 ;;
        --compare) compare=$2 ;;
        --tsv) tsv=$(realpath -m -- "$2") ;;
        --dir) dir=$2 ;;
        --memory) memory=$2 ;;
        --mkfs) read -r -a mkfs_options <<<"$2" ;;
        *) usage "unknown argument $1" ;;
    esac
    shift 2
done
[ "$compare" != yes ] || plans+=("with compare=zero,block,open,bloom,locality,sealed,compare")
parse_size "$size" && size_bytes=$REPLY
parse_size "$pages" && pages_bytes=$REPLY
parse_size "$beside" && beside_bytes=$REPLY
parse_count "$generations" && generations=$REPLY
parse_count "$newest" && newest=$REPLY
parse_count "$repeat" && repeat=$REPLY
workloads=${workloads:-stream,pages${series:+,tars,images,inplace}}
for workload in ${workloads//,/ }; do
    case $workload in
        stream | pages) ;;
        tars | images | inplace) [ -n "$series" ] || usage "$workload needs --series" ;;
        *) usage "there is no workload $workload" ;;
    esac
done
# wanted WORKLOAD
wanted() { [[ ,$workloads, == *,$1,* ]]; }

find_programs dedupfs dedupfs-stats aged_stream
need_commands cp dd tar findmnt perl
if wanted images || wanted inplace; then
    PATH=$PATH:/usr/sbin:/sbin
    need_commands mke2fs
fi
[ -z "$tsv" ] || [ -d "$(dirname "$tsv")" ] || usage "no such directory: $(dirname "$tsv")"
make_scratch "$dir" && work=$REPLY
need_memory $((size_bytes + pages_bytes + (2 << 30)))
need_room "$work" $((3 * size_bytes + 2 * pages_bytes + beside_bytes / 3 + (2 << 30))) "the measurement"
make_scratch /dev/shm && ram=$REPLY
mnt=$work/mnt
mkdir "$mnt"

# ---- measuring: one line in measured.tsv for each measurement

# filter_fields: prints the reads of all filters, then for each what it decided and its time in ms, a field each; nothing if
# it was not asked.
filter_fields() {
    awk -v names="${filters[*]}" '
        $1 == "\"name\":" { gsub(/[",]/, "", $2); here = $2 }
        { key = $1; gsub(/[":]/, "", key); sub(/,$/, "", $2) }
        key == "existing" || key == "non_existing" { decided[here] += $2 }
        key == "reads" && here != "" { reads += $2 }
        key == "time_ms" { ms[here] = sprintf("%.2f", $2) }
        END {
            printf "\t%d", reads
            count = split(names, name, " ")
            for (i = 1; i <= count; i++) printf "\t%s\t%s", decided[name[i]], ms[name[i]]
        }
    ' <<<"$STATS"
}

# measure_once PLAN FILTERS BYTES COMMAND...: of the command, in a copy of $work/base.
measure_once() {
    local plan=$1 list=$2 bytes=$3 before
    shift 3
    rm -rf "$work/pool"
    cp -a --sparse=always "$work/base" "$work/pool"
    sync
    evict "$work/pool"
    mount_pool "$work/pool" "$mnt" --memory "$memory" --filters "$list"
    read_stats "$mnt"
    stat_field chunk_index.bucket_reads && before=$REPLY
    timed "$@"
    read_stats "$mnt"
    stat_field chunk_index.bucket_reads && local reads=$((REPLY - before))
    stat_field chunk_index.locality_tables_read && local tables=$REPLY
    unmount_pool "$mnt"
    printf '%s\t%s\t%s\t%s\t%s\t%s%s\n' "$workload" "$plan" "$bytes" "$(calculate "$bytes / 1e6 / $TAKEN" %.1f)" \
        "$reads" "$tables" "$(filter_fields)" >>"$work/measured.tsv"
}

# measure TITLE BYTES COMMAND...: all plans in turns, each round beginning with another one; then the table.
measure() {
    local title=$1 bytes=$2 round turn entry
    shift 2
    for ((round = 0; round < repeat; round++)); do
        for ((turn = 0; turn < ${#plans[@]}; turn++)); do
            entry=${plans[(turn + 2 * round) % ${#plans[@]}]}
            say "$workload, round $((round + 1)) of $repeat: ${entry%%=*}"
            measure_once "${entry%%=*}" "${entry#*=}" "$bytes" "$@"
        done
    done
    rm -rf "$work/pool"
    printf '\n**%s** (%s): %s\n\n' "$title" "$workload" "$(exact "$bytes")"
    summarise "$workload" <"$work/measured.tsv" | tee -a "$work/summary.tsv" | as_markdown
}

# ---- figures: one line in summary.tsv for each workload and plan

columns=(workload plan bytes mb_per_s mb_per_s_min mb_per_s_max against_all against_all_min against_all_max
    index_reads index_reads_per_gb lookup_reads_per_gb tables_read)
for filter in "${filters[@]}"; do columns+=("$filter" "${filter}_ms"); done
header=$(IFS=$'\t' && printf '%s' "${columns[*]}")

# summarise WORKLOAD: medians of its lines, in the order of the plans. A rate against that of all filters is of one round.
summarise() {
    local entry names=''
    for entry in "${plans[@]}"; do names+=${entry%%=*}$'\t'; done
    awk -F'\t' -v workload="$1" -v names="${names%$'\t'}" '
        # median of values[1..n]; sets least and most.
        function median(values, n,    i, j, value) {
            for (i = 2; i <= n; i++) {
                value = values[i]
                for (j = i - 1; j >= 1 && values[j] > value; j--) values[j + 1] = values[j]
                values[j + 1] = value
            }
            least = values[1]; most = values[n]
            return n % 2 ? values[(n + 1) / 2] : (values[n / 2] + values[n / 2 + 1]) / 2
        }
        function column(plan, field,    round, values) {
            for (round = 1; round <= rounds[plan]; round++) values[round] = cell[plan, round, field] + 0
            return median(values, rounds[plan])
        }
        $1 == workload {
            round = ++rounds[$2]
            for (field = 3; field <= NF; field++) cell[$2, round, field] = $field
            fields = NF
        }
        END {
            count = split(names, plan, "\t")
            for (p = 1; p <= count; p++) {
                here = plan[p]
                bytes = cell[here, 1, 3]
                printf "%s\t%s\t%s", workload, here, bytes
                printf "\t%.1f\t%.1f\t%.1f", column(here, 4), least, most
                for (round = 1; round <= rounds[here]; round++) ratios[round] = cell[here, round, 4] / cell[plan[1], round, 4]
                printf "\t%.3f\t%.3f\t%.3f", median(ratios, rounds[here]), least, most
                printf "\t%.0f\t%.0f", column(here, 5), column(here, 5) / (bytes / 1e9)
                printf "\t%.0f\t%.0f", column(here, 7) / (bytes / 1e9), column(here, 6)
                for (field = 8; field <= fields; field++)
                    if (cell[here, 1, field] == "") printf "\t"
                    else printf "\t%.*f", field % 2 ? 2 : 0, column(here, field)
                print ""
            }
        }
    '
}

# as_markdown: lines of summary.tsv as a table.
as_markdown() {
    awk -F'\t' -v header="$header" -v names="${filters[*]}" '
        function line(text) { print "|" text }
        BEGIN {
            count = split(header, names_of, "\t")
            for (i = 1; i <= count; i++) at[names_of[i]] = i
            count = split(names, filter, " ")
            head = " filters | MB/s (least to most) | against all (least to most) | index reads for each GB | of lookups | tables read |"
            rule = "---|---|---|---|---|---|"
            for (i = 1; i <= count; i++) { head = head " " filter[i] (i == 1 ? " decided" : "") " |"; rule = rule "---|" }
            line(head); line(rule)
        }
        {
            text = sprintf(" %s | %.0f (%.0f to %.0f) | %.2f (%.2f to %.2f) | %d | %d | %d |", $at["plan"], $at["mb_per_s"], \
                $at["mb_per_s_min"], $at["mb_per_s_max"], $at["against_all"], $at["against_all_min"], \
                $at["against_all_max"], $at["index_reads_per_gb"], $at["lookup_reads_per_gb"], $at["tables_read"])
            for (i = 1; i <= count; i++) text = text " " ($at[filter[i]] == "" ? "-" : $at[filter[i]]) " |"
            line(text)
        }
    '
}

# ---- the run

describe_machine "$work"
printf -- '- pool: %s; mount: --memory %s; %s of other data; medians of %s in turns\n' \
    "${mkfs_options[*]}" "$memory" "$(human "$beside_bytes")" "$repeat"

for workload in stream pages tars images inplace; do
    if wanted $workload; then "measure_$workload"; fi
done
if [ -n "$tsv" ]; then
    { printf '%s\n' "$header" && cat "$work/summary.tsv"; } >"$tsv"
    say "the figures are in $tsv"
fi
