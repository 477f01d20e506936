# What the figures of dedupfs-bench retention share. They set data, and here: this directory (load forgets the arguments).
load here."/style.gp"
policies = system("awk -F'\t' 'NR > 1 && !seen[$1]++ { print $1 }' ".data)
# The policies' colours are the same in all figures. Equal lines cover each other: dashes let the one below be seen.
colour_of(number) = colour(number + 3)
dash_of(number) = number % 2 ? 1 : 4
# Names the columns.
columns = "NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i }"
# Step and the column of that name, of a policy and where the condition holds; empty cells are left out.
steps(policy, name, condition) = "< awk -F'\t' '".columns." NR > 1 && $1 == \"".policy."\" && $at[\"".name."\"] != \"\" && (".condition. \
    ") { print $at[\"step\"] FS $at[\"".name."\"] }' ".data
