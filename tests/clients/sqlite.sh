#!/usr/bin/env bash
# sqlite3 in the mount: several concurrent writers in WAL mode and in each mode of the rollback journal, killed writers,
# a killed daemon. Every acknowledged row must be there and integrity_check must find no error.
#
#   tests/clients/sqlite.sh [DIRECTORY] [ROWS]
#
# DIRECTORY: parent of the scratch directory [default: TMPDIR or /var/tmp]; ROWS: by each writer [default: 150].
# See common.sh for the variables.
# shellcheck disable=SC2154 # common.sh has them
set -euo pipefail
# shellcheck source=tests/clients/common.sh
. "$(dirname "$0")/common.sh"
client_arguments "${@:1:1}"
rows=150
if [ $# -ge 2 ]; then parse_count "$2" && rows=$REPLY; fi
need sqlite3=sqlite3 pgrep=procps >&2
open_pool

query() { sqlite3 -bail -cmd '.timeout 60000' "$@"; }

# write_rows DATABASE WRITER ROWS: one transaction each; acknowledged rows are noted outside of the mount.
write_rows() {
    local row
    # One process: it prints each number after the commit returned.
    for ((row = 1; row <= $3; row++)); do
        cat <<SQL
BEGIN IMMEDIATE;
INSERT INTO entries (writer, number, content) VALUES ($2, $row, hex(randomblob(abs(random()) % 2000)));
UPDATE counts SET entries = entries + 1 WHERE writer = $2;
COMMIT;
SELECT $row;
SQL
    done | (exec stdbuf -oL sqlite3 -bail -cmd '.timeout 60000' -cmd "$writer_setup" "$1") >"$work/acknowledged.$2" 2>"$work/writer.$2.log"
}
# make_database DATABASE MODE: also sets the first commands of writers. A mode of the rollback journal applies to one
# connection.
make_database() {
    writer_setup="PRAGMA journal_mode = $2; ${3-}"
    query "$1" "PRAGMA journal_mode = $2; CREATE TABLE entries (id INTEGER PRIMARY KEY, writer INTEGER, number INTEGER, content TEXT);
        CREATE UNIQUE INDEX by_number ON entries (writer, number); CREATE TABLE counts (writer INTEGER PRIMARY KEY, entries INTEGER);
        INSERT INTO counts VALUES (1, 0), (2, 0), (3, 0), (4, 0);" >/dev/null
    [ "$2" != wal ] || expect "$(query "$1" 'PRAGMA journal_mode')" wal "the journal mode"
}
# verify_database DATABASE: checks that it is whole, its tables agree, and no acknowledged row is missing.
verify_database() {
    local writer acknowledged found
    expect "$(query "$1" 'PRAGMA integrity_check')" ok "integrity_check of $1"
    expect "$(query "$1" 'SELECT count(*) FROM counts c WHERE entries != (SELECT count(*) FROM entries e WHERE e.writer = c.writer)')" 0 "writers whose counts are wrong in $1"
    for writer in 1 2 3 4; do
        acknowledged=$(grep -E '^[0-9]+$' "$work/acknowledged.$writer" | tail -n 1 || true)
        found=$(query "$1" "SELECT coalesce(max(number), 0) FROM entries WHERE writer = $writer")
        [ "$found" -ge "${acknowledged:-0}" ] || fail "$1: writer $writer has $found rows, $acknowledged are acknowledged"
        expect "$(query "$1" "SELECT count(*) FROM entries WHERE writer = $writer")" "$found" "rows of writer $writer in $1"
    done
}
# start_writers DATABASE ROWS: sets writers.
start_writers() {
    local writer
    writers=()
    for writer in 1 2 3 4; do
        : >"$work/acknowledged.$writer"
        (trap - ERR && write_rows "$1" $writer "$2") 2>/dev/null &
        writers+=($!)
    done
}
wait_for_writers() {
    local pid
    for pid in "${writers[@]}"; do wait "$pid" || fail "a writer failed: $(cat "$work"/writer.*.log)"; done
}

# wait_for_lines LINES: waits until this many transactions are acknowledged.
wait_for_lines() {
    while [ "$(cat "$work"/acknowledged.* | wc -l)" -lt "$1" ]; do
        sleep 0.1
        kill -0 "${writers[@]}" 2>/dev/null || fail "the writers ended: $(cat "$work"/writer.*.log)"
    done
}

# note_acknowledged: notes the rows that are acknowledged by a daemon that lives, and leaves it stopped. SQLite calls a
# commit durable after it removed the journal and could not open the directory to sync it (unixDelete in os_unix.c).
note_acknowledged() {
    local writer
    kill -STOP "$(daemon_of "$pool")"
    # Requests that were answered before end their transactions.
    sleep 0.3
    for writer in 1 2 3 4; do cp "$work/acknowledged.$writer" "$work/noted.$writer"; done
}

for mode in wal delete truncate persist; do
    step "four writers, and a reader, in mode $mode"
    make_database "$mnt/$mode.db" $mode
    count=$rows
    [ $mode = wal ] || count=$((rows / 4))
    start_writers "$mnt/$mode.db" "$count"
    for look in {1..5}; do
        sleep 0.3
        expect "$(query "$mnt/$mode.db" 'PRAGMA quick_check')" ok "quick_check $look beside the writers"
    done
    wait_for_writers
    expect "$(query "$mnt/$mode.db" 'SELECT count(*) FROM entries')" $((4 * count)) "rows in mode $mode"
    verify_database "$mnt/$mode.db"
done

step "read and written through a mapping"
make_database "$mnt/mapped.db" wal 'PRAGMA mmap_size = 268435456;'
start_writers "$mnt/mapped.db" $((rows / 2))
wait_for_writers
verify_database "$mnt/mapped.db"

step "a large transaction, vacuum, backup, dump and load"
query "$mnt/wal.db" "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)
    INSERT INTO entries (writer, number, content) SELECT 5, i, hex(randomblob(500)) FROM n;"
query "$mnt/wal.db" "DELETE FROM entries WHERE writer = 5 AND number % 3 = 0;"
query "$mnt/wal.db" 'PRAGMA wal_checkpoint(TRUNCATE)' >/dev/null
query "$mnt/wal.db" VACUUM
query "$mnt/wal.db" ".backup '$mnt/backup.db'"
query "$mnt/wal.db" .dump | query "$mnt/loaded.db"
for database in backup loaded; do
    query "$mnt/wal.db" .dump | cmp - <(query "$mnt/$database.db" .dump)
done

for crash in writers daemon; do
    for mode in wal delete; do
        step "crash of the $crash in mode $mode"
        database=$mnt/crash-$crash-$mode.db
        # Only with EXTRA is a commit durable when it returns: below it, WAL is synced only at checkpoints, and the
        # removal of a journal's name is not synced.
        make_database "$database" $mode 'PRAGMA synchronous = EXTRA;'
        start_writers "$database" 100000
        wait_for_lines 60
        if [ $crash = writers ]; then
            # The writers are children of the shells that wait for them.
            for pid in "${writers[@]}"; do
                for child in $(pgrep -P "$pid" -x sqlite3); do kill -9 "$child"; done
            done
        else
            note_acknowledged
            crash_daemon
        fi
        for pid in "${writers[@]}"; do wait "$pid" 2>/dev/null || true; done
        if [ $crash = daemon ]; then
            for writer in 1 2 3 4; do mv "$work/noted.$writer" "$work/acknowledged.$writer"; done
            mount_after_crash
        fi
        say "    $(cat "$work"/acknowledged.* | wc -l) rows acknowledged"
        verify_database "$database"
        query "$database" "UPDATE counts SET entries = entries"
    done
done

reclaim
query "$mnt/wal.db" .dump | sha256sum >"$work/dump.sum"
remount
step "all of it again"
for database in "$mnt"/*.db; do
    expect "$(query "$database" 'PRAGMA integrity_check')" ok "integrity_check of $database after a remount"
done
query "$mnt/wal.db" .dump | sha256sum | cmp - "$work/dump.sum"
close_pool
