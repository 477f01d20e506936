# What all figures share. Colours that people with colour blindness can tell apart (Okabe and Ito).
set datafile separator "\t"
set border 3 linecolor "#444444"
set tics nomirror out textcolor "#222222"
set grid ytics linecolor "#dddddd" linewidth 1
set key textcolor "#222222"
colours = "#999999 #cc79a7 #e69f00 #0072b2 #009e73 #d55e00 #56b4e9 #000000 #f0e442"
colour(number) = word(colours, (number - 1) % words(colours) + 1)
