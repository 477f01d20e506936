#!/usr/bin/env bash
# Checks the dependencies against the database of known vulnerabilities, which is fetched first.
#
#   tools/advisories.sh
#
# If the database cannot be fetched, nothing is checked: a message says so and the exit code is 0, so that machines
# without a network can run the tests. With DEDUPFS_REQUIRE_ADVISORIES=1 that is a failure.
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
