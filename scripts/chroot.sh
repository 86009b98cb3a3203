#
# chroot.sh
#	  Debian in chroots, for tests; to be sourced, by root.
#
# They are made with debootstrap, with its usual mirror, and kept for the next
# time.  Functions return 1 if something cannot be had, and set $why.
#
# CHROOTS	  the folder of the chroots (/var/tmp/live_topn_versions)
# PATIENCE	  seconds that making a chroot, and installing packages in it, may
#			  take each (1800)
#
CHROOTS=${CHROOTS:-/var/tmp/live_topn_versions}
PATIENCE=${PATIENCE:-1800}

mounted=
workdir=$(mktemp -d)
trap 'unmount; rm -rf "$workdir"' EXIT
trap 'exit 130' INT TERM

# The mirror's, or whatever else is in the way: why, and the end of the log.
fail()
{
	why=$1
	tail -n 20 "$workdir/log" >&2
	return 1
}

# One of us at a time.
install_debootstrap()
{
	mkdir -p "$CHROOTS"
	exec 8>"$CHROOTS/.lock"
	flock 8
	if ! command -v debootstrap >/dev/null; then
		say "installing debootstrap"
		{ apt-get update -qq &&
			apt-get install -y -qq --no-install-recommends debootstrap; } \
			>"$workdir/log" 2>&1 ||
			{ fail "could not install debootstrap"; return 1; }
	fi
	exec 8>&-
}

# debootstrap knows the suites of its own time.  All have been made like sid
# for years, so a suite of later is given sid's script, in a copy.
debootstrap_folder()
{
	folder=$1
	[ ! -e "$folder" ] || return 0
	cp -R /usr/share/debootstrap "$folder"
	for later in trixie forky; do
		[ -e "$folder/scripts/$later" ] || ln -s sid "$folder/scripts/$later"
	done
}

chroot_make()
{
	suite=$1 root=$2
	[ ! -e "$root/.complete" ] || return 0

	install_debootstrap || return 1
	debootstrap_folder "$workdir/debootstrap"
	say "making a chroot of $suite"
	rm -rf --one-file-system "$root"
	DEBOOTSTRAP_DIR=$workdir/debootstrap timeout "$PATIENCE" \
		debootstrap --variant=minbase --include=make "$suite" "$root" \
		>"$workdir/log" 2>&1 ||
		{ fail "could not make a chroot of $suite"; return 1; }
	# what a mirror has may be old; it is signed all the same
	echo 'Acquire::Check-Valid-Until "false";' \
		>"$root/etc/apt/apt.conf.d/live_topn"
	# none of it has to survive a crash of the machine
	echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/live_topn"
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

chroot_mount()
{
	root=$1
	why="could not mount file systems in $root"
	mount -t proc proc "$root/proc" || return 1
	mounted="$root/proc $mounted"
	mount -t devpts devpts "$root/dev/pts" || return 1
	mounted="$root/dev/pts $mounted"
	mkdir -p "$root/dev/shm"
	mount -t tmpfs tmpfs "$root/dev/shm" || return 1
	mounted="$root/dev/shm $mounted"
}

# What is in this folder and is not ignored, committed or not.
chroot_copy()
{
	root=$1
	rm -rf "$root/live_topn"
	mkdir "$root/live_topn"
	git -c safe.directory="$PWD" ls-files -zco --exclude-standard |
		tar --null -T - -c | tar -C "$root/live_topn" -x --no-same-owner
}

# A shell command in the copy, with what env takes before it.  Files that our
# environment names are not in there.
chroot_run()
{
	root=$1 command=$2
	shift 2
	chroot "$root" env -u PG_CONFIG -u NODE_EXTRA_CA_CERTS -u NODE_PATH "$@" \
		sh -c "cd /live_topn && $command"
}

# The same, for what installs packages.  One that was stopped amid that is not
# used again.
chroot_install()
{
	root=$1 command=$2
	shift 2
	chroot_run "$root" "timeout $PATIENCE $command" "$@" \
		>"$workdir/log" 2>&1 ||
		{ rm "$root/.complete"; fail "could not install packages"; }
}
