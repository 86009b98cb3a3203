# topn_move: a page that slides or is resized.
#
# The move happens at the commit of the transaction that called it, in one
# batch; rows that are held are not read again; what the new page lacks is
# waited for, and everything after it waits its turn.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use Test::More;

use LiveTopn::RefillStops;
use LiveTopn::Scenario;
use LiveTopn::Server qw(poll_until sqlstate_of);
use LiveTopn::Stream;

my $server = LiveTopn::Server->start('move',
	conf => "live_topn.debug_refill_stops = on\nrestart_after_crash = on\n");
use_server($server);

my $stops = LiveTopn::RefillStops->new($server);
my $top = 'SELECT id, score FROM items ORDER BY score DESC, id';

# Subscribe to the first 3, with a cushion of 10 unless it is given.
sub follow
{
	my ($name, %options) = @_;

	return session->subscribe(
		$name, "$top LIMIT 3",
		cushion => 10,
		%options,
		limit => 6);
}

sub move
{
	my ($name, $offset, $limit) = @_;

	writer->do('SELECT topn_move(?, ?, ?)', undef, $name, $offset, $limit);
	return;
}

# The subscription is what the query returns on its page.
sub is_page
{
	my ($name, $offset, $limit) = @_;

	session->turn_to($name,
		"SELECT row_to_json(q)::text FROM ($top LIMIT $limit OFFSET $offset) q");
	is_deeply(
		[
			writer->selectrow_array(
				'SELECT "offset", "limit" FROM topn_subscriptions
				 WHERE name = ?', undef, $name)
		],
		[ $offset, $limit ],
		"$name is at $offset and has $limit rows");
	equals_query $name;
	return;
}

# (refills, rows read)
sub refills
{
	my ($name) = @_;

	session->sync;
	return join ' ', writer->selectrow_array(
		'SELECT refills, refilled_rows FROM topn_stats WHERE name = ?',
		undef, $name);
}

scenario 'move', 'rows that are held are not read again' => sub {
	base_table();
	follow 's';
	is(refills('s'), '1 13', 'the first read');

	move 's', 2;
	saw s => 'leave 19 at 2, leave 20 at 1, enter 17 at 2, enter 16 at 3';
	move 's', 0;
	saw s => 'leave 16 at 3, leave 17 at 2, enter 20 at 1, enter 19 at 2';
	move 's', undef, 5;
	saw s => 'enter 17 at 4, enter 16 at 5';
	move 's', undef, 3;
	saw s => 'leave 16 at 5, leave 17 at 4';
	is(refills('s'), '1 13', 'nothing is read');
	is_page 's', 0, 3;

	# 13 rows are held, and 11 + 3 + 10 are all: the other 7
	move 's', 11;
	is_page 's', 11, 3;
	is(refills('s'), '2 20', 'only what is missing is read');
};

scenario 'move', 'a transaction makes one batch' => sub {
	base_table();
	follow 's';
	writer->begin_work;
	my ($xid) = writer->selectrow_array('SELECT txid_current()');
	move 's', 9;
	run 'DELETE FROM items WHERE id IN (20, 18)';
	move 's', 1;
	run 'UPDATE items SET score = 1000 WHERE id = 5';
	writer->commit;
	session->sync;
	my @batches = session->client('s')->batches;
	is(scalar @batches, 1, 'one batch');
	is($batches[0]{xid}, $xid, 'of that transaction');
	is($batches[0]{from}, undef, 'and of no other');
	is_page 's', 1, 3;
	saw s => 'leave 18 at 3, leave 20 at 1, enter 17 at 2, enter 16 at 3';
};

scenario 'move', 'what is rolled back never was' => sub {
	base_table();
	follow 's';
	writer->begin_work;
	move 's', 9;
	writer->rollback;
	is_page 's', 0, 3;
	writer->begin_work;
	move 's', 1;
	run 'SAVEPOINT a';
	move 's', 9, 5;
	run 'ROLLBACK TO a';
	writer->commit;
	is_page 's', 1, 3;
	move 's', 1, 3;
	saw s => 'leave 20 at 1, enter 17 at 3';
	session->sync;
	is_page 's', 1, 3;
};

scenario 'move', 'born and moved in one transaction' => sub {
	base_table();
	writer->begin_work;
	run "SELECT subscribe_topn('$top LIMIT 3', 's')";
	move 's', 4, 2;
	writer->commit;
	session->listen('s', "$top LIMIT 2 OFFSET 4");
	session->begin('s');
	is(session->client('s')->seq, 0, 'the result at birth');
	is_page 's', 4, 2;
	saw 's';
};

for my $identity (qw(DEFAULT FULL))
{
	scenario 'move', "commits come in their order, identity $identity" => sub {
		base_table();
		run "ALTER TABLE items REPLICA IDENTITY $identity";
		follow s => cushion => 0;
		$stops->hold(LiveTopn::RefillStops::BEFORE_SNAPSHOT);
		move 's', 5;
		$stops->wait_for(LiveTopn::RefillStops::BEFORE_SNAPSHOT);
		run 'INSERT INTO items VALUES (50, 1000)';
		move 's', 6, 4;
		run 'INSERT INTO items VALUES (51, 1001)';
		move 's', 1, 2;
		is((state_of('s'))[0], 'waiting', 'it waits for rows');
		$stops->release(LiveTopn::RefillStops::BEFORE_SNAPSHOT);
		is_page 's', 1, 2;
		saw s => 'leave 18 at 3, leave 19 at 2, leave 20 at 1, '
		  . 'enter 15 at 1, enter 14 at 2, enter 13 at 3',
		  'leave 13 at 3, enter 16 at 1',
		  'leave 16 at 1, enter 13 at 3, enter 12 at 4',
		  'leave 12 at 4, enter 16 at 1',
		  'leave 13 at 4, leave 14 at 3, leave 15 at 2, leave 16 at 1, '
		  . 'enter 50 at 1, enter 20 at 2';
		is( writer->selectrow_array(
				q{SELECT coalesced FROM topn_stats WHERE name = 's'}),
			0,
			'each has its own batch');
	};
}

scenario 'move', 'moved before its first rows are there' => sub {
	base_table();
	$stops->hold(LiveTopn::RefillStops::BEFORE_LOCK);
	run "SELECT subscribe_topn('$top LIMIT 3', 's')";
	move 's', 4, 2;
	$stops->release(LiveTopn::RefillStops::BEFORE_LOCK);
	my $batches =
	  writer->selectcol_arrayref(q{SELECT topn_poll('s', 0)::jsonb ->> 'deltas'});
	is(scalar @$batches, 1, 'one batch after the result at birth');
	is( writer->selectrow_array(
			q{SELECT string_agg(id::text, ' ') FROM topn_rows('s')
				AS (id int, score int)}),
		'16 15',
		'the page');
	run q{SELECT unsubscribe_topn('s')};
};

scenario 'move', 'WITH TIES, and none of the rows' => sub {
	base_table();
	run 'UPDATE items SET score = id / 3';
	session->subscribe(
		s => 'SELECT id FROM items ORDER BY score DESC
			FETCH FIRST 1 ROW WITH TIES',
		limit => 100);
	ids_are s => '18 19 20';
	move 's', 1;
	ids_are s => '19 20';
	saw s => 'leave 18 at 1';
	move 's', undef, 3;
	ids_are s => '19 20 15 16 17';
	move 's', undef, 0;
	ids_are s => '';
	run 'INSERT INTO items VALUES (30, 100)';
	move 's', 0, 2;
	ids_are s => '30 18 19 20';
};

scenario 'move', 'absolute ranks' => sub {
	base_table();
	follow s => ranks => 'absolute';
	move 's', 1;
	saw s => 'leave 20 at 1, move 19 from 2 to 1, move 18 from 3 to 2, '
	  . 'enter 17 at 3';
	move 's', 0, 4;
	saw s => 'move 19 from 1 to 2, move 18 from 2 to 3, move 17 from 3 to 4, '
	  . 'enter 20 at 1';
	is_page 's', 0, 4;
};

scenario 'move', 'a throttled subscription' => sub {
	base_table();
	follow s => throttle => '1 hour';
	move 's', 1;
	session->sync;
	saw s => 'leave 20 at 1, enter 17 at 3';
	run 'INSERT INTO items VALUES (50, 1000)';
	move 's', 0;
	run 'DELETE FROM items WHERE id = 18';
	my @batches = session->client('s')->batches;
	is(scalar @batches, 0, 'it is held back');
	session->snapshot('s');    # asks for it
	is_page 's', 0, 3;
	saw s => 'leave 17 at 3, leave 18 at 2, enter 50 at 1, enter 20 at 2';
};

scenario 'move', 'a stream, and topn_poll' => sub {
	base_table();
	follow s => deliver => 'both';
	LiveTopn::Stream::create_slot($server, 'moved');
	my $stream = LiveTopn::Stream->start($server, 'moved',
		subscriptions => 's');
	move 's', 2, 1;
	my ($line) = $stream->wait_for(sub { @_ > 0 }, 'a batch');
	session->sync;
	is($line, (session->client('s')->batches)[0]{json}, 'the same batch');
	is(writer->selectrow_array(q{SELECT topn_poll('s', 0)}), $line, 'polled');
	$stream->stop;
	poll_until(
		sub {
			writer->selectrow_array(q{SELECT NOT active
				FROM pg_replication_slots WHERE slot_name = 'moved'});
		},
		'the walsender to end');
	run q{SELECT pg_drop_replication_slot('moved')};
	is_page 's', 2, 1;
};

scenario 'move', 'the end of the table' => sub {
	base_table();
	follow s => cushion => 0;
	move 's', 18;
	is_page 's', 18, 3;
	ids_are s => '2 1';
	move 's', 20;
	ids_are s => '';
	run 'INSERT INTO items VALUES (30, 1000), (31, 1001)';
	ids_are s => '2 1';
	run 'DELETE FROM items WHERE id > 10';
	ids_are s => '';
	move 's', 8, 6;
	is_page 's', 8, 6;
	run 'TRUNCATE items';
	move 's', 0;
	is_page 's', 0, 6;
};

scenario 'move', 'in error, and out of it' => sub {
	base_table();
	follow 's';
	run 'ALTER TABLE items RENAME TO things';
	wait_for_state s => 'error';
	session->sync;
	saw s => 'error';
	move 's', 3, 2;
	run 'ALTER TABLE things RENAME TO items';
	wait_for_state s => 'live';
	saw s => 'reset';
	is_page 's', 3, 2;
};

scenario 'move', 'DDL in the same transaction' => sub {
	base_table();
	follow 's';
	writer->begin_work;
	run 'ALTER TABLE items ADD more int DEFAULT 1';
	move 's', 2;
	run 'UPDATE items SET score = 1000 WHERE id = 1';
	writer->commit;
	is_page 's', 2, 3;
	my @batches = session->client('s')->take_batches;
	is(scalar @batches, 1, 'one batch');
	writer->begin_work;
	move 's', 1;
	run q{SELECT topn_resync('s')};
	run 'DELETE FROM items WHERE id = 1';
	writer->commit;
	saw s => 'reset';
	is_page 's', 1, 3;
};

scenario 'move', 'a query that is stored out of line' => sub {
	base_table();
	my $text = join ' ', map { $_ * $_ * 7919 % 1000003 } 1 .. 10_000;
	session->subscribe(
		s => "SELECT id FROM items WHERE body <> '$text'
			ORDER BY score DESC, id LIMIT 3");
	move 's', 1;
	saw s => 'leave 20 at 1, enter 17 at 3';
	ids_are s => '19 18 17';
};

scenario 'move', 'two who change one number each' => sub {
	base_table();
	follow 's';
	my $other = $server->connect;
	writer->begin_work;
	move 's', 600_000_000;
	$other->do(q{SELECT topn_move('s', NULL, 600000000)},
		{ pg_async => DBD::Pg::PG_ASYNC() });
	poll_until(
		sub {
			writer->selectrow_array(
				q{SELECT count(*) > 0 FROM pg_locks WHERE NOT granted
					AND locktype = 'transactionid'});
		},
		'the other to wait');
	writer->commit;
	ok(!eval { $other->pg_result; 1 }, 'together they are too large');
	is($other->state, '54000', 'and the second one is told');
	move 's', 0;
	is_page 's', 0, 3;
};

scenario 'move', 'restarts' => sub {
	base_table();
	run 'ALTER TABLE items REPLICA IDENTITY FULL';
	follow 's';
	move 's', 2;
	$server->restart_worker;
	run 'DELETE FROM items WHERE id = 19';
	is_page 's', 2, 3;

	# the worker ends without saving anything after this
	writer->do('SELECT topn_sync()');
	move 's', 7, 4;
	run 'DELETE FROM items WHERE id = 12';
	move 's', 1;
	session->sync;
	my $pid = $server->worker_pid;
	kill 'KILL', $pid;
	poll_until(sub { !eval { writer->do('SELECT 1') } }, 'the crash');
	poll_until(sub { eval { $server->connect } }, 'the end of crash recovery');
	my @seen = session->client('s')->take_batches;
	is(scalar @seen, 5, 'batches before the crash');
	LiveTopn::Scenario::reconnect();
	session->listen('s', "$top LIMIT 3", limit => 6);
	session->begin('s');
	is(session->client('s')->seq, 5, 'the same batches');
	is_page 's', 1, 4;
	run 'DELETE FROM items WHERE id = 20';
	saw s => 'leave 18 at 1, enter 14 at 4';
	is( writer->selectrow_array(
			q{SELECT resets FROM topn_stats WHERE name = 's'}),
		0,
		'no reset');
};

done_testing();
