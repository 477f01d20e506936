#!/usr/bin/env bash
# Tries mutants: small changes of the code that the tests should notice (tools/mutants).
#
#   tools/mutants.sh [FOLDER...] [--share K/N] [--small] [--skip N] [--minutes M] [--only TEXT] [--again] [--jobs N]
#                    [--without-world] [--without-tests] [--list]
#
# FOLDER: index, store, commit, reclaim, dedup, export; all by default. A fixed sample of 300 mutants of each is tried.
# --share: the K-th of N shares of all mutants instead. --small: 5 of each folder. --skip: without the first N of each.
# --minutes: no mutant begins later. --only: those of all whose names contain TEXT. --again: those that survived the last
# run.
# --without-tests: only worlds, for mutants that the tests have met. --jobs: so many at a time, one for each processor by
# default. --list: names; nothing is tried.
#
# Each mutant meets the quick tests of its crate that reach it, then 300 worlds (tests/world), then the slow tests.
# A program of the worlds that ends without the seed that fails has noticed nothing.
# Ends with a table, and with exit code 1 if a mutant survives that tools/mutants/accepted.txt does not name; they are
# printed as lines for that list. With 2 if no mutant is chosen, or the list is wrong. The fate of each mutant lies in
# target/mutants/log.tsv.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/prerequisites.sh
. tools/prerequisites.sh

case ${1-} in -h | --help) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;; esac

need_rust
need git=git
cargo mutants --version >/dev/null 2>&1 || {
    say "installing cargo-mutants"
    cargo install --locked --debug cargo-mutants
}
# A mutant may ask for memory without end.
ulimit -v $((16 << 20))
exec cargo run --quiet --locked --manifest-path tools/mutants/Cargo.toml -- "$@"
