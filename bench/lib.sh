#
# lib.sh
#	  What the benchmarks share; to be sourced after scripts/server.sh.
#

# The median of the numbers on standard input, one a line.
median()
{
	sort -g | awk '{ v[NR] = $1 }
		END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'
}

# printf with its arguments computed by awk: format, expression, ...
calc()
{
	format=$1
	shift
	awk "BEGIN { printf \"$format\", $(IFS=,; echo "$*") }"
}

# Wait until a query returns true.
wait_for()
{
	for _ in $(seq 1 600); do
		[ "$(sql "$1")" != t ] || return 0
		sleep 0.1
	done
	echo "waited too long for: $1" >&2
	exit 1
}

machine()
{
	echo "PostgreSQL $(sql 'SHOW server_version'), $(nproc) cores," \
		"$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1)"
}

# A server that has bench/null_plugin; arguments are lines of its configuration.
null_plugin_server_start()
{
	make -s -C bench/null_plugin with_llvm=no COPT=-Werror >&2

	output_plugins="$output_plugins, null_plugin"
	server_create "checkpoint_timeout = '1h'" "autovacuum = off" "$@"
	mkdir "$workdir/lib"
	cp bench/null_plugin/null_plugin.so "$workdir/lib"
	chmod 755 "$workdir/lib"
	echo "dynamic_library_path = '\$libdir:$workdir/lib'" \
		>>"$workdir/data/postgresql.conf"
	server_start
}

# Nanoseconds that the worker has computed.
worker_cpu()
{
	cut -d ' ' -f 1 "/proc/$worker/schedstat"
}

# The slot "null" is decoded up to now with empty callbacks, three times; the
# median: seconds|cpu|commits|changes
null_decode_time()
{
	upto=$(sql 'SELECT pg_current_wal_flush_lsn()')
	for _ in 1 2 3; do
		sql "SELECT * FROM null_decode('null', '$upto')"
	done | sort -g | sed -n 2p
}

# The worker was stopped: let it go on, and wait until it has all.  Seconds.
worker_sync_time()
{
	psql -X -q -A -t -v ON_ERROR_STOP=1 -v worker="$worker" <<'SQL'
SELECT clock_timestamp() AS start \gset
\setenv WORKER :worker
\! kill -CONT $WORKER
SELECT topn_sync('10 min') \g /dev/null
SELECT extract(epoch FROM clock_timestamp() - :'start');
SQL
}

# latency_of_load CHANNELS SQL ARGUMENT ...: pgbench runs $workdir/load.sql with
# these arguments, and bench/latency listens.  "notifications median p99 max
# tps pgbench's-latency"
latency_of_load()
{
	channels=$1 sync=$2
	shift 2
	bench/latency "$channels" "$sync" \
		sh -c 'exec "$@" >"$PGHOST/pgbench.log" 2>&1' sh \
		pgbench -n -M prepared -c 8 -j 2 -f "$workdir/load.sql" "$@" \
		>"$workdir/latency.log" ||
		{ cat "$workdir/pgbench.log" >&2; exit 1; }
	echo "$(cat "$workdir/latency.log")" \
		"$(sed -n 's/^tps = \([0-9.]*\).*/\1/p' "$workdir/pgbench.log")" \
		"$(sed -n 's/^latency average = \([0-9.]*\) ms/\1/p' "$workdir/pgbench.log")"
}

postmaster()
{
	head -n 1 "$workdir/data/postmaster.pid"
}

# Seconds of CPU time used so far by a process and all its descendants, those
# included that have ended.
cpu_of_tree()
{
	cat /proc/[0-9]*/stat 2>/dev/null |
		awk -v root="$1" -v hertz="$(getconf CLK_TCK)" '{
				pid = $1
				sub(/.*\) /, "")
				parent[pid] = $2
				ticks[pid] = $12 + $13 + $14 + $15
			}
			END {
				for (pid in ticks)
				{
					for (p = pid; p != root && p in parent; )
						p = parent[p]
					if (p == root)
						sum += ticks[pid]
				}
				printf "%.2f\n", sum / hertz
			}'
}
