# How the newest version is restored as the pool ages, with and without arranging: read amplification against a pool with that version
# alone, bytes moved for each new byte, and bytes copied for each one freed. ARG1 data, ARG2 figure, ARG3 this directory.
data = ARG1
figure = ARG2
load ARG3."/style.gp"
policies = system("awk -F'\t' 'NR > 1 && !seen[$1]++ { printf \"%s \", $1 }' ".data)
# Columns: 7 amplification, 6 share of the rate, 8 moved, 9 copied.
newest(policy, column) = "< awk -F'\t' -v OFS='\t' '$1 == \"".policy."\" && $3 == \"newest\" && $4 == \"get\" { print $2, $".column." }' ".data
set terminal svg size 960,440 font "sans-serif,13" background "#ffffff"
set output figure
set multiplot layout 1,3 margins 0.06,0.99,0.17,0.76 spacing 0.06,0
set xlabel "versions put"
set yrange [0:*]
titles = "'read amplification, newest' 'moved for each new byte' 'copied for each byte freed'"
columns = "7 8 9"
do for [panel = 1:3] {
    set title word(titles, panel)
    if (panel == 1) { set key at screen 0.5,0.985 center top horizontal samplen 3 } else { unset key }
    plot for [p = 1:words(policies)] newest(word(policies, p), word(columns, panel)) using 1:2 with linespoints linewidth 2 \
        pointtype 7 pointsize 0.6 linecolor rgb colour(p) title "arrange ".word(policies, p)
}
unset multiplot
