# Consumers that do not consume.
#
# The NOTIFY queue is filled for real: on PostgreSQL 15 and 16 it takes 8 GB
# of payloads, so that is done only where it can be made small
# (max_notify_queue_pages, from 17 on), or if LIVE_TOPN_FILL_QUEUE is set.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use PostgreSQL::Test::Utils;
use Test::More;

use LiveTopn::Process qw(memory_kb);
use LiveTopn::Scenario;
use LiveTopn::Server qw(poll_until sqlstate_of);
use LiveTopn::Stream;

my $can_be_small =
  run_command([ 'postgres', '--describe-config' ]) =~
  /^max_notify_queue_pages\t/m;
my $server = LiveTopn::Server->start('slow',
	conf => "live_topn.checkpoint_interval = 1s\n"
	  . ($can_be_small ? "max_notify_queue_pages = 64\n" : ''));
use_server($server);

my $top = 'SELECT id, score FROM items ORDER BY score DESC, id LIMIT 3';

scenario 'B47', 'a listener that sits in a transaction' => sub {
	base_table();
	my $sleeper = $server->connect;
	$sleeper->do('LISTEN s');
	$sleeper->begin_work;
	$sleeper->do('SELECT 1');
	subscribe s => $top;
	for my $i (1 .. 500)
	{
		run "UPDATE items SET score = 1000 + $i WHERE id = 1 + $i % 20";
	}
	equals_query 's';
	$sleeper->commit;
	$sleeper->do('SELECT 1');
	my $seen = 0;
	$seen++ while $sleeper->pg_notifies;
	is($seen, session->client('s')->seq, 'it gets all when it wakes');
	$sleeper->disconnect;
};

scenario 'queue', 'it is full' => sub {
	plan skip_all => 'needs 8 GB; set LIVE_TOPN_FILL_QUEUE'
	  unless $can_be_small || $ENV{LIVE_TOPN_FILL_QUEUE};
	base_table();
	subscribe s => $top;
	session->subscribe('quiet', 'SELECT id FROM items ORDER BY id LIMIT 2',
		deliver => 'none');
	my $log_start = -s $server->node->logfile;
	my $sleeper = $server->connect;
	my $sleeper_pid = $sleeper->{pg_pid};
	$sleeper->do('LISTEN other');
	$sleeper->begin_work;
	$sleeper->do('SELECT 1');
	fill_queue();

	my $pid = $server->worker_pid;
	my $before = memory_kb($pid);
	for my $i (1 .. 3000)
	{
		run "UPDATE items SET score = 1000 + $i WHERE id = 1 + $i % 20";
	}
	my ($state, $message) = sqlstate_of(writer, q{SELECT topn_sync('3 s')});
	is($state, '57014', 'topn_sync gives up');
	like($message, qr/NOTIFY queue/, 'and says what the worker waits for');
	like(worker_error(), qr/NOTIFY queue/, 'topn_worker says so');
	like(worker_error(), qr/\b$sleeper_pid\b/, 'and who is in the way');
	my $log = slurp_file($server->node->logfile, $log_start);
	like($log, qr/WARNING:  .*\bNOTIFY queue/, 'the log, too');
	my $warnings = () = $log =~ /live_topn worker .*NOTIFY queue/g;
	cmp_ok($warnings, '<=', 1, 'once');
	is($server->worker_pid, $pid, 'the worker goes on');
	cmp_ok(memory_kb($pid) - $before, '<', 20_000, 'and stays as it is');

	$sleeper->commit;
	$sleeper->disconnect;
	drain_queue();
	writer->do(q{SELECT topn_sync('60 s')});
	equals_query 's';    # without a gap
	is(worker_error(), undef, 'the worker has no more to say');
};

sub worker_error
{
	return scalar writer->selectrow_array(
		'SELECT error FROM topn_worker WHERE database = current_database()');
}

# Notify until there is no room.
sub fill_queue
{
	my $dbh = $server->connect;
	my $notify = q{SELECT count(pg_notify('filler',
			g || repeat('x', 7900 - length(g::text))))
		FROM generate_series(1, ?) g};

	for my $n ($can_be_small ? () : (2000) x 2000, (1) x 1000)
	{
		last if !eval { $dbh->do($notify, undef, $n); 1 };
	}
	cmp_ok($dbh->selectrow_array('SELECT pg_notification_queue_usage()'),
		'>', 0.9, 'the queue is full');
	return;
}

# The queue is cut off by whoever notifies, or by a listener that goes.
sub drain_queue
{
	poll_until(
		sub {
			my $dbh = $server->connect;

			$dbh->do('LISTEN other');
			$dbh->do('UNLISTEN *');
			$dbh->selectrow_array('SELECT pg_notification_queue_usage() < 0.5');
		},
		'the queue to drain');
	return;
}

scenario 'stream', 'a consumer that is not there' => sub {
	base_table();
	LiveTopn::Stream::create_slot($server, 'gone');
	subscribe s => $top, deliver => 'both';
	my $pid = $server->worker_pid;
	run "UPDATE items SET score = 1000 + $_ WHERE id = 1 + $_ % 20"
	  for 1 .. 200;
	run q{CREATE TABLE filler AS SELECT repeat('x', 500)
		FROM generate_series(1, 20000)};
	session->sync;

	my ($active, $retained) = writer->selectrow_array(
		q{SELECT active, retained_bytes FROM topn_streams WHERE slot = 'gone'});
	ok(!$active, 'topn_streams shows it');
	cmp_ok($retained, '>', 10_000_000, 'and how much WAL it holds back');
	is( writer->selectrow_array(
			q{SELECT count(*) FROM topn_streams WHERE slot ~ '^live_topn'}),
		0,
		'but not our own slot');
	poll_until(
		sub {
			writer->do('CHECKPOINT');
			writer->selectrow_array(
				q{SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)
					< 1000000 FROM pg_replication_slots
				WHERE slot_name ~ '^live_topn'});
		},
		'our own slot to move on');
	pass('which moves on');
	equals_query 's';
	run q{SELECT pg_drop_replication_slot('gone')};
};

done_testing();
