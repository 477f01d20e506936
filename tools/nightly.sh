#!/usr/bin/env bash
# Runs every test that is too long for .ci/run, one part after the other, and reports the result of each.
#
#   tools/nightly.sh [--small] [--seed S] [PART...]       all parts by default
#
#   kills        the daemon is killed 100 times amid its work
#   power        50 power losses of a block device with ext4 and XFS (as root)
#   syscalls     one system call of the daemon fails at a time
#   damage       500 damaged pools, and 500 with nonsense under checksums that fit
#   memory       resident memory against --memory
#   model        10,000 histories of versions, and as many without them, against the reference
#   crash        1,000,000 simulated power losses
#   faults       every operation fails in every way
#   flips        a tenth of all bytes of a pool, another one each night of ten
#   posix        fsx, pjdfstest and fio
#   versions     1,000 sets of versions that are removed, a directory of a million entries, and the changes that the
#                next backup finds (tools/changes-table.sh)
#   world        the whole engine in worlds that seeds decide, for two hours
#   mutants      small changes of the code that the tests should notice: another share of them each night
#   schedules    a million schedules of the code shared by threads
#   fuzz         every decoder for five minutes
#   replicas     1,000,000 faults of the store of a replica
#   stores       copies in versitygw over a bad network (toxiproxy); stores that must be refused
#   plain        the programs without stores on other machines are built
#   clients      all clients, and ten minutes of stress
#   advisories   known defects of dependencies; fails if their database cannot be fetched
#
#   --small      a little of each part: shows that they run
#   --seed S     the seed of the parts that have one [default: the day]
#
# As root on a machine with FUSE; takes most of a night. The output of each part lies in target/nightly (or
# DEDUPFS_NIGHTLY_LOGS); the end of a failed part's output is shown. Ends with a table, and with exit code 1 if a part
# failed.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/prerequisites.sh
. tools/prerequisites.sh

all_parts=(kills power syscalls damage memory model crash faults flips posix versions world mutants schedules fuzz replicas stores plain clients advisories)
usage() {
    printf '%s: %s; see the head of the script\n' "${0##*/}" "$*" >&2
    exit 2
}

day=$(date -u +%j)
day=$((10#$day))
small='' seed=$day parts=()
while [ $# != 0 ]; do
    case $1 in
        -h | --help) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
        --small) small=1; shift ;;
        --seed) [[ ${2-} =~ ^[0-9]{1,9}$ ]] || usage "--seed needs a number"; seed=$2; shift 2 ;;
        *) [[ " ${all_parts[*]} " == *" $1 "* ]] || usage "no part $1: there are ${all_parts[*]}"; parts+=("$1"); shift ;;
    esac
done
[ ${#parts[@]} != 0 ] || parts=("${all_parts[@]}")

# amount MUCH LITTLE
amount() { if [ $small ]; then echo "$2"; else echo "$1"; fi; }

run_kills() { DEDUPFS_E2E_SEED=$seed tools/kill-soak.sh "$(amount 100 4)"; }
run_power() { tools/power-soak.sh "$(amount 50 2)" --seed "$seed"; }
run_syscalls() { DEDUPFS_SYSCALL_CASES=$(amount '' 8) tools/syscall-soak.sh --seed "$seed"; }
run_damage() { tools/damage-soak.sh "$(amount 500 4)" --seed "$seed"; }
run_memory() {
    local sizes=()
    [ ! $small ] || sizes=(--usual --sizes 128M)
    tools/memory-soak.sh "${sizes[@]}"
}
run_model() { DEDUPFS_MODEL_CASES=$(amount 10000 20) cargo test --locked --release --test model; }
run_crash() { tools/crash-soak.sh "$(amount 1000000 5000)" --seed $((seed * 5000)); }
run_faults() {
    local test=()
    [ ! $small ] || test=(regressions)
    tools/fault-soak.sh "${test[@]}"
}
run_flips() { tools/flip-soak.sh "$seed" "$((day % 10))/$(amount 10 2000)"; }
run_posix() { tools/posix-soak.sh all --seed "$seed" --operations "$(amount 1000000 1900)"; }
run_versions() {
    export DEDUPFS_WOULD_FREE_SETS DEDUPFS_ENTRIES
    DEDUPFS_WOULD_FREE_SETS=$(amount 1000 10) DEDUPFS_ENTRIES=$(amount 1000000 1000)
    cargo test --locked --release --package dedupfs --lib -- --nocapture \
        tests::versions::would_free tests::versions::extremes
    tools/changes-table.sh
}
run_world() { tools/world-soak.sh "$(amount 7200 20)" --seed $((seed * 10000000)); }
run_mutants() {
    local arguments=(--share $((seed % 20 + 1))/20)
    [ ! $small ] || arguments+=(--small)
    tools/mutants.sh "${arguments[@]}"
}
run_schedules() { DEDUPFS_SCHEDULES=$(amount 1000000 2000) cargo test --locked --release --test schedules; }
run_fuzz() { tools/fuzz.sh "$(amount 300 2)"; }
run_replicas() {
    DEDUPFS_REPLICA_FAULTS=$(amount 1000000 500) cargo test --locked --release --package dedupfs-replica --lib -- --nocapture random_faults
}
run_stores() { tools/stores-soak.sh "$(amount 200 0)"; }
run_plain() { cargo clippy --locked -p dedupfs-tools --no-default-features --bins -- -D warnings; }
run_clients() {
    local arguments=(--stress 600)
    [ ! $small ] || arguments=(--quick)
    tests/clients/all.sh "${arguments[@]}"
}
run_advisories() { DEDUPFS_REQUIRE_ADVISORIES=1 tools/advisories.sh; }

need_rust
logs=${DEDUPFS_NIGHTLY_LOGS-target/nightly}
mkdir -p "$logs"
if [ -z "${DEDUPFS_BIN-}" ] && [[ " ${parts[*]} " =~ \ (power|syscalls|damage|memory|posix|versions|stores|clients)\  ]]; then
    say "building"
    # The programs are built last: together with examples they would get what only tests need.
    cargo build --release --locked --workspace --examples
    cargo build --release --locked --bins
    DEDUPFS_BIN=$(cargo metadata --format-version 1 --no-deps --offline | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/release
fi
[ -z "${DEDUPFS_BIN-}" ] || { DEDUPFS_BIN=$(realpath "$DEDUPFS_BIN") && export DEDUPFS_BIN; }

# Each part runs in its own shell, which the first failing command ends.
table='' failed=0
for part in "${parts[@]}"; do
    say "$part"
    begun=$SECONDS result=passed
    set +e
    (
        set -e
        "run_$part"
    ) >"$logs/$part.log" 2>&1
    status=$?
    set -e
    if [ $status != 0 ]; then
        result="FAILED ($status)"
        failed=$((failed + 1))
        tail -n 40 "$logs/$part.log"
    fi
    last=$(grep -v '^$' "$logs/$part.log" | tail -n 1 | cut -c1-120 || true)
    printf '%s: %s after %s s: %s\n' "$part" "$result" $((SECONDS - begun)) "$last"
    table+="| $part | $result | $((SECONDS - begun)) | ${last//|/ } |"$'\n'
done

printf '\n| part | result | seconds | last line |\n|---|---|---:|---|\n%s' "$table"
[ $failed = 0 ] || fail "$failed of ${#parts[@]} parts failed; their output is in $logs"
say "all ${#parts[@]} parts passed"
