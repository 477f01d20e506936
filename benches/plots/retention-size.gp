# A pool under retention, step by step: above what it takes on disk against the live minimum, below their ratio. A line for each policy
# of reclaiming. ARG1 data, ARG2 figure, ARG3 this directory.
data = ARG1
figure = ARG2
here = ARG3
load here."/retention.gp"
set terminal svg size 960,680 font "sans-serif,13" background "#ffffff"
set output figure
set multiplot
set lmargin at screen 0.11
set rmargin at screen 0.98

set tmargin at screen 0.90
set bmargin at screen 0.50
set key at screen 0.54,0.985 center top horizontal samplen 3 width 2
set yrange [0:*]
set format x ""
set ylabel "on disk, MB"
plot for [p = 1:words(policies)] steps(word(policies, p), "physical_bytes", "1") using 1:($2 / 1e6) with lines linewidth 2 \
        linecolor rgb colour_of(p) dashtype dash_of(p) title word(policies, p), \
    steps(word(policies, 1), "live_bytes", "1") using 1:($2 / 1e6) with lines linewidth 2 linecolor "#000000" dashtype 3 title "live minimum"

set tmargin at screen 0.45
set bmargin at screen 0.10
unset key
set format x "%g"
set xlabel "versions backed up"
set yrange [0.8:*]
set format y "%.2f"
set ylabel "against the live minimum\n(points: fresh pools, else estimated)"
set arrow 1 from graph 0, first 1.1 to graph 1, first 1.1 nohead linecolor "#888888" dashtype 2 front
plot for [p = 1:words(policies)] steps(word(policies, p), "ratio", "1") using 1:2 with lines linewidth 2 linecolor rgb colour_of(p) \
        dashtype dash_of(p) notitle, \
    for [p = 1:words(policies)] steps(word(policies, p), "ratio", "$at[\"live_by\"] == \"fresh\"") using 1:2 with points \
        pointtype 7 pointsize 0.6 linecolor rgb colour_of(p) notitle
unset multiplot
