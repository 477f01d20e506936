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
# One for one can be seen.
set yrange [*<0.5:*]
set key outside right center Left reverse samplen 3 spacing 1.4
# A logarithm has no place for nothing.
so_far(policy) = "< awk -F'\t' '".columns." NR > 1 && $1 == \"".policy."\" { moved += $at[\"moved_bytes\"]; freed += $at[\"freed_bytes\"]; ". \
    "if (moved > 0 && freed > 0) print $at[\"step\"] FS moved / freed }' ".data
# Numbers of the policies that moved and freed anything.
movers = system("awk -F'\t' '".columns." NR > 1 { if (!($1 in number)) number[$1] = ++count; moved[$1] += $at[\"moved_bytes\"]; ". \
    "freed[$1] += $at[\"freed_bytes\"] } END { for (p in number) if (moved[p] > 0 && freed[p] > 0) print number[p] }' ".data." | sort -n")
plot 1 with lines linecolor "#888888" dashtype 2 notitle, \
    for [number in movers] so_far(word(policies, int(number))) using 1:2 with lines linewidth 2 linecolor rgb colour_of(int(number)) \
    dashtype dash_of(int(number)) title word(policies, int(number))
