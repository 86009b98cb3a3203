#!/bin/sh
#
# peers.sh
#	  What people do today beside live_topn: what it costs, and how old the
#	  client's list is.
#
# One client wants the first 20 of many rows, while pgbench updates single
# rows at a fixed rate.  An update of one of the first 20 gives it another
# score among them, and so changes the result.  How old the list is: for each
# commit that changes the result, the time until the client has a list with
# that commit or a later one.  Commits and their times are decoded afterwards
# from a slot of test_decoding, the client notes what it has when
# (bench/peers/clients.js, bench/peers/staleness.awk).
#
# The clients are Node programs.  Zero's server is started here; PGlite is a
# database within a program (bench/peers/pglite.js).  What npm cannot install
# is left out, and the table says so.
#
# ROWS		  of the table (100000)
# EVENTS	  commits of each run (5000)
# RATE		  commits a second (1000)
# HOT		  percentages of the commits that change the result (100 10)
# PEERS		  of none notify requery poll live_topn pglite zero (all; zero's server
#			  stays once it is started, so it comes last)
# PEERS_DIR	  keep what npm installs in this folder
#
set -eu
cd "$(dirname "$0")/.."
. scripts/server.sh
. bench/lib.sh

ROWS=${ROWS:-100000}
EVENTS=${EVENTS:-5000}
RATE=${RATE:-1000}
HOT=${HOT:-100 10}
PEERS=${PEERS:-none notify requery poll live_topn pglite zero}

# skip REASON: nothing can be measured
skip()
{
	printf '%s\n' "### Beside what people do today" "" "Skipped: $1."
	exit
}

command -v npm >/dev/null || skip 'there is no npm'

# free_ports N: that many ports of 127.0.0.1 that nobody listens on
free_ports()
{
	node -e "Promise.all(Array.from({ length: $1 }, () => new Promise((resolve) => {
			const server = require('net').createServer();
			server.listen(0, '127.0.0.1', () => resolve(server));
		}))).then((servers) => {
			console.log(servers.map((server) => server.address().port).join(' '));
			servers.forEach((server) => server.close());
		})"
}

# npm_install FOLDER PACKAGE
npm_install()
{
	npm install --prefix "$1" --no-audit --no-fund --no-package-lock \
		"$2" >"$workdir/npm.log" 2>&1 ||
		{ tail -n 20 "$workdir/npm.log" >&2; return 1; }
}

wanted()
{
	case " $PEERS " in
		*" $1 "*) ;;
		*) return 1 ;;
	esac
}

# Zero does not want Unix sockets.
set -- $(free_ports 4)
server_create "port = $1" "listen_addresses = '127.0.0.1'" \
	"max_connections = 200" "checkpoint_timeout = '1h'"
export PGPORT="$1" ZERO_PORT="$2" ZERO_CHANGE_STREAMER_PORT="$3" QUERY_PORT="$4"
zero=
trap '[ -z "$zero" ] || kill "$zero" || :; server_remove' EXIT
server_start

# Zero wants a newer Node than Debian's, and to be installed by that one; all
# clients run with the same.
peers_dir=${PEERS_DIR:-$workdir/npm}
mkdir -p "$peers_dir"
export NODE_PATH="$peers_dir/node_modules:/usr/share/nodejs"
zero_skipped= pglite_skipped=
if wanted zero && [ "$(node -p 'parseInt(process.versions.node)')" -lt 22 ]; then
	node="node-linux-$(node -p process.arch)"
	if [ -d "$peers_dir/node" ] || npm_install "$peers_dir/node" "$node@24"; then
		PATH=$peers_dir/node/node_modules/$node/bin:$PATH
		export npm_config_nodedir="$peers_dir/node/node_modules/$node"
	else
		zero_skipped='npm could not install Node 24'
	fi
fi
node -e 'require("pg")' 2>/dev/null || npm_install "$peers_dir" pg ||
	skip 'npm could not install pg'
if wanted pglite && ! [ -d "$peers_dir/node_modules/@electric-sql/pglite" ]; then
	npm_install "$peers_dir" @electric-sql/pglite ||
		pglite_skipped='npm could not install @electric-sql/pglite'
fi
if wanted zero && ! [ -d "$peers_dir/node_modules/@rocicorp/zero" ] &&
	[ -z "$zero_skipped" ]; then
	npm_install "$peers_dir" @rocicorp/zero ||
		zero_skipped='npm could not install @rocicorp/zero'
fi

psql -X -q -v ON_ERROR_STOP=1 -v rows="$ROWS" <<'SQL'
CREATE EXTENSION live_topn;
CREATE TABLE item (id int PRIMARY KEY, name text NOT NULL, score int NOT NULL,
	event bigint NOT NULL);
INSERT INTO item SELECT i, 'item ' || i,
	CASE WHEN i <= 20 THEN 2000000 ELSE random() * 1000000 END, -i
	FROM generate_series(1, :rows) i;
CREATE INDEX ON item (score DESC, id);
VACUUM ANALYZE item;
CREATE FUNCTION notify_row() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_notify('item', json_build_object('id', NEW.id,
								'score', NEW.score, 'event', NEW.event)::text);
	RETURN NULL;
END
$$;
CREATE FUNCTION notify_table() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_notify('item', '');
	RETURN NULL;
END
$$;
SQL
cat >"$workdir/load.sql" <<'SQL'
\set id case when random(1, 100) <= :hot then random(1, 20) else random(21, :rows) end
\set score case when :id <= 20 then random(1000001, 2000000) else random(1, 1000000) end
\set event random(1, 1000000000000)
UPDATE item SET score = :score, event = :event WHERE id = :id;
SQL

# What a peer needs in the server, and its end.
prepare()
{
	case $1 in
		notify) sql 'CREATE TRIGGER changed AFTER UPDATE ON item
			FOR EACH ROW EXECUTE FUNCTION notify_row()' ;;
		requery) sql 'CREATE TRIGGER changed AFTER UPDATE ON item
			FOR EACH STATEMENT EXECUTE FUNCTION notify_table()' ;;
		live_topn) sql "SELECT subscribe_topn('SELECT id, name, score, event
			FROM item ORDER BY score DESC, id LIMIT 20', 'item')" >/dev/null ;;
		zero) [ -n "$zero" ] || zero_start ;;
	esac
}

clean_up()
{
	case $1 in
		notify | requery) sql 'DROP TRIGGER changed ON item' ;;
		live_topn) sql "SELECT unsubscribe_topn('item')" >/dev/null ;;
	esac
	sql 'UPDATE item SET event = -1 WHERE id = 1'
	sql "SELECT pg_drop_replication_slot('events')" >/dev/null
}

zero_start()
{
	NODE_ENV=production DO_NOT_TRACK=1 \
		ZERO_UPSTREAM_DB="postgresql://$PGUSER@127.0.0.1:$PGPORT/$PGDATABASE" \
		ZERO_QUERY_URL="http://127.0.0.1:$QUERY_PORT/query" \
		ZERO_REPLICA_FILE="$workdir/zero.db" ZERO_LOG_LEVEL=warn \
		ZERO_ADMIN_PASSWORD=bench ZERO_ENABLE_TELEMETRY=false \
		"$peers_dir/node_modules/.bin/zero-cache" >"$workdir/zero.log" 2>&1 &
	zero=$!
}

# until_line N FILE PID: the program has printed so many lines, or failed
until_line()
{
	for _ in $(seq 1 1200); do
		[ "$(wc -l <"$2")" -lt "$1" ] || return 0
		kill -0 "$3" 2>/dev/null || break
		sleep 0.1
	done
	return 1
}

# The events of this run in the order of their commits: "time event"
events()
{
	sql "WITH change AS (SELECT xid::text, data FROM
			pg_logical_slot_get_changes('events', NULL, NULL,
				'include-timestamp', 'on') WITH ORDINALITY)
		SELECT extract(epoch FROM substring(c.data FROM 'at (.*)\)')::timestamptz),
			substring(u.data FROM 'event\[bigint\]:(-?[0-9]+)')
		FROM change u JOIN change c USING (xid)
		WHERE u.data LIKE 'table public.item: UPDATE:%'
			AND substring(u.data FROM 'id\[integer\]:([0-9]+)')::int <= 20
			AND c.data LIKE 'COMMIT %'
		ORDER BY 1" | tr '|' ' '
}

# Of the staleness, in ms: "median p99"
quantiles()
{
	awk -f bench/peers/staleness.awk "$workdir/events" "$workdir/states" \
		>"$workdir/staleness" 2>"$workdir/errors" || return 1
	sort -g "$workdir/staleness" | awk '{ v[NR] = $1 * 1000 }
		END { print v[int((NR + 1) / 2)], v[int(NR * 0.99 + 0.5)] }'
}

# run PEER HOT: "updates updates-a-second server-cpu peer-cpu client-cpu median p99 bytes"
run()
{
	sql "SELECT pg_create_logical_replication_slot('events', 'test_decoding')" \
		>/dev/null
	prepare "$1"
	if load "$1" "$2"; then
		clean_up "$1"
	else
		[ -z "$client" ] || kill "$client" 2>/dev/null || :
		clean_up "$1"
		return 1
	fi
}

load()
{
	client= quantiles='- -' client_cpu=- bytes=-
	if [ "$1" != none ]; then
		: >"$workdir/client.log"
		node bench/peers/clients.js "$1" "$workdir/states" \
			>"$workdir/client.log" 2>"$workdir/errors" &
		client=$!
		until_line 1 "$workdir/client.log" "$client" || return 1
	fi
	server_cpu=$(cpu_of_tree "$(postmaster)")
	peer_cpu=$(cpu_of_tree "${zero:--}")
	pgbench -n -M prepared -c 8 -j 2 --rate "$RATE" -t $((EVENTS / 8)) \
		-D hot="$2" -D rows="$ROWS" -f "$workdir/load.sql" \
		>"$workdir/pgbench.log" 2>"$workdir/errors" || return 1
	sql 'UPDATE item SET score = 2000000, event = 0 WHERE id = 1'
	if [ -n "$client" ]; then
		until_line 2 "$workdir/client.log" "$client" || return 1
		wait "$client" || return 1
	fi
	peer_cpu=$(calc '%f' "$(cpu_of_tree "${zero:--}") - $peer_cpu")
	server_cpu=$(calc '%f' "$(cpu_of_tree "$(postmaster)") - $server_cpu")
	if [ -n "$client" ]; then
		events >"$workdir/events"
		quantiles=$(quantiles) || return 1
		client_cpu=$(sed -n '2s/ .*//p' "$workdir/client.log")
		bytes=$(sed -n '2s/.* //p' "$workdir/client.log")
	fi
	[ "$1" = zero ] || peer_cpu=-
	echo "$EVENTS $(sed -n 's/^tps = \([0-9.]*\).*/\1/p' "$workdir/pgbench.log")" \
		"$server_cpu $peer_cpu $client_cpu $quantiles $bytes"
}

# run_pglite KIND HOT: the same
run_pglite()
{
	node bench/peers/pglite.js "$1" "$ROWS" "$EVENTS" "$RATE" "$2" \
		$(((EVENTS + RATE - 1) / RATE)) "$workdir/events" "$workdir/states" \
		>"$workdir/client.log" 2>"$workdir/errors" || return 1
	quantiles='- -'
	[ "$1" = none ] || quantiles=$(quantiles) || return 1
	awk -v quantiles="$quantiles" \
		'{ print $3, $3 / $2, "- -", $1, quantiles, "-" }' "$workdir/client.log"
}

# measured TITLE COMMAND ... HOT: a row with what the command prints
measured()
{
	title=$1
	shift
	for hot in $HOT; do
		if "$@" "$hot" >"$workdir/result"; then
			awk -v title="$title" '
				function show(value, format, factor)
				{
					return value == "-" ? "" : sprintf(format, value * factor)
				}
				{
					per = 10000 / $1
					printf "| %s | %s | %s | %s | %s | %s | %s | %s |\n",
						title, show($2, "%d", 1), show($3, "%.2f s", per),
						show($4, "%.2f s", per), show($5, "%.2f s", per),
						show($6, "%.2f ms", 1), show($7, "%.2f ms", 1),
						show($8, "%.0f kB", per / 1000)
				}' "$workdir/result"
		else
			echo "| $title | failed | | | | | | |"
			cat "$workdir/errors" >&2
			[ ! -e "$workdir/zero.log" ] || tail -n 20 "$workdir/zero.log" >&2
			: >"$workdir/failed"
		fi >>"$workdir/table.$hot"
	done
}

# skipped TITLE REASON
skipped()
{
	for hot in $HOT; do
		echo "| $1 | skipped: $2 | | | | | | |" >>"$workdir/table.$hot"
	done
}

version()
{
	node -p "require('$peers_dir/node_modules/$1/package.json').version"
}

for peer in $PEERS; do
	case $peer in
		none) measured 'nobody listens' run none ;;
		notify) measured 'trigger, NOTIFY of the changed row' run notify ;;
		requery) measured 'trigger, NOTIFY, the query again' run requery ;;
		poll) measured 'the query each second' run poll ;;
		live_topn) measured 'live_topn, NOTIFY' run live_topn ;;
		pglite)
			if [ -n "$pglite_skipped" ]; then
				skipped PGlite "$pglite_skipped"
				continue
			fi
			pglite="PGlite $(version @electric-sql/pglite)"
			measured "$pglite, nobody listens" run_pglite none
			measured "$pglite, live.query" run_pglite query
			measured "$pglite, live.incrementalQuery" \
				run_pglite incrementalQuery ;;
		zero)
			if [ -n "$zero_skipped" ]; then
				skipped Zero "$zero_skipped"
				continue
			fi
			measured "Zero $(version @rocicorp/zero)" run zero ;;
	esac
done

echo "### Beside what people do today"
echo
machine
echo
echo "One client, the first 20 of $ROWS rows; $EVENTS updates of single rows, at" \
	"$RATE a second as far as they come. CPU times and bytes are for 10,000" \
	"updates; the server's CPU time has the writers' own in it. Staleness is the time from a" \
	"commit that changes the result until the client has it or a later one."
for hot in $HOT; do
	echo
	echo "$hot % of the updates change the result:"
	echo
	echo "| | updates a second | server CPU | peer's server, CPU | client CPU | staleness, median | p99 | received |"
	echo "|---|--:|--:|--:|--:|--:|--:|--:|"
	cat "$workdir/table.$hot"
done
[ ! -e "$workdir/failed" ]
