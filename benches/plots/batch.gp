# Schedules of many disks: the span of the night, the mean life of a snapshot, and their cost over alpha, for the sizes of one cluster.
# ARG1 data, ARG2 figure, ARG3 this directory.
data = ARG1
figure = ARG2
load ARG3."/style.gp"
# Columns: 1 sizes, 2 disks, 3 alpha, 4 schedule, 6 span, 7 mean, 8 cost; hours.
curve(schedule, column) = "< awk -F'\t' -v OFS='\t' '$1 == \"lognormal\" && $2 == 4224 && $4 == \"".schedule."\" { print $3, $".column." }' ".data
set terminal svg size 960,440 font "sans-serif,13" background "#ffffff"
set output figure
set multiplot layout 1,3 margins 0.06,0.99,0.17,0.76 spacing 0.06,0
set xlabel "alpha"
set yrange [0:*]
schedules = "DBP2 BPL inline"
titles = "'span, hours' 'mean life of a snapshot, hours' 'cost, hours'"
columns = "6 7 8"
do for [panel = 1:3] {
    set title word(titles, panel)
    if (panel == 1) { set key at screen 0.5,0.985 center top horizontal samplen 3 } else { unset key }
    plot for [s = 1:words(schedules)] curve(word(schedules, s), word(columns, panel)) using 1:2 with linespoints linewidth 2 \
        pointtype 7 pointsize 0.6 linecolor rgb colour(s) title word(schedules, s)
}
unset multiplot
