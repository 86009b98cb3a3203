#!/bin/sh
#
# sets.sh
#	  A result without positions: what it costs to hold its rows, and not to.
#
# The worker is held while pgbench updates single rows, half of which are in the
# result and leave it, or enter; then it is let go until topn_sync() returns.
#
# ROWS			of the table; half of them are in the result (1000000)
# TRANSACTIONS	one-row updates (100000)
#
set -eu
cd "$(dirname "$0")/.."
. scripts/server.sh
. bench/lib.sh

ROWS=${ROWS:-1000000}
TRANSACTIONS=${TRANSACTIONS:-100000}

server_create "checkpoint_timeout = '1h'" "autovacuum = off" \
	"synchronous_commit = off" "live_topn.request_timeout = '5min'"
server_start
psql -X -q -v ON_ERROR_STOP=1 -v rows="$ROWS" <<'SQL'
CREATE EXTENSION live_topn;
CREATE TABLE part (id int PRIMARY KEY, stock int NOT NULL, body text NOT NULL);
INSERT INTO part SELECT i, i % 1000, repeat('x', 60)
	FROM generate_series(1, :rows) i;
SQL
cat >"$workdir/update.sql" <<SQL
\set id random(1, $ROWS)
UPDATE part SET stock = (stock + 250) % 1000 WHERE id = :id;
SQL

resident()
{
	awk '/^RssAnon/ { print $2 }' "/proc/$worker/status"
}

# measure IDENTITY: a line of the table
measure()
{
	sql "ALTER TABLE part REPLICA IDENTITY $1"
	sql 'VACUUM ANALYZE part'
	sql "SELECT subscribe_topn('SELECT id, stock, body FROM part
		WHERE stock < 500', 'set', deliver => 'none')" >/dev/null
	wait_for "SELECT state = 'live' FROM topn_subscriptions"
	worker=$(sql 'SELECT pid FROM topn_worker')

	sql "SELECT topn_snapshot('set')" >/dev/null
	held=$(sql 'SELECT held_rows FROM topn_stats')
	kill -STOP "$worker"
	pgbench -n -c 4 -t $((TRANSACTIONS / 4)) -f "$workdir/update.sql" \
		>/dev/null 2>&1
	cpu=$(worker_cpu)
	worker_sync_time >/dev/null
	cpu=$(($(worker_cpu) - cpu))
	printf '| %s | %d | %d | %d | %s |\n' "$1" "$held" \
		"$(sql 'SELECT batches FROM topn_stats')" \
		"$(($(resident) / 1024))" \
		"$(calc '%.1f' "$cpu / $TRANSACTIONS / 1000")"
	sql "SELECT unsubscribe_topn('set')" >/dev/null
	wait_for 'SELECT count(*) = 0 FROM pg_replication_slots'
}

echo "### A set of half of $ROWS rows, through $TRANSACTIONS one-row updates"
echo
machine
echo
echo "| replica identity | rows held | batches | worker, MB | its CPU time for a commit, µs |"
echo "|---|--:|--:|--:|--:|"
measure FULL
measure DEFAULT
