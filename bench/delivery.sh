#!/bin/sh
#
# delivery.sh
#	  What publishing costs: batches a second, WAL and CPU time for each.
#
# The worker is held while pgbench makes commits that each change the result;
# then it is let go and timed until topn_sync() returns.  In the same run, what
# the same payloads cost when they are sent by nothing but pg_notify() or
# pg_logical_emit_message(), each in transactions of 1,000.
#
# TXNS		  commits, and so batches, of a round (50000)
# ROUNDS	  per case; medians are reported (3)
#
set -eu
cd "$(dirname "$0")/.."
. scripts/server.sh
. bench/lib.sh

TXNS=${TXNS:-50000}
ROUNDS=${ROUNDS:-3}

server_create "checkpoint_timeout = '1h'" "autovacuum = off"
server_start

psql -X -q -v ON_ERROR_STOP=1 <<'SQL' >/dev/null
CREATE EXTENSION live_topn;
CREATE TABLE player (id int PRIMARY KEY, score int NOT NULL, name text);
INSERT INTO player SELECT i, i, 'player ' || i FROM generate_series(1, 20) i;
CREATE PROCEDURE bare(call text, payload text, n int) LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. n LOOP
		EXECUTE call USING i || payload;
		IF i % 1000 = 0 THEN
			COMMIT;
		END IF;
	END LOOP;
END $$;
SQL
cat >"$workdir/update.sql" <<'SQL'
\set id random(1, 20)
\set score random(1, 1000000)
UPDATE player SET score = :score WHERE id = :id;
SQL

# timed SQL: seconds that it takes
timed()
{
	psql -X -q -A -t -v ON_ERROR_STOP=1 <<SQL
SET synchronous_commit = off;
SELECT clock_timestamp() AS start \\gset
$1 \\g /dev/null
SELECT extract(epoch FROM clock_timestamp() - :'start');
SQL
}

# wal_since LSN: bytes
wal_since()
{
	sql "SELECT pg_current_wal_insert_lsn() - '$1'"
}

# measure DELIVER: "batches seconds cpu wal"
measure()
{
	sql "SELECT subscribe_topn('SELECT id, score, name FROM player
		ORDER BY score DESC LIMIT 20', name => 'top', deliver => '$1')" >/dev/null
	sql "SELECT topn_sync('1 min')" >/dev/null
	worker=$(sql 'SELECT pid FROM topn_worker')
	kill -STOP "$worker"
	PGOPTIONS='-c synchronous_commit=off' \
		pgbench -n -M prepared -c 2 -j 2 -t $((TXNS / 2)) \
		-f "$workdir/update.sql" >"$workdir/pgbench.log" 2>&1
	lsn=$(sql 'SELECT pg_current_wal_insert_lsn()')
	cpu=$(cut -d ' ' -f 1 "/proc/$worker/schedstat")
	seconds=$(timed "\\! kill -CONT $worker
SELECT topn_sync('10 min')")
	cpu=$(($(cut -d ' ' -f 1 "/proc/$worker/schedstat") - cpu))
	echo "$(sql 'SELECT batches FROM topn_stats') $seconds" \
		"$(calc '%f' "$cpu / 1e9") $(wal_since "$lsn")"
	sql "SELECT unsubscribe_topn('top')" >/dev/null
	wait_for 'SELECT count(*) = 0 FROM pg_replication_slots'
}

# measure_bare CALL: the same for a call of a function
measure_bare()
{
	lsn=$(sql 'SELECT pg_current_wal_insert_lsn()')
	seconds=$(timed "CALL bare('$1', repeat('x', 160), $TXNS)" |
		sed '/^$/d' | tail -n 1)
	echo "$TXNS $seconds 0 $(wal_since "$lsn")"
}

column()
{
	awk -v n="$1" '{ print $n }' "$workdir/measured" | median
}

row()
{
	n=$(column 1) seconds=$(column 2) cpu=$(column 3) wal=$(column 4)
	calc "| $1 | %d | %d | %.1f | %d |\n" "$n" "$n / $seconds" \
		"$cpu / $n * 1e6" "$wal / $n"
}

echo "### Publishing"
echo
machine
echo
echo "One subscription of 20 rows, every commit changes the result. Medians of" \
	"$ROUNDS rounds. A payload has about 160 bytes."
echo
echo "| | batches | a second | worker CPU, µs each | WAL, bytes each |"
echo "|---|--:|--:|--:|--:|"
for deliver in none notify stream both; do
	: >"$workdir/measured"
	for _ in $(seq 1 "$ROUNDS"); do
		measure $deliver >>"$workdir/measured"
	done
	row "live_topn, deliver => '$deliver'"
done
for call in "SELECT pg_notify(''c'', \$1)" \
	"SELECT pg_logical_emit_message(true, ''c'', \$1)"; do
	: >"$workdir/measured"
	for _ in $(seq 1 "$ROUNDS"); do
		measure_bare "$call" >>"$workdir/measured"
	done
	row "bare $(echo "$call" | sed 's/SELECT \([a-z_]*\).*/\1/')"
done
