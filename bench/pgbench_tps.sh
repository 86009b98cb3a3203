#!/bin/sh
#
# pgbench_tps.sh
#	  pgbench's own throughput with and without one subscription.
#
# Three servers in turn, on the same data: wal_level = replica without the
# extension; wal_level = logical without it; and with it, one subscription to
# the 100 richest accounts, and its client, which shares the machine.
#
# DURATION	  seconds of each run (10)
# ROUNDS	  medians are reported (3)
# CLIENTS	  of pgbench (8)
# SCALE		  of pgbench's tables (10)
#
set -eu
cd "$(dirname "$0")/.."
. scripts/server.sh
. bench/lib.sh

DURATION=${DURATION:-10}
ROUNDS=${ROUNDS:-3}
CLIENTS=${CLIENTS:-8}
SCALE=${SCALE:-10}

select='SELECT aid, bid, abalance FROM pgbench_accounts ORDER BY abalance DESC'

make -s -C examples/demo demo >&2
server_create "checkpoint_timeout = '1h'"
server_start
pgbench -i -q -s "$SCALE" >"$workdir/pgbench.log" 2>&1
sql 'CREATE EXTENSION live_topn'
machine=$(machine)

# run CONFIGURATION SYNCHRONOUS_COMMIT: prints the transactions a second
run()
{
	server_stop fast
	case $1 in
		replica) server_start -c wal_level=replica -c shared_preload_libraries= ;;
		logical) server_start -c shared_preload_libraries= ;;
		live_topn) server_start ;;
	esac
	sql 'CHECKPOINT'
	export PGOPTIONS="-c synchronous_commit=$2"
	set -- "$1" pgbench -T "$DURATION" -c "$CLIENTS" -j 2 -M prepared
	case $1 in
		live_topn)
			shift
			examples/demo/demo -q -v "$select, aid LIMIT 100" \
				"$select LIMIT 100" \
				sh -c 'exec "$@" >"$PGHOST/pgbench.log" 2>&1' sh "$@" \
				>"$workdir/demo.log" 2>&1 ||
				{ cat "$workdir/demo.log" "$workdir/pgbench.log" >&2; exit 1; }
			# The worker drops its slot once nobody subscribes.
			wait_for 'SELECT count(*) = 0 FROM pg_replication_slots'
			;;
		*)
			shift
			"$@" >"$workdir/pgbench.log" 2>&1 ||
				{ cat "$workdir/pgbench.log" >&2; exit 1; }
			;;
	esac
	unset PGOPTIONS
	sed -n 's/^tps = \([0-9.]*\).*/\1/p' "$workdir/pgbench.log"
}

for _ in $(seq 1 "$ROUNDS"); do
	for sync in on off; do
		for configuration in replica logical live_topn; do
			run $configuration $sync >>"$workdir/$configuration.$sync"
		done
	done
done

echo "### pgbench's throughput with and without one subscription"
echo
echo "$machine"
echo
echo "TPC-B, scale $SCALE, $CLIENTS clients, transactions a second;" \
	"medians of $ROUNDS alternating runs of $DURATION s."
echo
echo "| synchronous_commit | wal_level = replica | wal_level = logical | live_topn, one subscription and its client | ratio to logical |"
echo "|---|--:|--:|--:|--:|"
for sync in on off; do
	replica=$(median <"$workdir/replica.$sync")
	logical=$(median <"$workdir/logical.$sync")
	topn=$(median <"$workdir/live_topn.$sync")
	calc "| $sync | %d | %d | %d | %.2f |\n" \
		"$replica" "$logical" "$topn" "$topn / $logical"
done
