#!/usr/bin/env bash
# Runs memory-hungry work on mounts with several sizes of --memory, and prints the daemon's peak memory as a table.
#
#   tools/memory-soak.sh [--sizes LIST] [--usual] [TEST]...
#
#   --sizes LIST      sizes of --memory [default: 128M,512M,2G]
#   --usual           the workloads of the usual test run instead of the full ones (a directory of 20,000 entries instead of a million)
#   TEST              tests of tools/tests/e2e/memory whose names contain this [default: all]
#
# Fails if anonymous resident memory exceeds the sum of --memory, 64 MiB, and 24 bytes for each inode that the kernel
# knows. The daemon runs in a memory cgroup, which kills it if it goes far beyond. Needs root, and some 40 GiB of disk
# in TMPDIR at full size. Takes hours.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/prerequisites.sh
. tools/prerequisites.sh

sizes=128M,512M,2G scale=full tests=()
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) sed -n '2,/^[^#]/ { s/^# \{0,1\}//p }' "$0"; exit 0 ;;
        --sizes) [ $# -ge 2 ] || { echo "--sizes needs a value" >&2; exit 2; }; sizes=$2; shift ;;
        --usual) scale=usual ;;
        --*) echo "no option $1" >&2; exit 2 ;;
        *) tests+=("$1") ;;
    esac
    shift
done
[ ${#tests[@]} -gt 0 ] || tests=("")

need_rust
need_fuse

export DEDUPFS_REQUIRE_FUSE=1 DEDUPFS_MEMORY_SIZES=$sizes DEDUPFS_MEMORY_SCALE=$scale
say "memory with --memory of $sizes"
table=$(mktemp)
trap 'rm -f "$table"' EXIT
status=0
for test in "${tests[@]}"; do
    # One at a time: they share the machine, and concurrent runs would make the rates meaningless.
    cargo test --locked --release -p dedupfs-tools --test e2e "memory::$test" -- --nocapture --test-threads=1 2>&1 |
        tee -a "$table" || status=$?
done
printf '\n| workload | --memory | most anonymous memory | rate | build | bounded by |\n|---|---:|---:|---:|---|---|\n'
sed -n 's/^.*memory | \(.*\)$/| \1 |/p' "$table"
[ "$status" -eq 0 ] || { echo "memory: a test failed (above)" >&2; exit 1; }
# A filter that matches no test would pass.
grep -q 'memory | ' "$table" || { echo "memory: no test ran" >&2; exit 1; }
