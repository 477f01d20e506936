#!/usr/bin/env bash
# Fails every operation of the fault tests' work in every way, instead of `cargo test`'s choice of positions.
#
#   tools/fault-soak.sh [NAME OF A TEST]
#
# The report of a failed case has the command that runs it alone.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/prerequisites.sh
. tools/prerequisites.sh

need_rust
DEDUPFS_FAULTS_ALL=1 cargo test --release --test faults "$@" -- --nocapture
