#!/usr/bin/env bash
# git in the mount: thousands of small files added and committed, a clone, branches, a worktree, gc, repack, fsck, a mirror.
#
#   tests/clients/git.sh [DIRECTORY] [FILES]
#
# DIRECTORY: parent of the scratch directory [default: TMPDIR or /var/tmp]; FILES: in the repository [default: 4000].
# See common.sh for the variables.
# shellcheck disable=SC2154 # common.sh has them
set -euo pipefail
# shellcheck source=tests/clients/common.sh
. "$(dirname "$0")/common.sh"
client_arguments "${@:1:1}"
files=4000
if [ $# -ge 2 ]; then parse_count "$2" && files=$REPLY; fi
need git=git >&2
open_pool

export GIT_CONFIG_GLOBAL=$work/gitconfig GIT_CONFIG_NOSYSTEM=1
git config --global user.name Client
git config --global user.email client@example.org
git config --global init.defaultBranch main
git config --global gc.autoDetach false
git config --global advice.detachedHead false

step "$files small files, ten commits"
git init -q "$mnt/origin"
for ((file = 0; file < files; file++)); do
    directory=$mnt/origin/$((file % 97))/$((file % 7))
    [ -d "$directory" ] || mkdir -p "$directory"
    printf 'file %d\n%s\n' "$file" "$(((file * 2654435761) % 4294967296))" >"$directory/$file.txt"
done
expect "$(find "$mnt/origin" -name '*.txt' | wc -l)" "$files" "files that were made"
git -C "$mnt/origin" add -A
git -C "$mnt/origin" commit -q -m "All files"
for commit in {1..10}; do
    for ((file = 50 + commit; file < files; file += 50)); do
        echo "change $commit" >>"$mnt/origin/$((file % 97))/$((file % 7))/$file.txt"
    done
    # Renamed there and back, and one file for good.
    git -C "$mnt/origin" mv "$commit" "moved-$commit"
    git -C "$mnt/origin" mv "moved-$commit" "$commit"
    git -C "$mnt/origin" mv "$commit/$((commit % 7))/$commit.txt" "$commit/renamed.txt"
    random_bytes "binary $commit" $((commit * 30000)) >"$mnt/origin/binary"
    git -C "$mnt/origin" add -A
    # Each object is synced, as on servers.
    git -C "$mnt/origin" -c core.fsync=all commit -q -m "Commit $commit"
    git -C "$mnt/origin" tag -a -m "Tag $commit" "v$commit"
done
expect "$(git -C "$mnt/origin" status --porcelain)" '' "changes that git sees in what was committed"

step "clones: over a pipe, with hard links, shared, bare; branches merged; a worktree"
git clone -q --no-local "$mnt/origin" "$mnt/piped"
git clone -q --local "$mnt/origin" "$mnt/linked"
git clone -q --mirror "$mnt/origin" "$mnt/mirror.git"
git -C "$mnt/piped" checkout -q -b left v5
rm -r "$mnt/piped/5"
git -C "$mnt/piped" commit -q -a -m "Without a directory"
git -C "$mnt/piped" checkout -q -b right v10
echo right >"$mnt/piped/right"
git -C "$mnt/piped" add right
git -C "$mnt/piped" commit -q -m "With a file"
git -C "$mnt/piped" merge -q -m "Both" left || git -C "$mnt/piped" merge --abort
git -C "$mnt/piped" worktree add -q "$mnt/worktree" v3
git -C "$mnt/piped" stash list >/dev/null
git -C "$mnt/piped" rebase -q --onto v9 v10 right
git -C "$mnt/piped" push -q "$mnt/mirror.git" right

verify_repository() {
    local tag
    git -C "$1" fsck --full --strict --no-dangling 2>"$work/fsck.git" || fail "git fsck of $1: $(head "$work/fsck.git")"
    for tag in 1 5 10; do
        expect "$(git -C "$1" rev-parse "v$tag^{tree}")" "$(git -C "$mnt/origin" rev-parse "v$tag^{tree}")" "tree of v$tag in $1"
    done
    expect "$(git -C "$1" archive v10 | sha256sum)" "$archive" "the archive of v10 in $1"
}
archive=$(git -C "$mnt/origin" archive v10 | sha256sum)
repositories=("$mnt/origin" "$mnt/piped" "$mnt/linked" "$mnt/mirror.git")
for directory in "${repositories[@]}"; do verify_repository "$directory"; done

step "gc, repack -adf, prune, commit-graph, bundle"
git -C "$mnt/origin" gc -q --prune=now
git -C "$mnt/piped" repack -q -adf --depth=50 --window=50
git -C "$mnt/linked" gc -q --aggressive --prune=now
git -C "$mnt/mirror.git" repack -q -ad --write-midx --write-bitmap-index
git -C "$mnt/origin" commit-graph write --reachable
git -C "$mnt/origin" bundle create -q "$mnt/origin.bundle" --all
git -C "$mnt/origin" bundle verify -q "$mnt/origin.bundle"
reclaim
for directory in "${repositories[@]}"; do verify_repository "$directory"; done
git clone -q --mirror "$mnt/origin" "$work/outside.git"

remount
step "all of it again, and checked out anew"
for directory in "${repositories[@]}" "$work/outside.git"; do verify_repository "$directory"; done
for directory in origin linked worktree; do
    expect "$(git -C "$mnt/$directory" status --porcelain)" '' "changes that git sees in $directory after a remount"
done
git -C "$mnt/linked" checkout -q v1
git -C "$mnt/linked" checkout -q v10
git -C "$mnt/linked" reset -q --hard v2
git -C "$mnt/linked" clean -qfdx
expect "$(git -C "$mnt/linked" status --porcelain)" '' "changes that git sees after going back and forth"
expect "$(find "$mnt/linked" -path "$mnt/linked/.git" -prune -o -name '*.txt' -print | wc -l)" "$files" "files in the checkout"
close_pool
