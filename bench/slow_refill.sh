#!/bin/sh
#
# slow_refill.sh
#	  One subscription's slow query beside another subscription, under load.
#
# pgbench updates, as fast as it can, rows of a small table and rows of a large
# one.  A subscription to the small one is timed (bench/latency.c), first
# alone, then while the rows of another one are read from the large table
# again and again, without an index.  What is committed meanwhile waits in the
# commit log for that.  At the end its result must be right.
#
# ROWS		  of the large table (10000000)
# DURATION	  seconds of each run (30)
# CLIENTS	  of pgbench (8)
#
set -eu
cd "$(dirname "$0")/.."
. scripts/server.sh
. bench/lib.sh

ROWS=${ROWS:-10000000}
DURATION=${DURATION:-30}
CLIENTS=${CLIENTS:-8}

make -s -C bench latency >&2
server_create "track_commit_timestamp = on" "checkpoint_timeout = '1h'" \
	"max_parallel_workers_per_gather = 0" \
	"live_topn.request_timeout = '30min'"
server_start

psql -X -q -v ON_ERROR_STOP=1 -v rows="$ROWS" >/dev/null <<'SQL'
CREATE EXTENSION live_topn;
CREATE TABLE player (id int PRIMARY KEY, score int NOT NULL);
INSERT INTO player SELECT i, i FROM generate_series(1, 100) i;
CREATE TABLE large (id int PRIMARY KEY, score int NOT NULL, name text);
INSERT INTO large
	SELECT i, random() * 1000000, 'row ' || i FROM generate_series(1, :rows) i;
VACUUM ANALYZE;
SELECT subscribe_topn('SELECT id, score FROM player
	ORDER BY score DESC LIMIT 100', name => 'top');
SELECT topn_sync('1 min');
SQL
cat >"$workdir/load.sql" <<SQL
\\set id random(1, 100)
\\set score random(1, 1000000000)
\\set large random(1, $ROWS)
\\set large_score random(1, 1000000)
BEGIN;
UPDATE large SET score = :large_score WHERE id = :large;
UPDATE player SET score = :score WHERE id = :id;
END;
SQL

query="SELECT id, score FROM large WHERE md5(md5(md5(name))) > '8'
	ORDER BY score DESC, id LIMIT 100"

# run: "notifications median p99 max tps"
run()
{
	bench/latency top "SELECT topn_sync('10 min')" \
		sh -c 'exec "$@" >"$PGHOST/pgbench.log" 2>&1' sh \
		pgbench -n -M prepared -c "$CLIENTS" -j 2 -T "$DURATION" \
		-f "$workdir/load.sql" >"$workdir/latency.log" ||
		{ cat "$workdir/pgbench.log" >&2; exit 1; }
	echo "$(cat "$workdir/latency.log")" \
		"$(sed -n 's/^tps = \([0-9.]*\).*/\1/p' "$workdir/pgbench.log")"
}

# Read the large table as long as the file is there; the last subscription
# stays.
read_again_and_again()
{
	n=0
	while [ -e "$workdir/go" ]; do
		[ $n -eq 0 ] || sql "SELECT unsubscribe_topn('slow_$n')" >/dev/null
		n=$((n + 1))
		sql "SELECT subscribe_topn(\$q\$$query\$q\$, 'slow_$n',
			deliver => 'none')" >/dev/null
		sql "SELECT seq FROM topn_snapshot('slow_$n')" >/dev/null
		sql "SELECT refill_ms FROM topn_stats WHERE name = 'slow_$n'" \
			>>"$workdir/refills"
	done
}

# The most that was in the commit log: "commits MB"
watch_log()
{
	while [ -e "$workdir/go" ]; do
		sql 'SELECT log_entries, log_bytes / 1000000 FROM topn_worker'
		sleep 0.2
	done | awk -F '|' '$1 > n { n = $1 } $2 > b { b = $2 } END { print n, b }'
}

# Private memory of the worker in MB, as it is or at its most.
memory()
{
	awk -v field="$1:" '$1 == field { n += $2 }
		field == "VmHWM:" && ($1 == "RssFile:" || $1 == "RssShmem:") { n -= $2 }
		END { print n / 1000 }' \
		"/proc/$(sql 'SELECT pid FROM topn_worker')/status"
}

alone=$(run)
before=$(memory RssAnon)
touch "$workdir/go"
watch_log >"$workdir/log" &
watcher=$!
read_again_and_again &
reader=$!
beside=$(run)
rm "$workdir/go"
wait $watcher
wait $reader
peak=$(memory VmHWM)

name=$(sql "SELECT name FROM topn_subscriptions WHERE name <> 'top'")
difference=$(sql "SELECT count(*) FROM (
	(SELECT * FROM topn_rows('$name') AS (id int, score int)
		EXCEPT ALL ($query)) UNION ALL
	(($query) EXCEPT ALL SELECT * FROM topn_rows('$name') AS (id int, score int))) d")
[ "$difference" = 0 ] ||
	{ echo "the subscription to the large table is wrong" >&2; exit 1; }

set -- $(cat "$workdir/log")
echo "### A slow refill beside another subscription"
echo
machine
echo
echo "$CLIENTS pgbench clients update two tables in $DURATION s. Beside means:" \
	"a query without an index of $ROWS rows runs all the time, for another" \
	"subscription, and takes $(median <"$workdir/refills" |
		awk '{ printf "%.1f", $1 / 1000 }') s. That one is right at the end."
echo
echo "| | notifications | median | p99 | max | transactions a second |"
echo "|---|--:|--:|--:|--:|--:|"
calc "| alone | %d | %.2f ms | %.2f ms | %.2f ms | %d |\n" \
	$alone
calc "| beside a slow refill | %d | %.2f ms | %.2f ms | %.2f ms | %d |\n" \
	$beside
echo
echo "The commit log had up to $1 commits of $2 MB; the worker's private" \
	"memory grew from $before to at most $peak MB" \
	"(live_topn.memory_limit is $(sql 'SHOW live_topn.memory_limit'))."
