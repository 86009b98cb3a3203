--
-- Reading the rows after a given one: nothing is missed, nothing comes twice,
-- and an index serves, in whatever direction the columns are and wherever
-- their nulls go.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS live_topn;
SET search_path = public, live_topn;
\set SHOW_CONTEXT never

-- Values that are apt to be sorted wrongly, with each other and with nulls.
CREATE TABLE val (
	id int PRIMARY KEY,
	i int,
	t text COLLATE "C",
	v varchar(20),
	c char(4),
	f float8,
	n numeric,
	b bool,
	d timestamptz,
	u uuid,
	y bytea,
	r int4range,
	a int[],
	m name);
INSERT INTO val
SELECT g,
	(ARRAY[NULL, 1, 2, -2147483648, 2147483647])[1 + g % 5],
	(ARRAY[NULL, '', 'a', 'A', 'ab', 'z'])[1 + g % 6],
	(ARRAY['b', NULL, 'B', ' b'])[1 + g % 4],
	(ARRAY['x', 'x ', NULL, 'y'])[1 + g % 4],
	(ARRAY[NULL, 'NaN', '-Infinity', 'Infinity', '0', '-0'])[1 + g % 6]::float8,
	(ARRAY['NaN', NULL, '1.0', '1.00', '-Infinity'])[1 + g % 5]::numeric,
	(ARRAY[true, false, NULL])[1 + g % 3],
	(ARRAY[NULL, 'infinity', '-infinity', '2026-01-01'])[1 + g % 4]::timestamptz,
	(ARRAY[NULL, '00000000-0000-0000-0000-000000000001',
		   'ffffffff-0000-0000-0000-000000000000'])[1 + g % 3]::uuid,
	(ARRAY[NULL, '\x00', '\x', '\xff'])[1 + g % 4]::bytea,
	(ARRAY[NULL, 'empty', '[1,2)', '(,)'])[1 + g % 4]::int4range,
	(ARRAY[NULL, '{}', '{NULL}', '{1,NULL}', '{1,2}'])[1 + g % 5]::int[],
	(ARRAY[NULL, 'x', 'y'])[1 + g % 3]
FROM generate_series(1, 40) g;
ANALYZE val;

-- The ids of the rows of all tiers, one tier after the other.
CREATE FUNCTION tier_ids(query text, boundary text[]) RETURNS int[]
LANGUAGE plpgsql AS $$
DECLARE
	tier text;
	ids int[];
	result int[] := '{}';
BEGIN
	FOR tier IN SELECT live_topn.keyset_queries(query, NULL, boundary) LOOP
		EXECUTE format('SELECT array_agg(id) FROM (%s) tier', tier) INTO ids;
		result := result || ids;
	END LOOP;
	RETURN result;
END $$;

-- In a table ordered by the keys and its id: the boundaries after which other
-- rows are found than there are in the whole order.
CREATE FUNCTION wrong_boundaries(tablename text, VARIADIC keys text[])
RETURNS SETOF text[] LANGUAGE plpgsql AS $$
DECLARE
	query text;
	columns text;
	ids int[];
	boundary text[];
	position int := 0;
BEGIN
	IF 'id' <> ALL (keys) AND 'id DESC' <> ALL (keys) THEN
		keys := keys || ARRAY['id'];
	END IF;
	query := format('SELECT id FROM %s ORDER BY %s LIMIT 1000',
					tablename, array_to_string(keys, ', '));
	columns := (SELECT string_agg(
					regexp_replace(key, ' (ASC|DESC|USING|NULLS).*$', '')
					|| '::text', ', ' ORDER BY n)
				FROM unnest(keys) WITH ORDINALITY k (key, n));
	EXECUTE format('SELECT array_agg(id) FROM (%s) q', query) INTO ids;
	IF tier_ids(query, NULL) <> ids THEN
		RETURN NEXT '{start}';
	END IF;
	FOR boundary IN
		EXECUTE format('SELECT ARRAY[%s] FROM %s ORDER BY %s',
					   columns, tablename, array_to_string(keys, ', '))
	LOOP
		position := position + 1;
		IF tier_ids(query, boundary) <> ids[position + 1:] THEN
			RETURN NEXT boundary;
		END IF;
	END LOOP;
	IF position <> 40 THEN
		RAISE 'tested % boundaries', position;
	END IF;
END $$;

-- each type in each direction
SELECT key, wrong_boundaries('val', key)
FROM unnest('{i,t,v,c,f,n,b,d,u,y,r,a,m}'::text[]) col,
	unnest('{ASC,DESC}'::text[]) direction,
	unnest('{FIRST,LAST}'::text[]) nulls,
	format('%s %s NULLS %s', col, direction, nulls) key;

-- two and three columns in mixed directions
SELECT k1, k2, wrong_boundaries('val', k1, k2)
FROM unnest('{ASC,DESC}'::text[]) d1, unnest('{FIRST,LAST}'::text[]) n1,
	unnest('{ASC,DESC}'::text[]) d2, unnest('{FIRST,LAST}'::text[]) n2,
	unnest('{t,n}'::text[]) second,
	format('i %s NULLS %s', d1, n1) k1,
	format('%s %s NULLS %s', second, d2, n2) k2;
SELECT wrong_boundaries('val', 'b NULLS FIRST', 'i DESC NULLS LAST', 't USING >');

-- expressions, collations, USING, and the id before others
SELECT wrong_boundaries('val', '(i % 3)', 'lower(t) DESC');
SELECT wrong_boundaries('val', '(v COLLATE "C") DESC', '(v || t) NULLS FIRST');
SELECT wrong_boundaries('val', 't USING ~<~', 'i USING >');
SELECT wrong_boundaries('val', 'b', 'id DESC');

-- The order ends with the identity: what comes after it decides nothing.
SELECT keyset_queries('SELECT id FROM val ORDER BY b, id DESC, t LIMIT 5',
					  boundary => '{t,7}');

-- Composite types: a row of nulls is a value.
CREATE TYPE pair AS (x int, y text);
CREATE TABLE pairs (id int PRIMARY KEY, p pair);
INSERT INTO pairs
SELECT g, (ARRAY[NULL, ROW(NULL, NULL), ROW(1, NULL), ROW(NULL, 'a'), ROW(1, 'a')]::pair[])[1 + g % 5]
FROM generate_series(1, 40) g;
SELECT key, wrong_boundaries('pairs', key)
FROM unnest('{p,p DESC,p NULLS FIRST,p DESC NULLS LAST,p USING *<}'::text[]) key;

-- Views, partitions, and row security.
CREATE VIEW val_view WITH (security_barrier) AS
SELECT id, i + 0 AS i, t || 'x' AS t FROM val WHERE id > 0;
SELECT wrong_boundaries('val_view', 'i DESC NULLS LAST', 't NULLS FIRST');
CREATE TABLE val_part (LIKE val, PRIMARY KEY (id)) PARTITION BY RANGE (id);
CREATE TABLE val_part1 PARTITION OF val_part FOR VALUES FROM (1) TO (15);
CREATE TABLE val_part2 PARTITION OF val_part FOR VALUES FROM (15) TO (100);
INSERT INTO val_part SELECT * FROM val;
SELECT wrong_boundaries('val_part', 'i DESC NULLS LAST', 't NULLS FIRST');

CREATE ROLE regress_topn_reader;
CREATE TABLE val_rls (LIKE val, PRIMARY KEY (id));
INSERT INTO val_rls SELECT * FROM val;
INSERT INTO val_rls (id, t, n) SELECT id + 1000, t, n FROM val;
ALTER TABLE val_rls ENABLE ROW LEVEL SECURITY;
CREATE POLICY small ON val_rls USING (id < 1000 AND current_user = 'regress_topn_reader');
GRANT SELECT ON val_rls TO regress_topn_reader;
GRANT USAGE ON SCHEMA live_topn TO regress_topn_reader;
SET ROLE regress_topn_reader;
SELECT wrong_boundaries('val_rls', 'n DESC NULLS LAST', 't NULLS FIRST');
RESET ROLE;

-- Without a key, rows that are equal stay together.
CREATE TABLE dup (a int, gone int, b text);
ALTER TABLE dup DROP gone;
ALTER TABLE dup REPLICA IDENTITY FULL;
INSERT INTO dup SELECT (ARRAY[NULL, 1, 2])[1 + g % 3], (ARRAY['x', NULL])[1 + g % 2]
FROM generate_series(0, 23) g;
CREATE FUNCTION wrong_dup(key text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
	query text := format('SELECT * FROM dup ORDER BY %s LIMIT 1000', key);
	expected text[];
	found text[];
	part text[];
	boundary dup;
	tier text;
BEGIN
	FOR boundary IN SELECT DISTINCT * FROM dup LOOP
		EXECUTE format('SELECT array_agg(d::text)
			FROM (SELECT * FROM dup d ORDER BY %s, d USING *<) d', key)
			INTO expected;
		expected := expected[
			1 + (array_positions(expected, boundary::text))[4]:];
		found := '{}';
		FOR tier IN
			SELECT live_topn.keyset_queries(query, NULL,
				ARRAY[boundary.a::text, boundary.a::text, boundary.b])
		LOOP
			EXECUTE format('SELECT array_agg(d::text) FROM (%s) d', tier) INTO part;
			found := found || part;
		END LOOP;
		IF found <> expected THEN
			RETURN NEXT boundary::text;
		END IF;
	END LOOP;
END $$;
SELECT key, wrong_dup(key)
FROM unnest('{a,a DESC,a NULLS FIRST,a DESC NULLS LAST}'::text[]) key;
SELECT keyset_queries('SELECT a FROM dup ORDER BY a LIMIT 1') AS query \gset
SELECT a, count(*) FROM (:query) d GROUP BY a;

-- An index on the sort columns serves each tier, and at most the rows that are
-- equal in the leading column are sorted.
CREATE TABLE big (id int PRIMARY KEY, i int, t text COLLATE "C");
INSERT INTO big
SELECT g, nullif(g % 50, 0), nullif((g % 7)::text, '0')
FROM generate_series(1, 5000) g;
CREATE INDEX big_i_t_id ON big (i, t, id);
VACUUM ANALYZE big;
CREATE FUNCTION explain(query text, boundary text[]) RETURNS SETOF text
LANGUAGE plpgsql AS $$
DECLARE
	tier text;
BEGIN
	FOR tier IN SELECT live_topn.keyset_queries(query, NULL, boundary) LOOP
		RETURN QUERY EXECUTE 'EXPLAIN (COSTS OFF) ' || tier;
	END LOOP;
END $$;
SELECT explain('SELECT id FROM big ORDER BY i DESC NULLS LAST, t LIMIT 10', NULL);
SELECT explain('SELECT id FROM big ORDER BY i DESC NULLS LAST, t LIMIT 10', '{7,3,1234}');
SELECT explain('SELECT id FROM big ORDER BY i NULLS FIRST, t NULLS FIRST LIMIT 10', '{NULL,NULL,1234}');
-- whatever the order, and the boundary
CREATE TEMP TABLE boundaries (values text[]);
INSERT INTO boundaries VALUES
	(NULL), ('{7,3,1234}'), ('{7,NULL,1234}'), ('{NULL,3,1234}'), ('{NULL,NULL,1234}');
SELECT k1, k2, values, plan
FROM unnest('{ASC,DESC}'::text[]) d1, unnest('{FIRST,LAST}'::text[]) n1,
	unnest('{ASC,DESC}'::text[]) d2, unnest('{FIRST,LAST}'::text[]) n2,
	format('i %s NULLS %s', d1, n1) k1,
	format('t %s NULLS %s', d2, n2) k2,
	boundaries,
	explain(format('SELECT id FROM big ORDER BY %s, %s LIMIT 10', k1, k2), values) plan
WHERE plan ~ '(Seq Scan|Bitmap)' OR plan ~ '(->|^) *Sort$';
-- an index made for the query is taken as it is
CREATE INDEX big_t ON big (t DESC NULLS LAST, id);
SELECT explain('SELECT id FROM big ORDER BY t DESC NULLS LAST LIMIT 10', '{5,1234}');

-- What a boundary must be.
SELECT keyset_queries('SELECT id FROM big ORDER BY i LIMIT 1', boundary => '{1}');
SELECT keyset_queries('SELECT id FROM big ORDER BY i LIMIT 1', boundary => '{x,1}');
SELECT keyset_queries(NULL);

DROP TABLE val, pairs, val_part, val_rls, dup, big, boundaries CASCADE;
DROP TYPE pair;
DROP FUNCTION tier_ids, wrong_boundaries, wrong_dup, explain;
REVOKE ALL ON SCHEMA live_topn FROM regress_topn_reader;
DROP ROLE regress_topn_reader;
