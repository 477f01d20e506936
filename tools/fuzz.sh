#!/usr/bin/env bash
# Runs every fuzz target for a bounded time; fails if any finds something, and says how to repeat it.
#
#   tools/fuzz.sh [SECONDS_PER_TARGET [TARGET...]]
#
# 5 seconds unless told otherwise. Installs a nightly toolchain and cargo-fuzz if they are missing. What targets find useful is
# kept in fuzzing/corpus/ (not in git), so longer runs go on where shorter ones were.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/prerequisites.sh
. tools/prerequisites.sh

seconds=${1:-5}
[[ $seconds =~ ^[1-9][0-9]*$ ]] || fail "expected a number of seconds, found $seconds"
shift || true

need_rust
need_fuzz

# Decoders are safe Rust: panics, failed assertions, overflows and limits of memory find what there is, without the cost of an
# address sanitizer.
options=(--fuzz-dir fuzzing --sanitizer none)
say "building the fuzz targets"
cargo +nightly fuzz build "${options[@]}"
targets=("$@")
[ ${#targets[@]} != 0 ] || mapfile -t targets < <(cargo +nightly fuzz list --fuzz-dir fuzzing)
host=$(rustc +nightly -vV | sed -n 's/^host: //p')
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

# No process for each target: the programs are there. An input is small, and takes little time and memory, or that is a defect.
run() {
    local target=$1
    mkdir -p "fuzzing/corpus/$target" "fuzzing/artifacts/$target"
    "fuzzing/target/$host/release/$target" "fuzzing/corpus/$target" -artifact_prefix="fuzzing/artifacts/$target/" \
        -max_total_time="$seconds" -max_len=8192 -timeout=10 -rss_limit_mb=1024 -malloc_limit_mb=64 -print_final_stats=1 \
        >"$logs/$target" 2>&1
}

say "running ${#targets[@]} targets for $seconds s each"
failed=()
jobs=$(nproc)
for ((first = 0; first < ${#targets[@]}; first += jobs)); do
    declare -A running=()
    for target in "${targets[@]:first:jobs}"; do
        run "$target" &
        running[$target]=$!
    done
    for target in "${!running[@]}"; do
        wait "${running[$target]}" || failed+=("$target")
        runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$logs/$target")
        printf '%-20s %12s inputs\n' "$target" "${runs:-?}"
    done
    unset running
done

for target in "${failed[@]+"${failed[@]}"}"; do
    say "$target found something"
    tail -n 40 "$logs/$target"
    input=$(sed -n 's/.*Test unit written to //p' "$logs/$target" | tail -n 1)
    printf 'repeat with: cargo +nightly fuzz run --fuzz-dir fuzzing --sanitizer none %s %s\n' "$target" "${input:-}"
done
[ ${#failed[@]} = 0 ] || fail "${#failed[@]} of ${#targets[@]} targets found something"
say "nothing found"
