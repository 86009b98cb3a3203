--
-- topn_explain: what a subscription would maintain, and what would help it.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS live_topn;
RESET client_min_messages;
\set SHOW_CONTEXT never

CREATE TABLE task (
	id int PRIMARY KEY,
	project int NOT NULL,
	title text COLLATE "C" NOT NULL,
	due date,
	done boolean NOT NULL DEFAULT false);

-- Without an index, and with the one that it asks for.
SELECT * FROM topn_explain('SELECT title FROM task WHERE project = $1 AND NOT done ORDER BY due DESC NULLS LAST LIMIT 10', '{7}');
CREATE INDEX task_due ON task (project, due DESC NULLS LAST, id);
SELECT * FROM topn_explain('SELECT title FROM task WHERE project = $1 AND NOT done ORDER BY due DESC NULLS LAST LIMIT 10', '{7}')
WHERE item IN ('index', 'advice');
-- which serves other projects' order, and not the other direction of nulls
SELECT item, detail FROM topn_explain('SELECT title FROM task WHERE project = 8 ORDER BY due NULLS FIRST, id DESC LIMIT 10')
WHERE item IN ('order', 'index');
SELECT item, detail FROM topn_explain('SELECT title FROM task WHERE project = 8 ORDER BY due LIMIT 10 OFFSET 2000')
WHERE item IN ('order', 'page', 'index', 'advice');
DROP INDEX task_due;

-- The advice is a statement, and does what it says.
CREATE FUNCTION take_advice(query text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
	advice text;
BEGIN
	FOR advice IN SELECT split_part(detail, ': then ', 1)
		FROM topn_explain(query) WHERE item = 'advice'
	LOOP
		EXECUTE advice;
	END LOOP;
	RETURN QUERY SELECT detail FROM topn_explain(query)
		WHERE item IN ('index', 'advice');
END $$;
SELECT take_advice('SELECT id FROM task ORDER BY lower(title), due DESC LIMIT 3');
SELECT take_advice('SELECT id FROM task ORDER BY title COLLATE "POSIX" DESC NULLS LAST LIMIT 3');
SELECT take_advice('SELECT id FROM task WHERE project = 3 AND due > ''2026-01-01'' ORDER BY title DESC LIMIT 3');
SELECT take_advice('SELECT id FROM (SELECT *, row_number() OVER (PARTITION BY done, project % 7 ORDER BY title) n FROM task) x WHERE n <= 3');

-- How changes find it.
SELECT detail FROM topn_explain('SELECT id FROM task WHERE due BETWEEN ''2026-01-01'' AND ''2026-02-01'' ORDER BY title LIMIT 3')
WHERE item = 'routing';
SELECT detail FROM topn_explain('SELECT id FROM task WHERE 10 / project > 3 ORDER BY title LIMIT 3')
WHERE item = 'routing';

-- Sets, ties, groups.
SELECT * FROM topn_explain('SELECT id FROM task WHERE project IN (1, 2)');
SELECT * FROM topn_explain('SELECT id FROM task ORDER BY due FETCH FIRST 3 ROWS WITH TIES') WHERE item IN ('order', 'page');
SELECT * FROM topn_explain('SELECT id, n FROM (SELECT *, rank() OVER (PARTITION BY project ORDER BY due) n FROM task) x WHERE n <= 3');

-- The identity: an index, the whole row; of partitions; through a view.
CREATE TABLE reading (sensor int NOT NULL, at int NOT NULL, value float8);
CREATE UNIQUE INDEX reading_key ON reading (sensor, at);
ALTER TABLE reading REPLICA IDENTITY USING INDEX reading_key;
SELECT * FROM topn_explain('SELECT value FROM reading ORDER BY value LIMIT 3');
SELECT detail FROM topn_explain('SELECT value FROM reading') WHERE item IN ('routing', 'advice');
ALTER TABLE reading REPLICA IDENTITY FULL;
SELECT * FROM topn_explain('SELECT value FROM reading ORDER BY value LIMIT 3');
CREATE INDEX ON reading (value);
SELECT detail FROM topn_explain('SELECT value FROM reading ORDER BY value LIMIT 3') WHERE item = 'index';
CREATE TABLE part (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);
CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (0) TO (10);
CREATE TABLE part_2 PARTITION OF part FOR VALUES FROM (10) TO (20);
CREATE INDEX part_v ON part (v, id);
CREATE VIEW part_view AS SELECT v AS value, id AS number FROM part WHERE v > 0;
SELECT * FROM topn_explain('SELECT value FROM part_view ORDER BY value LIMIT 3');

-- It neither subscribes nor needs more than subscribing does; settings stay.
SELECT count(*) FROM topn_subscriptions WHERE query ~ 'task';
SHOW enable_seqscan;
SELECT topn_explain(NULL);
SELECT topn_explain('SELECT count(*) FROM task');
CREATE ROLE regress_topn_explain;
SET ROLE regress_topn_explain;
SELECT topn_explain('SELECT id FROM task ORDER BY id LIMIT 1');
RESET ROLE;

DROP ROLE regress_topn_explain;
DROP VIEW part_view;
DROP TABLE task, reading, part;
DROP FUNCTION take_advice;
