MODULE_big = live_topn
OBJS = \
	src/live_topn.o \
	src/hooks.o \
	src/launcher.o \
	src/worker_slot.o \
	src/setup.o \
	src/request.o \
	src/catalog.o \
	src/intern.o \
	src/subscription.o \
	src/read.o \
	src/monitor.o \
	src/waits.o \
	src/progress.o \
	src/meter.o \
	src/query.o \
	src/query_check.o \
	src/query_functions.o \
	src/query_text.o \
	src/conversion.o \
	src/inert.o \
	src/flatten.o \
	src/groups.o \
	src/all_groups.o \
	src/identity.o \
	src/depend.o \
	src/fingerprint.o \
	src/tiers.o \
	src/key_map.o \
	src/keyset.o \
	src/explain.o \
	src/row.o \
	src/window.o \
	src/window_copy.o \
	src/window_drop.o \
	src/window_set.o \
	src/window_work.o \
	src/rank.o \
	src/delta.o \
	src/delta_moves.o \
	src/delta_ranks.o \
	src/batch.o \
	src/chunk.o \
	src/commit_log.o \
	src/reconcile.o \
	src/refill.o \
	src/refill_queue.o \
	src/refill_worker.o \
	src/table.o \
	src/evaluate.o \
	src/cushion.o \
	src/feed.o \
	src/feed_state.o \
	src/feed_turn.o \
	src/feed_watch.o \
	src/feed_log.o \
	src/feed_publish.o \
	src/feed_refill.o \
	src/feed_merge.o \
	src/feed_bound.o \
	src/feed_check.o \
	src/feed_joint_check.o \
	src/feed_restart.o \
	src/feed_set.o \
	src/feed_drop.o \
	src/feed_share.o \
	src/feed_slice.o \
	src/holders.o \
	src/huge.o \
	src/pool.o \
	src/predicate.o \
	src/span.o \
	src/feed_lease.o \
	src/subscriber.o \
	src/template.o \
	src/route.o \
	src/shape.o \
	src/watch.o \
	src/apply.o \
	src/subscriber_changes.o \
	src/recheck.o \
	src/invalidation.o \
	src/decoder.o \
	src/deliver.o \
	src/message.o \
	src/session.o \
	src/history.o \
	src/output_plugin.o \
	src/checkpoint.o \
	src/checkpoint_file.o \
	src/checkpoint_record.o \
	src/answer.o \
	src/worker.o

EXTENSION = live_topn
DATA = sql/live_topn--1.0.sql
PGFILEDESC = "live_topn - exact live results of sorted, limited queries"

EXTRA_CLEAN = bench/latency \
	bench/null_plugin/null_plugin.o bench/null_plugin/null_plugin.so

PG_CONFIG ?= pg_config
export PG_CONFIG

# These install what they need, PostgreSQL too; all others come from PGXS.
SELF_CONTAINED = setup demo example check-example bench measurements check \
	installcheck check-versions check-package \
	soak soak-kill fuzz
ifneq ($(filter-out $(SELF_CONTAINED),$(or $(MAKECMDGOALS),all)),)
NO_INSTALLCHECK = 1
PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)
$(OBJS): $(wildcard src/*.h)

# topn_watch is a program, and PGXS makes either a module or a program.
all: all-client
install: install-client
uninstall: uninstall-client
clean: clean-client clean-demo

all-client install-client uninstall-client clean-client:
	$(MAKE) -C client $(@:-client=)

clean-demo:
	$(MAKE) -C examples/demo clean

.PHONY: all-client install-client uninstall-client clean-client clean-demo
endif

.PHONY: $(SELF_CONTAINED)

setup:
	@scripts/setup.sh

demo: setup
	@scripts/demo.sh

# A live leaderboard page on http://127.0.0.1:8080/ (PORT=...).
example: setup
	@scripts/example.sh

# That page in headless Chromium.
check-example: setup
	@scripts/example_test.sh

bench: setup
	@bench/run.sh

# The tables and plots of doc/measurements.md.
measurements: setup
	@bench/measurements.sh

# All tests, or TESTS="..."; then "N passed, N failed".  SEED=... repeats the
# randomized ones.
# PGXS has a rule of this name, which only says that it is not supported.
ifneq ($(filter check,$(MAKECMDGOALS)),)
check: setup
	@test/check $(TESTS)
endif

# The same of what is installed; TESTS="api 020_facts" for some of them.
installcheck:
	@test/check $(TESTS)

# All tests, or TESTS="...", with each PostgreSQL that Debian has, or
# VERSIONS="17 18", each in a chroot.
check-versions:
	@scripts/check_versions.sh

# Build the Debian package, look at it, and run the demo from it, in a chroot.
check-package:
	@scripts/check_package.sh

# The oracles without end, or for MINUTES=..., from SEED=...
soak: setup
	@test/check --soak

# A thousand kills, or KILLS=...
soak-kill: setup
	@KILLS=$${KILLS:-1000} test/check 041_kills

# Five thousand random queries and calls, or FUZZ=...
fuzz: setup
	@FUZZ=$${FUZZ:-5000} test/check 045_fuzz
