#!/usr/bin/env bash
# Runs all tests: unit, property, model, corruption, and end to end through real mounts.
#
#   tools/test.sh [ARGUMENTS FOR cargo test]
#
# Installs missing packages. Needs /dev/fuse; as an ordinary user, tests that need root report that they are skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/prerequisites.sh
. tools/prerequisites.sh

need_rust
need_fuse
need rsync=rsync tar=tar cmp=diffutils setfattr=attr setfacl=acl python3=python3 git=git sqlite3=sqlite3 pgrep=procps mkfs.xfs=xfsprogs mkfs.btrfs=btrfs-progs \
    qemu-img=qemu-utils qemu-system-x86_64=qemu-system-x86

# Tests that mount fail without FUSE instead of being skipped.
export DEDUPFS_REQUIRE_FUSE=1
# The same for tests of running machines.
export DEDUPFS_REQUIRE_QEMU=1
# The same for tests of stores of objects, if their server can be had.
if need_moto; then
    export DEDUPFS_REQUIRE_MOTO=1
else
    say "NOT RUN: tests beside moto, because it cannot be installed here"
fi

say "cargo test --workspace"
cargo test --locked --workspace "$@"

say "all tests passed"
