--
-- The functions and views: what they return, and their errors.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS live_topn;
RESET client_min_messages;
\set SHOW_CONTEXT never

CREATE TABLE feed (id int PRIMARY KEY, title text, score int);
INSERT INTO feed SELECT g, 'title ' || g, g * 10 FROM generate_series(1, 5) g;

-- A subscription is named by its caller, or gets a number.
SELECT subscribe_topn('SELECT id, score FROM feed ORDER BY score DESC LIMIT 3', 'best');
SELECT subscribe_topn('SELECT id FROM feed LIMIT 2') ~ '^topn_[0-9]+$' AS numbered;
SELECT subscribe_topn('SELECT title FROM feed WHERE score >= $1 ORDER BY title LIMIT 2',
	name => 'with arguments', args => '{30}', deliver => 'none',
	ranks => 'absolute', cushion => 7, old => true);
SELECT name, owner = current_user::regrole AS own, query, args, deliver, ranks,
	cushion, lease, old
FROM topn_subscriptions WHERE name !~ '^topn_' ORDER BY name;

-- What is committed is there; a snapshot comes with its position.
SELECT seq, lsn <= pg_current_wal_lsn() AS past, rows FROM topn_snapshot('best');
SELECT * FROM topn_rows('best') AS (id int, score int);
SELECT * FROM topn_rows('with arguments') AS (title text);
UPDATE feed SET score = 35 WHERE id = 5;
SELECT * FROM topn_rows('best') AS (id int, score int);
SELECT seq, rows FROM topn_snapshot('best');
SELECT topn_sync() IS NOT NULL AS synced;
SELECT topn_sync('1 s') <= pg_current_wal_lsn() AS past;
DELETE FROM feed;
SELECT seq, rows FROM topn_snapshot('best');
SELECT * FROM topn_rows('best') AS (id int, score int);
INSERT INTO feed SELECT g, 'title ' || g, g * 10 FROM generate_series(1, 5) g;

-- topn_resync publishes the whole result.
SELECT topn_resync('best');
SELECT seq FROM topn_snapshot('best');

SELECT name, state, error FROM topn_subscriptions WHERE name = 'best';
SELECT name, result_rows, held_rows >= result_rows AS has_cushion, batches,
	resets, last_seq
FROM topn_stats WHERE name = 'best';
SELECT count(*), bool_and(pid IS NOT NULL) AS runs, bool_and(applied_lsn IS NOT NULL) AS applies
FROM topn_worker WHERE database = current_database();

-- Rolled back, it never was.
BEGIN;
SELECT subscribe_topn('SELECT id FROM feed ORDER BY id LIMIT 1', 'never');
ROLLBACK;
SELECT * FROM topn_snapshot('never');
\echo :LAST_ERROR_SQLSTATE

-- It can be read once it is committed, and not before.
BEGIN;
SELECT subscribe_topn('SELECT id FROM feed ORDER BY id LIMIT 1', 'soon');
SELECT * FROM topn_snapshot('soon');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;

-- Names
SELECT subscribe_topn('SELECT id FROM feed LIMIT 1', 'best');
\echo :LAST_ERROR_SQLSTATE
SELECT subscribe_topn('SELECT id FROM feed LIMIT 1', '');
\echo :LAST_ERROR_SQLSTATE
SELECT subscribe_topn('SELECT id FROM feed LIMIT 1', repeat('n', 64));
\echo :LAST_ERROR_SQLSTATE
SELECT subscribe_topn('SELECT id FROM feed LIMIT 1', repeat('n', 63)) = repeat('n', 63) AS longest;
SELECT unsubscribe_topn(repeat('n', 63));
SELECT unsubscribe_topn('nobody');
\echo :LAST_ERROR_SQLSTATE
SELECT * FROM topn_snapshot('nobody');
\echo :LAST_ERROR_SQLSTATE
SELECT * FROM topn_rows('nobody') AS (id int);
\echo :LAST_ERROR_SQLSTATE
SELECT topn_resync('nobody');
\echo :LAST_ERROR_SQLSTATE

-- Arguments of the functions
SELECT subscribe_topn(NULL, 'x');
\echo :LAST_ERROR_SQLSTATE
SELECT subscribe_topn('SELECT id FROM feed LIMIT 1', 'x', deliver => 'pigeon');
\echo :LAST_ERROR_SQLSTATE
SELECT subscribe_topn('SELECT id FROM feed LIMIT 1', 'x', ranks => 'cubic');
\echo :LAST_ERROR_SQLSTATE
SELECT subscribe_topn('SELECT id FROM feed', 'x', ranks => 'absolute');
\echo :LAST_ERROR_SQLSTATE
SELECT subscribe_topn('SELECT id FROM feed LIMIT 1', 'x', cushion => -1);
\echo :LAST_ERROR_SQLSTATE
SELECT subscribe_topn('SELECT id FROM feed LIMIT 1', 'x', old => NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT subscribe_topn('SELECT id FROM feed WHERE id = $1 LIMIT 1', 'x');
\echo :LAST_ERROR_SQLSTATE
SELECT subscribe_topn('SELECT id FROM feed WHERE id = $1 LIMIT 1', 'x', '{1,2}');
\echo :LAST_ERROR_SQLSTATE
SELECT subscribe_topn('SELECT id FROM feed WHERE id = $1 LIMIT 1', 'x', '{one}');
\echo :LAST_ERROR_SQLSTATE
SELECT subscribe_topn('SELECT id FROM feed WHERE id = $1 LIMIT 1', 'x', '{{1},{2}}');
\echo :LAST_ERROR_SQLSTATE

-- topn_move slides the page, resizes it, or both.
SELECT subscribe_topn('SELECT id FROM feed ORDER BY score DESC LIMIT 3', 'page');
SELECT topn_move('page', 1);
SELECT rows FROM topn_snapshot('page');
SELECT topn_move('page', "limit" => 1);
SELECT rows FROM topn_snapshot('page');
SELECT "offset", "limit" FROM topn_subscriptions WHERE name = 'page';
SELECT topn_move('page', 0, 3);
SELECT rows FROM topn_snapshot('page');
BEGIN;
SELECT topn_move('page', 4, 4);
ROLLBACK;
SELECT "offset", "limit" FROM topn_subscriptions WHERE name = 'page';
SELECT topn_poll('page', 0)::jsonb - '{lsn,xid,at}'::text[];
SELECT topn_move('page');
\echo :LAST_ERROR_SQLSTATE
SELECT topn_move(NULL, 1);
\echo :LAST_ERROR_SQLSTATE
SELECT topn_move('nobody', 1);
\echo :LAST_ERROR_SQLSTATE
SELECT topn_move('page', -1);
\echo :LAST_ERROR_SQLSTATE
SELECT topn_move('page', 0, -1);
\echo :LAST_ERROR_SQLSTATE
SELECT topn_move('page', 999999999);
\echo :LAST_ERROR_SQLSTATE
SELECT topn_move('page', 9223372036854775807, 9223372036854775807);
\echo :LAST_ERROR_SQLSTATE
SELECT unsubscribe_topn('page');

-- Rows of another type
SELECT * FROM topn_rows('best') AS (id int);
\echo :LAST_ERROR_SQLSTATE
SELECT * FROM topn_rows('best') AS (id int, score text);
\echo :LAST_ERROR_SQLSTATE

-- Queries that cannot be: the position is in the query.
SELECT subscribe_topn('SELECT id FRM feed', 'x');
\echo :LAST_ERROR_SQLSTATE
SELECT subscribe_topn('SELECT nothing FROM feed ORDER BY id LIMIT 1', 'x');
\echo :LAST_ERROR_SQLSTATE
SELECT subscribe_topn('SELECT f.id FROM feed f, feed g LIMIT 1', 'x');
\echo :LAST_ERROR_SQLSTATE
SELECT subscribe_topn('SELECT count(*) FROM feed LIMIT 1', 'x');
\echo :LAST_ERROR_SQLSTATE
SELECT subscribe_topn('SELECT count(*) FROM feed', 'x');
\echo :LAST_ERROR_SQLSTATE
CREATE TABLE nobody (i int);
SELECT subscribe_topn('SELECT i FROM nobody ORDER BY i LIMIT 1', 'x');
\echo :LAST_ERROR_SQLSTATE
DROP TABLE nobody;

-- topn_poll returns the batches after one.
SELECT topn_poll('best', 0)::jsonb - '{lsn,xid,at}'::text[];
SELECT topn_poll('best', 3)::jsonb - '{lsn,xid,at}'::text[];
SELECT topn_poll('best', 4, '10 ms');
SELECT topn_poll('nobody', 0);
\echo :LAST_ERROR_SQLSTATE

-- A lease is renewed or ends.
SELECT subscribe_topn('SELECT id FROM feed ORDER BY id LIMIT 1', 'lent', lease => '1 hour');
SELECT topn_renew('lent');
SELECT topn_renew('best');
\echo :LAST_ERROR_SQLSTATE
SELECT topn_renew('nobody');
\echo :LAST_ERROR_SQLSTATE
SELECT subscribe_topn('SELECT id FROM feed ORDER BY id LIMIT 1', 'x', lease => '-1 s');
\echo :LAST_ERROR_SQLSTATE
SELECT subscribe_topn('SELECT id FROM feed ORDER BY id LIMIT 1', 'x', throttle => '-1 s');
\echo :LAST_ERROR_SQLSTATE

-- The settings of the session are those of the subscription.
SET TimeZone = 'Asia/Tokyo';
SET DateStyle = 'German';
SET bytea_output = 'escape';
CREATE SCHEMA other;
CREATE TABLE other.feed (id int PRIMARY KEY, at timestamptz, b bytea);
INSERT INTO other.feed VALUES (1, '2026-01-01 00:00+00', '\x00ff');
SET search_path = other, public;
SELECT subscribe_topn('SELECT at::text AS at, b FROM feed ORDER BY id LIMIT 1', 'abroad');
RESET ALL;
\set SHOW_CONTEXT never
SELECT rows FROM topn_snapshot('abroad');
SELECT unsubscribe_topn('abroad');
SET client_min_messages = warning;
DROP SCHEMA other CASCADE;
RESET client_min_messages;

-- Dropped, it is gone.
SELECT unsubscribe_topn('best');
SELECT unsubscribe_topn('best');
\echo :LAST_ERROR_SQLSTATE
SELECT count(unsubscribe_topn(name)) FROM topn_subscriptions;
SELECT count(*) FROM topn_subscriptions;
DROP TABLE feed;
