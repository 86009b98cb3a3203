-- The table of the page, and the subscription that it shows.
CREATE EXTENSION live_topn;
CREATE TABLE player (id int PRIMARY KEY, name text, score int);
INSERT INTO player SELECT i, 'player ' || i, random() * 1000
	FROM generate_series(1, 200) i;
SELECT subscribe_topn('SELECT id, name, score FROM player
	ORDER BY score DESC, id LIMIT 10', 'leaders');
