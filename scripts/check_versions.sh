#!/bin/sh
#
# check_versions.sh
#	  Run the tests with every PostgreSQL that Debian has, each in a chroot.
#
# Needs root.  The chroots are made with debootstrap, with its usual mirror,
# and kept for the next time; each has the packages that setup.sh installs.
# Warnings are errors.  Ends with one line for each version, and fails if a
# version failed that has been released.
#
# VERSIONS	  some of 15 17 18 19 (all)
# TESTS		  names of tests (all)
# CHROOTS	  the folder of the chroots (/var/tmp/live_topn_versions)
#
set -eu
cd "$(dirname "$0")/.."

VERSIONS=${VERSIONS:-15 17 18 19}
TESTS=${TESTS:-}
CHROOTS=${CHROOTS:-/var/tmp/live_topn_versions}

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

# debootstrap knows the suites of its own time.  All have been made like sid
# for years, so a suite of later is given sid's script, in a copy.
debootstrap_folder()
{
	folder=$1
	cp -R /usr/share/debootstrap "$folder"
	for suite in trixie forky; do
		[ -e "$folder/scripts/$suite" ] || ln -s sid "$folder/scripts/$suite"
	done
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

make_chroot()
{
	version=$1 root=$2
	suite=$(suite_of "$version")
	[ ! -e "$root/.complete" ] || return 0

	say "making a chroot of $suite"
	rm -rf "$root"
	DEBOOTSTRAP_DIR=$workdir/debootstrap debootstrap --variant=minbase \
		--include=make "$suite" "$root" >"$workdir/log" 2>&1 ||
		{ tail -n 20 "$workdir/log" >&2; return 1; }
	[ "$suite" != sid ] || add_experimental "$root" "$version"
	# no service is to be started
	printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
	chmod +x "$root/usr/sbin/policy-rc.d"
	touch "$root/.complete"
}

unmount()
{
	for folder in $mounted; do
		umount "$folder" || umount -l "$folder"
	done
	mounted=
}

mount_in()
{
	root=$1
	mount -t proc proc "$root/proc" || return 1
	mounted="$root/proc $mounted"
	mount -t devpts devpts "$root/dev/pts" || return 1
	mounted="$root/dev/pts $mounted"
	mkdir -p "$root/dev/shm"
	mount -t tmpfs tmpfs "$root/dev/shm" || return 1
	mounted="$root/dev/shm $mounted"
}

# What is in this folder and is not ignored, committed or not.
copy_into()
{
	root=$1
	rm -rf "$root/live_topn"
	mkdir "$root/live_topn"
	git -c safe.directory="$PWD" ls-files -zco --exclude-standard |
		tar --null -T - -c | tar -C "$root/live_topn" -x --no-same-owner
}

run_tests()
{
	version=$1 root=$2
	if [ -n "$TESTS" ]; then
		command='make setup && make installcheck TESTS="$TESTS"'
	else
		command='make check'
	fi
	chroot "$root" env -u PG_CONFIG PG_MAJOR="$version" TESTS="$TESTS" \
		sh -c "cd /live_topn && $command"
}

# The status is that of the tests; what they print ends in $workdir/output.
check_version()
{
	version=$1 root=$CHROOTS/$1
	make_chroot "$version" "$root" && copy_into "$root" &&
		mount_in "$root" || { unmount; return 1; }
	if run_tests "$version" "$root" >"$workdir/output" 2>&1; then
		status=0
	else
		status=1
		cat "$workdir/output"
	fi
	unmount
	return $status
}

if [ "$(id -u)" -ne 0 ]; then
	say "must be root, for debootstrap and chroot"
	exit 1
fi
for version in $VERSIONS; do
	suite_of "$version" >/dev/null
done
if ! command -v debootstrap >/dev/null; then
	say "installing debootstrap"
	apt-get update -qq
	apt-get install -y -qq --no-install-recommends debootstrap >/dev/null
fi

mounted=
workdir=$(mktemp -d)
trap 'unmount; rm -rf "$workdir"' EXIT
trap 'exit 130' INT TERM
debootstrap_folder "$workdir/debootstrap"
mkdir -p "$CHROOTS"

failed=0
for version in $VERSIONS; do
	: >"$workdir/output"
	if check_version "$version"; then
		result=$(grep ' passed, ' "$workdir/output" | tail -n 1)
	else
		result=FAILED
		if is_released "$version"; then
			failed=1
		else
			result="FAILED (not released yet)"
		fi
	fi
	echo "PostgreSQL $version, $(suite_of "$version"): $result" |
		tee -a "$workdir/summary"
done
echo
cat "$workdir/summary"
exit $failed
