#!/bin/sh
#
# decode.sh
#	  The worker's throughput, as a ratio to decoding with empty callbacks.
#
# In each round the worker is held while pgbench writes; then the same WAL is
# decoded with empty callbacks (bench/null_plugin), and the worker is let go
# and timed until topn_sync() returns.  Ratio 1 would be: live_topn costs
# nothing beside PostgreSQL's own decoding.
#
# TXNS		  one-row transactions of a round (300000)
# BIG		  transactions of a round in the case of big ones (10)
# BIG_ROWS	  rows updated by each (100000)
# ROUNDS	  per case; medians are reported (3)
#
set -eu
cd "$(dirname "$0")/.."
. scripts/server.sh
. bench/lib.sh

TXNS=${TXNS:-300000}
BIG=${BIG:-10}
BIG_ROWS=${BIG_ROWS:-100000}
ROUNDS=${ROUNDS:-3}

null_plugin_server_start
psql -X -q -v ON_ERROR_STOP=1 -v rows="$BIG_ROWS" \
	-f bench/null_plugin/null_plugin.sql -f - >/dev/null <<'SQL'
CREATE EXTENSION live_topn;
CREATE TABLE player (id int PRIMARY KEY, score int NOT NULL, name text);
INSERT INTO player
	SELECT i, random() * 1000000, 'player ' || i
	FROM generate_series(1, greatest(:rows, 1000)) i;
CREATE TABLE other (LIKE player INCLUDING ALL);
INSERT INTO other SELECT * FROM player;
VACUUM ANALYZE;
SQL

for table in other player; do
	cat >"$workdir/$table.sql" <<SQL
\\set id random(1, $BIG_ROWS)
\\set score random(1, 1000000)
UPDATE $table SET score = :score WHERE id = :id;
SQL
done
mv "$workdir/other.sql" "$workdir/none.sql"
cp "$workdir/player.sql" "$workdir/few.sql"
mv "$workdir/player.sql" "$workdir/refill.sql"
cat >"$workdir/every.sql" <<'SQL'
\set id random(1, 50)
\set score random(2000000, 3000000)
UPDATE player SET score = :score WHERE id = :id;
SQL
cat >"$workdir/big.sql" <<'SQL'
UPDATE player SET name = name WHERE id > 50;
SQL

# load CASE: write WAL
load()
{
	case $1 in
		big) clients=1 transactions=$BIG ;;
		*) clients=2 transactions=$((TXNS / 2)) ;;
	esac
	PGOPTIONS='-c synchronous_commit=off' \
		pgbench -n -M prepared -c $clients -j $clients -t $transactions \
		-f "$workdir/$1.sql" >"$workdir/pgbench.log" 2>&1 ||
		{ cat "$workdir/pgbench.log" >&2; exit 1; }
	# Flush it.
	sql "SELECT pg_logical_emit_message(true, 'bench', '')" >/dev/null
}

# measure CASE: one line, "commits changes batches refills" and the seconds:
# "null null-cpu topn topn-cpu"
measure()
{
	# A cushion that lasts, but for the case of refills.
	[ "$1" = refill ] && cushion=NULL || cushion=1000
	sql 'VACUUM'
	sql 'CHECKPOINT'
	sql "SELECT subscribe_topn('SELECT id, score, name FROM player
		ORDER BY score DESC LIMIT 50', name => 'top', cushion => $cushion)" \
		>/dev/null
	sql "SELECT topn_snapshot('top')" >/dev/null
	sql "SELECT pg_create_logical_replication_slot('null', 'null_plugin')" \
		>/dev/null
	worker=$(sql 'SELECT pid FROM topn_worker')
	before=$(sql 'SELECT batches, refills FROM topn_stats')

	kill -STOP "$worker"
	load "$1"
	null=$(null_decode_time)	# seconds|cpu|commits|changes

	cpu=$(worker_cpu)
	topn=$(worker_sync_time)
	cpu=$(($(worker_cpu) - cpu))
	[ "$worker" = "$(sql 'SELECT pid FROM topn_worker')" ] ||
		{ echo "the worker was restarted" >&2; exit 1; }
	sql "SELECT pg_drop_replication_slot('null')" >/dev/null
	after=$(sql 'SELECT batches, refills FROM topn_stats')
	sql "SELECT unsubscribe_topn('top')" >/dev/null
	wait_for 'SELECT count(*) = 0 FROM pg_replication_slots'
	echo "$null|$before|$after|$topn|$cpu" | awk -F '|' \
		'{ print $3, $4, $7 - $5, $8 - $6, $1, $2, $9, $10 / 1e9 }'
}

column()
{
	awk -v n="$1" '{ print $n }' "$workdir/measured" | median
}

echo "### Worker throughput against decoding with empty callbacks"
echo
machine
echo
echo "One subscription: the first 50 of $BIG_ROWS rows. Medians of $ROUNDS" \
	"rounds: elapsed time, and CPU time of the process in parentheses."
echo
echo "| WAL | commits | changes | batches | refills | empty callbacks | live_topn | ratio | commits/s | changes/s |"
echo "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
for case in none few refill every big; do
	case $case in
		none) title='one-row updates of another table' ;;
		few) title='one-row updates, few touch the window' ;;
		refill) title='the same, with a small cushion' ;;
		every) title='one-row updates, every one touches the window' ;;
		big) title="updates of $BIG_ROWS rows, none touches the window" ;;
	esac
	# From here on the same 50 rows make up the result.
	[ $case != every ] ||
		sql 'UPDATE player SET score = 2000000 + id WHERE id <= 50'
	: >"$workdir/measured"
	for _ in $(seq 1 "$ROUNDS"); do
		measure $case >>"$workdir/measured"
	done
	commits=$(column 1) changes=$(column 2) batches=$(column 3)
	refills=$(column 4) null=$(column 5) null_cpu=$(column 6)
	topn=$(column 7) topn_cpu=$(column 8)
	calc "| $title | %d | %d | %d | %d | %.3f s (%.3f s) | %.3f s (%.3f s) | %.2f (%.2f) | %d | %d |\n" \
		"$commits" "$changes" "$batches" "$refills" "$null" "$null_cpu" \
		"$topn" "$topn_cpu" "$null / $topn" "$null_cpu / $topn_cpu" \
		"$commits / $topn" "$changes / $topn"
done
