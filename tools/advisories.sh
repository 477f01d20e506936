#!/usr/bin/env bash
# Looks up the dependencies in the database of known vulnerabilities, which is fetched for that.
#
#   tools/advisories.sh
#
# Where it cannot be fetched nothing is checked, which is said, and is no failure: a machine without a network could not test
# otherwise. With DEDUPFS_REQUIRE_ADVISORIES=1 it is one.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/prerequisites.sh
. tools/prerequisites.sh

cargo deny --version >/dev/null 2>&1 || cargo install --locked --debug cargo-deny
if cargo deny --locked fetch db >/dev/null 2>&1; then
    cargo deny --locked check advisories
elif [ "${DEDUPFS_REQUIRE_ADVISORIES:-0}" = 1 ]; then
    fail "NOT CHECKED: advisories, because their database cannot be fetched from here"
else
    echo "NOT CHECKED: advisories, because their database cannot be fetched from here"
fi
