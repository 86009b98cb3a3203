# What must not grow, or run in circles, while something is in the way.
#
# A commit that notifies and waits for a standby keeps all others of the whole
# server from notifying: the same as a full NOTIFY queue, without filling one.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use PostgreSQL::Test::Utils;
use Test::More;

use LiveTopn::Client;
use LiveTopn::Process qw(cpu_seconds memory_kb peak_memory_kb);
use LiveTopn::Scenario;
use LiveTopn::Server qw(poll_until sqlstate_of);
use LiveTopn::Stream;

my $server = LiveTopn::Server->start('bounds',
	conf => "live_topn.memory_limit = 1MB\n"
	  . "live_topn.checkpoint_interval = 1h\n"
	  . "restart_after_crash = on\n");
use_server($server);

my $top = 'SELECT id, score, body FROM items ORDER BY score DESC, id LIMIT 3';
my $notify = q{SELECT pg_notify('other', ''),
	pg_logical_emit_message(true, 'other', '')};

sub large_table
{
	base_table();
	run 'ALTER TABLE items ALTER body SET STORAGE plain';
	return;
}

# Commits that each bring two kilobytes.
sub write_much
{
	my ($from, $n) = @_;
	my $sth = writer->prepare(
		q{UPDATE items SET score = ?, body = repeat('x', 2000) || ?
		WHERE id = 1 + ? % 20});

	$sth->execute(1000 + $_, $_, $_) for $from .. $from + $n - 1;
	return;
}

sub worker_error
{
	return scalar writer->selectrow_array(
		'SELECT error FROM topn_worker WHERE database = current_database()');
}

scenario 'stall', 'nobody can notify' => sub {
	large_table();
	subscribe s => $top;
	session->subscribe('quiet', 'SELECT id FROM items ORDER BY id LIMIT 2',
		deliver => 'none');
	write_much(1, 100);
	equals_query 's';
	my $pid = $server->worker_pid;
	my $before = memory_kb($pid);
	my $log_start = -s $server->node->logfile;
	my $hanging = $server->hanging_commit($notify);

	write_much(101, 3000);
	my $cpu = cpu_seconds($pid);
	my ($state, $message) = sqlstate_of(writer, q{SELECT topn_sync('3 s')});
	is($state, '57014', 'topn_sync gives up');
	cmp_ok(cpu_seconds($pid) - $cpu, '<', 1, 'the worker waits quietly');
	like($message, qr/lock for transactions that notify/,
		'the error says what the worker waits for');
	like(worker_error(), qr/\bPID $hanging->{pg_pid}\b/,
		'topn_worker says who is in the way');
	my $log = slurp_file($server->node->logfile, $log_start);
	my $warnings = () = $log =~ /WARNING:  live_topn worker .* cannot publish/g;
	is($warnings, 1, 'one warning');
	cmp_ok(memory_kb($pid) - $before, '<', 5000, 'the worker does not grow');
	is( writer->selectrow_array(
			q{SELECT state FROM topn_subscriptions WHERE name = 'quiet'}),
		'live', 'views work');

	$server->let_go($hanging);
	writer->do(q{SELECT topn_sync('60 s')});
	equals_query 's';    # without a gap
	is($server->worker_pid, $pid, 'it is the same worker');
	is(worker_error(), undef, 'which has no more to say');
};

scenario 'stall', 'a subscription is dropped before its batches are out' => sub {
	large_table();
	run 'INSERT INTO items SELECT g, -g FROM generate_series(21, 220) g';
	subscribe s => $top, cushion => undef;
	session->subscribe('quiet', 'SELECT id FROM items ORDER BY id LIMIT 2',
		cushion => undef, deliver => 'none');

	# refills, which make adaptive cushions take their place among the others
	for my $i (1 .. 8)
	{
		run "DELETE FROM items WHERE id IN ($i, 21 - $i)";
		session->sync;
	}
	my $pid = $server->worker_pid;
	my $hanging = $server->hanging_commit($notify);

	write_much(8, 4);
	poll_until(sub { worker_error() }, 'the worker to be stuck');
	run q{SELECT unsubscribe_topn('s')};
	my $dropped = writer->selectrow_array('SELECT pg_current_wal_lsn()');
	poll_until(
		sub {
			writer->selectrow_array(
				'SELECT applied_lsn >= ?::pg_lsn FROM topn_worker
				 WHERE database = current_database()', undef, $dropped);
		},
		'the worker to see it go');

	# cushions have to give their rows back
	$server->set('live_topn.cushion_memory' => 0);
	poll_until(
		sub {
			writer->selectrow_array(
				q{SELECT held_rows = 2 FROM topn_stats WHERE name = 'quiet'});
		},
		'those of the others to do so');
	$server->let_go($hanging);
	$server->set('live_topn.cushion_memory' => undef);
	writer->do(q{SELECT topn_sync('60 s')});
	is($server->worker_pid, $pid, 'it is the same worker');
};

scenario 'stall', 'a crash meanwhile' => sub {
	large_table();
	LiveTopn::Stream::create_slot($server, 'out');
	subscribe s => $top, deliver => 'both';
	$server->restart_worker;    # its end saves the window
	my $client = LiveTopn::Client->new(name => 's', limit => 3);
	$client->start(session->snapshot('s'));

	# published, but found so in WAL only
	write_much(1, 500);
	session->sync;
	my $hanging = $server->hanging_commit($notify);
	write_much(501, 5000);
	my $pid = $server->worker_pid;
	poll_until(sub { worker_error() }, 'the worker to be stuck');
	kill 'KILL', $pid;
	poll_until(sub { !eval { writer->do('SELECT 1') } }, 'the crash');
	poll_until(sub { (eval { $server->worker_pid } // $pid) != $pid },
		'another worker');
	$server->set(synchronous_standby_names => undef);

	LiveTopn::Scenario::reconnect();
	writer->do(q{SELECT topn_sync('60 s')});
	my $worker = $server->worker_pid;
	poll_until(
		sub {
			$client->receive_batch($_) for @{
				writer->selectcol_arrayref(
					"SELECT data FROM pg_logical_slot_get_changes('out', NULL,
						NULL, 'subscriptions', 's')")
			};
			return $client->seq >= 5500;
		},
		'the batches to be flushed');
	is(scalar $client->batches, 5500, 'all batches come, once');
	ok( join("\n", $client->rows) eq join(
			"\n",
			@{
				writer->selectcol_arrayref(
					"SELECT row_to_json(q)::text FROM ($top) q")
			}),
		'and make the result');
	cmp_ok(peak_memory_kb($worker), '<', 15_000,
		'the worker never had them all in memory');
	run q{SELECT pg_drop_replication_slot('out')};
};

scenario 'wait', 'a value that is to be read again is not visible yet' => sub {
	run 'CREATE TABLE items (id int PRIMARY KEY, score int, body text)',
	  'ALTER TABLE items ALTER body SET STORAGE external',
	  q{INSERT INTO items SELECT g, g, repeat(chr(96 + g), 20000)
		FROM generate_series(1, 10) g};
	subscribe s => $top;
	my $refills = sub {
		return scalar writer->selectrow_array(
			q{SELECT refills FROM topn_stats WHERE name = 's'});
	};
	my $hanging =
	  $server->hanging_commit('UPDATE items SET score = 100 WHERE id = 1');

	poll_until(sub { $refills->() > 4 }, 'the worker to try');
	my $before = $refills->();
	is(sqlstate_of(writer, q{SELECT topn_sync('3 s')}),
		'57014', 'the subscription waits');
	cmp_ok($refills->() - $before, '<', 10, 'and asks less and less often');
	$server->let_go($hanging);
	equals_query 's';
	saw s => 'leave 8 at 3, enter 1 at 1';
};

done_testing();
