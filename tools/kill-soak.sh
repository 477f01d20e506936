#!/usr/bin/env bash
# Kills the daemon at random moments of rsync, deleting and reclaiming on a real mount, mounts again, and checks
# everything.
#
#   tools/kill-soak.sh [KILLS]        [default: 200]; another DEDUPFS_E2E_SEED=N kills at other moments
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/prerequisites.sh
. tools/prerequisites.sh

need_rust
need_fuse
need rsync=rsync

export DEDUPFS_REQUIRE_FUSE=1 DEDUPFS_E2E_KILLS=${1:-200}
say "$DEDUPFS_E2E_KILLS kills"
cargo test --locked --release -p dedupfs-tools --test e2e kill9 -- --nocapture
