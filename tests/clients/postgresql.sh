#!/usr/bin/env bash
# PostgreSQL with its data directory and its socket in the mount, as user postgres: initdb with checksums, pgbench while
# space is reclaimed, kill -9 of the server, kill -9 of the daemon beneath it, pg_basebackup, pg_dump. amcheck,
# pg_verifybackup and pg_checksums must find no error, the sums of pgbench must agree, and every acknowledged
# transaction must be there.
#
#   tests/clients/postgresql.sh [DIRECTORY] [TRANSACTIONS]
#
# DIRECTORY: parent of the scratch directory [default: TMPDIR or /var/tmp]; TRANSACTIONS: for each of 4 clients of
# pgbench [default: 1000]. See common.sh for the variables.
# shellcheck disable=SC2154 # common.sh has them
set -euo pipefail
# shellcheck source=tests/clients/common.sh
. "$(dirname "$0")/common.sh"
client_arguments "${@:1:1}"
transactions=1000
if [ $# -ge 2 ]; then parse_count "$2" && transactions=$REPLY; fi

postgresql_programs() { find /usr/lib/postgresql/*/bin -maxdepth 0 2>/dev/null | sort -V | tail -n 1; }
[ -n "$(postgresql_programs)" ] || need no-such-command=postgresql >&2
postgresql=$(postgresql_programs)
[ -x "$postgresql/pg_ctl" ] || fail "no pg_ctl below /usr/lib/postgresql"
need runuser=util-linux >&2
open_pool

# The server refuses to run as root.
as_postgres() {
    if [ "$(id -u)" = 0 ]; then
        (cd "$work" && runuser -u postgres -- "$@")
    else
        "$@"
    fi
}
[ "$(id -u)" != 0 ] || install -d -o postgres -m 700 "$mnt/p"
mkdir -p "$mnt/p"
database=$mnt/p/data socket=$mnt/p

pg_log=$work/postgresql.log
: >"$pg_log"
chmod 666 "$pg_log"
start_server() { as_postgres "$postgresql/pg_ctl" -s -w -t 300 -D "$database" -l "$pg_log" start || fail "no start: $(tail -n 20 "$pg_log")"; }
stop_server() { as_postgres "$postgresql/pg_ctl" -s -w -t 300 -D "$database" -m "${1-fast}" stop; }
query() { as_postgres "$postgresql/psql" -X -q -A -t -v ON_ERROR_STOP=1 -h "$socket" "${@:2}" -c "$1" bench; }
postmaster=''
kill_server() {
    postmaster=$(head -n 1 "$database/postmaster.pid" 2>/dev/null) || true
    [ -n "$postmaster" ] || return 0
    kill_processes
}
# Kills the postmaster and all its children at once.
kill_processes() {
    local process children
    children=$(pgrep -P "$postmaster" || true)
    for process in $postmaster $children; do kill -9 "$process" 2>/dev/null || true; done
    for process in $postmaster $children; do
        while is_running "$process"; do sleep 0.05; done
    done
    postmaster=''
}
on_exit=stop_everything
stop_everything() {
    [ -n "$postmaster" ] || postmaster=$(head -n 1 "$database/postmaster.pid" 2>/dev/null)
    [ -z "$postmaster" ] || kill_processes
}

step "initdb, pgbench -i"
as_postgres "$postgresql/initdb" -D "$database" --data-checksums --auth=trust --no-locale --encoding=UTF8 >"$work/initdb.log" 2>&1 ||
    fail "initdb: $(tail -n 5 "$work/initdb.log")"
cat >>"$database/postgresql.conf" <<CONF
unix_socket_directories = '$socket'
listen_addresses = ''
# Small, so that pages are read and written, and checkpoints are frequent.
shared_buffers = 16MB
checkpoint_timeout = 30s
max_wal_size = 128MB
wal_level = replica
fsync = on
full_page_writes = on
synchronous_commit = on
autovacuum_naptime = 5s
CONF
start_server
as_postgres "$postgresql/createdb" -h "$socket" bench
pgbench() { as_postgres "$postgresql/pgbench" -h "$socket" "$@" bench; }
pgbench -i -q -s 10 >"$work/pgbench.init.log" 2>&1 || fail "pgbench -i: $(tail -n 5 "$work/pgbench.init.log")"
query 'CREATE EXTENSION amcheck; CREATE TABLE acknowledged (number bigint PRIMARY KEY, content text)'

verify_sums() {
    local sums
    sums=$(query 'SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(tbalance) FROM pgbench_tellers)
        AND (SELECT sum(tbalance) FROM pgbench_tellers) = (SELECT sum(bbalance) FROM pgbench_branches)
        AND (SELECT sum(bbalance) FROM pgbench_branches) = (SELECT sum(delta) FROM pgbench_history)')
    expect "$sums" t "the sums of pgbench agree"
}
verify_structure() {
    as_postgres "$postgresql/pg_amcheck" -h "$socket" --heapallindexed --parent-check --rootdescend bench >"$work/amcheck.log" 2>&1 ||
        fail "pg_amcheck: $(head -n 10 "$work/amcheck.log")"
}

step "pgbench: 4 clients, $transactions transactions each, while space is reclaimed"
pgbench -c 4 -j 2 -t "$transactions" >"$work/pgbench.log" 2>&1 &
clients_pid=$!
while kill -0 $clients_pid 2>/dev/null; do
    reclaim
    sleep 2
done
wait $clients_pid || fail "pgbench: $(tail -n 5 "$work/pgbench.log")"
grep -E '^(tps|latency average|number of transactions actually)' "$work/pgbench.log" >&2
verify_sums
expect "$(query 'SELECT count(*) FROM pgbench_history')" $((4 * transactions)) "transactions in the history"

# Runs transactions one after the other, and writes the number of each acknowledged one outside of the mount.
acknowledge() {
    local number=$1
    while :; do
        number=$((number + 1))
        echo "INSERT INTO acknowledged VALUES ($number, repeat(md5('$number'), $number % 50)) RETURNING number;"
    done | as_postgres stdbuf -oL "$postgresql/psql" -X -q -A -t -v ON_ERROR_STOP=1 -h "$socket" bench >>"$work/acknowledged" 2>/dev/null || true
}
verify_acknowledged() {
    local last found
    last=$(grep -E '^[0-9]+$' "$work/acknowledged" | tail -n 1)
    found=$(query 'SELECT max(number) FROM acknowledged')
    say "    ${last:-0} transactions acknowledged, ${found:-0} there"
    [ "${found:-0}" -ge "${last:-1}" ] || fail "acknowledged transactions are lost"
    expect "$(query 'SELECT count(*) FROM acknowledged')" "$found" "acknowledged transactions that are there"
    expect "$(query "SELECT count(*) FROM acknowledged WHERE content != repeat(md5(number::text), (number % 50)::int)")" 0 "rows with other content"
}
# crash_while_busy NUMBER HOW...: crashes with clients at work, once NUMBER transactions are acknowledged.
crash_while_busy() {
    local pid processes_busy=()
    # -n: pgbench would empty the history first.
    pgbench -n -c 4 -j 2 -T 600 >/dev/null 2>&1 &
    processes_busy+=($!)
    acknowledge "$(query 'SELECT coalesce(max(number), 0) FROM acknowledged')" &
    processes_busy+=($!)
    sleep 2
    while [ "$(grep -cE '^[0-9]+$' "$work/acknowledged")" -lt "$1" ]; do
        sleep 0.2
        kill -0 "${processes_busy[@]}" || fail "a client ended before the crash"
    done
    "${@:2}"
    for pid in "${processes_busy[@]}"; do wait "$pid" 2>/dev/null || true; done
}
: >"$work/acknowledged"

step "kill -9 of the server, recovery"
crash_while_busy 100 kill_server
start_server
verify_acknowledged
verify_sums
verify_structure

step "kill -9 of dedupfs beneath the server, recovery of both"
crash_beneath() {
    postmaster=$(head -n 1 "$database/postmaster.pid")
    crash_daemon
    kill_processes
}
crash_while_busy 250 crash_beneath
mount_after_crash
start_server
verify_acknowledged
verify_sums
verify_structure

step "pg_basebackup, plain and as tar, while transactions run; pg_dump through a pipe"
pgbench -n -c 2 -T 8 >/dev/null 2>&1 &
busy=$!
as_postgres "$postgresql/pg_basebackup" -h "$socket" -D "$mnt/p/base" -c fast -X stream
as_postgres "$postgresql/pg_basebackup" -h "$socket" -D "$mnt/p/tar" -c fast -X fetch -F tar -z
wait $busy
as_postgres "$postgresql/pg_verifybackup" -q "$mnt/p/base"
# Newer versions give each dump its own key.
dump() { as_postgres "$postgresql/pg_dump" -h "$socket" "$1" | sed -E '/^\\(un)?restrict /d'; }
dump bench | cat >"$mnt/dump.sql"
dump bench | cmp - "$mnt/dump.sql"
as_postgres "$postgresql/pg_dump" -h "$socket" -F d -j 2 -f "$mnt/p/dump.d" bench
as_postgres "$postgresql/createdb" -h "$socket" restored
as_postgres "$postgresql/pg_restore" -h "$socket" -j 2 -d restored "$mnt/p/dump.d"
dump restored | cmp - "$mnt/dump.sql"
sum=$(query 'SELECT sum(abalance) FROM pgbench_accounts')

step "stopped, checksums, remounted"
stop_server
as_postgres "$postgresql/pg_checksums" --check -D "$database" >"$work/checksums.log" 2>&1 || fail "pg_checksums: $(tail -n 5 "$work/checksums.log")"
reclaim
remount
as_postgres "$postgresql/pg_checksums" --check -D "$database" >"$work/checksums.log" 2>&1 || fail "pg_checksums: $(tail -n 5 "$work/checksums.log")"
as_postgres "$postgresql/pg_verifybackup" -q "$mnt/p/base"

step "the database and the base backup started again"
start_server
expect "$(query 'SELECT sum(abalance) FROM pgbench_accounts')" "$sum" "the sum of accounts after a remount"
verify_acknowledged
verify_structure
query 'VACUUM FULL'
query 'REINDEX DATABASE bench'
verify_sums
stop_server
database=$mnt/p/base
start_server
verify_sums
verify_structure
stop_server immediate
start_server
verify_sums
stop_server
as_postgres "$postgresql/pg_checksums" --check -D "$database" >"$work/checksums.log" 2>&1 || fail "pg_checksums: $(tail -n 5 "$work/checksums.log")"
! grep -E 'PANIC|checksum|could not (read|write|fsync|open|extend)' "$pg_log" | grep -v 'Transport endpoint is not connected\|Software caused connection abort' >"$work/complaints" ||
    fail "the server complained: $(head -n 5 "$work/complaints")"
close_pool
