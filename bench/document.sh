#!/bin/sh
#
# document.sh
#	  Put what is in bench/results/ into doc/peers.md.
#
# There the table of a benchmark is between <!-- NAME --> and <!-- end -->.
#
set -eu
cd "$(dirname "$0")/.."

awk '
	/^<!-- end -->$/ { skipping = 0 }
	!skipping { print }
	/^<!-- [a-z]+ -->$/ && $2 != "end" {
		file = "bench/results/" $2 ".md"
		while ((got = (getline line <file)) > 0)
		{
			if (line !~ /^###/ && (line != "" || any))
			{
				any = 1
				print line
			}
			skipping = 1
		}
		close(file)
		any = 0
	}' doc/peers.md >doc/peers.md.new
mv doc/peers.md.new doc/peers.md
