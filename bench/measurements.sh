#!/bin/sh
#
# measurements.sh
#	  The measurements of doc/measurements.md, its tables and its plots.
#
# PARTS		  of them (all): counted, which take the same on any machine, are
#			  churn workloads window_buffer; timed are delay rerun large
#
# Their sizes are constants and variables of bench/measurements/*.py.
#
set -eu
cd "$(dirname "$0")/.."
. scripts/server.sh
. bench/lib.sh

PARTS=${PARTS:-churn workloads window_buffer delay rerun large}

make -s -C bench latency >&2
null_plugin_server_start "track_commit_timestamp = on" \
	"max_parallel_workers_per_gather = 0"
export workdir
for part in $PARTS; do
	echo "$part" >&2
	PYTHONDONTWRITEBYTECODE=1 python3 bench/measurements/$part.py
done

PYTHONDONTWRITEBYTECODE=1 python3 bench/measurements/page.py
