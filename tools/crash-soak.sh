#!/usr/bin/env bash
# Cuts the power of simulated disks at millions of moments, and verifies each resulting state.
#
#   tools/crash-soak.sh [POINTS | --minutes N] [--seed S]
#
# POINTS: crash points to verify, 1,000,000 by default. N: run this long instead. S: the first seed, 0 by default; the
# next seeds follow, so runs from different seeds (some thousand apart) try different things.
# The first failure ends the run; the message says how to repeat it and where the image is.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/prerequisites.sh
. tools/prerequisites.sh

usage() {
    sed -n '4,8s/^# \{0,1\}//p' "$0" >&2
    exit 2
}

number() {
    [[ ${1-} =~ ^[0-9]+$ ]] || usage
}

points=1000000 minutes='' seed=0
while [ $# != 0 ]; do
    case $1 in
        --minutes) number "${2-}"; minutes=$2; shift 2 ;;
        --seed) number "${2-}"; seed=$2; shift 2 ;;
        *) number "$1"; points=$1; shift ;;
    esac
done

need_rust
export DEDUPFS_CRASH_POINTS=$points DEDUPFS_CRASH_SEED=$seed
[ -z "$minutes" ] || export DEDUPFS_CRASH_MINUTES=$minutes
say "power losses from seed $seed on"
cargo test --locked --release --test crash power_loss_at_any_moment -- --exact --nocapture
say "the pool survived all of them"
