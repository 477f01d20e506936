#!/usr/bin/env bash
# Draws the figures of the documentation: each SVG from the TSV file beside it. A figure without its data is left out.
#
#   benches/plots/plots.sh [DIRECTORY]      [default: docs/figures]
#
#   ablation.tsv      from dedupfs-bench ablation --tsv
#   index-scale.tsv   from cargo bench -p dedupfs-index --bench index_scale; empty where nothing was measured
#   imbalance.tsv     cells of the fullest bucket less those of the emptiest, by depth; a column for each number of buckets
#   rivals.tsv        series of dedupfs-bench rivals: MB/s of the first backup, the second and the restore; memory, MiB; on disk, MB
#   aging.tsv         from dedupfs-bench aging --tsv; aging-NAME.tsv the same of another series
#   batch.tsv         from dedupfs-bench batch_figures --tsv
#   retention.tsv     from dedupfs-bench retention --tsv; retention-series.tsv the same of a real series
#
# Needs gnuplot (Debian and Ubuntu: apt install gnuplot-nox). To look at a figure as PNG: rsvg-convert FIGURE.svg >FIGURE.png
set -euo pipefail
export LC_ALL=C
case ${1-} in -h | --help) sed -n -e '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$0" && exit 0 ;; esac
here=$(cd "$(dirname "$0")" && pwd)
cd "${1:-$here/../../docs/figures}"
command -v gnuplot >/dev/null || { echo "plots.sh: gnuplot is missing: please install it (apt install gnuplot-nox)" >&2 && exit 1; }

# draw FIGURE TSV [NAME]: with FIGURE.gp, as NAME.svg.
draw() {
    local name=${3:-$1}
    [ -e "$2" ] || return 0
    gnuplot -c "$here/$1.gp" "$2" "$name.svg.new" "$here"
    mv "$name.svg.new" "$name.svg"
    echo "$PWD/$name.svg"
}
draw ablation-decided ablation.tsv
draw ablation-cost ablation.tsv
draw index-scale index-scale.tsv
draw imbalance imbalance.tsv
draw rivals rivals.tsv
draw batch batch.tsv
for series in aging*.tsv; do
    draw aging "$series" "${series%.tsv}"
done
for figure in size moved restore; do
    draw retention-$figure retention.tsv
    draw retention-$figure retention-series.tsv retention-series-$figure
done
