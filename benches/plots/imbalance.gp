# Imbalance against depth (MAD2, figure 4 a). ARG1 data, ARG2 figure, ARG3 this directory.
load ARG3."/style.gp"
data = ARG1
set terminal svg size 960,480 font "sans-serif,13" background "#ffffff"
set output ARG2
set xlabel "mean depth of a bucket, fingerprints"
set ylabel "fullest less emptiest bucket, fingerprints"
set yrange [0:*]
set key outside right center Left reverse invert samplen 3 spacing 1.4 title "buckets"
columns = int(system("awk -F'\t' 'NR == 1 { print NF }' ".data))
name(number) = system(sprintf("awk -F'\t' 'NR == 1 { print $%d }' %s", number, data))
points(number) = sprintf("< awk -F'\t' 'NR > 1 && $%d != \"\" { print $1 FS $%d }' %s", number, number, data)
plot for [c = 2:columns] points(c) using 1:2 with linespoints linewidth 2 linecolor rgb colour(c) pointtype 7 pointsize 0.5 title name(c)
