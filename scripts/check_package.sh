#!/bin/sh
#
# check_package.sh
#	  Build the Debian package, look at it, install it, and run the demo from it.
#
# In a chroot of Debian 12; needs root.  Warnings of lintian are errors.  The
# package ends in OUTPUT, if that is given.
#
# CHROOTS, PATIENCE	  see chroot.sh
# DURATION			  of the demo, seconds (5)
#
set -eu
cd "$(dirname "$0")/.."

say()
{
	echo "check_package: $*" >&2
}

if [ "$(id -u)" -ne 0 ]; then
	say "must be root, for debootstrap and chroot"
	exit 1
fi
. scripts/chroot.sh

root=$CHROOTS/package
packages="build-essential debhelper fakeroot lintian libjansson-dev libpq-dev
	postgresql-server-dev-all postgresql-15"

chroot_make bookworm "$root" && chroot_copy "$root" && chroot_mount "$root" &&
	chroot_install "$root" "sh -c 'apt-get update -qq &&
		apt-get install -y -qq --no-install-recommends $(echo $packages)'" \
		DEBIAN_FRONTEND=noninteractive ||
	{ say "$why"; exit 77; }

say "building"
chroot_run "$root" 'rm -f ../*.deb ../*.changes ../*.buildinfo &&
	PG_UPDATECONTROL=yes dpkg-buildpackage -us -uc -b' \
	>"$workdir/log" 2>&1 || { cat "$workdir/log"; exit 1; }

# the address is a placeholder as long as there is no other, and a package that
# is not Debian's closes no bug of Debian
placeholders=bogus-mail-host,bogus-mail-host-in-debian-changelog
placeholders=$placeholders,initial-upload-closes-no-bugs
say "lintian"
chroot_run "$root" "lintian --allow-root --fail-on error,warning \
	--suppress-tags $placeholders ../*.changes"

say "installing"
chroot_run "$root" 'apt-get install -y -qq --no-install-recommends --reinstall \
		../postgresql-15-live-topn_*_*.deb' DEBIAN_FRONTEND=noninteractive \
	>"$workdir/log" 2>&1 || { cat "$workdir/log"; exit 1; }
chroot_run "$root" 'dpkg -S /usr/lib/postgresql/15/lib/live_topn.so \
	/usr/lib/postgresql/15/bin/topn_watch'

say "demo"
chroot_run "$root" 'scripts/demo.sh' QUIET=1 PG_MAJOR=15 \
	DURATION="${DURATION:-5}" SCALE=1
[ -z "${OUTPUT:-}" ] || cp "$root"/*.deb "$OUTPUT"
say "passed"
