#!/usr/bin/env bash
# Damages every byte of every file of a small pool, one after another, and judges the pool's answers (tests/flips).
#
#   tools/flip-soak.sh [SEED [PART/PARTS]]
#
# Takes hours. A part (say 3/10) is every tenth case, beginning with the fourth; parts run on different machines.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/prerequisites.sh
. tools/prerequisites.sh

need_rust

seed=${1:-1}
part=${2:-0/1}
[[ $seed =~ ^[0-9]+$ && $part =~ ^[0-9]+/[1-9][0-9]*$ ]] || fail "expected SEED and PART/PARTS, found $seed $part"

export DEDUPFS_FLIPS=everything DEDUPFS_FLIPS_SEED=$seed DEDUPFS_FLIPS_PART=${part%/*} DEDUPFS_FLIPS_PARTS=${part#*/}
cargo test --release --locked --test flips -- --nocapture
