#!/bin/sh
#
# many.sh
#	  Many subscriptions to one table: the worker's throughput, as a ratio to
#	  decoding with empty callbacks, its memory, and how they come and go.
#
# Each subscription is the first 20 rows of one tenant.  In case a one-row
# updates are spread over all tenants and touch no window; in case b each of
# them touches the window of one.  In case c subscriptions have overlapping
# ranges of a smaller table instead, and updates touch few windows.  Case d is
# a in an order that can fail, as a sum may by overflow: then each update is
# looked at outside of decoding, by the subscription of its tenant.
#
# SUBSCRIPTIONS	  how many, one number after the other (1 100 10000 100000)
# RANGES		  subscriptions in cases c and d (10000)
# SINGLE		  subscriptions that are made in a transaction each (10000)
# TXNS			  one-row transactions of a round (200000)
# ROUNDS		  per case; medians are reported (3)
#
set -eu
cd "$(dirname "$0")/.."
. scripts/server.sh
. bench/lib.sh

SUBSCRIPTIONS=${SUBSCRIPTIONS:-1 100 10000 100000}
RANGES=${RANGES:-10000}
SINGLE=${SINGLE:-10000}
TXNS=${TXNS:-200000}
ROUNDS=${ROUNDS:-3}
TENANTS=$(echo "$SUBSCRIPTIONS" | tr ' ' '\n' | sort -g | tail -n 1)
[ "$TENANTS" -ge 1000 ] || TENANTS=1000

null_plugin_server_start
psql -X -q -v ON_ERROR_STOP=1 -v tenants="$TENANTS" \
	-f bench/null_plugin/null_plugin.sql -f - >/dev/null <<'SQL'
CREATE EXTENSION live_topn;
CREATE TABLE item (id int PRIMARY KEY, tenant int NOT NULL,
	price int NOT NULL, score int NOT NULL, note text);
INSERT INTO item
	SELECT t * 40 + k, t, hashint4(t * 40 + k) & 1048575, k * 1000,
		repeat('x', 84)
	FROM generate_series(0, :tenants - 1) t, generate_series(0, 39) k;
CREATE INDEX ON item (tenant, score DESC, id);
CREATE TABLE priced (LIKE item INCLUDING INDEXES);
INSERT INTO priced SELECT * FROM item WHERE id < 40000;
CREATE INDEX ON priced (price);
VACUUM ANALYZE;
SQL

# What is far down, and what is in the result, of each tenant.
for case in a b; do
	[ $case = a ] && first=0 || first=25
	cat >"$workdir/$case.sql" <<SQL
\\set tenant random(0, $((TENANTS - 1)))
\\set k random($first, $((first + 14)))
\\set score random($((first * 1000)), $(((first + 14) * 1000)))
UPDATE item SET score = :score WHERE id = :tenant * 40 + :k;
SQL
done
sed -e "s/random(0, $((TENANTS - 1)))/random(0, $((RANGES - 1)))/" \
	"$workdir/a.sql" >"$workdir/d.sql"
sed -e 's/UPDATE item/UPDATE priced/' -e "s/random(0, $((TENANTS - 1)))/random(0, 999)/" \
	"$workdir/a.sql" >"$workdir/c.sql"

cat >"$workdir/single.sql" <<SQL
\\set i :i + 1
\\set tenant (:client_id * $((SINGLE / 2)) + :i) % $TENANTS
SELECT subscribe_topn('SELECT id, score, note FROM item WHERE tenant = \$1 ORDER BY score DESC LIMIT 20', name => 's' || :client_id || '_' || :i, args => ARRAY[(:tenant)::text], deliver => 'none');
SQL

# subscribe KIND N, in one transaction: seconds that takes, and until all are
# live
subscribe()
{
	table=item order=score
	case $1 in
		ranges) table=priced
			where="price BETWEEN \$1::int AND \$1::int + 20000"
			value='((i * 104729)::bigint % 1000000)::text' ;;
		tenants) where="tenant = \$1" value='i::text' ;;
		sums) where="tenant = \$1" value='i::text' order='score + id % 2' ;;
		empty) where="tenant = \$1" value='(-1 - i)::text' ;;
	esac
	psql -X -q -A -t -F ' ' -v ON_ERROR_STOP=1 <<SQL
SET client_min_messages = warning;
SELECT clock_timestamp() AS start \\gset
SELECT count(subscribe_topn('SELECT id, score, note FROM $table WHERE $where
	ORDER BY $order DESC LIMIT 20', name => 's' || i, args => ARRAY[$value],
	deliver => 'none')) FROM generate_series(0, $2 - 1) i \\g /dev/null
SELECT clock_timestamp() - :'start' AS made \\gset
SELECT topn_sync('60 min') \\g /dev/null
SELECT extract(epoch FROM :'made'::interval),
	extract(epoch FROM clock_timestamp() - :'start');
SQL
}

# The same in a transaction each.
subscribe_singly()
{
	start=$(now)
	pgbench -n -M prepared -c 2 -j 2 -D i=0 -t $(($1 / 2)) \
		-f "$workdir/single.sql" >"$workdir/pgbench.log" 2>&1 ||
		{ cat "$workdir/pgbench.log" >&2; exit 1; }
	made=$(now)
	sql "SELECT topn_sync('60 min')" >/dev/null
	calc "%f %f" "$made - $start" "$(now) - $start"
}

now()
{
	date +%s.%N
}

# Seconds that the server takes to stop, when the worker saves its windows, and
# from the start until all results are known.
restart()
{
	start=$(now)
	server_stop fast
	stopped=$(now)
	server_start
	sql "SELECT topn_sync('60 min')" >/dev/null
	calc "%f %f" "$stopped - $start" "$(now) - $stopped"
}

unsubscribe_all()
{
	start=$(now)
	sql "SELECT count(unsubscribe_topn(name)) FROM topn_subscriptions" \
		>/dev/null
	wait_for 'SELECT count(*) = 0 FROM pg_replication_slots'
	calc "%f" "$(now) - $start"
}

# Megabytes of the worker.
memory()
{
	worker=$(sql 'SELECT pid FROM topn_worker')
	awk '/^RssAnon/ { print $2 / 1024 }' "/proc/$worker/status"
}

# round CASE: one line, "null null-cpu topn topn-cpu"
round()
{
	sql "SELECT pg_create_logical_replication_slot('null', 'null_plugin')" \
		>/dev/null
	kill -STOP "$worker"
	PGOPTIONS='-c synchronous_commit=off' \
		pgbench -n -M prepared -c 2 -j 2 -t $((TXNS / 2)) \
		-f "$workdir/$1.sql" >"$workdir/pgbench.log" 2>&1 ||
		{ cat "$workdir/pgbench.log" >&2; exit 1; }
	sql "SELECT pg_logical_emit_message(true, 'bench', '')" >/dev/null
	null=$(null_decode_time)
	cpu=$(worker_cpu)
	topn=$(worker_sync_time)
	cpu=$(($(worker_cpu) - cpu))
	sql "SELECT pg_drop_replication_slot('null')" >/dev/null
	echo "$null|$topn|$cpu" |
		awk -F '|' '{ print $1, $2, $5, $6 / 1e9 }'
}

column()
{
	awk -v n="$1" '{ print $n }' "$workdir/measured" | median
}

# measure CASE N: a row of the table of throughput
measure()
{
	case $1 in
		a) title='one for each tenant, no window touched' ;;
		b) title='the same, each update touches a window' ;;
		c) title='overlapping ranges' ;;
		d) title='one for each tenant, ordered by a sum' ;;
	esac
	worker=$(sql 'SELECT pid FROM topn_worker')
	: >"$workdir/measured"
	for _ in $(seq 1 "$ROUNDS"); do
		round "$1" >>"$workdir/measured"
	done
	null=$(column 1) null_cpu=$(column 2)
	topn=$(column 3) topn_cpu=$(column 4)
	calc "| $title | $2 | %.3f s (%.3f s) | %.3f s (%.3f s) | %.2f (%.2f) | %.2f µs |\n" \
		"$null" "$null_cpu" "$topn" "$topn_cpu" "$null / $topn" \
		"$null_cpu / $topn_cpu" "($topn_cpu - $null_cpu) / $TXNS * 1e6" \
		>>"$workdir/throughput"
}

# row TITLE N TIMES: a row of the table of coming and going, after memory was
# measured and all that needs the subscriptions
row()
{
	again=$(restart)
	gone=$(unsubscribe_all)
	calc "| $1 | $2 | %.1f s | %.1f s | %.1f s | %.1f s | %.1f s | %.0f MB | %.1f kB |\n" \
		"${3% *}" "${3#* }" "${again% *}" "${again#* }" "$gone" "$mb" \
		"($mb - $least) / $2 * 1024"
}

echo "### Many subscriptions to one table"
echo
machine
echo
echo "| subscriptions | number | made in | all live after | stopped in | live after a restart | dropped | memory of the worker | each |"
echo "|---|--:|--:|--:|--:|--:|--:|--:|--:|"
subscribe empty 1 >/dev/null
least=$(memory)
unsubscribe_all >/dev/null
for n in $SUBSCRIPTIONS; do
	times=$(subscribe tenants "$n")
	mb=$(memory)
	measure a "$n"
	measure b "$n"
	row 'of 20 rows of 100 bytes' "$n" "$times"
done
times=$(subscribe ranges "$RANGES")
mb=$(memory)
measure c "$RANGES"
row 'overlapping ranges' "$RANGES" "$times"
times=$(subscribe sums "$RANGES")
mb=$(memory)
measure d "$RANGES"
row 'ordered by a sum' "$RANGES" "$times"
times=$(subscribe empty "$SINGLE")
mb=$(memory)
row 'without rows' "$SINGLE" "$times"
times=$(subscribe_singly "$SINGLE")
mb=$(memory)
row 'of 20 rows, in a transaction each' "$SINGLE" "$times"

echo
echo "$TXNS one-row updates; medians of $ROUNDS rounds, CPU time in parentheses."
echo "The last column is the CPU time of a change beyond that of decoding it."
echo
echo "| case | subscriptions | empty callbacks | live_topn | ratio | beyond |"
echo "|---|--:|--:|--:|--:|--:|"
cat "$workdir/throughput"
