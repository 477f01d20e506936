# What reclaiming copied until then for each byte that it freed, step by step, a line for each policy. ARG1 data, ARG2 figure, ARG3
# this directory.
data = ARG1
figure = ARG2
here = ARG3
load here."/retention.gp"
set terminal svg size 960,400 font "sans-serif,13" background "#ffffff"
set output figure
set xlabel "versions backed up"
set ylabel "bytes moved for each byte freed, so far"
set logscale y
set format y "%g"
set key outside right center Left reverse samplen 3 spacing 1.4
# A logarithm has no place for nothing.
so_far(policy) = "< awk -F'\t' '".columns." NR > 1 && $1 == \"".policy."\" { moved += $at[\"moved_bytes\"]; freed += $at[\"freed_bytes\"]; ". \
    "if (moved > 0 && freed > 0) print $at[\"step\"] FS moved / freed }' ".data
plot 1 with lines linecolor "#888888" dashtype 2 notitle, \
    for [p = 1:words(policies)] so_far(word(policies, p)) using 1:2 with lines linewidth 2 linecolor rgb colour_of(p) \
    dashtype dash_of(p) title word(policies, p)
