--
-- What can be subscribed to, what cannot, and why.
--
-- live_topn.keyset_queries analyses a query as a subscription does, and shows
-- the queries that read its rows.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS live_topn;
RESET client_min_messages;
SET search_path = public, live_topn;
SET TimeZone = 'UTC';
SET DateStyle = ISO;
\set SHOW_CONTEXT never

CREATE TABLE item (
	id int PRIMARY KEY,
	score int,
	name text NOT NULL,
	at timestamptz,
	price numeric,
	data jsonb,
	tags text[]);

CREATE FUNCTION public.plan(query text, VARIADIC args text[] DEFAULT NULL)
RETURNS text LANGUAGE sql
AS $$ SELECT string_agg(regexp_replace(q, '\s+', ' ', 'g'), E'\n')
      FROM live_topn.keyset_queries(query, args) q $$;
-- PostgreSQL 16 and later name the table of a column that an output column
-- could be mistaken for.
CREATE FUNCTION public.plan_of_chosen(query text)
RETURNS text LANGUAGE sql AS $$ SELECT replace(plan(query), 'chosen.', '') $$;

-- The row and its order: the identity is appended to both.
SELECT plan('SELECT name FROM item WHERE score > 3 ORDER BY name DESC LIMIT 5');
SELECT plan('SELECT id, name FROM item ORDER BY name, id DESC LIMIT 5');
SELECT plan('SELECT id AS x, name FROM item ORDER BY x, name LIMIT 5');
SELECT plan('SELECT * FROM item i ORDER BY lower(name) COLLATE "C", score USING > LIMIT 5');
SELECT plan($$SELECT id, CASE WHEN score > 3 THEN name ELSE 'low' END AS x,
	coalesce(score, 0), greatest(score, 5), nullif(score, 3)
	FROM item WHERE score IS NOT NULL AND (price > 1) IS NOT FALSE
	AND score IN (1, 2) AND tags[1] IS DISTINCT FROM 'a' AND NOT name ~ 'x'
	AND ROW(score, id) > ROW(3, 4) ORDER BY at IS NULL, id LIMIT 5$$);
SELECT plan('SELECT id FROM item ORDER BY score LIMIT 1 OFFSET 2');
SELECT plan('SELECT id FROM item ORDER BY score FETCH FIRST 2 ROWS WITH TIES');
-- no order at all
SELECT plan('SELECT name FROM item LIMIT 5');
SELECT plan('TABLE item LIMIT 0');

-- Arguments have the types that the query gives them.
SELECT plan('SELECT id FROM item WHERE score > $1 AND name = $2 ORDER BY at LIMIT $3', '10', 'x''y', '7');
SELECT plan('SELECT id FROM item WHERE at > $1 LIMIT 2 + 3', '2026-01-01');
SELECT plan('SELECT id, $1 AS label FROM item LIMIT 1', 'hello');
SELECT plan('SELECT id FROM item WHERE id = ANY ($1) LIMIT 1', '{1,2}');
SELECT plan('SELECT id FROM item WHERE score = $1 LIMIT 1', NULL);
-- a value of another type, too few, too many, an unknown type
SELECT plan('SELECT id FROM item WHERE score > $1 LIMIT 1', 'ten');
SELECT plan('SELECT id FROM item WHERE score > $1 AND id < $2 LIMIT 1', '10');
SELECT plan('SELECT id FROM item LIMIT 1', '10');
SELECT plan('SELECT id FROM item WHERE score > $2 LIMIT 1', '10', '20');
SELECT plan('SELECT id FROM item LIMIT $1', NULL);
SELECT plan('SELECT id FROM item LIMIT $1', '-1');

-- Errors of PostgreSQL's own keep their position.
SELECT plan('SELECT id FROM item ORDER BY nothing LIMIT 1');
SELECT plan('SELECT id FROM item WHERE LIMIT 1');
SELECT plan('SELECT id FROM missing LIMIT 1');
SELECT plan('SELECT id FROM item ORDER BY point(score, score) LIMIT 1');
SELECT plan('');

-- Statements that are no SELECT from one table.
SELECT plan('DELETE FROM item');
SELECT plan('SELECT id FROM item LIMIT 1;  SELECT 2');
SELECT plan('SELECT 1 LIMIT 1');
SELECT plan('VALUES (1) LIMIT 1');
SELECT plan('SELECT id INTO other FROM item LIMIT 1');
SELECT plan('WITH w AS (SELECT 1) SELECT id FROM item LIMIT 1');
SELECT plan('SELECT id FROM item UNION SELECT score FROM item LIMIT 1');
SELECT plan('SELECT a.id FROM item a, item b LIMIT 1');
SELECT plan('SELECT a.id FROM item a JOIN item b USING (id) LIMIT 1');
SELECT plan('SELECT id FROM (SELECT id FROM item) s LIMIT 1');
SELECT plan('SELECT g FROM generate_series(1, 3) g LIMIT 1');
SELECT plan('SELECT id FROM item TABLESAMPLE system (10) LIMIT 1');

-- Clauses and expressions that are not about single rows.
SELECT plan('SELECT DISTINCT name FROM item LIMIT 1');
SELECT plan('SELECT DISTINCT ON (name) name FROM item LIMIT 1');
SELECT plan('SELECT name FROM item GROUP BY name LIMIT 1');
SELECT plan('SELECT 1 FROM item HAVING true LIMIT 1');
SELECT plan('SELECT count(*) FROM item LIMIT 1');
SELECT plan('SELECT id, rank() OVER (ORDER BY score) FROM item LIMIT 1');
SELECT plan('SELECT id, unnest(tags) FROM item LIMIT 1');
SELECT plan('SELECT id FROM item WHERE score = (SELECT max(score) FROM item) LIMIT 1');
SELECT plan('SELECT id FROM item ORDER BY score LIMIT (SELECT 1)');
SELECT plan('SELECT id FROM item LIMIT 1 FOR UPDATE');
SELECT plan('SELECT ctid, id FROM item LIMIT 1');
SELECT plan('SELECT id FROM item WHERE tableoid = 0 LIMIT 1');
SELECT plan('SELECT ROW(id, name) FROM item LIMIT 1');
SELECT plan('SELECT id FROM item ORDER BY ROW(name, id) LIMIT 1');

-- The limit.
SELECT plan('SELECT id FROM item ORDER BY score');
SELECT plan('SELECT id FROM item ORDER BY score LIMIT ALL OFFSET 2');
SELECT plan('SELECT id FROM item ORDER BY score LIMIT $1 OFFSET $2', NULL, NULL);
SELECT plan('SELECT id FROM item ORDER BY score FETCH FIRST $1 ROWS WITH TIES', NULL);
SELECT plan('SELECT id FROM item ORDER BY score LIMIT -5');
SELECT plan('SELECT id FROM item ORDER BY score LIMIT (random() * 5)::int');
SELECT plan('SELECT id FROM item ORDER BY score LIMIT 1 OFFSET -2');
SELECT plan('SELECT id FROM item ORDER BY score LIMIT 1 OFFSET (random() * 5)::int');

-- Functions whose result may change while the row does not.
SELECT plan('SELECT id FROM item ORDER BY random() LIMIT 1');
SELECT plan('SELECT id FROM item WHERE at > now() LIMIT 1');
SELECT plan('SELECT id FROM item WHERE at > CURRENT_TIMESTAMP LIMIT 1');
SELECT plan('SELECT id FROM item WHERE at > current_date LIMIT 1');
SELECT plan('SELECT id FROM item WHERE age(at) > interval ''1 day'' LIMIT 1');
SELECT plan('SELECT id FROM item WHERE at > ''today'' LIMIT 1');
SELECT plan('SELECT id FROM item WHERE at > timestamp '' NOW '' LIMIT 1');
SELECT plan('SELECT id FROM item WHERE at > $1 LIMIT 1', 'tomorrow');
SELECT plan('SELECT id FROM item WHERE (data->>''at'')::timestamptz > at LIMIT 1');
SELECT plan('SELECT id FROM item WHERE name = current_setting(''x.y'') LIMIT 1');
SELECT plan('SELECT id FROM item WHERE name = session_user LIMIT 1');
SELECT plan('SELECT id, name::regclass FROM item LIMIT 1');
SELECT plan('SELECT id, to_char(at, ''TMDay'') FROM item LIMIT 1');
SELECT plan('SELECT id, to_char(price, ''9D99'') FROM item LIMIT 1');
SELECT plan('SELECT id, to_tsvector(name) FROM item LIMIT 1');
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE TABLE person (id int PRIMARY KEY, mood mood);
SELECT plan('SELECT id, mood::text FROM person LIMIT 1');
SELECT plan('SELECT to_json(p) FROM person p LIMIT 1');
SELECT plan('SELECT id FROM person WHERE mood > ''sad'' ORDER BY mood LIMIT 1');

-- Those that depend only on settings that a subscription records are fine, and
-- so is the name of its owner.
SELECT plan($$SELECT id, at::date, at::text, date_trunc('month', at),
	extract(dow FROM at), to_char(at, 'YYYY-MM-DD'), at + interval '1 day',
	to_char(price, '9.99') FROM item WHERE at > date '2026-01-01' LIMIT 1$$);
SELECT plan($$SELECT to_json(i), row_to_json(i), to_jsonb(tags),
	concat(name, at), format('%s', at), array_to_string(tags, ','),
	json_build_object('at', at), tags::text, name || at
	FROM item i LIMIT 1$$);
SELECT plan('SELECT id FROM item WHERE name = current_user AND name <> user LIMIT 1');
SELECT plan('SELECT id FROM item WHERE name = ''now'' LIMIT 1');

-- Tables whose changes cannot be followed.
CREATE TEMP TABLE temporary (id int PRIMARY KEY);
CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY);
CREATE MATERIALIZED VIEW materialized AS SELECT id FROM item;
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE child () INHERITS (parent);
CREATE SEQUENCE seq;
CREATE FOREIGN DATA WRAPPER dummy;
CREATE SERVER elsewhere FOREIGN DATA WRAPPER dummy;
CREATE FOREIGN TABLE remote (id int) SERVER elsewhere;
SELECT plan('SELECT id FROM temporary LIMIT 1');
SELECT plan('SELECT id FROM unlogged LIMIT 1');
SELECT plan('SELECT id FROM materialized LIMIT 1');
SELECT plan('SELECT id FROM remote LIMIT 1');
SELECT plan('SELECT last_value FROM seq LIMIT 1');
SELECT plan('SELECT oid FROM pg_class LIMIT 1');
SELECT plan('SELECT id FROM live_topn.subscription LIMIT 1');
SELECT plan('SELECT id FROM parent LIMIT 1');
SELECT plan('SELECT id FROM ONLY parent ORDER BY id LIMIT 1');
SELECT plan('SELECT id FROM child LIMIT 1');

-- Identity.
CREATE TABLE nokey (a int, b text);
SELECT plan('SELECT a FROM nokey ORDER BY a LIMIT 1');
ALTER TABLE nokey REPLICA IDENTITY FULL;
SELECT plan('SELECT b FROM nokey ORDER BY a LIMIT 1');
SELECT plan('SELECT b FROM nokey LIMIT 1');
ALTER TABLE item REPLICA IDENTITY FULL;
SELECT plan('SELECT name FROM item ORDER BY name LIMIT 1');
ALTER TABLE item REPLICA IDENTITY NOTHING;
SELECT plan('SELECT name FROM item ORDER BY name LIMIT 1');
ALTER TABLE item REPLICA IDENTITY DEFAULT;
CREATE TABLE deferred (id int PRIMARY KEY DEFERRABLE);
SELECT plan('SELECT id FROM deferred ORDER BY id LIMIT 1');
CREATE TABLE chosen (a int PRIMARY KEY, b int NOT NULL, c text COLLATE "C" NOT NULL, d int);
CREATE UNIQUE INDEX chosen_idx ON chosen (c COLLATE "POSIX", b) INCLUDE (d);
ALTER TABLE chosen REPLICA IDENTITY USING INDEX chosen_idx;
SELECT plan_of_chosen('SELECT a FROM chosen ORDER BY a LIMIT 1');
SELECT plan_of_chosen('SELECT a FROM chosen ORDER BY c, b LIMIT 1');
SELECT plan_of_chosen('SELECT a FROM chosen ORDER BY c COLLATE "POSIX", b LIMIT 1');
DROP INDEX chosen_idx;
SELECT plan_of_chosen('SELECT a FROM chosen ORDER BY a LIMIT 1');

-- The table at the root says what the identity is; partitions must log it.
CREATE TABLE part (k int, id int, v text, PRIMARY KEY (k, id)) PARTITION BY LIST (k);
CREATE TABLE part1 PARTITION OF part FOR VALUES IN (1);
CREATE TABLE part2 (v text, dropped int, id int NOT NULL, k int NOT NULL);
ALTER TABLE part2 DROP COLUMN dropped;
ALTER TABLE part ATTACH PARTITION part2 FOR VALUES IN (2);
SELECT plan('SELECT v FROM part ORDER BY v LIMIT 1');
SELECT plan('SELECT v FROM part2 ORDER BY v LIMIT 1');
SELECT plan('SELECT v FROM ONLY part ORDER BY v LIMIT 1');
ALTER TABLE part2 REPLICA IDENTITY NOTHING;
SELECT plan('SELECT v FROM part ORDER BY v LIMIT 1');
CREATE UNIQUE INDEX part2_id ON part2 (id);
ALTER TABLE part2 REPLICA IDENTITY USING INDEX part2_id;
SELECT plan('SELECT v FROM part ORDER BY v LIMIT 1');
ALTER TABLE part2 REPLICA IDENTITY FULL;
SELECT plan('SELECT v FROM part ORDER BY v LIMIT 1');
CREATE TABLE keyless_part (k int, v text) PARTITION BY LIST (k);
ALTER TABLE keyless_part REPLICA IDENTITY FULL;
CREATE TABLE keyless_part1 PARTITION OF keyless_part FOR VALUES IN (1);
SELECT plan('SELECT v FROM keyless_part ORDER BY v LIMIT 1');
ALTER TABLE keyless_part1 REPLICA IDENTITY FULL;
SELECT plan('SELECT v FROM keyless_part ORDER BY v LIMIT 1');
CREATE UNLOGGED TABLE keyless_part2 PARTITION OF keyless_part FOR VALUES IN (2);
SELECT plan('SELECT v FROM keyless_part ORDER BY v LIMIT 1');
ALTER TABLE keyless_part2 SET LOGGED, REPLICA IDENTITY FULL;
CREATE FOREIGN TABLE keyless_part3 PARTITION OF keyless_part FOR VALUES IN (3) SERVER elsewhere;
SELECT plan('SELECT v FROM keyless_part ORDER BY v LIMIT 1');
DROP FOREIGN TABLE keyless_part3;

-- Views of one table.
CREATE VIEW cheap AS SELECT id AS ident, upper(name) AS title, price FROM item WHERE price < 10;
CREATE VIEW cheaper WITH (security_barrier) AS SELECT title, ident FROM cheap WHERE price < 5;
SELECT plan('SELECT title FROM cheap WHERE price > 1 ORDER BY title LIMIT 1');
SELECT plan('SELECT c FROM cheaper c ORDER BY title LIMIT 1');
CREATE VIEW without_key AS SELECT name FROM item;
SELECT plan('SELECT name FROM without_key ORDER BY name LIMIT 1');
CREATE VIEW of_keyless AS SELECT a, b FROM nokey;
SELECT plan('SELECT a FROM of_keyless ORDER BY a LIMIT 1');
CREATE VIEW joined AS SELECT a.id FROM item a JOIN item b USING (id);
SELECT plan('SELECT id FROM joined LIMIT 1');
CREATE VIEW counted AS SELECT name, count(*) FROM item GROUP BY name;
SELECT plan('SELECT name FROM counted LIMIT 1');
CREATE VIEW timed AS SELECT id FROM item WHERE at > now();
SELECT plan('SELECT id FROM timed ORDER BY id LIMIT 1');
CREATE VIEW placed AS SELECT id, ctid AS place FROM item;
SELECT plan('SELECT id FROM placed ORDER BY place LIMIT 1');

-- Functions: SQL is inlined, procedural languages are for superusers.
CREATE ROLE regress_topn;
GRANT CREATE ON SCHEMA public TO regress_topn;
GRANT USAGE ON SCHEMA live_topn TO regress_topn;
GRANT SELECT ON item TO regress_topn;
CREATE FUNCTION twice(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN $1 * 2; END';
SET ROLE regress_topn;
CREATE FUNCTION plus_one(int) RETURNS int LANGUAGE sql AS 'SELECT $1 + 1';
CREATE FUNCTION plus_random(int) RETURNS int LANGUAGE sql AS 'SELECT ($1 + random())::int';
CREATE FUNCTION smallest(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT min(x) FROM generate_series(1, $1) x';
CREATE FUNCTION thrice(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN $1 * 3; END';
CREATE DOMAIN even AS int CHECK (thrice(VALUE) % 2 = 0);
SELECT plan('SELECT plus_one(score), twice(score) FROM item ORDER BY 1, 2 LIMIT 1');
SELECT plan('SELECT id, plus_random(score) FROM item LIMIT 1');
SELECT plan('SELECT id, smallest(score) FROM item LIMIT 1');
SELECT plan('SELECT id FROM item WHERE thrice(score) > 5 LIMIT 1');
SELECT plan('SELECT id FROM item WHERE score > thrice(5) LIMIT 1');
SELECT plan('SELECT id, score::even FROM item LIMIT 1');
RESET ROLE;
SET live_topn.allow_procedural_functions = on;
SET ROLE regress_topn;
SELECT plan('SELECT smallest(score) FROM item WHERE thrice(score) > 5 ORDER BY score::even LIMIT 1');
RESET ROLE;
RESET live_topn.allow_procedural_functions;
REVOKE EXECUTE ON FUNCTION twice(int) FROM PUBLIC;
SET ROLE regress_topn;
SELECT plan('SELECT id, twice(score) FROM item LIMIT 1');
RESET ROLE;

-- Privileges: on the columns of the query, and on those of the identity.
CREATE TABLE secret (id int PRIMARY KEY, open text, hidden text);
SET ROLE regress_topn;
SELECT plan('SELECT open FROM secret ORDER BY open LIMIT 1');
RESET ROLE;
GRANT SELECT (open) ON secret TO regress_topn;
SET ROLE regress_topn;
SELECT plan('SELECT open FROM secret ORDER BY open LIMIT 1');
RESET ROLE;
GRANT SELECT (id) ON secret TO regress_topn;
SET ROLE regress_topn;
SELECT plan('SELECT open FROM secret ORDER BY open LIMIT 1');
SELECT plan('SELECT open FROM secret ORDER BY hidden LIMIT 1');
SELECT plan('SELECT open FROM secret WHERE hidden = ''x'' ORDER BY open LIMIT 1');
SELECT plan('SELECT secret FROM secret ORDER BY open LIMIT 1');
RESET ROLE;
-- without a key these are all columns
GRANT SELECT (a) ON nokey TO regress_topn;
SET ROLE regress_topn;
SELECT plan('SELECT a FROM nokey ORDER BY a LIMIT 1');
RESET ROLE;
GRANT SELECT ON nokey TO regress_topn;
SET ROLE regress_topn;
SELECT plan('SELECT a FROM nokey ORDER BY a LIMIT 1');
RESET ROLE;
-- a view lends the privileges of its owner, on the columns that it shows
CREATE VIEW window_on_secret AS SELECT id, hidden FROM secret WHERE open IS NOT NULL;
GRANT SELECT (hidden) ON window_on_secret TO regress_topn;
SET ROLE regress_topn;
SELECT plan('SELECT hidden FROM window_on_secret ORDER BY hidden LIMIT 1');
RESET ROLE;
GRANT SELECT (id) ON window_on_secret TO regress_topn;
SET ROLE regress_topn;
SELECT plan('SELECT hidden FROM window_on_secret ORDER BY hidden LIMIT 1');
RESET ROLE;
ALTER VIEW window_on_secret SET (security_invoker = true);
SET ROLE regress_topn;
SELECT plan('SELECT hidden FROM window_on_secret ORDER BY hidden LIMIT 1');
RESET ROLE;

-- Row security is part of the query.
ALTER TABLE item ENABLE ROW LEVEL SECURITY;
CREATE POLICY mine ON item USING (name = current_user);
SET ROLE regress_topn;
SELECT plan('SELECT id FROM item ORDER BY score LIMIT 1');
RESET ROLE;
CREATE POLICY clock ON item AS RESTRICTIVE USING (at < now());
SET ROLE regress_topn;
SELECT plan('SELECT id FROM item ORDER BY score LIMIT 1');
RESET ROLE;
DROP POLICY clock ON item;
CREATE POLICY lookup ON item USING (id IN (SELECT id FROM secret));
SET ROLE regress_topn;
SELECT plan('SELECT id FROM item ORDER BY score LIMIT 1');
RESET ROLE;

DROP TABLE item, person, unlogged, parent, nokey, chosen, deferred, part, keyless_part, secret CASCADE;
DROP FOREIGN DATA WRAPPER dummy CASCADE;
DROP SEQUENCE seq;
DROP TYPE mood;
DROP DOMAIN even;
DROP FUNCTION plan, plan_of_chosen, twice, plus_one, plus_random, smallest, thrice;
REVOKE ALL ON SCHEMA public, live_topn FROM regress_topn;
DROP ROLE regress_topn;
