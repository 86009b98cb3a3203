#!/bin/sh
#
# run.sh
#	  All benchmarks, one after the other, or those named; "make bench" runs it.
#
# Prints Markdown and keeps it in bench/results/.  The sizes are environment
# variables of the single scripts.
#
set -eu
cd "$(dirname "$0")/.."

[ $# -gt 0 ] ||
	set -- decode many pgbench_tps latency delivery groups sets clients fairness peers

mkdir -p bench/results
for benchmark; do
	bench/$benchmark.sh >bench/results/$benchmark.md.new
	mv bench/results/$benchmark.md.new bench/results/$benchmark.md
	cat bench/results/$benchmark.md
	echo
done
