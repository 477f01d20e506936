# What leaving a filter out costs: index reads for each GB, and the rate against that of all filters. Groups of bars for the
# workloads, a bar for each plan. ARG1 data, ARG2 figure, ARG3 this directory.
load ARG3."/style.gp"
data = ARG1
list(command) = system("awk -F'\t' '".command."' ".data)
workloads = list('NR > 1 && !seen[$1]++ { print $1 }')
plans = int(list('NR > 1 && !seen[$2]++ { count++ } END { print count }'))
plan_name(number) = list('NR > 1 && !seen[$2]++ && ++count == '.number.' { print $2 }')
title_of(workload) = workload eq "stream" ? "aged stream" : workload eq "pages" ? "pages, in place" : workload eq "inplace" ? \
    "images, in place" : workload
# Number of the workload; reads for each GB, all of them and those of lookups; rate against all: median, least, most.
bars(plan) = "< awk -F'\t' 'NR > 1 { if (!($1 in number)) number[$1] = ++count; if ($2 == \"".plan. \
    "\") print number[$1] FS $11 FS $12 FS $7 FS $8 FS $9 }' OFS='\t' ".data
# A plan without a filter has the colour of that filter in the other figure.
plan_colour(number) = number == 1 ? "#444444" : colour(number - 1)
width = 0.84 / plans
place(workload, plan) = workload + (plan - (plans + 1) / 2.0) * width

set terminal svg size 960,680 font "sans-serif,13" background "#ffffff"
set output ARG2
set multiplot
set style fill solid 1 noborder
set boxwidth width * 0.9
set xrange [0.5:words(workloads) + 0.5]
set xtics () scale 0
do for [w = 1:words(workloads)] { set xtics add (title_of(word(workloads, w)) w) }
set lmargin at screen 0.10
set rmargin at screen 0.98

set tmargin at screen 0.89
set bmargin at screen 0.53
set key at screen 0.54,0.975 center top horizontal samplen 1.6 width 1
set logscale y
set yrange [10:*]
set format y "10^{%T}"
set ylabel "index reads for each GB:\nlookups (bar), all (line)"
plot for [p = 1:plans] bars(plan_name(p)) using (place($1, p)):($3 > 10 ? $3 : 10) with boxes linecolor rgb plan_colour(p) title plan_name(p), \
    for [p = 1:plans] bars(plan_name(p)) using (place($1, p) - width * 0.45):($2 > 10 ? $2 : 10):(width * 0.9):(0) \
    with vectors nohead linecolor "#000000" linewidth 2 notitle

set tmargin at screen 0.46
set bmargin at screen 0.07
unset key
unset logscale y
set yrange [0:*]
set format y "%.1f"
set ylabel "rate against all filters:\nmedian (bar), least to most (line)"
set arrow 1 from graph 0, first 1 to graph 1, first 1 nohead linecolor "#888888" dashtype 2 front
plot for [p = 1:plans] bars(plan_name(p)) using (place($1, p)):4 with boxes linecolor rgb plan_colour(p) notitle, \
    for [p = 1:plans] bars(plan_name(p)) using (place($1, p)):5:(0):($6 - $5) with vectors nohead linecolor "#000000" linewidth 1.5 notitle
unset multiplot
