# At most one batch in an interval, and subscriptions that must be renewed.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use POSIX ();
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

use LiveTopn::Client;
use LiveTopn::Lsn qw(lsn_cmp);
use LiveTopn::Scenario;
use LiveTopn::Server qw(poll_until sqlstate_of);

my $server = LiveTopn::Server->start('throttle',
	conf => "live_topn.checkpoint_interval = 1s\n");
use_server($server);

my $top = 'SELECT id, score FROM items ORDER BY score DESC, id LIMIT 3';

# ---- throttle ----

# What the query returned after each commit that changed it.  The changes go
# through here, so that every result is known.
my @results;

sub change
{
	my ($sql) = @_;

	run $sql;
	push @results, truth();
	return;
}

sub truth
{
	return join "\n",
	  @{ writer->selectcol_arrayref("SELECT row_to_json(q)::text FROM ($top) q")
	  };
}

sub shown
{
	my ($name) = @_;
	return join "\n", session->client($name)->rows;
}

# Wait until the client shows the result, without asking the worker.
sub wait_for_result
{
	my ($name, $result) = @_;

	poll_until(
		sub { session->drain; shown($name) eq $result },
		"$name to show the result");
	return;
}

scenario 'throttle', 'commits share a batch' => sub {
	base_table();
	subscribe s => $top, throttle => '400 ms';
	subscribe t => $top;
	@results = (truth());
	my $start = time();

	for my $i (1 .. 200)
	{
		change 'UPDATE items SET score = '
		  . (300 + $i * 37 % 91)
		  . ' WHERE id = '
		  . (1 + $i % 20);
		session->drain if $i % 20 == 0;
	}
	wait_for_result(s => $results[-1]);
	my $took = time() - $start;
	my @batches = session->client('s')->batches;
	my @each = session->client('t')->batches;

	cmp_ok(scalar @batches, '>=', 2, 'there are batches');
	cmp_ok(scalar @batches, '<=', 2 + $took / 0.4, 'but not too many');
	cmp_ok(scalar @each, '>', scalar @batches, 'fewer than commits');
	my %lsn = map { $_->{lsn} => 1 } @each;
	my %known = map { $_ => 1 } @results;
	is( (grep { !$known{ join "\n", map { $_->{row} } @{ $_->{after} } } }
			  @batches) + 0,
		0, 'each is a result that some commit made');
	is((grep { defined $_->{from} } @batches) > 0, 1, 'some have "from"');
	is( (grep { defined $_->{from} && lsn_cmp($_->{from}, $_->{lsn}) >= 0 }
			  @batches) + 0,
		0, 'which is before "lsn"');
	is((stats('s'))[0], 0, 'they do not count as coalesced');
	equals_query 's';
};

# (coalesced, resets)
sub stats
{
	return writer->selectrow_array(
		'SELECT coalesced, resets FROM topn_stats WHERE name = ?',
		undef, $_[0]);
}

scenario 'throttle', 'changes that cancel out' => sub {
	base_table();
	subscribe s => $top, throttle => '300 ms';
	run 'UPDATE items SET score = 500 WHERE id = 1';
	wait_for_result(s => truth());
	my $seq = session->client('s')->seq;
	run 'UPDATE items SET score = 600 WHERE id = 2',
	  'UPDATE items SET score = 20 WHERE id = 2';

	# the next interval is over when a later change comes through
	poll_until(
		sub {
			run 'SELECT 1';
			!(writer->selectrow_array(
				q{SELECT state <> 'live' FROM topn_subscriptions
					WHERE name = 's'}));
		},
		'the interval to end');
	run 'UPDATE items SET score = 700 WHERE id = 3';
	wait_for_result(s => truth());
	is(session->client('s')->seq, $seq + 1, 'have no batch');
};

scenario 'throttle', 'refills, reset and snapshot in between' => sub {
	run 'CREATE TABLE items (id int PRIMARY KEY, score int)',
	  'INSERT INTO items SELECT g, g FROM generate_series(1, 300) g',
	  'ALTER TABLE items REPLICA IDENTITY FULL';
	session->subscribe('s', $top, cushion => 0, throttle => '100 ms');
	for my $i (1 .. 60)
	{
		run 'DELETE FROM items WHERE id IN (SELECT id FROM items
			ORDER BY score DESC, id LIMIT 2)';
		session->drain if $i % 5 == 0;
	}
	wait_for_result(s => truth());
	pass('refills');

	run 'UPDATE items SET score = 1000 WHERE id = 1',
	  q{SELECT topn_resync('s')}, 'UPDATE items SET score = 1001 WHERE id = 2';
	wait_for_result(s => truth());
	is((stats('s'))[1], 1, 'a reset');

	for my $i (1 .. 20)
	{
		run "UPDATE items SET score = 2000 + $i WHERE id = $i";
		my ($seq, undef, $rows) = session->snapshot('s');
		session->drain;
		my $client = session->client('s');
		die "snapshot $seq, client " . $client->seq . "\n"
		  if $seq != $client->seq;
	}
	equals_query 's';
};

scenario 'throttle', 'other workers' => sub {
	base_table();
	run 'ALTER TABLE items REPLICA IDENTITY FULL';
	subscribe s => $top, throttle => '1 h';
	run 'UPDATE items SET score = 500 WHERE id = 1',
	  'UPDATE items SET score = 501 WHERE id = 2',
	  'UPDATE items SET score = 502 WHERE id = 3';
	session->drain;
	cmp_ok(session->client('s')->seq, '<=', 1, 'held back');
	$server->restart_worker;
	wait_for_result(s => truth());
	is((stats('s'))[1], 0, 'a worker that ends publishes what it has');

	# its successor keeps the interval
	run 'UPDATE items SET score = 600 WHERE id = 4';
	$server->connect->do(q{SELECT topn_snapshot('idle')});
	session->drain;
	isnt(shown('s'), truth(), 'the next one holds back again');
	session->snapshot('s');
	equals_query 's';
};

# A throttled subscription through crashes: the stream must be right.
scenario 'throttle', 'crashes' => sub {
	base_table();
	run 'ALTER TABLE items REPLICA IDENTITY FULL';
	run "SELECT subscribe_topn('$top', 's', throttle => '30 ms',
			deliver => 'stream', cushion => 1)",
	  q{SELECT pg_create_logical_replication_slot('out', 'live_topn')};
	my $client = LiveTopn::Client->new(name => 's', limit => 3);
	$client->start(
		writer->selectrow_array(
			q{SELECT seq, lsn, rows FROM topn_snapshot('s')}));
	my $checkpoint = server->node->data_dir . '/live_topn/'
	  . writer->selectrow_array('SELECT oid FROM pg_database
		WHERE datname = current_database()');
	my %known;

	for my $round (1 .. 5)
	{
		my $saved = (stat $checkpoint)[9];
		for (my $i = 1; $i <= 150 || $saved == (stat $checkpoint)[9]; $i++)
		{
			run 'UPDATE items SET score = '
			  . ($i * 37 * $round % 911)
			  . ' WHERE id = '
			  . (1 + $i % 20);
			$known{ truth() } = 1;
			last if $i > 3000;
		}
		$server->node->stop('immediate');
		$server->node->start;
		LiveTopn::Scenario::reconnect();
		$known{ truth() } = 1;
	}
	my ($seq, undef, $rows) =
	  writer->selectrow_array(q{SELECT seq, lsn, rows FROM topn_snapshot('s')});
	for my $line (
		@{
			writer->selectcol_arrayref(
				"SELECT data FROM pg_logical_slot_get_changes('out', NULL,
					NULL, 'subscriptions', 's')")
		})
	{
		$client->receive_batch($line);
	}
	is($client->seq, $seq, 'no gap');
	is(join("\n", $client->rows), truth(), 'the result is right');
	is( (grep { !$known{ join "\n", map { $_->{row} } @{ $_->{after} } } }
			  $client->batches) + 0,
		0, 'each batch is a result that some commit made');
	note scalar(grep { $_->{deltas}[0]{op} eq 'reset' } $client->batches),
	  ' resets of ', scalar($client->batches), ' batches';
	run q{SELECT pg_drop_replication_slot('out')};
};

# ---- lease ----

sub exists_
{
	my ($name) = @_;
	return scalar writer->selectrow_array(
		'SELECT count(*) FROM topn_subscriptions WHERE name = ?',
		undef, $name);
}

scenario 'lease', 'dropped when it is not renewed' => sub {
	base_table();
	subscribe s => $top, lease => '200 ms';
	subscribe kept => $top, lease => '1 h';
	poll_until(sub { !exists_('s') }, 'the subscription to go');
	pass('it is gone');
	is(exists_('kept'), 1, 'the other is not');
	is(sqlstate_of(writer, q{SELECT topn_renew('s')}), '42704', 'too late');
	is((state_of('kept'))[0], 'live', 'the worker goes on');
};

scenario 'lease', 'renewed' => sub {
	base_table();
	subscribe s => $top, lease => '1 s';
	my $end = time() + 2.5;
	while (time() < $end)
	{
		run q{SELECT topn_renew('s')};
	}
	is(exists_('s'), 1, 'it is there after more than its lease');
	run q{BEGIN}, q{SELECT topn_renew('s')}, 'COMMIT';
	poll_until(sub { !exists_('s') }, 'the subscription to go');
	pass('it goes when nobody renews it');
};

scenario 'lease', 'another worker' => sub {
	base_table();
	subscribe s => $top, lease => '500 ms';
	subscribe long => $top, lease => '1 h';
	$server->node->restart;
	LiveTopn::Scenario::reconnect();
	poll_until(sub { !exists_('s') }, 'the subscription to go');
	pass('leases end after a restart');
	run q{SELECT topn_renew('long')};
	is(exists_('long'), 1, 'or go on');
};

scenario 'lease', 'a restart does not change when it ends' => sub {
	my $end = sub {
		writer->do(q{SELECT topn_sync('60 s')});
		return writer->selectrow_array(
			q{SELECT lease_end FROM topn_subscriptions WHERE name = 's'});
	};

	base_table();
	subscribe s => $top, lease => '1 h';
	my $first = $end->();
	$server->restart_worker;
	is($end->(), $first, 'it ends when it would have');

	# after the last checkpoint, which the crash does not make
	run q{SELECT topn_renew('s')};
	my $renewed = $end->();
	cmp_ok($renewed, 'gt', $first, 'it is extended');
	$server->node->stop('immediate');
	$server->node->start;
	LiveTopn::Scenario::reconnect();
	is($end->(), $renewed, 'which a crash does not undo');
	run 'BEGIN', q{SELECT topn_renew('s')}, 'ROLLBACK';
	is($end->(), $renewed, 'a rollback does');
};

# ---- session ----

# Subscribe in a session of its own.
sub subscribe_in_session
{
	my ($name) = @_;
	my $dbh = $server->connect;

	$dbh->do(q{SELECT subscribe_topn(?, ?, session => true)}, undef, $top,
		$name);
	wait_for_state $name => 'live';
	return $dbh;
}

sub goes
{
	my ($name, $what) = @_;

	poll_until(sub { !exists_($name) }, "$name to go");
	pass("$name goes when $what");
	return;
}

scenario 'session', 'it ends, however it does' => sub {
	base_table();
	my %dbh = map { $_ => subscribe_in_session($_) } qw(a b c);
	subscribe kept => $top, session => 1;

	$dbh{a}->disconnect;
	goes(a => 'its session disconnects');
	run "SELECT pg_terminate_backend($dbh{b}{pg_pid})";
	goes(b => 'its session is terminated');
	is(exists_('c') + exists_('kept'), 2, 'those of other sessions stay');
	$server->restart_worker;
	wait_for_state kept => 'live';
	is(exists_('c') + exists_('kept'), 2, 'with another worker, too');
	is( writer->selectrow_array(
			q{SELECT bool_and(session) FROM topn_subscriptions
			  WHERE name IN ('c', 'kept')}),
		1,
		'the view tells');

	# the worker dies together with the session
	$server->set('live_topn.debug_abandon' => 'on');
	run 'SELECT pg_terminate_backend(pid) FROM topn_worker',
	  "SELECT pg_terminate_backend($dbh{c}{pg_pid})";
	goes(c => 'there is no worker');
	$server->set('live_topn.debug_abandon' => undef);
	equals_query 'kept';
};

scenario 'session', 'the server crashes' => sub {
	base_table();
	run q{ALTER SYSTEM SET restart_after_crash = on},
	  'SELECT pg_reload_conf()';
	my $dbh = subscribe_in_session('a');

	kill 'KILL', $dbh->{pg_pid};
	poll_until(sub { !eval { writer->do('SELECT 1') } }, 'the crash');
	poll_until(sub { eval { $server->connect } }, 'the server to be back');
	LiveTopn::Scenario::reconnect();
	goes(a => 'its session is killed');

	$dbh = subscribe_in_session('b');
	$server->node->stop('immediate');
	$server->node->start;
	LiveTopn::Scenario::reconnect();
	goes(b => 'the server crashes');
};

scenario 'session', 'the transaction that subscribes' => sub {
	base_table();
	my $dbh = $server->connect;

	$dbh->begin_work;
	$dbh->do("SELECT subscribe_topn('$top', 'a', session => true)");
	$dbh->rollback;
	$dbh->do("SELECT subscribe_topn('$top', 'b', session => true)");
	wait_for_state b => 'live';
	is(exists_('a'), 0, 'is rolled back, another not');
	$dbh->disconnect;
	goes(b => 'the session disconnects');

	$dbh = $server->connect;
	$dbh->begin_work;
	$dbh->do("SELECT subscribe_topn('$top', 'c', session => true)");
	$dbh->do("PREPARE TRANSACTION 'c'");
	$dbh->disconnect;
	run "COMMIT PREPARED 'c'";
	goes(c => 'the transaction is committed by another session');

	$dbh = $server->connect;
	$dbh->do("SELECT subscribe_topn('$top', 'd', session => true,
		lease => '1 h')");
	run q{SELECT topn_renew('d')};
	$dbh->disconnect;
	goes(d => 'its session disconnects, whatever its lease is');
	is( sqlstate_of(
			writer, qq{SELECT subscribe_topn('$top', 'x', session => NULL)}),
		'22004',
		'null is neither');
};

scenario 'lease', 'rights and errors' => sub {
	base_table();
	run 'CREATE ROLE owner LOGIN', 'CREATE ROLE stranger LOGIN',
	  'CREATE ROLE member LOGIN', 'GRANT owner TO member',
	  'GRANT SELECT ON items TO owner';
	my %dbh = map { $_ => $server->connect('postgres', user => $_) }
	  qw(owner stranger member);

	$dbh{owner}->do(q{SELECT subscribe_topn(?, 's', lease => '500 ms')},
		undef, $top);
	is(sqlstate_of($dbh{stranger}, q{SELECT topn_renew('s')}),
		'42501', 'somebody else');
	is(sqlstate_of($dbh{member}, q{SELECT topn_renew('s')}), undef, 'a member');
	poll_until(sub { !exists_('s') }, 'the subscription to go');
	pass('that of an ordinary role goes, too');

	# what the owner lost does not keep the subscription
	$dbh{owner}->do(q{SELECT subscribe_topn(?, 's', lease => '500 ms')},
		undef, $top);
	run 'REVOKE SELECT ON items FROM owner';
	poll_until(sub { !exists_('s') }, 'the subscription to go');
	pass('or one in error');

	subscribe n => $top;
	is(sqlstate_of(writer, q{SELECT topn_renew('n')}), '55000', 'no lease');
	is( sqlstate_of(
			writer, qq{SELECT subscribe_topn('$top', 'x', lease => '-1 s')}),
		'22023',
		'a negative one');
	is( sqlstate_of(
			writer, qq{SELECT subscribe_topn('$top', 'x', throttle => '0')}),
		'22023',
		'no interval');
	$_->disconnect for values %dbh;
	run 'DROP OWNED BY owner', 'DROP ROLE owner, stranger, member';
};

done_testing();
