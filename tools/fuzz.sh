#!/usr/bin/env bash
# Runs every fuzz target for a bounded time. If one finds a defect, the script fails and says how to repeat it.
#
#   tools/fuzz.sh [SECONDS_PER_TARGET [TARGET...]]
#
# The default is 5 seconds. Installs a nightly toolchain and cargo-fuzz if they are missing. Useful inputs are kept in
# fuzzing/corpus/ (not in git), so longer runs go on where shorter ones ended.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/prerequisites.sh
. tools/prerequisites.sh

seconds=${1:-5}
[[ $seconds =~ ^[1-9][0-9]*$ ]] || fail "expected a number of seconds, found $seconds"
shift || true

need_rust
need_fuzz

# Decoders are safe Rust: panics, failed assertions, overflows and memory limits show all defects, without the cost of
# an address sanitizer.
options=(--fuzz-dir fuzzing --sanitizer none)
say "building the fuzz targets"
cargo +nightly fuzz build "${options[@]}"
targets=("$@")
[ ${#targets[@]} != 0 ] || mapfile -t targets < <(cargo +nightly fuzz list --fuzz-dir fuzzing)
host=$(rustc +nightly -vV | sed -n 's/^host: //p')
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

# Runs the built program directly, without cargo. An input is small; one that takes much time or memory is a defect.
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
