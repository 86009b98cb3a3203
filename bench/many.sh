#!/bin/sh
#
# many.sh
#	  The worker's throughput with many subscriptions to one table, as a ratio
#	  to decoding with empty callbacks.
#
# Each subscription is the first 20 rows of one tenant.  In case a one-row
# updates are spread over all tenants and touch no window; in case b each of
# them touches the window of one.  In case c subscriptions have overlapping
# ranges instead, and updates touch few windows.
#
# SUBSCRIPTIONS	  how many, one case after the other (1 100 10000 100000)
# RANGES		  subscriptions in case c (10000)
# TXNS			  one-row transactions of a round (100000)
# ROUNDS		  per case; medians are reported (3)
#
set -eu
cd "$(dirname "$0")/.."
. scripts/server.sh
. bench/lib.sh

SUBSCRIPTIONS=${SUBSCRIPTIONS:-1 100 10000 100000}
RANGES=${RANGES:-10000}
TXNS=${TXNS:-100000}
ROUNDS=${ROUNDS:-3}
TENANTS=$(echo "$SUBSCRIPTIONS" | tr ' ' '\n' | sort -g | tail -n 1)

null_plugin_server_start
psql -X -q -v ON_ERROR_STOP=1 -v tenants="$TENANTS" \
	-f bench/null_plugin/null_plugin.sql -f - >/dev/null <<'SQL'
CREATE EXTENSION live_topn;
CREATE TABLE item (id int PRIMARY KEY, tenant int NOT NULL,
	price int NOT NULL, score int NOT NULL, note text);
INSERT INTO item
	SELECT t * 40 + k, t, hashint4(t * 40 + k) & 1048575, k * 1000,
		repeat('x', 84)
	FROM generate_series(0, greatest(:tenants, 1000) - 1) t,
		generate_series(0, 39) k;
CREATE INDEX ON item (tenant, score DESC, id);
CREATE INDEX ON item (price);
VACUUM ANALYZE;
SQL

# What is far down, and what is in the result, of each tenant.
for case in a b; do
	[ $case = a ] && first=0 || first=25
	cat >"$workdir/$case.sql" <<SQL
\\set tenant random(0, $((TENANTS > 1000 ? TENANTS - 1 : 999)))
\\set k random($first, $((first + 14)))
\\set score random($((first * 1000)), $(((first + 14) * 1000)))
UPDATE item SET score = :score WHERE id = :tenant * 40 + :k;
SQL
done
cp "$workdir/a.sql" "$workdir/c.sql"

# subscribe CASE N: the time until all are live
subscribe()
{
	case $1 in
		c) where="price BETWEEN \$1::int AND \$1::int + 20000"
			value='((i * 104729)::bigint % 1000000)::text' ;;
		*) where="tenant = \$1" value='i::text' ;;
	esac
	psql -X -q -A -t -v ON_ERROR_STOP=1 <<SQL
SET client_min_messages = warning;
SELECT clock_timestamp() AS start \\gset
SELECT count(subscribe_topn('SELECT id, score, note FROM item WHERE $where
	ORDER BY score DESC LIMIT 20', name => 's' || i, args => ARRAY[$value],
	deliver => 'none')) FROM generate_series(0, $2 - 1) i \\g /dev/null
SELECT clock_timestamp() - :'start' AS made \\gset
SELECT topn_sync('60 min') \\g /dev/null
SELECT extract(epoch FROM :'made'::interval),
	extract(epoch FROM clock_timestamp() - :'start');
SQL
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

echo "### Many subscriptions to one table"
echo
machine
echo
echo "$TXNS one-row updates; medians of $ROUNDS rounds, CPU time in parentheses."
echo
echo "| case | subscriptions | subscribe | until live | memory of the worker | empty callbacks | live_topn | ratio |"
echo "|---|--:|--:|--:|--:|--:|--:|--:|"
for case in a b c; do
	[ $case = c ] && numbers=$RANGES || numbers=$SUBSCRIPTIONS
	case $case in
		a) title='one for each tenant, no window touched' ;;
		b) title='the same, each update touches a window' ;;
		c) title='overlapping ranges' ;;
	esac
	for n in $numbers; do
		times=$(subscribe $case "$n")
		worker=$(sql 'SELECT pid FROM topn_worker')
		memory=$(awk '/^RssAnon/ { print $2 / 1024 }' "/proc/$worker/status")
		: >"$workdir/measured"
		for _ in $(seq 1 "$ROUNDS"); do
			round $case >>"$workdir/measured"
		done
		null=$(column 1) null_cpu=$(column 2)
		topn=$(column 3) topn_cpu=$(column 4)
		calc "| $title | $n | %.1f s | %.1f s | %.0f MB | %.3f s (%.3f s) | %.3f s (%.3f s) | %.2f (%.2f) |\n" \
			"${times%|*}" "${times#*|}" "$memory" "$null" "$null_cpu" \
			"$topn" "$topn_cpu" "$null / $topn" "$null_cpu / $topn_cpu"
		sql "SELECT count(unsubscribe_topn(name)) FROM topn_subscriptions" \
			>/dev/null
		wait_for 'SELECT count(*) = 0 FROM pg_replication_slots'
	done
done
