#!/bin/sh
#
# setup.sh
#	  Install what is missing, build the extension and install it.
#
# For Debian 12, as root or with sudo.  Does nothing, quickly, where nothing
# is to be done.  Only packages that are missing are installed, and no
# PostgreSQL cluster is created or started.
#
# --packages	  only the packages
# WITH_CLIENTS=no	  nothing for the tests of clients, with Node, Python and tmux
# PG_CONFIG	  build for this PostgreSQL; none is installed then
# PG_MAJOR	  the major version to install from Debian otherwise (15)
#
set -eu
cd "$(dirname "$0")/.."

PG_MAJOR=${PG_MAJOR:-15}
WITH_CLIENTS=${WITH_CLIENTS:-yes}
debian_pg_config=/usr/lib/postgresql/$PG_MAJOR/bin/pg_config
createcluster_conf=/etc/postgresql-common/createcluster.conf

say()
{
	echo "setup: $*" >&2
}

as_root()
{
	if [ "$(id -u)" -eq 0 ]; then
		"$@"
	elif command -v sudo >/dev/null; then
		sudo "$@"
	else
		say "must be root, or have sudo, to run: $*"
		exit 1
	fi
}

installed()
{
	[ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

apt_install()
{
	as_root env DEBIAN_FRONTEND=noninteractive \
		apt-get install -y -qq --no-install-recommends \
		-o Dpkg::Use-Pty=0 "$@" >"$log" 2>&1 ||
		{ cat "$log" >&2; say "could not install $*"; exit 1; }
}

# Debian's package makes and starts a cluster of its own unless this file says
# otherwise; it is put back as it was.
apt_install_without_cluster()
{
	installed postgresql-common || apt_install postgresql-common
	trap 'as_root mv "$createcluster_conf.saved" "$createcluster_conf"' EXIT
	trap 'exit 130' INT TERM
	as_root cp -p "$createcluster_conf" "$createcluster_conf.saved"
	as_root sh -c "echo 'create_main_cluster = false' >>$createcluster_conf"
	apt_install "$@"
}

install_packages()
{
	missing=
	for package; do
		installed "$package" || missing="$missing $package"
	done
	[ -n "$missing" ] || return 0

	if ! command -v apt-get >/dev/null; then
		say "this is no Debian: please install what corresponds to$missing"
		exit 1
	fi
	say "installing$missing"
	log=$(mktemp)
	as_root apt-get update -qq >"$log" 2>&1 ||
		{ cat "$log" >&2; exit 1; }
	case " $missing " in
		*" postgresql-$PG_MAJOR "*)
			(apt_install_without_cluster $missing) ;;
		*)
			apt_install $missing ;;
	esac
	rm -f "$log"
}

# PG_CONFIG as it comes from the Makefile may be just "pg_config".
case ${PG_CONFIG:-pg_config} in
	pg_config)
		PG_CONFIG=$debian_pg_config
		postgres="postgresql-$PG_MAJOR postgresql-server-dev-$PG_MAJOR" ;;
	*)
		postgres= ;;
esac

if command -v dpkg-query >/dev/null; then
	clients=
	if [ "$WITH_CLIENTS" = yes ]; then
		clients="tmux python3-psycopg2 python3-psycopg"
		command -v node >/dev/null || clients="$clients nodejs node-pg"
	fi
	install_packages gcc libc6-dev make $postgres libpq-dev \
		libicu-dev libjansson-dev perl libipc-run-perl libdbd-pg-perl $clients
fi
[ "${1:-}" != --packages ] || exit 0

# The JavaScript client's package: Debian's, or else npm's.
if [ "$WITH_CLIENTS" = yes ] && ! (cd clients/javascript &&
	NODE_PATH=/usr/share/nodejs node -e 'require("pg")' 2>/dev/null); then
	say "installing pg with npm"
	(cd clients/javascript &&
		npm install --silent --no-audit --no-fund --no-package-lock)
fi

if ! version=$("$PG_CONFIG" --version 2>/dev/null); then
	say "no PostgreSQL at PG_CONFIG=$PG_CONFIG"
	exit 1
fi

# Objects built for another server are of no use.
built_for="$PG_CONFIG, $version"
if [ "$(cat .built-for 2>/dev/null)" != "$built_for" ]; then
	make -s clean PG_CONFIG="$PG_CONFIG" >/dev/null
	echo "$built_for" >.built-for
fi

# No bitcode: what JIT could inline of the extension is not worth the time.
make -s -j"$(nproc)" with_llvm=no COPT=-Werror PG_CONFIG="$PG_CONFIG" all

# Installing again what is there would need root for nothing.
is_installed()
{
	pkglibdir=$("$PG_CONFIG" --pkglibdir)
	extension=$("$PG_CONFIG" --sharedir)/extension
	cmp -s live_topn.so "$pkglibdir/live_topn.so" || return 1
	cmp -s client/topn_watch "$("$PG_CONFIG" --bindir)/topn_watch" || return 1
	for file in live_topn.control sql/live_topn--*.sql; do
		cmp -s "$file" "$extension/${file##*/}" || return 1
	done
}

if ! is_installed; then
	as_root make -s with_llvm=no COPT=-Werror PG_CONFIG="$PG_CONFIG" install
	say "live_topn is installed for $version"
fi
