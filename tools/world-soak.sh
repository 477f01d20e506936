#!/usr/bin/env bash
# Runs the whole engine in worlds that seeds decide: threads, time, disks, clients and troubles (tests/world).
#
#   tools/world-soak.sh [SECONDS | --count N] [--seed S]
#
# SECONDS: how long, 300 by default. N: this many seeds instead. S: the first seed, 0 by default; the next seeds follow.
# Before that, the primitives of worlds and kept plans are tested, and 200 seeds run twice: all that happens must be
# equal. A failed seed is printed, and this tells its story:
#   cargo run --release --manifest-path tests/world/Cargo.toml -- --seed N
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/prerequisites.sh
. tools/prerequisites.sh

usage() {
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0" >&2
    exit 2
}

number() {
    [[ ${1-} =~ ^[0-9]+$ ]] || usage
}

amount=(--seconds 300) seed=0
while [ $# != 0 ]; do
    case $1 in
        --seed) number "${2-}"; seed=$2; shift 2 ;;
        --count) number "${2-}"; amount=(--count "$2"); shift 2 ;;
        *) number "$1"; amount=(--seconds "$1"); shift ;;
    esac
done

need_rust
say "the primitives of worlds"
cargo test --quiet --locked --package dedupfs-sync --features world
world() { cargo run --quiet --locked --release --manifest-path tests/world/Cargo.toml -- --jobs "$(nproc)" "$@"; }
say "the program of worlds, and kept plans"
cargo test --quiet --locked --release --manifest-path tests/world/Cargo.toml
say "200 worlds from seed $seed on, twice each"
world --from "$seed" --count 200 --twice
say "worlds from seed $seed on: ${amount[*]}"
world --from "$seed" "${amount[@]}"
