#!/bin/sh
#
# check_versions.sh
#	  Run the tests with every PostgreSQL that Debian has, each in a chroot.
#
# Each chroot has the packages that setup.sh installs.  Warnings
# are errors.  Ends with one line for each version.  The status is 1 if a
# version failed that has been released, else 77 if one could not be tried,
# since there was no chroot or no package to be had, or we are not root.
#
# VERSIONS	  some of 15 17 18 19 (all)
# TESTS		  names of tests (all)
# WITH_CLIENTS=no	  none of the packages for the tests of clients
# CHROOTS, PATIENCE	  see chroot.sh
#
set -eu
cd "$(dirname "$0")/.."

VERSIONS=${VERSIONS:-15 17 18 19}
TESTS=${TESTS:-}
WITH_CLIENTS=${WITH_CLIENTS:-yes}
UNTRIED=77

say()
{
	echo "check_versions: $*" >&2
}

suite_of()
{
	case $1 in
		15) echo bookworm ;;
		17) echo trixie ;;
		18) echo forky ;;
		19) echo sid ;;
		*) say "there is no Debian with PostgreSQL $1"; exit 2 ;;
	esac
}

is_released()
{
	[ "$1" -lt 19 ]
}

# PostgreSQL comes from experimental, all else from sid.
add_experimental()
{
	root=$1 version=$2
	sed -n 's/ sid / experimental /p' "$root/etc/apt/sources.list" \
		>"$root/etc/apt/sources.list.d/experimental.list"
	cat >"$root/etc/apt/preferences.d/experimental" <<EOF
Package: src:postgresql-$version src:postgresql-common
Pin: release a=experimental
Pin-Priority: 600
EOF
}

# The status is that of the tests, or UNTRIED and why says why; what they print
# ends in $workdir/output.
check_version()
{
	version=$1 root=$CHROOTS/$1
	why="must be root"
	[ "$(id -u)" -eq 0 ] || return $UNTRIED
	set -- PG_MAJOR="$version" TESTS="$TESTS" WITH_CLIENTS="$WITH_CLIENTS"
	chroot_make "$(suite_of "$version")" "$root" || return $UNTRIED
	[ "$version" -ne 19 ] || add_experimental "$root" "$version"
	chroot_copy "$root" && chroot_mount "$root" &&
		chroot_install "$root" "scripts/setup.sh --packages" "$@" ||
		{ unmount; return $UNTRIED; }
	status=0
	chroot_run "$root" 'make setup && make installcheck TESTS="$TESTS"' "$@" \
		>"$workdir/output" 2>&1 || status=1
	unmount
	[ $status -eq 0 ] || cat "$workdir/output"
	return $status
}

for version in $VERSIONS; do
	suite_of "$version" >/dev/null
done
. scripts/chroot.sh

failed=0 untried=0
for version in $VERSIONS; do
	: >"$workdir/output"
	status=0
	check_version "$version" || status=$?
	case $status in
		0)
			result=$(grep ' passed, ' "$workdir/output" | tail -n 1) ;;
		$UNTRIED)
			result="SKIPPED, $why"
			untried=1 ;;
		*)
			result=FAILED
			! is_released "$version" || failed=1
			is_released "$version" || result="FAILED (not released yet)" ;;
	esac
	echo "PostgreSQL $version, $(suite_of "$version"): $result" |
		tee -a "$workdir/summary"
done
echo
cat "$workdir/summary"
[ $failed -eq 0 ] || exit 1
[ $untried -eq 0 ] || exit $UNTRIED
