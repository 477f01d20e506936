# How fast the newest and the oldest version kept are restored as the pool ages, a panel for each, a line for each policy, beside the
# newest one of a fresh pool. ARG1 data, ARG2 figure, ARG3 this directory.
data = ARG1
figure = ARG2
here = ARG3
load here."/retention.gp"
set terminal svg size 960,500 font "sans-serif,13" background "#ffffff"
set output figure
rates(name) = "< awk -F'\t' '".columns." NR > 1 && $at[\"restore_".name."_mb_per_s\"] != \"\" { print $at[\"restore_".name."_mb_per_s\"] }' ".data
# One scale for both panels.
most = 0
do for [name in "newest oldest fresh"] { stats rates(name) using 1 nooutput; most = STATS_max > most ? STATS_max : most }
set yrange [0:most * 1.05]
set multiplot layout 1,2 margins 0.09,0.98,0.14,0.72 spacing 0.08,0
set xlabel "versions backed up"
do for [panel = 1:2] {
    name = word("newest oldest", panel)
    set title "the ".name." version"
    if (panel == 1) {
        set ylabel "restored, MB/s"
        set key at screen 0.54,0.985 center top horizontal samplen 3
    } else {
        unset ylabel
        unset key
    }
    plot for [p = 1:words(policies)] steps(word(policies, p), "restore_".name."_mb_per_s", "1") using 1:2 with linespoints linewidth 2 \
            pointtype 7 pointsize 0.5 linecolor rgb colour_of(p) dashtype dash_of(p) title word(policies, p), \
        steps(word(policies, 1), "restore_fresh_mb_per_s", "1") using 1:2 with linespoints linewidth 2 pointtype 6 pointsize 0.7 \
            linecolor "#000000" dashtype 3 title "newest of a fresh pool"
}
unset multiplot
