# Results without a LIMIT, and those without any order.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use Test::More;

use LiveTopn::Scenario;
use LiveTopn::Server;

use_server(LiveTopn::Server->start('unlimited'));

scenario 'ordered', 'all rows have positions' => sub {
	base_table();
	subscribe all => 'SELECT id, score FROM items ORDER BY score DESC, id';
	subscribe rest => 'SELECT id FROM items ORDER BY score DESC, id
		LIMIT ALL OFFSET 18';
	is(session->client('all')->entries, 20, 'the snapshot has all rows');
	ids_are rest => '2 1';
	run 'INSERT INTO items VALUES (21, 105)';
	saw all => 'enter 21 at 11';
	saw rest => 'enter 3 at 1';
	run 'UPDATE items SET score = 1000 WHERE id = 1';
	saw all => 'move 1 from 21 to 1';
	saw rest => 'leave 1 at 3, enter 4 at 1';
	run 'DELETE FROM items WHERE id IN (4, 20)';
	saw all => 'leave 4 at 19, leave 20 at 2';
	saw rest => 'leave 3 at 2, leave 4 at 1';
	run q{UPDATE items SET body = 'not selected'};
	saw all => ();
	equals_query qw(all rest);
	is_deeply([ stats_of(all => 'held_rows, result_rows, cushion, refills') ],
		[ 19, 19, 0, 1 ], 'they are all held, and read once');
	run 'TRUNCATE items', 'INSERT INTO items VALUES (1, 1)';
	equals_query qw(all rest);
};

scenario 'null', 'the limit is an argument that is null' => sub {
	base_table();
	my ($name) = writer->selectrow_array(
		q{SELECT subscribe_topn('SELECT id FROM items ORDER BY id LIMIT $1',
			'null', ARRAY[NULL])});
	my (undef, undef, $rows) = session->snapshot($name);
	is(LiveTopn::Session::snapshot_entries($rows), 20, 'it has all rows');
};

scenario 'too large', 'no more is held than live_topn.result_memory' => sub {
	my $too_large =
	  'result takes more memory than live_topn.result_memory (64kB)';
	my $fill = 'INSERT INTO items SELECT g, g, repeat(chr(97), 100)
		FROM generate_series(1000, 1999) g';

	base_table();
	server->set('live_topn.result_memory' => '64kB');
	subscribe all => 'SELECT * FROM items ORDER BY score, id';
	subscribe few => 'SELECT * FROM items ORDER BY score, id LIMIT 3';

	# in between only
	run 'BEGIN', $fill, 'DELETE FROM items WHERE id >= 1000',
	  'UPDATE items SET score = 0 WHERE id = 20', 'COMMIT';
	saw all => 'move 20 from 20 to 1';

	run $fill;
	wait_for_state all => 'error';
	is((state_of 'all')[1], $too_large, 'the reason is told');
	saw all => 'error';
	is((state_of 'few')[0], 'live', 'a result with a limit goes on');
	equals_query 'few';

	run 'DELETE FROM items WHERE id >= 1500';
	server->set('live_topn.result_memory' => '1MB');
	wait_for_state all => 'live';
	saw all => 'reset';
	equals_query 'all';
	server->set('live_topn.result_memory' => undef);
};


# ---- without an order: rows have no positions ----

# Changes of the base table that are shown whatever is held.
sub change_rows
{
	my ($name) = @_;

	run q{INSERT INTO items VALUES (21, 0, 'b'), (22, 9, 'a')};
	saw $name => 'enter 22';
	run 'UPDATE items SET score = score + 1 WHERE id IN (3, 22)';
	saw $name => 'update 3, update 22';
	run q{UPDATE items SET body = 'not selected'};
	saw $name => ();
	run q{UPDATE items SET grp = 'a', score = 5 WHERE id = 21};
	saw $name => 'enter 21';
	run q{UPDATE items SET grp = 'b' WHERE id = 4};
	saw $name => 'leave 4';
	run 'BEGIN', 'UPDATE items SET score = 1 WHERE id = 5',
	  'UPDATE items SET score = 50 WHERE id = 5',
	  'DELETE FROM items WHERE id = 6',
	  q{INSERT INTO items VALUES (6, 60, 'a')}, 'COMMIT';
	saw $name => ();
	run 'UPDATE items SET id = 100 WHERE id = 7';
	saw $name => 'leave 7, enter 100';
	equals_query $name;
	return;
}

my $set = q{SELECT id, score FROM items WHERE grp = 'a'};

my %when_truncated = (
	DEFAULT => join(', ',
		map({ "leave $_" } 3, 5, 6, 8 .. 22, 100), 'update 2'),
	FULL => 'reset');

for my $identity ('DEFAULT', 'FULL')
{
	scenario "set, $identity", 'rows join, leave and change' => sub {
		base_table();
		run "ALTER TABLE items REPLICA IDENTITY $identity";
		subscribe_set set => $set;
		change_rows('set');
		is((stats_of(set => 'held_rows'))[0],
			$identity eq 'FULL' ? 0 : 21, 'rows held');
		is(scalar writer->selectrow_array(
				q{SELECT ranks FROM topn_subscriptions WHERE name = 'set'}),
			'none', 'they have no ranks');
		refused '55000', q{SELECT topn_move('set', 1)}, 'nothing to move';
		run q{SELECT topn_resync('set')};
		saw set => 'reset';
		run 'BEGIN', 'TRUNCATE items',
		  q{INSERT INTO items VALUES (1, 10, 'a'), (2, 1, 'a'), (9, 1, 'b')},
		  'COMMIT';
		saw set => $when_truncated{$identity};
		equals_query 'set';
	};
}

scenario 'old values', 'without positions' => sub {
	base_table();
	run 'ALTER TABLE items REPLICA IDENTITY FULL';
	subscribe_set set => $set, old => 1;
	change_rows('set');
	session->client('set')->take_batches;
	run 'UPDATE items SET score = 12 WHERE id = 1';
	session->sync;
	is((session->client('set')->take_batches)[0]{deltas}[0]{json},
		'{"op":"update","key":{"id":1},"set":{"score":12},'
		  . '"old":{"score":10}}',
		'beside the new ones');
};

scenario 'keyless', 'equal rows come and go' => sub {
	run 'CREATE TABLE k (id int, v int)',
	  'ALTER TABLE k REPLICA IDENTITY FULL',
	  'INSERT INTO k SELECT g / 2, 0 FROM generate_series(1, 8) g';
	subscribe_set
	  k => 'SELECT id FROM k WHERE v < 5',
	  keyless => 1;
	run 'INSERT INTO k VALUES (1, 0), (1, 0)',
	  'DELETE FROM k WHERE ctid = (SELECT ctid FROM k WHERE id = 1 LIMIT 1)',
	  'UPDATE k SET v = 1 WHERE id = 2', 'UPDATE k SET v = 7 WHERE id = 3',
	  'BEGIN', 'UPDATE k SET v = 3', 'UPDATE k SET v = 4',
	  'DELETE FROM k WHERE id = 4', 'COMMIT';
	equals_query 'k';
};

scenario 'partitions', 'one is truncated, another detached' => sub {
	run 'CREATE TABLE p (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)',
	  'CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)',
	  'CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (30)',
	  'INSERT INTO p SELECT g, g FROM generate_series(7, 12) g';
	subscribe_set p => 'SELECT id, v FROM p';
	run 'UPDATE p SET id = 29 WHERE id = 9';
	saw p => 'leave 9, enter 29';
	run 'BEGIN', 'TRUNCATE p2', 'INSERT INTO p VALUES (11, 0)', 'COMMIT';
	saw p => 'leave 10, leave 12, leave 29, update 11';
	equals_query 'p';
	run 'ALTER TABLE p DETACH PARTITION p2';
	saw p => 'leave 11';
	equals_query 'p';
};

scenario 'restart', 'it goes on where it was' => sub {
	base_table();
	run 'ALTER TABLE items REPLICA IDENTITY FULL';
	subscribe_set set => $set;
	run 'UPDATE items SET score = 1 WHERE id = 1';
	server->restart_worker('postgres');
	run 'UPDATE items SET score = 2 WHERE id = 2';
	saw set => 'update 1', 'update 2';
	equals_query 'set';
};

scenario 'throttle', 'several commits share a batch' => sub {
	base_table();
	run 'ALTER TABLE items REPLICA IDENTITY FULL';
	subscribe_set set => $set, throttle => '1 hour';
	run 'UPDATE items SET score = 1 WHERE id = 1';
	saw set => 'update 1';
	run 'UPDATE items SET score = 2 WHERE id = 2',
	  'DELETE FROM items WHERE id = 1',
	  'UPDATE items SET score = 3 WHERE id = 2',
	  'UPDATE items SET score = 30 WHERE id IN (2, 3)';
	saw set => ();
	session->snapshot('set');
	saw set => 'leave 1, update 2';
	equals_query 'set';
};

done_testing();
