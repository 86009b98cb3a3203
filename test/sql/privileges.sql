--
-- Who may subscribe to what, and who may read or drop a subscription.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS live_topn;
RESET client_min_messages;
\set SHOW_CONTEXT never

CREATE ROLE regress_topn_owner;
CREATE ROLE regress_topn_member IN ROLE regress_topn_owner;
CREATE ROLE regress_topn_other;
CREATE TABLE salary (id int PRIMARY KEY, name text, amount int, note text);
INSERT INTO salary VALUES (1, 'a', 10, 'x'), (2, 'b', 20, 'y'), (3, 'c', 30, 'z');

-- SELECT on the columns that are used, the identity included
SET ROLE regress_topn_owner;
SELECT subscribe_topn('SELECT id FROM salary ORDER BY id LIMIT 1', 'mine');
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;
GRANT SELECT (id, name) ON salary TO regress_topn_owner;
SET ROLE regress_topn_owner;
SELECT subscribe_topn('SELECT name FROM salary ORDER BY amount LIMIT 2', 'mine');
\echo :LAST_ERROR_SQLSTATE
SELECT subscribe_topn('SELECT name FROM salary WHERE amount > 0 LIMIT 2', 'mine');
\echo :LAST_ERROR_SQLSTATE
SELECT subscribe_topn('SELECT * FROM salary LIMIT 2', 'mine');
\echo :LAST_ERROR_SQLSTATE
SELECT subscribe_topn('SELECT name FROM salary ORDER BY name LIMIT 2', 'mine');
RESET ROLE;
REVOKE SELECT (id) ON salary FROM regress_topn_owner;
GRANT SELECT (amount) ON salary TO regress_topn_owner;
SET ROLE regress_topn_owner;
SELECT subscribe_topn('SELECT name FROM salary ORDER BY amount LIMIT 2', 'no key');
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;
GRANT SELECT (id) ON salary TO regress_topn_owner;

-- The owner, members of its role and superusers
SELECT rows FROM topn_snapshot('mine');
SET ROLE regress_topn_owner;
SELECT rows FROM topn_snapshot('mine');
SELECT name FROM topn_subscriptions;
SELECT name FROM topn_stats;
SET ROLE regress_topn_member;
SELECT * FROM topn_rows('mine') AS (name text);
SELECT name FROM topn_subscriptions;
SELECT topn_move('mine', 1);
SELECT * FROM topn_rows('mine') AS (name text);

-- and nobody else
SET ROLE regress_topn_other;
SELECT name FROM topn_subscriptions;
SELECT name FROM topn_stats;
SELECT rows FROM topn_snapshot('mine');
\echo :LAST_ERROR_SQLSTATE
SELECT * FROM topn_rows('mine') AS (name text);
\echo :LAST_ERROR_SQLSTATE
SELECT topn_resync('mine');
\echo :LAST_ERROR_SQLSTATE
SELECT topn_move('mine', 1);
\echo :LAST_ERROR_SQLSTATE
SELECT unsubscribe_topn('mine');
\echo :LAST_ERROR_SQLSTATE
SELECT * FROM live_topn.subscription;
\echo :LAST_ERROR_SQLSTATE
INSERT INTO live_topn.subscription DEFAULT VALUES;
\echo :LAST_ERROR_SQLSTATE
SELECT * FROM live_topn.stats();
\echo :LAST_ERROR_SQLSTATE

-- Functions of procedural languages never end if they like: by permission only.
RESET ROLE;
CREATE FUNCTION double(int) RETURNS int IMMUTABLE LANGUAGE plpgsql
	AS 'BEGIN RETURN $1 * 2; END';
ALTER FUNCTION double OWNER TO regress_topn_owner;
SET ROLE regress_topn_owner;
SELECT subscribe_topn('SELECT double(amount) FROM salary ORDER BY id LIMIT 1', 'slow');
\echo :LAST_ERROR_SQLSTATE
SET live_topn.allow_procedural_functions = on;
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;

-- A member may drop.
SET ROLE regress_topn_member;
SELECT unsubscribe_topn('mine');
RESET ROLE;
DROP FUNCTION double;
DROP TABLE salary;
DROP ROLE regress_topn_owner, regress_topn_member, regress_topn_other;
