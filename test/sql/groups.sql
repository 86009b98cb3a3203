--
-- The first rows of each group: how they can be asked for, and how not.
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
	price numeric);

CREATE DOMAIN natural_number AS int CHECK (VALUE >= 0);

CREATE FUNCTION public.plan(query text, VARIADIC args text[] DEFAULT NULL)
RETURNS text LANGUAGE sql
AS $$ SELECT string_agg(regexp_replace(q, '\s+', ' ', 'g'), E'\n')
      FROM live_topn.keyset_queries(query, args) q $$;

-- The query that reads those of all groups.
SELECT plan('SELECT * FROM (SELECT id, name, row_number() OVER (PARTITION BY name ORDER BY score DESC) AS n FROM item WHERE score > 3) x WHERE n <= 3');
SELECT plan('SELECT x.id, n FROM (SELECT *, rank() OVER w AS n FROM item WINDOW w AS (PARTITION BY score % 2, at ORDER BY name)) x WHERE 2 >= n AND x.at IS NOT NULL ORDER BY at DESC, score % 2, n');
SELECT plan('SELECT id, n FROM (SELECT *, dense_rank() OVER (PARTITION BY name ORDER BY score) n FROM item) x WHERE n BETWEEN $1 AND 3', '2');
SELECT plan('SELECT id FROM (SELECT *, row_number() OVER (PARTITION BY score ORDER BY id) n FROM item) x WHERE n < x.score % 3 + 2');
SELECT plan('SELECT id FROM (SELECT id, row_number() OVER (PARTITION BY date_bin(''1 hour'', at, ''2026-01-01'') ORDER BY at) n FROM item) x WHERE n = 1');
SELECT plan('SELECT DISTINCT ON (name, score) id, name FROM item ORDER BY score DESC NULLS LAST, name, at');
SELECT plan('SELECT DISTINCT ON (name) id FROM item');

-- Rows after one, in its group: the partition keys, then the sort columns
SELECT regexp_replace(q, '\s+', ' ', 'g') FROM live_topn.keyset_queries(
	'SELECT id FROM (SELECT *, row_number() OVER (PARTITION BY name, score ORDER BY at) n FROM item) x WHERE n <= 3',
	NULL, ARRAY['a', NULL, '2026-01-01', '7']) q;

-- No partition: an ordinary result that shows ranks
SELECT plan('SELECT id, n FROM (SELECT *, row_number() OVER (ORDER BY score) n FROM item) x WHERE n <= 3');

-- A column of the subquery that is a conjunction
SELECT plan('SELECT id, n FROM (SELECT id, (name > ''a'' AND name < ''m'') AS early, row_number() OVER (PARTITION BY name ORDER BY id) n FROM item) x WHERE n <= 3 AND early');

-- What cannot be understood so
SELECT plan('SELECT * FROM (SELECT id, row_number() OVER (ORDER BY id) n FROM item) x WHERE n <= 3::natural_number');
SELECT plan('SELECT * FROM (SELECT id, (score > 1 AND id > 1) AS good, row_number() OVER (PARTITION BY name ORDER BY id) n FROM item) x WHERE n <= 3 AND good');
SELECT plan('SELECT * FROM (SELECT id, row_number() OVER (PARTITION BY name ORDER BY id) n FROM item) x');
SELECT plan('SELECT * FROM (SELECT id, row_number() OVER (PARTITION BY name ORDER BY id) n FROM item) x WHERE n > 3');
SELECT plan('SELECT * FROM (SELECT id, row_number() OVER (PARTITION BY name ORDER BY id) n FROM item) x WHERE n <= 3 OR id = 1');
SELECT plan('SELECT * FROM (SELECT id, row_number() OVER (PARTITION BY name ORDER BY id) n FROM item) x WHERE n <= id');
SELECT plan('SELECT * FROM (SELECT id, row_number() OVER (PARTITION BY name ORDER BY id) n FROM item) x WHERE n <= 3 AND id > 1');
SELECT plan('SELECT * FROM (SELECT id, row_number() OVER (PARTITION BY name ORDER BY id) n FROM item) x WHERE n <= 2.5');
SELECT plan('SELECT * FROM (SELECT id, row_number() OVER (PARTITION BY name ORDER BY id) n FROM item) x WHERE n <= 3 LIMIT 5');
SELECT plan('SELECT * FROM (SELECT id, row_number() OVER (PARTITION BY name ORDER BY id) n FROM item) x WHERE n <= 3 ORDER BY n');
SELECT plan('SELECT * FROM (SELECT id, name, row_number() OVER (PARTITION BY name ORDER BY id) n FROM item) x WHERE n <= 3 ORDER BY name, n DESC');
SELECT plan('SELECT id, n + 1 FROM (SELECT id, row_number() OVER (PARTITION BY name ORDER BY id) n FROM item) x WHERE n <= 3');
SELECT plan('SELECT * FROM (SELECT id, row_number() OVER (PARTITION BY price ORDER BY id) n FROM item) x WHERE n <= 3');
SELECT plan('SELECT * FROM (SELECT id, rank() OVER (PARTITION BY name) n FROM item) x WHERE n <= 3');
SELECT plan('SELECT * FROM (SELECT id, ntile(4) OVER (PARTITION BY name ORDER BY id) n FROM item) x WHERE n <= 3');
SELECT plan('SELECT * FROM (SELECT id, row_number() OVER (ORDER BY id) n, rank() OVER (ORDER BY score) m FROM item) x WHERE n <= 3 AND m <= 3');
SELECT plan('SELECT * FROM (SELECT id, row_number() OVER (ORDER BY id) n FROM item LIMIT 10) x WHERE n <= 3');
SELECT plan('SELECT n FROM (SELECT count(*), row_number() OVER () n FROM item) x WHERE n <= 3');
SELECT plan('SELECT * FROM (SELECT i.id, row_number() OVER (ORDER BY i.id) n FROM item i, item j) x WHERE n <= 3');
SELECT plan('SELECT DISTINCT ON (price) id FROM item');
SELECT plan('SELECT i.name, t.id FROM (SELECT DISTINCT name FROM item) i, LATERAL (SELECT id FROM item WHERE name = i.name ORDER BY id LIMIT 3) t');

DROP FUNCTION plan;
DROP TABLE item;
DROP DOMAIN natural_number;
