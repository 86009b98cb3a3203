#!/bin/sh
#
# example.sh
#	  The leaderboard page on a throwaway server; "make example" runs it.
#
# PORT	  of the page on the loopback interface (8080)
# LOAD	  updates a second (20)
#
set -eu
cd "$(dirname "$0")/.."
. scripts/server.sh

PORT=${PORT:-8080}
LOAD=${LOAD:-20}
export NODE_PATH=/usr/share/nodejs

server_create
server_start
psql -X -q -v ON_ERROR_STOP=1 -f examples/leaderboard/leaderboard.sql >/dev/null
echo '\set id random(1, 200)
UPDATE player SET score = greatest(0, score + random() * 400 - 200) WHERE id = :id;' \
	>"$workdir/load.sql"
chmod a+r "$workdir/load.sql"

pgbench -n -f "$workdir/load.sql" -T 1000000 -R "$LOAD" >/dev/null 2>&1 &
load=$!
node examples/leaderboard/server.js leaders "$PORT" &
page=$!
trap 'kill $load $page 2>/dev/null || :; server_remove' EXIT
wait $page
