/* live_topn--1.0.sql */

\echo Use "CREATE EXTENSION live_topn" to load this file. \quit

-- Tables and internals; nobody needs any right in here.

CREATE SCHEMA live_topn;

CREATE SEQUENCE live_topn.subscription_id_seq;

CREATE TABLE live_topn.subscription (
	id			bigint PRIMARY KEY,
	name		text COLLATE "C" NOT NULL UNIQUE,
	owner		regrole NOT NULL,
	query		text NOT NULL,
	args		text[],
	deliver		text NOT NULL,
	ranks		text NOT NULL,
	cushion		integer,
	throttle	interval,
	lease		interval,
	settings	text[] NOT NULL,
	old			boolean NOT NULL,
	"offset"	bigint NOT NULL,
	"limit"		bigint,
	session		bigint,
	grouped		boolean NOT NULL
);

ALTER SEQUENCE live_topn.subscription_id_seq
	OWNED BY live_topn.subscription.id;

-- The worker decodes the rows, and needs all of each.
ALTER TABLE live_topn.subscription
	REPLICA IDENTITY FULL,
	ALTER query SET STORAGE main,
	ALTER args SET STORAGE main,
	ALTER settings SET STORAGE main;

SELECT pg_catalog.pg_extension_config_dump('live_topn.subscription', '');
SELECT pg_catalog.pg_extension_config_dump('live_topn.subscription_id_seq', '');

CREATE FUNCTION live_topn.subscription_changed() RETURNS trigger
AS 'MODULE_PATHNAME', 'live_topn_subscription_changed'
LANGUAGE C;

CREATE TRIGGER subscription_changed
AFTER INSERT OR UPDATE ON live_topn.subscription
FOR EACH STATEMENT EXECUTE FUNCTION live_topn.subscription_changed();

ALTER TABLE live_topn.subscription
	ENABLE ALWAYS TRIGGER subscription_changed;

-- One row for each subscription that the worker knows, or one with a null id
-- that says for all of them why there is no worker.
CREATE FUNCTION live_topn.stats(
	OUT id bigint,
	OUT held_rows bigint,
	OUT result_rows bigint,
	OUT cushion bigint,
	OUT bytes bigint,
	OUT changes bigint,
	OUT batches bigint,
	OUT deltas bigint,
	OUT refills bigint,
	OUT refilled_rows bigint,
	OUT refill_ms double precision,
	OUT coalesced bigint,
	OUT resets bigint,
	OUT last_seq bigint,
	OUT last_lsn pg_lsn,
	OUT lease_end timestamptz,
	OUT rows_before bigint,
	OUT skipped_rows_held bigint,
	OUT row_bytes bigint,
	OUT groups bigint,
	OUT groups_dropped bigint,
	OUT groups_loaded bigint,
	OUT work_ms double precision,
	OUT restart_lsn pg_lsn,
	OUT refill_pid integer,
	OUT refill_start timestamptz,
	OUT refill_read bigint,
	OUT shared bigint,
	OUT state text,
	OUT error text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'live_topn_stats'
LANGUAGE C;

CREATE FUNCTION live_topn.workers(
	OUT database name,
	OUT pid integer,
	OUT slot name,
	OUT state text,
	OUT error text,
	OUT applied_lsn pg_lsn,
	OUT lag_bytes bigint,
	OUT lag_time interval,
	OUT commits bigint,
	OUT changes bigint,
	OUT log_entries bigint,
	OUT log_bytes bigint,
	OUT refills bigint,
	OUT retained_bytes bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'live_topn_workers'
LANGUAGE C;

-- The interface.

CREATE FUNCTION @extschema@.subscribe_topn(
	query text,
	name text DEFAULT NULL,
	args text[] DEFAULT NULL,
	deliver text DEFAULT 'notify',
	ranks text DEFAULT 'relative',
	cushion integer DEFAULT NULL,
	throttle interval DEFAULT NULL,
	lease interval DEFAULT NULL,
	old boolean DEFAULT false,
	session boolean DEFAULT false)
RETURNS text
AS 'MODULE_PATHNAME', 'live_topn_subscribe'
LANGUAGE C;

COMMENT ON FUNCTION @extschema@.subscribe_topn(text, text, text[], text, text,
											   integer, interval, interval,
											   boolean, boolean)
IS 'subscribe to a query; returns the name of the subscription';

CREATE FUNCTION @extschema@.unsubscribe_topn(name text)
RETURNS void
AS 'MODULE_PATHNAME', 'live_topn_unsubscribe'
LANGUAGE C;

COMMENT ON FUNCTION @extschema@.unsubscribe_topn(text)
IS 'drop a subscription';

CREATE FUNCTION @extschema@.topn_snapshot(
	name text, OUT seq bigint, OUT lsn pg_lsn, OUT rows json)
RETURNS record
AS 'MODULE_PATHNAME', 'live_topn_snapshot'
LANGUAGE C;

COMMENT ON FUNCTION @extschema@.topn_snapshot(text)
IS 'the current result of a subscription, with the number of its last batch';

CREATE FUNCTION @extschema@.topn_rows(name text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'live_topn_rows'
LANGUAGE C;

COMMENT ON FUNCTION @extschema@.topn_rows(text)
IS 'the current result of a subscription as rows';

CREATE FUNCTION @extschema@.topn_poll(
	name text, after bigint, timeout interval DEFAULT '0')
RETURNS SETOF json
AS 'MODULE_PATHNAME', 'live_topn_poll'
LANGUAGE C;

COMMENT ON FUNCTION @extschema@.topn_poll(text, bigint, interval)
IS 'the batches of a subscription after one, oldest first';

-- A procedure can end its transaction before it waits.
CREATE PROCEDURE @extschema@.topn_wait(
	name text, after bigint, timeout interval, INOUT batches json DEFAULT NULL)
AS 'MODULE_PATHNAME', 'live_topn_wait'
LANGUAGE C;

COMMENT ON PROCEDURE @extschema@.topn_wait(text, bigint, interval, json)
IS 'wait for batches of a subscription after one, outside any transaction';

CREATE FUNCTION @extschema@.topn_resync(name text)
RETURNS void
AS 'MODULE_PATHNAME', 'live_topn_resync'
LANGUAGE C;

COMMENT ON FUNCTION @extschema@.topn_resync(text)
IS 'publish a batch with the whole result of a subscription';

CREATE FUNCTION @extschema@.topn_renew(name text)
RETURNS void
AS 'MODULE_PATHNAME', 'live_topn_renew'
LANGUAGE C;

COMMENT ON FUNCTION @extschema@.topn_renew(text)
IS 'extend the lease of a subscription';

CREATE FUNCTION @extschema@.topn_move(
	name text,
	"offset" bigint DEFAULT NULL,
	"limit" bigint DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME', 'live_topn_move'
LANGUAGE C;

COMMENT ON FUNCTION @extschema@.topn_move(text, bigint, bigint)
IS 'slide or resize the result of a subscription; null leaves a number as it is';

CREATE FUNCTION @extschema@.topn_sync(timeout interval DEFAULT '10 s')
RETURNS pg_lsn
AS 'MODULE_PATHNAME', 'live_topn_sync'
LANGUAGE C;

COMMENT ON FUNCTION @extschema@.topn_sync(interval)
IS 'wait until all that was committed before is applied and published';

-- What it would do, without subscribing; needs no worker.
CREATE FUNCTION @extschema@.topn_explain(
	query text, args text[] DEFAULT NULL, OUT item text, OUT detail text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'live_topn_explain'
LANGUAGE C;

COMMENT ON FUNCTION @extschema@.topn_explain(text, text[])
IS 'what a subscription to a query would maintain, the index that serves it, and advice';

-- Views show the subscriptions whose owner the current user can act as.

CREATE VIEW @extschema@.topn_subscriptions WITH (security_barrier) AS
WITH known AS MATERIALIZED (SELECT * FROM live_topn.stats()),
	reason AS MATERIALIZED (SELECT * FROM known WHERE id IS NULL)
SELECT s.name, s.owner, s.query, s.args, s.deliver, s.ranks, s.cushion,
	s.lease, coalesce(w.state, reason.state, 'loading') AS state,
	coalesce(w.error, reason.error) AS error, s.throttle,
	s.old, s."offset", s."limit", w.lease_end, s.session IS NOT NULL AS session
FROM live_topn.subscription s
	LEFT JOIN known w ON w.id = s.id
	LEFT JOIN reason ON true
WHERE pg_catalog.pg_has_role(s.owner, 'USAGE');

COMMENT ON VIEW @extschema@.topn_subscriptions
IS 'subscriptions and whether they work';

CREATE VIEW @extschema@.topn_stats WITH (security_barrier) AS
SELECT s.name, w.held_rows, w.result_rows, w.cushion, w.bytes, w.changes,
	w.batches, w.deltas, w.refills, w.refilled_rows, w.refill_ms, w.coalesced,
	w.resets, w.last_seq, w.last_lsn, w.rows_before, w.skipped_rows_held,
	w.groups, w.work_ms, w.restart_lsn, w.refill_pid, w.refill_start,
	w.refill_read, w.row_bytes, w.groups_dropped, w.groups_loaded, w.shared
FROM live_topn.subscription s
	LEFT JOIN live_topn.stats() w ON w.id = s.id
WHERE pg_catalog.pg_has_role(s.owner, 'USAGE');

COMMENT ON VIEW @extschema@.topn_stats
IS 'what subscriptions hold and what was done for them';

CREATE VIEW @extschema@.topn_worker AS
SELECT * FROM live_topn.workers();

COMMENT ON VIEW @extschema@.topn_worker
IS 'database workers of the whole server';

-- A consumer that does not come keeps WAL from being removed.
CREATE VIEW @extschema@.topn_streams AS
SELECT slot_name AS slot, database, active, active_pid AS pid,
	confirmed_flush_lsn AS confirmed_lsn,
	CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN
		pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_lsn(),
								   restart_lsn)::bigint
	END AS retained_bytes,
	wal_status
FROM pg_catalog.pg_replication_slots
WHERE plugin OPERATOR(pg_catalog.=) 'live_topn' AND
	slot_name OPERATOR(pg_catalog.<>) pg_catalog.format('live_topn_%s', datoid);

COMMENT ON VIEW @extschema@.topn_streams
IS 'replication slots of consumers of the whole server';

GRANT SELECT ON @extschema@.topn_subscriptions, @extschema@.topn_stats,
	@extschema@.topn_worker, @extschema@.topn_streams TO PUBLIC;

-- Debugging.

CREATE FUNCTION live_topn.keyset_queries(
	query text,
	args text[] DEFAULT NULL,
	boundary text[] DEFAULT NULL)
RETURNS SETOF text
AS 'MODULE_PATHNAME', 'live_topn_keyset_queries'
LANGUAGE C;

COMMENT ON FUNCTION live_topn.keyset_queries(text, text[], text[])
IS 'the queries that a subscription would read rows with, one after the other until there are enough, given the sort columns of the last row it holds; EXPLAIN them to see which index serves';
