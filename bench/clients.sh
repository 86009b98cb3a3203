#!/bin/sh
#
# clients.sh
#	  Many clients that listen: latency from commit to each of them.
#
# One-row updates at a fixed rate, each of which changes one result.  Either
# each client has a subscription of its own, so that an update concerns one
# client, or all share one, and an update concerns all of them.  Beside it the
# same with a trigger that calls pg_notify.  One process holds all the
# connections (bench/latency.c) and runs on the same machine, and so does
# pgbench.
#
# CLIENTS	  that listen (200)
# RATE		  commits a second (1000)
# DURATION	  seconds of each run (10)
# ROUNDS	  medians over the rounds are reported (3)
#
set -eu
cd "$(dirname "$0")/.."
. scripts/server.sh
. bench/lib.sh

CLIENTS=${CLIENTS:-200}
RATE=${RATE:-1000}
DURATION=${DURATION:-10}
ROUNDS=${ROUNDS:-3}

make -s -C bench latency >&2
server_create "track_commit_timestamp = on" \
	"max_connections = $((CLIENTS + 50))"
server_start

psql -X -q -v ON_ERROR_STOP=1 -v clients="$CLIENTS" <<'SQL'
CREATE EXTENSION live_topn;
CREATE TABLE item (id int PRIMARY KEY, client int NOT NULL, score int NOT NULL);
INSERT INTO item SELECT i, i / 20, i FROM generate_series(0, 20 * :clients - 1) i;
CREATE INDEX ON item (client);
CREATE FUNCTION notify_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_notify('s' || NEW.client, format('{"xid":%s,"id":%s,"score":%s}',
						pg_current_xact_id(), NEW.id, NEW.score));
	RETURN NULL;
END
$$;
SQL
cat >"$workdir/load.sql" <<'SQL'
\set id random(0, 20 * :results - 1)
\set score random(1, 1000000000)
UPDATE item SET score = :score WHERE id = :id;
SQL

# channels N: for each client the one that it listens on, of N
channels()
{
	seq 0 $((CLIENTS - 1)) | awk -v n="$1" '{ printf " s%d", $1 % n }'
}

# run RESULTS SQL: the same as latency_of_load, and the server's CPU time
run()
{
	cpu=$(cpu_of_tree "$(postmaster)")
	latency=$(latency_of_load "$(channels "$1")" "$2" \
		--rate "$RATE" -T "$DURATION" -D results="$1")
	calc "$latency %f\n" "$(cpu_of_tree "$(postmaster)") - $cpu"
}

for _ in $(seq 1 "$ROUNDS"); do
	for results in "$CLIENTS" 1; do
		sql "CREATE TRIGGER notify_change AFTER UPDATE ON item
			FOR EACH ROW EXECUTE FUNCTION notify_change()"
		run "$results" 'SELECT' >>"$workdir/trigger.$results"
		sql 'DROP TRIGGER notify_change ON item'

		sql "SELECT count(subscribe_topn('SELECT id, score FROM item
				WHERE client = \$1 ORDER BY score DESC LIMIT 20',
				name => 's' || i, args => ARRAY[i::text]))
			FROM generate_series(0, $results - 1) i" >/dev/null
		sql "SELECT topn_sync('1 min')" >/dev/null
		run "$results" "SELECT topn_sync('10 min')" >>"$workdir/live_topn.$results"
		sql "SELECT count(unsubscribe_topn(name)) FROM topn_subscriptions" \
			>/dev/null
	done
done

column()
{
	awk -v n="$1" '{ print $n }' "$workdir/$2" | median
}

echo "### $CLIENTS clients that listen"
echo
machine
echo
echo "One-row updates at $RATE a second, each changes a result of 20 rows;" \
	"medians of $ROUNDS alternating runs of $DURATION s. The clients and" \
	"pgbench run on the same cores."
echo
echo "| | | notifications a second | median | p99 | max | commits a second | server CPU for each commit |"
echo "|---|---|--:|--:|--:|--:|--:|--:|"
for results in "$CLIENTS" 1; do
	for what in trigger live_topn; do
		[ "$results" = 1 ] && title='one for all' || title='one for each'
		case $what in
			trigger) title="channel, $title | pg_notify in a trigger" ;;
			live_topn) title="subscription, $title | live_topn" ;;
		esac
		file=$what.$results
		calc "| $title | %d | %.2f ms | %.2f ms | %.2f ms | %d | %.2f ms |\n" \
			"$(column 1 $file) / $DURATION" "$(column 2 $file)" \
			"$(column 3 $file)" "$(column 4 $file)" "$(column 5 $file)" \
			"$(column 7 $file) / $(column 5 $file) / $DURATION * 1000"
	done
done
