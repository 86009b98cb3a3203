#!/bin/sh
#
# latency.sh
#	  Latency from commit to delivery, beside a bare pg_notify from a trigger.
#
# The same load, one-row updates at a fixed rate that all change the result,
# once with a subscription and once with a trigger that calls pg_notify.  One
# client listens (bench/latency.c).
#
# RATE		  commits a second (1000)
# DURATION	  seconds of each run (20)
# ROUNDS	  medians over the rounds are reported (3)
#
set -eu
cd "$(dirname "$0")/.."
. scripts/server.sh
. bench/lib.sh

RATE=${RATE:-1000}
DURATION=${DURATION:-20}
ROUNDS=${ROUNDS:-3}

make -s -C bench latency >&2
server_create "track_commit_timestamp = on"
server_start

psql -X -q -v ON_ERROR_STOP=1 <<'SQL'
CREATE EXTENSION live_topn;
CREATE TABLE player (id int PRIMARY KEY, score int NOT NULL);
INSERT INTO player SELECT i, i FROM generate_series(1, 100) i;
CREATE FUNCTION notify_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_notify('bare', format('{"xid":%s,"id":%s,"score":%s}',
									 pg_current_xact_id(), NEW.id, NEW.score));
	RETURN NULL;
END
$$;
SQL
cat >"$workdir/load.sql" <<'SQL'
\set id random(1, 100)
\set score random(1, 1000000000)
UPDATE player SET score = :score WHERE id = :id;
SQL

# run CHANNEL SQL
run()
{
	latency_of_load "$1" "$2" --rate "$RATE" -T "$DURATION"
}

for _ in $(seq 1 "$ROUNDS"); do
	sql "CREATE TRIGGER notify_change AFTER UPDATE ON player
		FOR EACH ROW EXECUTE FUNCTION notify_change()"
	run bare 'SELECT' >>"$workdir/bare"
	sql 'DROP TRIGGER notify_change ON player'

	sql "SELECT subscribe_topn('SELECT id, score FROM player
			ORDER BY score DESC LIMIT 100', name => 'top')" >/dev/null
	sql "SELECT topn_sync('1 min')" >/dev/null
	run top "SELECT topn_sync('1 min')" >>"$workdir/top"
	sql "SELECT unsubscribe_topn('top')" >/dev/null
done

column()
{
	awk -v n="$1" '{ print $n }' "$workdir/$2" | median
}

echo "### Latency from commit to delivery"
echo
machine
echo
echo "One-row updates at $RATE a second, each changes the result;" \
	"medians of $ROUNDS alternating runs of $DURATION s."
echo
echo "| | notifications | median | p99 | max | transactions a second | pgbench's own latency |"
echo "|---|--:|--:|--:|--:|--:|--:|"
for what in bare top; do
	case $what in
		bare) title='pg_notify in a trigger' ;;
		top) title='live_topn' ;;
	esac
	calc "| $title | %d | %.2f ms | %.2f ms | %.2f ms | %d | %.2f ms |\n" \
		"$(column 1 $what)" "$(column 2 $what)" "$(column 3 $what)" "$(column 4 $what)" \
		"$(column 5 $what)" "$(column 6 $what)"
done
