#
# server.sh
#	  A throwaway PostgreSQL for the demo and the benchmarks; to be sourced.
#
# The server lives in a new folder, listens on a Unix socket in that folder
# only, and runs as an unprivileged user.  When the script ends, for whatever
# reason, the server is stopped and the folder removed.  PGHOST, PGUSER and
# PGDATABASE are set for clients; $workdir is the folder.
#
case ${PG_CONFIG:-pg_config} in
	pg_config) PG_CONFIG=/usr/lib/postgresql/${PG_MAJOR:-15}/bin/pg_config ;;
esac
bindir=$("$PG_CONFIG" --bindir)
PATH=$bindir:$PATH
export PG_CONFIG PATH

# For output_plugin_libraries; add to it before server_create.
output_plugins='pgoutput, test_decoding, live_topn'

# PostgreSQL refuses to run as root.
as_server_user()
{
	if [ "$(id -u)" -ne 0 ]; then
		"$@"
	else
		runuser -u "$server_user" -- "$@"
	fi
}

server_remove()
{
	trap - EXIT
	trap '' INT TERM
	server_stop immediate
	rm -rf "$workdir"
}

# Make the cluster; arguments are further lines for postgresql.conf.
server_create()
{
	server_user=postgres
	id -u postgres >/dev/null 2>&1 || server_user=nobody
	workdir=$(mktemp -d "${TMPDIR:-/tmp}/live_topn.XXXXXX")
	trap server_remove EXIT
	trap 'exit 129' HUP
	trap 'exit 130' INT
	trap 'exit 143' TERM
	[ "$(id -u)" -ne 0 ] || chown "$server_user" "$workdir"

	export PGHOST="$workdir" PGUSER=postgres PGDATABASE=postgres
	unset PGPORT PGSERVICE PGPASSWORD PGOPTIONS

	(cd "$workdir" && as_server_user initdb -D data -U postgres -A trust \
		-E UTF8 --locale=C --no-sync >initdb.log 2>&1) ||
		{ cat "$workdir/initdb.log" >&2; exit 1; }

	# Not every minor version knows this setting, see README.md.
	if postgres --describe-config | grep -q '^output_plugin_libraries'; then
		set -- "$@" "output_plugin_libraries = '$output_plugins'"
	fi
	printf '%s\n' \
		"listen_addresses = ''" \
		"unix_socket_directories = '$workdir'" \
		"wal_level = logical" \
		"shared_preload_libraries = 'live_topn'" \
		"max_wal_size = '8GB'" \
		"$@" >>"$workdir/data/postgresql.conf"
}

# Start it; arguments are options for postgres.
server_start()
{
	(cd "$workdir" && as_server_user pg_ctl -D data -l server.log -s -w \
		-o "$*" start) ||
		{ cat "$workdir/server.log" >&2; exit 1; }
}

# Stop it, if it runs: "fast" or "immediate".
server_stop()
{
	[ ! -f "$workdir/data/postmaster.pid" ] ||
		(cd "$workdir" && as_server_user pg_ctl -D data -s -w -m "$1" stop)
}

sql()
{
	psql -X -q -A -t -v ON_ERROR_STOP=1 -c "$@"
}
