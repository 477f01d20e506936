# Which filter decided the lookups: a panel for each workload, a bar for each plan. ARG1 data, ARG2 figure, ARG3 this directory.
load ARG3."/style.gp"
data = ARG1
list(command) = system("awk -F'\t' '".command."' ".data)
workloads = list('NR > 1 && !seen[$1]++ { print $1 }')
filters = list('NR == 1 { for (i = 1; i <= NF; i++) if (sub(/_ms$/, "", $i)) print $i }')
total(workload) = list('NR == 1 { for (i = 14; i <= NF; i += 2) at[i] } NR > 1 && $1 == "'.workload. \
    '" { for (i in at) sum += $i; print int(sum); exit }')
title_of(workload) = workload eq "stream" ? "aged stream" : workload eq "pages" ? "pages, in place" : workload eq "tars" ? "tars" : \
    workload eq "images" ? "images" : workload eq "inplace" ? "images, in place" : workload
# Plan, then the share that each filter decided, in percent.
shares(workload) = "< awk -F'\t' 'NR > 1 && $1 == \"".workload."\" { sum = 0; for (i = 14; i <= NF; i += 2) sum += $i; ". \
    "printf \"%s\", $2; for (i = 14; i <= NF; i += 2) printf \"\\t%.3f\", 100 * $i / sum; print \"\" }' ".data

set terminal svg size 960,640 font "sans-serif,13" background "#ffffff"
set output ARG2
set multiplot layout 2,3 margins 0.08,0.98,0.16,0.94 spacing 0.06,0.24
set style data histograms
set style histogram rowstacked
set style fill solid 1 noborder
set boxwidth 0.72
set yrange [0:100]
set format y "%.0f %%"
set xtics rotate by 40 right
unset key
do for [w = 1:words(workloads)] {
    name = word(workloads, w)
    set title sprintf("%s: %d thousand lookups", title_of(name), int(total(name) / 1000.0 + 0.5))
    if ((w - 1) % 3 == 0) { set ylabel "share of lookups" } else { unset ylabel }
    plot for [f = 1:words(filters)] shares(name) using (column(f + 1)):xtic(1) linecolor rgb colour(f) title word(filters, f)
}
# The key has a place of its own.
unset title; unset border; unset xtics; unset ytics; unset ylabel; unset grid
set key center center Left reverse maxrows 12 samplen 2 spacing 1.4 title "decided by the filter"
set xrange [0:1]; set yrange [0:1]
plot for [f = 1:words(filters)] NaN with boxes linecolor rgb colour(f) title word(filters, f)
unset multiplot
