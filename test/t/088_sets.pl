# Sets under REPLICA IDENTITY FULL: each change tells all, and nothing is held.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use DBD::Pg qw(:async);
use Test::More;

use LiveTopn::RefillStops;
use LiveTopn::Scenario;
use LiveTopn::Server qw(poll_until);
use LiveTopn::Session;

use_server(
	LiveTopn::Server->start('sets',
		conf => "live_topn.checkpoint_interval = 1h\n"
		  . "live_topn.debug_refill_stops = on\n"));

my $set = q{SELECT id, score FROM items WHERE grp = 'a'};

sub full_table
{
	base_table();
	run 'ALTER TABLE items REPLICA IDENTITY FULL';
	return;
}

sub holds
{
	my ($name, $rows) = @_;

	poll_until(sub { (stats_of($name, 'held_rows'))[0] == $rows },
		"$name to hold $rows rows");
	pass("$name holds $rows rows");
	return;
}

# It is a set of 20 rows, and holds none of them.
sub holds_nothing
{
	my ($name) = @_;

	is_deeply([ stats_of($name, 'held_rows', 'bytes', 'result_rows') ],
		[ 0, 0, undef ], "$name holds nothing");
	return;
}

scenario 'nothing', 'changes pass, and rows are read on demand' => sub {
	full_table();
	run "SELECT subscribe_topn('SELECT id FROM items', 'unread')";
	is_deeply([ stats_of(unread => 'held_rows', 'refills', 'resets') ],
		[ 0, 0, 0 ], 'a subscription reads nothing');
	subscribe_set set => $set;
	holds_nothing('set');
	is_deeply([ stats_of(set => 'refills', 'refilled_rows') ],
		[ 1, 20 ], 'a snapshot reads the rows');
	run q{INSERT INTO items VALUES (21, 0, 'b'), (22, 9, 'a')};
	saw set => 'enter 22';
	run q{UPDATE items SET grp = 'a', score = 5 WHERE id = 21};
	saw set => 'enter 21';
	run q{UPDATE items SET grp = 'b' WHERE id = 4},
	  q{UPDATE items SET score = 1 WHERE id = 4}, 'DELETE FROM items WHERE id = 4';
	saw set => 'leave 4';
	run q{UPDATE items SET body = 'not selected'};
	saw set => ();
	run 'BEGIN', 'UPDATE items SET score = 1 WHERE id = 5',
	  'UPDATE items SET score = 50 WHERE id = 5',
	  'DELETE FROM items WHERE id = 6',
	  q{INSERT INTO items VALUES (6, 60, 'a')}, 'COMMIT';
	saw set => ();
	run 'BEGIN', 'UPDATE items SET id = 30 WHERE id = 7',
	  'UPDATE items SET id = 7 WHERE id = 8',
	  'UPDATE items SET id = 8 WHERE id = 30', 'COMMIT';
	saw set => 'update 7, update 8';
	is((stats_of(set => 'refills'))[0], 1, 'none of that reads rows');
	holds_nothing('set');
	equals_query 'set';
	cmp_ok((stats_of(set => 'refills'))[0], '>', 1, 'a snapshot does');
	holds_nothing('set');
};

scenario 'reset', 'the whole result, and nothing is kept of it' => sub {
	full_table();
	subscribe_set set => $set;
	run q{SELECT topn_resync('set')}, 'DELETE FROM items WHERE id = 1';
	saw set => 'reset', 'leave 1';
	run 'BEGIN', 'DELETE FROM items WHERE id = 2', q{SELECT topn_resync('set')},
	  'DELETE FROM items WHERE id = 3', 'COMMIT';
	saw set => 'reset';
	equals_query 'set';
	run 'BEGIN', q{INSERT INTO items VALUES (50, 1, 'a')}, 'TRUNCATE items',
	  q{INSERT INTO items VALUES (1, 10, 'a'), (9, 1, 'b')}, 'COMMIT',
	  q{UPDATE items SET score = 11 WHERE id = 1};
	saw set => 'reset', 'update 1';
	equals_query 'set';
	holds_nothing('set');
};

scenario 'invisible', 'a snapshot has what it could not see' => sub {
	full_table();
	subscribe_set set => $set;
	my $hanging = server->hanging_commit(
		'BEGIN; UPDATE items SET score = 0 WHERE id = 1;
		DELETE FROM items WHERE id = 2;
		INSERT INTO items VALUES (40, 4); COMMIT');

	saw set => 'leave 2, enter 40, update 1';
	my @client =
	  sort map { $_->{row} } session->client('set')->entries;
	my @snapshot = sort map { $_->{row} }
	  LiveTopn::Session::snapshot_entries((session->snapshot('set'))[2]);
	is_deeply(\@snapshot, \@client, 'the snapshot is what the client has');
	run 'UPDATE items SET score = 3 WHERE id = 3', q{SELECT topn_resync('set')};
	saw set => 'update 3', 'reset';
	server->let_go($hanging);
	saw set => ();
	equals_query 'set';
	holds_nothing('set');
};

scenario 'patience', 'changes do not wait for those who ask for all rows' =>
  sub {
	my $stops = LiveTopn::RefillStops->new(server);
	my $other = server->connect;
	my $ask = sub {
		$stops->hold(LiveTopn::RefillStops::BEFORE_ANSWER);
		$other->do(q{SELECT topn_snapshot('set')}, { pg_async => PG_ASYNC });
		$stops->wait_for(LiveTopn::RefillStops::BEFORE_ANSWER);
	};

	full_table();
	subscribe_set set => $set;
	$ask->();
	run 'UPDATE items SET score = 1 WHERE id = 1';
	saw set => 'update 1';
	$stops->release(LiveTopn::RefillStops::BEFORE_ANSWER);
	is($other->pg_result, 1, 'they are answered');
	$ask->();
	$other->pg_cancel;
	run 'UPDATE items SET score = 2 WHERE id = 1';
	saw set => 'update 1';
	$stops->release(LiveTopn::RefillStops::BEFORE_ANSWER);
	holds(set => 0);
	equals_query 'set';
};

scenario 'old values', 'they are in the change' => sub {
	full_table();
	subscribe_set set => $set, old => 1;
	run 'UPDATE items SET score = 12 WHERE id = 1';
	deltas_are set =>
	  '[{"op":"update","key":{"id":1},"set":{"score":12},"old":{"score":10}}]';
	run 'BEGIN', 'UPDATE items SET score = 13 WHERE id = 1',
	  'UPDATE items SET score = 14 WHERE id = 1',
	  'UPDATE items SET score = 21 WHERE id = 2',
	  'DELETE FROM items WHERE id = 2', 'COMMIT';
	deltas_are set =>
	  '[{"op":"leave","key":{"id":2},"old":{"id":2,"score":20}},'
	  . '{"op":"update","key":{"id":1},"set":{"score":14},"old":{"score":12}}]';
	equals_query 'set';
};

scenario 'large values', 'that an update leaves alone' => sub {
	run 'CREATE TABLE large (id int PRIMARY KEY, n int, body text, more text)',
	  'ALTER TABLE large REPLICA IDENTITY FULL',
	  'ALTER TABLE large ALTER body SET STORAGE external,
		ALTER more SET STORAGE external',
	  q{INSERT INTO large SELECT g, 0, repeat(g::text, 5000),
		repeat('m', 5000) FROM generate_series(1, 3) g};
	subscribe_set large => q{SELECT id, n, body FROM large
		WHERE length(more) > 10};
	run 'UPDATE large SET n = 1 WHERE id = 1';
	deltas_are large => '[{"op":"update","key":{"id":1},"set":{"n":1}}]';
	run q{UPDATE large SET more = '' WHERE id = 2};
	saw large => 'leave 2';
	run q{UPDATE large SET more = repeat('n', 5000) WHERE id = 2},
	  q{UPDATE large SET body = 'short' WHERE id = 3};
	saw large => 'enter 2', 'update 3';
	equals_query 'large';
	holds_nothing('large');
};

scenario 'keyless', 'equal rows come and go' => sub {
	run 'CREATE TABLE k (id int, v int)',
	  'ALTER TABLE k REPLICA IDENTITY FULL',
	  'INSERT INTO k SELECT g / 2, 0 FROM generate_series(1, 8) g';
	subscribe_set k => 'SELECT id FROM k WHERE v < 5', keyless => 1;
	run 'INSERT INTO k VALUES (1, 0), (1, 0)',
	  'DELETE FROM k WHERE ctid = (SELECT ctid FROM k WHERE id = 1 LIMIT 1)';
	deltas_are k => '[' . join(',', ('{"op":"enter","key":{"id":1,"v":0},"row":{"id":1}}') x 2) . ']',
	  '[{"op":"leave","key":{"id":1,"v":0}}]';
	run 'BEGIN', 'UPDATE k SET v = 1 WHERE id = 2',
	  'UPDATE k SET v = 0 WHERE id = 2', 'COMMIT';
	deltas_are 'k';
	run 'UPDATE k SET v = 7 WHERE id = 3',
	  'BEGIN', 'UPDATE k SET v = 3', 'UPDATE k SET v = 4',
	  'DELETE FROM k WHERE id = 4', 'COMMIT';
	equals_query 'k';
	holds_nothing('k');
};

scenario 'throttle', 'only what has changed is held' => sub {
	full_table();
	subscribe_set set => $set, throttle => '1 hour';
	run 'UPDATE items SET score = 1 WHERE id = 1';
	saw set => 'update 1';
	run 'UPDATE items SET score = 2 WHERE id = 2',
	  'DELETE FROM items WHERE id = 1',
	  'UPDATE items SET score = 3 WHERE id = 2',
	  'UPDATE items SET score = 30 WHERE id IN (2, 3)',
	  q{INSERT INTO items VALUES (21, 1, 'a')},
	  q{INSERT INTO items VALUES (22, 1, 'a')},
	  'DELETE FROM items WHERE id = 21';
	saw set => ();
	is((stats_of(set => 'held_rows'))[0], 2, 'two rows are other ones');
	server->restart_worker('postgres');
	run 'UPDATE items SET score = 40 WHERE id = 4';
	session->snapshot('set');
	saw set => 'leave 1, enter 22, update 2';
	equals_query 'set';
	run 'UPDATE items SET score = 5 WHERE id = 5', 'TRUNCATE items',
	  q{INSERT INTO items VALUES (5, 1, 'a')};
	saw set => ();
	server->restart_worker('postgres');
	session->snapshot('set');
	saw set => 'reset';
	equals_query 'set';
	holds_nothing('set');
};

scenario 'restart', 'it goes on where it was, without a look at the table' =>
  sub {
	full_table();
	subscribe_set set => $set;
	run 'UPDATE items SET score = 1 WHERE id = 1';
	server->restart_worker('postgres');
	run 'UPDATE items SET score = 2 WHERE id = 2';
	saw set => 'update 1', 'update 2';
	is_deeply([ stats_of(set => 'held_rows', 'refills', 'resets') ],
		[ 0, 0, 0 ], 'nothing is read, now or then');

	# without what the end of a worker saves
	server->set('live_topn.debug_abandon' => 'on');
	for my $id (3 .. 6)
	{
		run "UPDATE items SET score = 1 WHERE id = $id",
		  q{SELECT pg_terminate_backend(pid) FROM topn_worker},
		  "UPDATE items SET score = 2 WHERE id = $id";
	}
	saw set => map { ("update $_") x 2 } 3 .. 6;
	is((stats_of(set => 'resets'))[0], 0, 'no reset');
	server->set('live_topn.debug_abandon' => undef);
	equals_query 'set';
};

scenario 'restart, not full', 'rows are needed, and not there yet' => sub {
	full_table();
	subscribe_set set => $set;
	my $stops = LiveTopn::RefillStops->new(server);

	$stops->hold(LiveTopn::RefillStops::BEFORE_ANSWER);
	run 'ALTER TABLE items REPLICA IDENTITY DEFAULT';
	$stops->wait_for(LiveTopn::RefillStops::BEFORE_ANSWER);
	server->restart_worker('postgres');
	$stops->release_all;
	holds set => 20;
	run map { "UPDATE items SET score = $_ WHERE id = $_" } 1 .. 3;
	saw set => map { "update $_" } 1 .. 3;
	equals_query 'set';
};

scenario 'poll', 'for those who were away too long' => sub {
	full_table();
	run "SELECT subscribe_topn('$_->[1]', '$_->[0]', deliver => 'none')"
	  for [ gone => 'SELECT id FROM items' ];
	run 'UPDATE items SET id = -id WHERE id = 1';
	is_deeply(
		writer->selectcol_arrayref(
			q{SELECT topn_poll -> 'deltas' -> 0 ->> 'op'
			FROM topn_poll('gone', 0)}),
		['leave'],
		'a batch that is kept');
	server->restart_worker('postgres');
	is( scalar writer->selectrow_array(
			q{SELECT json_array_length(topn_poll -> 'deltas' -> 0 -> 'rows')
			FROM topn_poll('gone', 0)}),
		20,
		'all rows in the place of one that is not');
	holds_nothing('gone');
};

scenario 'large', 'the result does not fit into memory' => sub {
	my $fill = q{INSERT INTO items SELECT g, g, 'a', repeat('x', 100)
		FROM generate_series(1000, 1999) g};

	full_table();
	run "SELECT subscribe_topn('SELECT * FROM items', 'large')";
	session->listen('large', 'SELECT * FROM items',
		unranked => 1,
		truth => 'SELECT row_to_json(q)::text
			FROM (SELECT * FROM items ORDER BY id) q');
	session->begin('large');
	run $fill;
	server->set('live_topn.result_memory' => '64kB');
	run 'UPDATE items SET score = 3 WHERE id = 3';
	session->sync;
	is((state_of 'large')[0], 'live', 'changes pass');
	like(
		refused('54000', q{SELECT topn_snapshot('large')}, 'but not all rows'),
		qr/result takes more memory than live_topn.result_memory \(64kB\)/,
		'the reason is told');
	run 'UPDATE items SET score = 4 WHERE id = 4';
	holds_nothing('large');
	is((state_of 'large')[0], 'live', 'and it goes on');

	# a commit that does not fit
	run 'UPDATE items SET score = score + 1';
	wait_for_state large => 'error';
	run 'DELETE FROM items WHERE id > 1100', 'VACUUM items';
	wait_for_state large => 'live';
	equals_query 'large';
	holds_nothing('large');

	# the same, of a result that does
	run 'BEGIN', 'DELETE FROM items WHERE id > 1000', $fill =~ s/1000/1001/r,
	  'DELETE FROM items WHERE id > 1000', 'COMMIT';
	session->client('large')->take_batches;
	equals_query 'large';
	server->set('live_topn.result_memory' => undef);
};

scenario 'vain', 'there is nothing to begin with' => sub {
	full_table();
	run 'BEGIN', "SELECT subscribe_topn('SELECT id FROM items', 'vain')",
	  'ALTER TABLE items DROP CONSTRAINT items_pkey, SET UNLOGGED', 'COMMIT';
	wait_for_state vain => 'error';
	run 'ALTER TABLE items SET LOGGED';
	wait_for_state vain => 'live';
	holds_nothing('vain');
};

scenario 'identity', 'rows are held while changes do not tell all' => sub {
	full_table();
	subscribe_set set => $set;
	run 'ALTER TABLE items REPLICA IDENTITY DEFAULT';
	holds(set => 20);
	run 'UPDATE items SET score = 1 WHERE id = 1',
	  q{UPDATE items SET grp = 'b' WHERE id = 2};
	saw set => 'update 1', 'leave 2';
	run 'ALTER TABLE items REPLICA IDENTITY FULL';
	holds(set => 0);
	run 'UPDATE items SET score = 2 WHERE id = 1',
	  q{UPDATE items SET grp = 'a' WHERE id = 2};
	saw set => 'update 1', 'enter 2';

	# at once: then it has to begin again
	run 'ALTER TABLE items REPLICA IDENTITY DEFAULT;
		UPDATE items SET score = 3 WHERE id = 1';
	session->sync;
	equals_query 'set';
	holds(set => 20);
	run 'ALTER TABLE items ADD more int, ALTER grp DROP NOT NULL',
	  'UPDATE items SET more = 1, score = 4 WHERE id = 1';
	equals_query 'set';
};

scenario 'partitions', 'one is truncated, another detached' => sub {
	run 'CREATE TABLE p (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)',
	  'CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)',
	  'CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (30)',
	  map({ "ALTER TABLE $_ REPLICA IDENTITY FULL" } qw(p p1 p2)),
	  'INSERT INTO p SELECT g, g FROM generate_series(7, 12) g';
	subscribe_set p => 'SELECT id, v FROM p';
	run 'UPDATE p SET id = 29 WHERE id = 9';
	saw p => 'leave 9, enter 29';
	holds_nothing('p');
	run 'BEGIN', 'TRUNCATE p2', 'INSERT INTO p VALUES (11, 0)', 'COMMIT';
	saw p => 'reset';
	equals_query 'p';
	run 'ALTER TABLE p DETACH PARTITION p2';
	saw p => 'reset';
	equals_query 'p';
	holds_nothing('p');
	run 'CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (10) TO (20)',
	  'INSERT INTO p VALUES (10, 1)', 'UPDATE p SET v = 2 WHERE id = 10';
	session->sync;
	equals_query 'p';
	holds(p => 3);
};

done_testing();
