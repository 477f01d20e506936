#!/usr/bin/env bash
# Runs the clients, each with its own pool, and reports the result and time of each.
#
#   tests/clients/all.sh [--quick] [--stress SECONDS] [DIRECTORY]
#
#   --quick            only rsync, git and sqlite3, with little to do
#   --stress SECONDS   also stress.sh, with this many seconds of stress-ng and half as many of dbench
#   DIRECTORY          parent of the scratch directories [default: TMPDIR or /var/tmp]
#
# Ends with exit code 1 if a client failed; its output is shown. See common.sh for the variables.
set -euo pipefail
cd "$(dirname "$0")"
# shellcheck source=tools/common.sh
. ../../tools/common.sh

stress='' quick=''
while [ $# != 0 ]; do
    case $1 in
        -h | --help) help ;;
        --quick) quick=1 && shift ;;
        --stress) [ $# -ge 2 ] || usage "--stress needs seconds" && parse_count "$2" && stress=$REPLY && shift 2 ;;
        -*) usage "unknown argument $1" ;;
        *) break ;;
    esac
done
[ $# -le 1 ] || usage "one directory at most"
directory=${1:-${TMPDIR:-/var/tmp}}
[ -d "$directory" ] || usage "no directory $directory"
directory=$(realpath "$directory")

# Built once.
find_programs dedupfs dedupfs-gc dedupfs-stats
DEDUPFS_BIN=$(dirname "${programs[dedupfs]}")
export DEDUPFS_BIN
make_scratch "$directory" && work=$REPLY

failed=0 all=0 reasons=''
# run CLIENT ARGUMENTS...
run() {
    local begun=$EPOCHREALTIME client=$1 result=passed memory
    shift
    all=$((all + 1))
    if ! "./$client.sh" "$@" >"$work/output" 2>&1; then
        result=FAILED failed=$((failed + 1))
    fi
    memory=$(sed -n 's/.*memory was \([0-9]* MiB\) at most$/\1/p' "$work/output" | tail -n 1)
    printf '| %s | %s | %s | %s |\n' "$client" $result "$(calculate "$EPOCHREALTIME - $begun" %.0f)" "${memory:--}"
    [ $result = passed ] || { sed 's/^/    /' "$work/output" && reasons+=$(printf '\n%s' "$(grep FAILED "$work/output")"); }
}

printf '| client | result | seconds | memory of the daemon |\n|---|---|---|---|\n'
if [ -n "$quick" ]; then
    export DEDUPFS_CLIENT_QUICK=1
    run rsync "$directory" 3
    run git "$directory" 150
    run sqlite "$directory" 8
else
    for client in copies tar rsync rsnapshot rdiff-backup git borg restic sqlite qemu postgresql systemd; do run $client "$directory"; done
fi
[ -z "$stress" ] || run stress --seconds "$stress" "$directory"
[ $failed = 0 ] || fail "$failed of $all clients:$reasons"
