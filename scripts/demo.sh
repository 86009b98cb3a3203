#!/bin/sh
#
# demo.sh
#	  pgbench's 100 richest accounts, live; "make demo" runs it.
#
# DURATION	  seconds of load (15)
# CLIENTS	  of pgbench (4)
# SCALE		  of pgbench's tables: 100,000 accounts each (4)
# QUIET		  1: print only the summary
#
set -eu
cd "$(dirname "$0")/.."
. scripts/server.sh

DURATION=${DURATION:-15}
CLIENTS=${CLIENTS:-4}
SCALE=${SCALE:-4}
[ "${QUIET:-0}" = 1 ] && quiet=-q || quiet=

query='SELECT aid, bid, abalance FROM pgbench_accounts
	ORDER BY abalance DESC LIMIT 100'
# Equal balances are in the order of the primary key.
ordered='SELECT aid, bid, abalance FROM pgbench_accounts
	ORDER BY abalance DESC, aid LIMIT 100'

say()
{
	[ -n "$quiet" ] || echo "$*"
}

make -s -C examples/demo with_llvm=no COPT=-Werror
server_create
server_start
say "PostgreSQL $(sql 'SHOW server_version') runs in $workdir"
pgbench -i -q -s "$SCALE" >"$workdir/pgbench.log" 2>&1 ||
	{ cat "$workdir/pgbench.log" >&2; exit 1; }
sql 'CREATE EXTENSION live_topn'
say "$(printf '%s' "$query" | tr -s '\n\t' ' ')"
say "${SCALE}00,000 accounts, pgbench with $CLIENTS clients for $DURATION s"
say

# In the background, so that a signal is not kept waiting.
examples/demo/demo $quiet -v "$ordered" "$query" \
	sh -c 'exec "$@" >"$PGHOST/pgbench.log" 2>&1' sh \
	pgbench -n -T "$DURATION" -c "$CLIENTS" -j "$CLIENTS" &
demo=$!
trap 'kill $demo 2>/dev/null || :; server_remove' EXIT
status=0
wait $demo || status=$?

transactions=$(sed -n 's/^number of transactions.*: \([0-9]*\).*/\1/p' \
	"$workdir/pgbench.log")
tps=$(sed -n 's/^tps = \([0-9]*\).*/\1/p' "$workdir/pgbench.log")
echo "load:        $transactions transactions, $tps a second"
[ $status -eq 0 ] || cat "$workdir/server.log" >&2
exit $status
