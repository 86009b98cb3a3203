MODULE_big = live_topn
OBJS = \
	src/live_topn.o \
	src/launcher.o \
	src/request.o \
	src/subscription.o \
	src/query.o \
	src/row.o \
	src/window.o \
	src/delta.o \
	src/batch.o \
	src/commit_log.o \
	src/reconcile.o \
	src/refill.o \
	src/decoder.o \
	src/deliver.o \
	src/worker.o

EXTENSION = live_topn
DATA = sql/live_topn--1.0.sql
PGFILEDESC = "live_topn - exact live results of sorted, limited queries"

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)
