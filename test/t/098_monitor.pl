# What an operator sees: processes in pg_stat_activity, a load under way, and
# which subscription takes the time, or keeps WAL.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use Test::More;

use LiveTopn::RefillStops;
use LiveTopn::Scenario;
use LiveTopn::Server qw(poll_until);

my $server = LiveTopn::Server->start('monitor',
	conf => "live_topn.debug_refill_stops = on\n");
use_server($server);

my $stops = LiveTopn::RefillStops->new($server);
my $top = 'SELECT id, score FROM items';
my $names_events = writer->{pg_server_version} >= 170000;

# The activity of the only process of that kind.
sub activity
{
	my ($type) = @_;
	my $rows = writer->selectall_arrayref(
		'SELECT pid, application_name, state, query, wait_event_type,
			wait_event
		 FROM pg_stat_activity WHERE backend_type = ?',
		{ Slice => {} }, $type);

	die "there are " . @$rows . " of $type\n" if @$rows != 1;
	return $rows->[0];
}

sub statistics
{
	my ($name) = @_;
	return writer->selectrow_hashref(
		'SELECT *, refill_start <= now() AS refill_began
		 FROM topn_stats WHERE name = ?', undef, $name);
}

# The activity of the process that reads for a subscription.
sub reading
{
	my ($name) = @_;
	return writer->selectrow_hashref(
		'SELECT a.* FROM pg_stat_activity a
			JOIN topn_stats ON refill_pid = pid WHERE name = ?', undef, $name);
}

sub waits_for
{
	my ($type, $event) = @_;

	$event = 'Extension' if !$names_events;
	poll_until(sub { (activity($type)->{wait_event} // '') eq $event },
		"$type to wait for $event");
	pass("$type waits for $event");
	return;
}

scenario 'activity', 'launcher and worker' => sub {
	poll_until(
		sub {
			writer->selectrow_array(
				q{SELECT count(*) FROM pg_stat_activity
					WHERE backend_type = 'live_topn worker'
						AND query LIKE 'decoding%'});
		},
		'the worker to have started');
	my $launcher = activity('live_topn launcher');
	my $worker = activity('live_topn worker');

	is($launcher->{application_name}, 'live_topn launcher');
	is($worker->{application_name},
		'live_topn worker for database postgres');
	is($worker->{query}, 'decoding WAL for live_topn subscriptions');
	is($worker->{state}, 'active');
	waits_for 'live_topn launcher', 'LiveTopnLauncherMain';
	waits_for 'live_topn worker', 'LiveTopnWorkerMain';
};

scenario 'activity', 'a session that waits for the worker' => sub {
	my $other = $server->connect;
	my $waits = sub {
		writer->selectrow_array(
			'SELECT wait_event FROM pg_stat_activity WHERE pid = ?',
			undef, $other->{pg_pid}) // '';
	};

	base_table;
	subscribe s => "$top ORDER BY score DESC LIMIT 3";
	$other->do(q{SELECT topn_poll('s', 0, '1 hour')},
		{ pg_async => DBD::Pg::PG_ASYNC() });
	my $event = $names_events ? 'LiveTopnAnswer' : 'Extension';
	poll_until(sub { $waits->() eq $event }, "waiting for $event");
	pass("waits for $event");
	$other->pg_cancel;
};

scenario 'loading', 'what is read is told' => sub {
	base_table;
	$stops->hold(LiveTopn::RefillStops::BEFORE_ANSWER);
	run "SELECT subscribe_topn('$top WHERE score > 150
		ORDER BY score DESC LIMIT 3', 's')";
	$stops->wait_for(LiveTopn::RefillStops::BEFORE_ANSWER);
	poll_until(sub { statistics('s')->{refill_read} == 20 },
		'20 rows to be read');

	my $worker = reading 's';
	my $loading = statistics('s');

	is(state_of('s'), 'loading');
	is($worker->{backend_type}, 'live_topn refill worker');
	ok($loading->{refill_began}, 'since when');
	is($worker->{application_name},
		'live_topn refill worker for database postgres');
	like($worker->{query}, qr/^loading live_topn subscription "s": SELECT/);
	is(statistics('idle')->{refill_pid}, undef, 'others do not load');

	$stops->release_all;
	wait_for_state s => 'live';
	my $loaded = statistics('s');

	is($loaded->{$_}, undef, $_)
	  for qw(refill_pid refill_start refill_read);
};

scenario 'WAL', 'who keeps it' => sub {
	base_table;
	subscribe s => "$top ORDER BY score DESC LIMIT 3";
	$stops->hold(LiveTopn::RefillStops::BEFORE_ANSWER);
	run 'DELETE FROM items WHERE id > 5';
	$stops->wait_for(LiveTopn::RefillStops::BEFORE_ANSWER);
	like(reading('s')->{query},
		qr/^looking for more rows of live_topn subscription "s"/);

	run 'INSERT INTO items VALUES (6, 6)';
	my $here = writer->selectrow_array('SELECT pg_current_wal_lsn()');
	run 'INSERT INTO items VALUES (7, 7)';
	poll_until(
		sub {
			writer->selectrow_array(
				"SELECT applied_lsn > ? FROM topn_worker", undef, $here);
		},
		'the commit to be decoded');
	my $behind =
	  "SELECT restart_lsn <= '$here' FROM topn_stats WHERE name = ?";

	ok(writer->selectrow_array($behind, undef, 's'), 'the one that waits');
	ok(!writer->selectrow_array($behind, undef, 'idle'), 'no other');
	$stops->release_all;
	session->sync;
	ok(!writer->selectrow_array($behind, undef, 's'), 'no longer');
};

scenario 'time', 'who takes it' => sub {
	base_table;
	subscribe s => "$top ORDER BY score DESC LIMIT 3";
	session->sync;
	my $before = statistics('s')->{work_ms};
	my $idle = statistics('idle')->{work_ms};

	cmp_ok($before, '>', 0, 'its start took time');
	run 'UPDATE items SET score = score + 1 WHERE id = 20' for 1 .. 10;
	session->sync;
	cmp_ok(statistics('s')->{work_ms}, '>', $before, 'its batches do');
	is(statistics('idle')->{work_ms}, $idle, 'not those of others');
};

done_testing();
