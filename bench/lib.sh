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
