#!/usr/bin/env bash
# Fails every operation of the fault tests' work in every way, and not at a choice of positions as `cargo test` does.
#
#   tools/fault-soak.sh [NAME OF A TEST]
#
# A case that fails is told with the command that runs it alone.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/prerequisites.sh
. tools/prerequisites.sh

need_rust
DEDUPFS_FAULTS_ALL=1 cargo test --release --test faults "$@" -- --nocapture
