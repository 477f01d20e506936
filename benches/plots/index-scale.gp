# Lookups a second against the number of fingerprints. ARG1 data, ARG2 figure, ARG3 this directory.
load ARG3."/style.gp"
data = ARG1
set terminal svg size 960,520 font "sans-serif,13" background "#ffffff"
set output ARG2
set logscale xy
set xlabel "fingerprints, millions"
set ylabel "lookups a second"
set format y "10^{%T}"
set mytics 10
set grid ytics linecolor "#dddddd"
set xtics (1)
do for [i = 1:12] { set xtics add (2**i) }
unset mxtics
set offsets graph 0.03, graph 0.03, 0, 0
set key outside right center Left reverse samplen 3 spacing 1.4
line(name, column_of) = sprintf("< awk -F'\t' 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == \"%s\") at = i } NR > 1 && at && $at != \"\" { print $1 FS $at }' %s", column_of, name)
names = "absent_per_s separate_absent_per_s hash_absent_per_s redb_absent_per_s random_per_s backup_per_s"
array titles[6] = ["index, absent", "separate filters, absent", "hash table, absent", "redb, absent", \
    "index, present, random order", "index, present, backup order"]
array dashes[6] = [1, 2, 2, 2, 1, 1]
array colours_of[6] = [4, 7, 1, 8, 6, 5]
array points[6] = [7, 6, 8, 4, 5, 9]
plot for [i = 1:6] line(data, word(names, i)) using 1:2 with linespoints linewidth 2 linecolor rgb colour(colours_of[i]) \
    dashtype dashes[i] pointtype points[i] pointsize 0.8 title titles[i]
