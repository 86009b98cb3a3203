# topn_poll: batches for clients without LISTEN.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use DBD::Pg qw(:async);
use POSIX ();
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

use LiveTopn::Client;
use LiveTopn::Scenario;
use LiveTopn::Server qw(poll_until sqlstate_of);

my $server = LiveTopn::Server->start('poll');
use_server($server);

my $top = 'SELECT id, score FROM items ORDER BY score DESC, id LIMIT 3';

sub subscribe_to
{
	my ($name, $query, %options) = @_;

	writer->do(
		"SELECT subscribe_topn(?, ?, deliver => 'none', cushion => 2"
		  . join('', map { ", $_ => '$options{$_}'" } sort keys %options)
		  . ')',
		undef, $query // $top, $name);
	return new_client($name);
}

# A client with the snapshot.
sub new_client
{
	my ($name) = @_;
	my $client = LiveTopn::Client->new(name => $name, limit => 3);

	$client->start(
		writer->selectrow_array(
			'SELECT seq, lsn, rows FROM topn_snapshot(?)', undef, $name));
	return $client;
}

# Batches as JSON.
sub batches_after
{
	my ($name, $after, $timeout, $dbh) = @_;

	return @{
		($dbh // writer)->selectcol_arrayref(
			'SELECT topn_poll(?, ?, ?::interval)',
			undef, $name, $after, $timeout // '0')
	};
}

sub truth
{
	return join "\n",
	  @{ writer->selectcol_arrayref("SELECT row_to_json(q)::text FROM ($top) q")
	  };
}

# A poll that waits, on a connection of its own.
sub start_poll
{
	my ($name, $after, $timeout) = @_;
	my $dbh = $server->connect;

	my $sth = $dbh->prepare('SELECT topn_poll(?, ?, ?::interval)',
		{ pg_async => PG_ASYNC });
	$sth->execute($name, $after, $timeout);
	return { dbh => $dbh, sth => $sth, started => time() };
}

# The worker has got so many requests that it does not answer yet.
sub wait_until_waiting
{
	my (@polls) = @_;

	poll_until(
		sub {
			writer->selectrow_array(
				"SELECT count(*) = ? FROM pg_stat_activity
				 WHERE pid = ANY (?) AND wait_event_type = 'Extension'",
				undef, scalar @polls, [ map { $_->{dbh}{pg_pid} } @polls ]);
		},
		'the polls to wait');
	return;
}

# (seconds it took, batches)
sub finish_poll
{
	my ($poll) = @_;

	poll_until(sub { $poll->{dbh}->pg_ready }, 'a poll to return');
	my $took = time() - $poll->{started};
	$poll->{sth}->pg_result;
	return ($took, map { $_->[0] } @{ $poll->{sth}->fetchall_arrayref });
}

scenario 'poll', 'one after the other' => sub {
	base_table();
	my $client = subscribe_to('p');
	is_deeply([ batches_after('p', 0) ], [], 'nothing yet');
	run "UPDATE items SET score = 1000 + $_ WHERE id = $_" for 1 .. 5;
	my @batches = batches_after('p', 0);
	is(scalar @batches, 5, 'each commit has a batch');
	$client->receive_batch($_) for @batches;
	is(join("\n", $client->rows), truth(), 'they give the result');
	is_deeply([ batches_after('p', 3) ], [ @batches[ 3, 4 ] ],
		'only those that are asked for');
	is_deeply([ batches_after('p', 5) ], [], 'none left');
};

scenario 'poll', 'exactly once under load, on any connection' => sub {
	base_table();
	$server->set('live_topn.poll_batches' => 100_000);
	my %client = map { $_ => subscribe_to($_) } qw(p q);
	my @pids = map {
		my $writer = $_;
		my $pid = fork // die "could not fork: $!";
		if ($pid == 0)
		{
			my $done = eval {
				my $dbh = $server->connect;
				$dbh->do('UPDATE items SET score = ? WHERE id = ?',
					undef, ($writer + $_ * 7919) % 1000, 1 + $_ % 20)
				  for 1 .. 600;
				1;
			};
			POSIX::_exit($done ? 0 : 1);
		}
		$pid;
	} 1 .. 3;
	my $polls = 0;
	my $writing = 1;
	my @others = map { $server->connect } 1 .. 3;

	for (my $last = 0; !$last;)
	{
		$last = !$writing;
		$writing = 0 if !grep { waitpid($_, POSIX::WNOHANG) >= 0 } @pids;
		for my $name (qw(p q))
		{
			my $client = $client{$name};
			my @batches = batches_after($name, $client->seq,
				$name eq 'q' && !$last ? '20 ms' : '0',
				$others[ $polls++ % 3 ]);

			$client->receive_batch($_) for @batches;
		}
	}
	is(join("\n", $client{$_}->rows), truth(), "$_ equals its query")
	  for qw(p q);
	cmp_ok(scalar $client{p}->batches, '>', 100, 'there were batches');
	is( (grep { $_->{deltas}[0]{op} eq 'reset' } $client{p}->batches) + 0,
		0, 'and no reset');
	$server->set('live_topn.poll_batches' => undef);
};

scenario 'poll', 'too far behind, or ahead' => sub {
	base_table();
	$server->set('live_topn.poll_batches' => 5);
	subscribe_to('p');
	run "UPDATE items SET score = 1000 + $_ WHERE id = $_" for 1 .. 10;
	is(scalar batches_after('p', 5), 5, 'five are kept');
	for my $after (4, 0, -1, 11, '9223372036854775807', '-9223372036854775808')
	{
		my @batches = batches_after('p', $after);

		is(scalar @batches, 1, "one batch after $after");
		like($batches[0], qr/"seq":10,.*\[\{"op":"reset"/, 'a reset');
		my $client = LiveTopn::Client->new(name => 'p', limit => 3);
		$client->receive_batch($batches[0]);
		is(join("\n", $client->rows), truth(), 'with the result');
	}
	$server->set('live_topn.poll_batches' => 0);
	run 'UPDATE items SET score = 2000 WHERE id = 1';
	like((batches_after('p', 10))[0], qr/"seq":11,.*"op":"reset"/,
		'none are kept');
	$server->set(
		'live_topn.poll_batches' => undef,
		'live_topn.poll_memory' => '64kB');
	my $wide = subscribe_to('wide',
		'SELECT id, score, body FROM items ORDER BY score DESC, id LIMIT 3');
	run "UPDATE items SET body = repeat('$_', 10000), score = 3000 + $_
		WHERE id = 2" for 0 .. 9;
	my @batches = batches_after('wide', 7);
	is(scalar @batches, 3, 'some fit into the memory');
	like((batches_after('wide', 0))[0], qr/"op":"reset"/, 'not all');
	$server->set('live_topn.poll_memory' => undef);
};

scenario 'poll', 'waiting' => sub {
	base_table();
	subscribe_to('p');
	my ($took, @batches) = finish_poll(start_poll('p', 0, '200 ms'));
	cmp_ok($took, '>=', 0.2, 'it waits for its time');
	is_deeply(\@batches, [], 'if nothing comes');

	my @polls = map { start_poll('p', 0, '100 s') } 1 .. 40;
	wait_until_waiting(@polls);
	is( writer->selectrow_array(
			"SELECT count(*) FROM pg_locks WHERE pid = ANY (?)
			 AND locktype NOT IN ('virtualxid')",
			undef, [ map { $_->{dbh}{pg_pid} } @polls ]),
		0,
		'without a lock');
	run 'UPDATE items SET body = body';
	run 'UPDATE items SET score = 1000 WHERE id = 1';
	my @all = map { [ finish_poll($_) ] } @polls;
	is((grep { @$_ == 2 && $_->[1] eq $all[0][1] } @all) + 0,
		40, 'a batch wakes all');
	is((grep { $_->[0] > 50 } @all) + 0, 0, 'at once');
};

# Commits of the worker wait for no disk, but who polls goes on from what it has.
scenario 'poll', 'a client goes on after a crash' => sub {
	$server->set(wal_writer_delay => '10s');
	base_table();
	my $client = subscribe_to('p', $top, throttle => '500 ms');

	# the window is saved
	$server->node->restart;
	LiveTopn::Scenario::reconnect();
	for my $round (1 .. 3)
	{
		run "UPDATE items SET score = 1000 * $round WHERE id = $round";
		$client->receive_batch($_)
		  for batches_after('p', $client->seq, '10 s');
		is($client->seq, 2 * $round - 1, 'a batch');
		$server->node->stop('immediate');
		$server->node->start;
		LiveTopn::Scenario::reconnect();
		run "UPDATE items SET score = 1000 * $round + 1 WHERE id = $round";
		$client->receive_batch($_)
		  for batches_after('p', $client->seq, '10 s');
		is($client->seq, 2 * $round, 'the next one');
		is(join("\n", $client->rows), truth(), 'with what it should have');
	}
	$server->set(wal_writer_delay => undef);
};

scenario 'poll', 'waiting ends otherwise' => sub {
	base_table();
	subscribe_to('p');
	my $pid = $server->worker_pid;
	my $poll = start_poll('p', 0, '100 s');
	wait_until_waiting($poll);
	writer->do('SELECT pg_cancel_backend(?)', undef, $poll->{dbh}{pg_pid});
	eval { finish_poll($poll) };
	is($poll->{dbh}->state, '57014', 'cancelled');
	is(scalar $poll->{dbh}->selectrow_array('SELECT 1'),
		1, 'and the connection goes on');

	my $dbh = $server->connect;
	$dbh->do(q{SET statement_timeout = '50ms'});
	is(sqlstate_of($dbh, q{SELECT topn_poll('p', 0, '100 s')}),
		'57014', 'statement_timeout');
	is(sqlstate_of($dbh, q{SELECT topn_poll('p', NULL)}),
		'22004', 'after is null');
	is(sqlstate_of($dbh, q{SELECT topn_poll('p', 0, '-1 s')}),
		'22023', 'a negative time-out');
	is(sqlstate_of($dbh, q{SELECT topn_poll('nobody', 0)}),
		'42704', 'no such subscription');
	run 'CREATE ROLE stranger LOGIN';
	my $stranger = $server->connect('postgres', user => 'stranger');
	is(sqlstate_of($stranger, q{SELECT topn_poll('p', 0)}),
		'42501', 'somebody else');
	$stranger->disconnect;
	run 'DROP ROLE stranger';

	$poll = start_poll('p', 0, '100 s');
	wait_until_waiting($poll);
	$poll->{dbh}->disconnect;
	run 'UPDATE items SET score = 1000 WHERE id = 1';
	is(scalar batches_after('p', 0), 1, 'a client that left is in nobody\'s way');
	is($server->worker_pid, $pid, 'the worker goes on');

	# it may wait in vain no longer than for its time
	$poll = start_poll('p', 1, '100 s');
	wait_until_waiting($poll);
	run q{SELECT unsubscribe_topn('p')};
	eval { finish_poll($poll) };
	is($poll->{dbh}->state, '42704', 'the subscription is dropped');

	subscribe_to('p');
	$poll = start_poll('p', 0, '100 s');
	wait_until_waiting($poll);
	$server->restart_worker;
	run 'UPDATE items SET score = 2000 WHERE id = 2';
	my (undef, @batches) = finish_poll($poll);
	is(scalar @batches, 1, 'another worker serves who waits');
	like($batches[0], qr/"seq":1,.*"op":"enter"/, 'and goes on without a gap');
};

# ---- topn_wait ----

# A wait like start_poll's.
sub start_wait
{
	my ($name, $after, $timeout) = @_;
	my $dbh = $server->connect;
	my $sth = $dbh->prepare('CALL topn_wait(?, ?, ?::interval)',
		{ pg_async => PG_ASYNC });

	$sth->execute($name, $after, $timeout);
	return { dbh => $dbh, sth => $sth, started => time() };
}

scenario 'wait', 'it returns what topn_poll does' => sub {
	base_table();
	my $client = subscribe_to('p');
	my $wait = start_wait('p', 0, '100 s');

	wait_until_waiting($wait);
	run 'UPDATE items SET score = 1001 WHERE id = 1';
	my (undef, $json) = finish_poll($wait);
	is($json, '[' . join(',', batches_after('p', 0)) . ']', 'a batch that comes');
	run 'UPDATE items SET score = 1002 WHERE id = 2',
	  'UPDATE items SET score = 1003 WHERE id = 3';
	session->sync;
	is( scalar writer->selectrow_array(q{CALL topn_wait('p', 0, '100 s')}),
		'[' . join(',', batches_after('p', 0)) . ']',
		'those that are there');
	is(scalar writer->selectrow_array(q{CALL topn_wait('p', 3, '10 ms')}),
		'[]', 'none in time');
	like(
		scalar writer->selectrow_array(q{CALL topn_wait('p', -7, '100 s')}),
		qr/^\[\{"sub":"p","seq":3,.*"op":"reset"/,
		'or all');
	run q{DO $$
		DECLARE found json;
		BEGIN
			PERFORM subscribe_topn('SELECT id FROM items LIMIT 1', 'q');
			CALL topn_wait('q', 0, '10 ms', found);
			IF found::text <> '[]' THEN
				RAISE EXCEPTION '%', found;
			END IF;
		END $$};
	pass('in a DO block that subscribes, too');
};

scenario 'wait', 'who waits holds nothing' => sub {
	base_table();
	subscribe_to('p');
	run 'CREATE TABLE large (id int, filler text)
		WITH (autovacuum_enabled = off)',
	  "INSERT INTO large SELECT g, repeat('x', 500)
		FROM generate_series(1, 1000) g";
	my $wait = start_wait('p', 0, '100 s');
	wait_until_waiting($wait);
	my $pid = $wait->{dbh}{pg_pid};

	is_deeply(
		[ writer->selectrow_array(
				'SELECT backend_xmin, backend_xid FROM pg_stat_activity
				 WHERE pid = ?', undef, $pid) ],
		[ undef, undef ],
		'no snapshot, no transaction id');
	is( join(' ',
			@{
				writer->selectcol_arrayref(
					'SELECT DISTINCT locktype FROM pg_locks WHERE pid = ?',
					undef, $pid)
			}),
		'virtualxid',
		'no lock but its own');
	run 'DELETE FROM large', 'VACUUM large';
	is( scalar writer->selectrow_array(q{SELECT pg_relation_size('large')}),
		0,
		'VACUUM removes what was deleted meanwhile');
	run 'UPDATE items SET score = 1000 WHERE id = 1';
	my (undef, $json) = finish_poll($wait);
	is($json, '[' . join(',', batches_after('p', 0)) . ']', 'and it gets its batch');
};

scenario 'wait', 'errors' => sub {
	base_table();
	subscribe_to('p');
	my $dbh = $server->connect;

	$dbh->begin_work;
	is(sqlstate_of($dbh, q{CALL topn_wait('p', 0, '100 s')}),
		'25001', 'in a transaction block');
	$dbh->rollback;
	is(sqlstate_of($dbh, q{CALL topn_wait('nobody', 0, '100 s')}),
		'42704', 'no such subscription');
	is(sqlstate_of($dbh, q{CALL topn_wait('p', NULL, '100 s')}),
		'22004', 'after is null');
	is(sqlstate_of($dbh, q{CALL topn_wait('p', 0, '-1 s')}),
		'22023', 'a negative time-out');
	$dbh->do(q{SET statement_timeout = '50ms'});
	is(sqlstate_of($dbh, q{CALL topn_wait('p', 0, '100 s')}),
		'57014', 'statement_timeout');
	is(scalar $dbh->selectrow_array('SELECT 1'), 1, 'the connection goes on');

	my $wait = start_wait('p', 0, '100 s');
	wait_until_waiting($wait);
	run q{SELECT unsubscribe_topn('p')};
	eval { finish_poll($wait) };
	is($wait->{dbh}->state, '42704', 'the subscription is dropped');
	is(scalar $wait->{dbh}->selectrow_array('SELECT 1'),
		1, 'and the connection goes on');
};

done_testing();
