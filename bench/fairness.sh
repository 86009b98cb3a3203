#!/bin/sh
#
# fairness.sh
#	  Subscriptions beside one that changes all the time, and beside one whose
#	  refills are slow.
#
# pgbench updates, at a fixed rate, rows of which each is in the result of one
# of several small subscriptions, and these are timed (bench/latency.c).  At
# the same time, in all runs alike, it updates all rows of a second table in
# each of its transactions, and deletes the first row of a large one.  First
# nobody subscribes to these two; then somebody to the second table, so that
# each commit changes every row of that result; then to the large one, without
# an index, without a cushion: each departure needs a refill, which reads the
# whole table, while what is committed meanwhile waits in the commit log.  At
# the end its result must be right.
#
# SUBSCRIPTIONS	  that are timed (20)
# RATE			  commits a second that change them (1000)
# OTHER_RATE	  commits a second that change the other tables (10)
# ROWS			  of the large table (2000000)
# DURATION		  seconds of each run (20)
#
set -eu
cd "$(dirname "$0")/.."
. scripts/server.sh
. bench/lib.sh

SUBSCRIPTIONS=${SUBSCRIPTIONS:-20}
RATE=${RATE:-1000}
OTHER_RATE=${OTHER_RATE:-10}
ROWS=${ROWS:-2000000}
DURATION=${DURATION:-20}

make -s -C bench latency >&2
server_create "track_commit_timestamp = on" "checkpoint_timeout = '1h'" \
	"max_parallel_workers_per_gather = 0" \
	"live_topn.request_timeout = '30min'"
server_start

psql -X -q -v ON_ERROR_STOP=1 -v rows="$ROWS" -v n="$SUBSCRIPTIONS" \
	>/dev/null <<'SQL'
CREATE EXTENSION live_topn;
CREATE TABLE player (id int PRIMARY KEY, team int NOT NULL, score int NOT NULL);
INSERT INTO player SELECT i, i / 20, i FROM generate_series(0, 20 * :n - 1) i;
CREATE TABLE busy (id int PRIMARY KEY, score int NOT NULL);
INSERT INTO busy SELECT i, i FROM generate_series(1, 1000) i;
CREATE TABLE large (id int PRIMARY KEY, score int NOT NULL, name text);
INSERT INTO large
	SELECT i, :rows - i, 'row ' || i FROM generate_series(1, :rows) i;
CREATE SEQUENCE first_large;
VACUUM ANALYZE;
SELECT subscribe_topn('SELECT id, score FROM player
	WHERE team = $1 ORDER BY score DESC LIMIT 20',
	name => 's' || i, args => ARRAY[i::text]) FROM generate_series(0, :n - 1) i;
SELECT topn_sync('1 min');
SQL
cat >"$workdir/load.sql" <<SQL
\\set id random(0, 20 * $SUBSCRIPTIONS - 1)
\\set score random(1, 1000000000)
UPDATE player SET score = :score WHERE id = :id;
SQL
cat >"$workdir/other.sql" <<'SQL'
SELECT nextval('first_large') AS first \gset
BEGIN;
UPDATE busy SET score = random() * 1000000;
DELETE FROM large WHERE id = :first;
END;
SQL

busy_query='SELECT id, score FROM busy ORDER BY score DESC, id LIMIT 1000'
slow_query="SELECT id, score FROM large WHERE md5(md5(md5(name))) > '8'
	ORDER BY score DESC, id LIMIT 100"

# run: the same as latency_of_load
run()
{
	pgbench -n -c 1 --rate "$OTHER_RATE" -T "$DURATION" \
		-f "$workdir/other.sql" >"$workdir/other.log" 2>&1 &
	other=$!
	latency_of_load "$(seq -s ' ' -f 's%g' 0 $((SUBSCRIPTIONS - 1)))" \
		"SELECT topn_sync('10 min')" --rate "$RATE" -T "$DURATION"
	wait $other || { cat "$workdir/other.log" >&2; exit 1; }
}

# subscribe NAME QUERY [CUSHION]: and wait for the first load
subscribe()
{
	sql "SELECT subscribe_topn(\$q\$$2\$q\$, '$1',
		cushion => ${3:-NULL})" >/dev/null
	sql "SELECT seq FROM topn_snapshot('$1')" >/dev/null
}

# unsubscribe NAME QUERY: if it is right
unsubscribe()
{
	difference=$(sql "SELECT count(*) FROM (
		(SELECT * FROM topn_rows('$1') AS (id int, score int) EXCEPT ALL ($2))
		UNION ALL
		(($2) EXCEPT ALL SELECT * FROM topn_rows('$1') AS (id int, score int))) d")
	[ "$difference" = 0 ] || { echo "subscription $1 is wrong" >&2; exit 1; }
	sql "SELECT unsubscribe_topn('$1')" >/dev/null
}

# stats NAME COLUMNS: of a subscription, separated by spaces
stats()
{
	sql "SELECT $2 FROM topn_stats WHERE name = '$1'" | tr '|' ' '
}

# The most that was in the commit log: "commits MB"
watch_log()
{
	while [ -e "$workdir/go" ]; do
		sql 'SELECT log_entries, log_bytes / 1e6 FROM topn_worker'
		sleep 0.2
	done | awk -F '|' '$1 > n { n = $1 } $2 > b { b = $2 }
		END { printf "%d %.1f\n", n, b }'
}

# Private memory of the worker in MB, as it is or at its most.
memory()
{
	awk -v field="$1:" '$1 == field { n += $2 }
		field == "VmHWM:" && ($1 == "RssFile:" || $1 == "RssShmem:") { n -= $2 }
		END { printf "%.0f\n", n / 1000 }' \
		"/proc/$(sql 'SELECT pid FROM topn_worker')/status"
}

alone=$(run)

subscribe busy "$busy_query"
deltas=$(stats busy deltas)
beside_busy=$(run)
deltas=$(($(stats busy deltas) - deltas))
unsubscribe busy "$busy_query"

subscribe slow "$slow_query" 0
refills=$(stats slow 'refills, refill_ms')
before=$(memory RssAnon)
touch "$workdir/go"
watch_log >"$workdir/log" &
watcher=$!
beside_slow=$(run)
rm "$workdir/go"
wait $watcher
peak=$(memory VmHWM)
refills="$(stats slow 'refills, refill_ms') $refills"
unsubscribe slow "$slow_query"

echo "### Beside subscriptions that need much"
echo
machine
echo
echo "$SUBSCRIPTIONS subscriptions of 20 rows are timed, while $RATE commits a" \
	"second change one each, $OTHER_RATE a second change all 1,000 rows of" \
	"another table and delete a row of one of $ROWS rows, in all three runs of" \
	"$DURATION s."
echo
echo "| | notifications | median | p99 | max | commits a second |"
echo "|---|--:|--:|--:|--:|--:|"
row()
{
	title=$1
	shift
	calc "| $title | %d | %.2f ms | %.2f ms | %.2f ms | %d |\n" "$@"
}
row 'nobody subscribes to these' $alone
row 'beside a result of all 1,000 rows' $beside_busy
row 'beside a result that needs slow refills' $beside_slow
echo
set -- $refills $(cat "$workdir/log")
calc "The result of 1,000 rows had %d deltas a second. The other one was refilled %d times, in %.1f s each" \
	"$deltas / $DURATION" "$1 - $3" "($2 - $4) / ($1 - $3 + ($1 == $3)) / 1000"
echo "; meanwhile the commit log had up to $5 commits of $6 MB, and the" \
	"worker's private memory grew from $before to at most $peak MB" \
	"(live_topn.memory_limit is $(sql 'SHOW live_topn.memory_limit')). Both" \
	"were right at the end."
