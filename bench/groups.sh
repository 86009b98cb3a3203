#!/bin/sh
#
# groups.sh
#	  The first rows of each group: throughput as a ratio to decoding, memory.
#
# Queries q18 (the last bid of each bidder on each auction) and q19 (the 10
# highest bids of each auction) of the Nexmark benchmark, over bids made in
# SQL: half of them go to one percent of the auctions.  And one million rows
# in 4,096 groups of which the first (key modulo 3) + 1 rows are wanted.
#
# The worker is held while the rows are written; then the same WAL is decoded
# with empty callbacks (bench/null_plugin), and the worker is let go and
# timed until topn_sync() returns.
#
# BIDS		  rows of q18 and q19 (1000000)
# PER_COMMIT  rows inserted by a transaction (1000)
#
set -eu
cd "$(dirname "$0")/.."
. scripts/server.sh
. bench/lib.sh

BIDS=${BIDS:-1000000}
PER_COMMIT=${PER_COMMIT:-1000}

null_plugin_server_start

psql -X -q -v ON_ERROR_STOP=1 -f bench/null_plugin/null_plugin.sql -f - \
	>/dev/null <<'SQL'
CREATE EXTENSION live_topn;
CREATE TABLE bid (id bigint PRIMARY KEY, auction int NOT NULL,
	bidder int NOT NULL, price int NOT NULL, at timestamptz NOT NULL);
CREATE INDEX ON bid (auction, price DESC, id);
CREATE INDEX ON bid (bidder, auction, at DESC, id);
CREATE TABLE sample (id int PRIMARY KEY, key int NOT NULL,
	value int NOT NULL);
CREATE INDEX ON sample (key, value DESC, id);

CREATE PROCEDURE make_bids(first bigint, last bigint, per_commit int)
LANGUAGE plpgsql AS $$
BEGIN
	PERFORM setseed(0.5);
	FOR n IN first..last BY per_commit LOOP
		INSERT INTO bid
			SELECT i, CASE WHEN random() < 0.5 THEN random() * 100
				ELSE random() * 10000 END,
				random() * 5000, exp(random() * 14), now()
			FROM generate_series(n, least(n + per_commit - 1, last)) i;
		COMMIT;
	END LOOP;
END $$;

CREATE PROCEDURE make_samples(rows int, per_commit int)
LANGUAGE plpgsql AS $$
BEGIN
	PERFORM setseed(0.5);
	FOR n IN 1..rows BY per_commit LOOP
		INSERT INTO sample
			SELECT i, random() * 4095, random() * 1000000
			FROM generate_series(n, least(n + per_commit - 1, rows)) i;
		COMMIT;
	END LOOP;
END $$;
SQL

worker_cpu()
{
	cut -d ' ' -f 1 "/proc/$worker/schedstat"
}

resident()
{
	awk '/^VmRSS/ { print $2 }' "/proc/$worker/status"
}

# measure TITLE QUERY STATEMENT: a line of the table
measure()
{
	sql 'VACUUM ANALYZE'
	psql -X -q -v ON_ERROR_STOP=1 -v query="$2" >/dev/null <<'SQL'
SET client_min_messages = warning;
SELECT subscribe_topn(:'query', name => 'groups', deliver => 'none');
SQL
	sql "SELECT topn_snapshot('groups')" >/dev/null
	sql "SELECT pg_create_logical_replication_slot('null', 'null_plugin')" \
		>/dev/null
	worker=$(sql 'SELECT pid FROM topn_worker')
	memory=$(resident)

	kill -STOP "$worker"
	PGOPTIONS='-c synchronous_commit=off' sql "$3"
	sql "SELECT pg_logical_emit_message(true, 'bench', '')" >/dev/null
	upto=$(sql 'SELECT pg_current_wal_flush_lsn()')
	for _ in 1 2 3; do
		sql "SELECT * FROM null_decode('null', '$upto')"
	done | sort -g | sed -n 2p >"$workdir/null" # seconds|cpu|commits|changes

	cpu=$(worker_cpu)
	topn=$(psql -X -q -A -t -v ON_ERROR_STOP=1 -v worker="$worker" <<'SQL'
SELECT clock_timestamp() AS start \gset
\setenv WORKER :worker
\! kill -CONT $WORKER
SELECT topn_sync('10 min') \g /dev/null
SELECT extract(epoch FROM clock_timestamp() - :'start');
SQL
)
	cpu=$(($(worker_cpu) - cpu))
	memory=$(($(resident) - memory))
	stats=$(sql 'SELECT groups, held_rows, refills FROM topn_stats')
	sql "SELECT pg_drop_replication_slot('null')" >/dev/null
	sql "SELECT unsubscribe_topn('groups')" >/dev/null
	wait_for 'SELECT count(*) = 0 FROM pg_replication_slots'

	echo "$(cat "$workdir/null")|$topn|$cpu|$memory|$stats" |
		awk -F '|' -v title="$1" '{
			printf "| %s | %d | %d | %d | %d | %.2f s (%.2f s) | %.2f s (%.2f s) | %.2f | %d | %.0f |\n",
				title, $4, $8, $9, $10, $1, $2, $5, $6 / 1e9, $1 / $5,
				$4 / $5, $7 * 1024 / $8
		}'
}

echo "### The first rows of each group"
echo
machine
echo
echo "$PER_COMMIT rows a transaction; elapsed time, and CPU time of the" \
	"process in parentheses.  Memory is what the worker's resident size" \
	"grew by."
echo
echo "| query | rows | groups | rows held | refills | empty callbacks | live_topn | ratio | rows/s | bytes a group |"
echo "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
measure 'q18' 'SELECT id, auction, bidder, price, at FROM (SELECT *,
	row_number() OVER (PARTITION BY bidder, auction ORDER BY at DESC) AS n
	FROM bid) x WHERE n = 1' "CALL make_bids(1, $BIDS, $PER_COMMIT)"
sql 'TRUNCATE bid'
measure 'q19' 'SELECT id, auction, bidder, price, at, n FROM (SELECT *,
	row_number() OVER (PARTITION BY auction ORDER BY price DESC) AS n
	FROM bid) x WHERE n <= 10' "CALL make_bids(1, $BIDS, $PER_COMMIT)"
measure 'bound from the key' 'SELECT id, key, value FROM (SELECT *,
	row_number() OVER (PARTITION BY key ORDER BY value DESC) AS n
	FROM sample) x WHERE n <= key % 3 + 1' \
	"CALL make_samples(1000000, $PER_COMMIT)"
