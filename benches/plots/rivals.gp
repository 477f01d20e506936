# A series of releases into each backup tool and out again: three groups of bars for rates, then panels for size and memory, where
# less is better. Transparent, with grey text: readable on a light page and on a dark one. ARG1 data, ARG2 figure, ARG3 this directory.
load ARG3."/style.gp"
data = ARG1
tools = int(system("awk -F'\t' 'NR > 1' ".data." | wc -l"))
name(row) = system(sprintf("awk -F'\t' 'NR == %d { print $1 }' %s", row + 1, data))
cell(row, column) = real(system(sprintf("awk -F'\t' 'NR == %d { print $%d }' %s", row + 1, column, data)))
ink = "#858c94"
array paint[6] = ["#009e73", "#66c5ab", "#d55e00", "#cc79a7", "#e69f00", "#56b4e9"]
array title_of[5] = ["first backup, MB/s", "second backup, MB/s", "full restore, MB/s", "memory, MiB", "on disk, MB"]

set terminal svg size 960,330 font "sans-serif,13"
set output ARG2
set border 1 linecolor rgb ink
set key off
unset xtics
unset ytics
unset grid
set style fill solid 1 noborder
set boxwidth 0.84
set multiplot

# More is better: one scale.
set tmargin at screen 0.77
set bmargin at screen 0.12
set lmargin at screen 0.01
set rmargin at screen 0.61
gap = 1.2
place(group, row) = (group - 1) * (tools + gap) + row
set xrange [0:3 * (tools + gap)]
set yrange [0:2000]
set label 1 "more is better" at graph 0.5, -0.09 center textcolor rgb ink
do for [group = 1:3] {
    set label (10 + group) title_of[group] at place(group, (tools + 1) / 2.0), graph 1.06 center textcolor rgb ink
    do for [row = 1:tools] {
        set label (100 + group * 10 + row) sprintf("%g", cell(row, group + 1)) at place(group, row), cell(row, group + 1) + 70 \
            center textcolor rgb ink font ",12"
    }
}
plot for [group = 1:3] for [row = 1:tools] "+" using (place(group, row)):(cell(row, group + 1)) every ::::0 with boxes \
    linecolor rgb paint[row] notitle

# Less is better: a scale for each.
set xrange [0:tools + 1]
do for [panel = 4:5] {
    unset label
    set lmargin at screen (panel == 4 ? 0.65 : 0.84)
    set rmargin at screen (panel == 4 ? 0.81 : 0.99)
    set yrange [0:(panel == 4 ? 200 : 100)]
    set label 1 "less is better" at graph 0.5, -0.09 center textcolor rgb ink
    set label 2 title_of[panel] at graph 0.5, 1.06 center textcolor rgb ink
    do for [row = 1:tools] {
        set label (100 + row) sprintf("%.0f", cell(row, panel + 1)) at row, cell(row, panel + 1) + (panel == 4 ? 7 : 3.5) center \
            textcolor rgb ink font ",12"
    }
    plot for [row = 1:tools] "+" using (row):(cell(row, panel + 1)) every ::::0 with boxes linecolor rgb paint[row] notitle
}

# The key has a place of its own.
unset label; unset border
set lmargin at screen 0; set rmargin at screen 1; set tmargin at screen 1; set bmargin at screen 0
set xrange [0:1]; set yrange [0:1]
set key at screen 0.5, 0.985 center top horizontal Left reverse samplen 1.4 width 1.5 textcolor rgb ink
plot for [row = 1:tools] NaN with boxes linecolor rgb paint[row] title name(row)
unset multiplot
