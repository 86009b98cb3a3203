#!/bin/sh
#
# example_test.sh
#	  The leaderboard page in headless Chromium; "make check-example" runs it.
#
# Installs Debian's Chromium, and playwright-core with npm, if they are missing.
#
set -eu
cd "$(dirname "$0")/.."
. scripts/server.sh

if [ ! -x /usr/bin/chromium ]; then
	echo "example_test: installing chromium" >&2
	apt-get update -qq
	apt-get install -y -qq --no-install-recommends chromium >/dev/null
fi
(cd examples/leaderboard && [ -d node_modules/playwright-core ] ||
	npm install --silent --no-audit --no-fund --no-package-lock)

server_create
server_start
psql -X -q -v ON_ERROR_STOP=1 -f examples/leaderboard/leaderboard.sql >/dev/null

cat >"$workdir/restart" <<EOF
#!/bin/sh
set -eu
cd "$workdir"
[ "\$(id -u)" -ne 0 ] || exec runuser -u "$server_user" -- "\$0"
"$bindir/pg_ctl" -D data -m immediate -w -s restart -l server.log
EOF
chmod a+rx "$workdir/restart"
export RESTART_SERVER="$workdir/restart" NODE_PATH=/usr/share/nodejs
node --test examples/leaderboard/test.js
