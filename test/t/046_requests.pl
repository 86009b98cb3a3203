# Requests of backends to the worker, and of the worker to refill workers, that
# end in the middle: nothing is left of them, and the worker goes on.
#
# ORACLE_SEED repeats a run, as far as time allows.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use DBD::Pg qw(:async);
use Test::More;

use LiveTopn::Load;
use LiveTopn::Random;
use LiveTopn::RefillStops;
use LiveTopn::Scenario;
use LiveTopn::Server qw(poll_until sqlstate_of);

my $seed = $ENV{ORACLE_SEED} // 1 + int(rand(2**31));
note "ORACLE_SEED=$seed";

my $server = LiveTopn::Server->start('requests',
	conf => "dynamic_shared_memory_type = mmap\n"
	  . "max_connections = 60\n");
use_server($server);

my $top = 'SELECT id, score FROM items ORDER BY score DESC, id LIMIT 3';

# Its snapshot, and each of its batches, is larger than a queue.
my $large = "SELECT id, repeat(md5(id::text || score), 2000) AS much FROM items
	ORDER BY id LIMIT 20";

# Calls, some of which take their time.
my @calls = (
	q{SELECT topn_sync()},
	q{SELECT topn_poll('s', 1000000, '1 min')},
	q{SELECT rows FROM topn_snapshot('large')},
	q{SELECT count(much) FROM topn_rows('large') AS (id int, much text)},
	q{SELECT topn_poll('large', 0)},
	q{SELECT count(*) FROM topn_stats},
	q{SELECT state FROM topn_subscriptions},
	q{SELECT topn_renew('lease')},
	q{SELECT topn_resync('large')});

sub subscribe_all
{
	run q{SELECT subscribe_topn('} . $top . q{', 's', deliver => 'none')},
	  q{SELECT subscribe_topn('} . ($large =~ s/'/''/gr)
	  . q{', 'large', deliver => 'none')},
	  q{SELECT subscribe_topn('} . $top
	  . q{', 'lease', deliver => 'none', lease => '1 hour')};
	run 'SELECT topn_sync()';
	return;
}

# A call that does not wait for its end.
sub start_call
{
	my ($sql) = @_;
	my $dbh = $server->connect;

	$dbh->do($sql, { pg_async => PG_ASYNC });
	return $dbh;
}

sub wait_until_waiting
{
	my (@dbhs) = @_;

	poll_until(
		sub {
			writer->selectrow_array(
				"SELECT count(*) = ? FROM pg_stat_activity
				 WHERE pid = ANY (?) AND wait_event_type = 'Extension'",
				undef, scalar @dbhs, [ map { $_->{pg_pid} } @dbhs ]);
		},
		'calls to wait');
	return;
}

# Every segment belongs to a refill worker, and everything works.
sub nothing_is_left
{
	my ($worker) = @_;

	is($server->worker_pid, $worker, 'the worker goes on') if $worker;
	ok( eval {
			poll_until(
				sub {
					$server->dsm_segments == writer->selectrow_array(
						"SELECT count(*) FROM pg_stat_activity
						 WHERE backend_type = 'live_topn refill worker'");
				},
				'segments to go');
		},
		'no segment is left') or diag($server->dsm_segments . ' segments');
	is(sqlstate_of(writer, 'SELECT topn_sync()'), undef, 'it answers');
	return;
}

scenario 'requests', 'statement_timeout at any moment' => sub {
	my $dbh = $server->connect;
	my %states;

	base_table();
	subscribe_all();
	my $worker = $server->worker_pid;
	for my $ms (1 .. 12)
	{
		for my $call (@calls)
		{
			# which the last one may cancel
			1 until eval { $dbh->do('RESET statement_timeout') };
			$dbh->do("SET statement_timeout = '${ms}ms'");
			$states{ sqlstate_of($dbh, $call) // 'ok' }++;
		}
	}
	is(join(' ', grep { !/^(ok|57014)$/ } sort keys %states),
		'', 'cancelled, or done');
	cmp_ok($states{57014}, '>', 0, 'some were cancelled');
	nothing_is_left($worker);
};

scenario 'requests', 'backends are cancelled and terminated' => sub {
	my $random = LiveTopn::Random->new($seed);
	my $load = LiveTopn::Load->new($server);
	my %done = (cancel => 0, terminate => 0);

	base_table();
	subscribe_all();
	my $worker = $server->worker_pid;
	for my $number (1 .. 4)
	{
		$load->start(
			sub {
				my ($dbh, $turn) = @_;
				my $own = LiveTopn::Random->new($seed + $number * 1000 + $turn);

				$dbh->do("SET application_name = 'caller'");
				$dbh->do($own->pick(@calls));
			},
			pause => 500);
	}
	$load->start(
		sub {
			my ($dbh, $turn) = @_;
			$dbh->do('UPDATE items SET score = ? WHERE id = ?',
				undef, $turn, 1 + $turn % 20);
		},
		pause => 3000);
	$load->run;
	while ($done{cancel} + $done{terminate} < 300)
	{
		my $what = $random->pick(qw(cancel cancel terminate));

		$done{$what} += writer->selectrow_array(
			"SELECT count(pg_${what}_backend(pid)) FROM (
				SELECT pid FROM pg_stat_activity
				WHERE application_name = 'caller' AND state = 'active'
				ORDER BY random() LIMIT 1) a");
	}
	$load->stop;
	note "$done{cancel} cancelled, $done{terminate} terminated";
	nothing_is_left($worker);
};

scenario 'requests', 'as many as there are backends' => sub {
	base_table();
	subscribe_all();
	my $worker = $server->worker_pid;
	my @dbhs;

	while (1)
	{
		my $dbh =
		  eval { start_call(q{SELECT topn_poll('s', 0, '5 min')}) } // last;
		push @dbhs, $dbh;
	}
	cmp_ok(scalar @dbhs, '>', 40, scalar(@dbhs) . ' requests at once');
	is(sqlstate_of(writer, 'SELECT topn_sync()'), undef,
		'and one more is answered');
	run 'UPDATE items SET score = 1000 WHERE id = 1';
	is(scalar(grep { $_->pg_result } @dbhs), scalar @dbhs, 'all end');
	$_->disconnect for @dbhs;
	nothing_is_left($worker);
};

scenario 'requests', 'a backend does not take its answer' => sub {
	base_table();
	subscribe_all();
	my $worker = $server->worker_pid;
	my $stopped = start_call(q{SELECT topn_poll('large', 0, '5 min')});

	wait_until_waiting($stopped);
	kill 'STOP', $stopped->{pg_pid};
	run "UPDATE items SET score = $_ WHERE id = 1" for 1 .. 5;
	is(sqlstate_of(writer, q{SELECT rows FROM topn_snapshot('large')}),
		undef, 'others are served');
	is(sqlstate_of(writer, 'SELECT topn_sync()'), undef, 'at once');
	kill 'CONT', $stopped->{pg_pid};
	ok($stopped->pg_result, 'it gets its answer when it wants it');
	$stopped->disconnect;

	$stopped = start_call(q{SELECT topn_poll('large', 5, '5 min')});
	wait_until_waiting($stopped);
	kill 'STOP', $stopped->{pg_pid};
	run 'UPDATE items SET score = 6 WHERE id = 1';
	$server->restart_worker;
	is(sqlstate_of(writer, 'SELECT topn_sync()'), undef,
		'another worker does not wait for it either');
	kill 'CONT', $stopped->{pg_pid};
	ok($stopped->pg_result, 'and it gets its answer');
	$stopped->disconnect;
	nothing_is_left();
};

scenario 'requests', 'a refill worker ends at any step' => sub {
	$server->set('live_topn.debug_refill_stops' => 'on');
	my $stops = LiveTopn::RefillStops->new($server);

	base_table();
	my $worker = $server->worker_pid;
	for my $what (qw(terminate cancel))
	{
		for my $gate (0 .. 3)
		{
			my $name = "${what}_$gate";

			$stops->hold($gate);
			run qq{SELECT subscribe_topn('$top', '$name', deliver => 'none')};
			$stops->wait_for($gate);
			is( writer->selectrow_array(
					"SELECT count(pg_${what}_backend(pid)) FROM pg_stat_activity
					 WHERE backend_type = 'live_topn refill worker'
					 AND wait_event_type = 'Lock'"),
				1, "$what at gate $gate");
			$stops->release($gate);
			is(sqlstate_of(writer, "SELECT * FROM topn_snapshot('$name')"),
				undef, 'the rows come from another attempt');
			wait_for_state($name => 'live');

			# the next one is to read, too
			run "SELECT unsubscribe_topn('$name')";
		}
	}
	$server->set('live_topn.debug_refill_stops' => undef);
	nothing_is_left($worker);
};

scenario 'requests', 'a refill worker does not go on' => sub {
	base_table();
	subscribe_all();
	my $worker = $server->worker_pid;
	my @pids = @{
		writer->selectcol_arrayref("SELECT pid FROM pg_stat_activity
			WHERE backend_type = 'live_topn refill worker'")
	};

	cmp_ok(scalar @pids, '>', 0, 'idle ones');
	kill 'STOP', @pids;
	run 'UPDATE items SET score = 1000 WHERE id = 1';
	is( scalar writer->selectrow_array(
			q{SELECT count(*) FROM topn_poll('s', 0, '1 min')}),
		1, 'who needs no rows is served');
	kill 'CONT', @pids;
	nothing_is_left($worker);
};

done_testing();
