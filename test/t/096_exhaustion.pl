# What runs out, and comes back: what is seen meanwhile, and that all goes on by
# itself afterwards.  Owners that are gone do not come back.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use DBD::Pg qw(:async);
use PostgreSQL::Test::Utils;
use Test::More;

use LiveTopn::RefillStops;
use LiveTopn::Scenario;
use LiveTopn::Server qw(poll_until sqlstate_of);

my $server = LiveTopn::Server->start('exhaustion',
	conf => "live_topn.memory_limit = 64kB\n"
	  . "live_topn.checkpoint_interval = 1s\n"
	  . "dynamic_shared_memory_type = mmap\n"
	  . "live_topn.debug_refill_stops = on\n");
use_server($server);

my $top = 'SELECT id, score FROM items ORDER BY score DESC, id LIMIT 3';
my $stops = LiveTopn::RefillStops->new($server);

sub worker
{
	return $server->connect->selectrow_array(
		'SELECT state, error FROM topn_worker
		WHERE database = current_database()');
}

sub refills
{
	return scalar writer->selectrow_array(
		q{SELECT refills FROM topn_stats WHERE name = 's'});
}

scenario 'disk', 'no room for what the commit log spills' => sub {
	base_table();
	subscribe s => $top;
	$stops->hold(LiveTopn::RefillStops::BEFORE_ANSWER);
	run 'DELETE FROM items WHERE id >= 18';
	$stops->wait_for(LiveTopn::RefillStops::BEFORE_ANSWER);
	$server->set(temp_file_limit => '1MB');
	run q{UPDATE items SET body = string_agg FROM (SELECT string_agg(g::text,
		'') FROM generate_series(1, 2000) g) a} for 1 .. 40;
	poll_until(
		sub {
			my ($state, $error) = worker();
			return $state eq 'failed' && $error =~ /temp_file_limit/;
		},
		'the worker to fail, and to say why');
	pass('the worker fails and says why');

	$stops->release_all;
	$server->set(temp_file_limit => undef);
	equals_query 's';
	is_deeply([ worker() ], [ 'running', undef ], 'and it goes on');
};

scenario 'memory', 'no shared memory for a refill worker' => sub {
	my $folder = $server->node->data_dir . '/pg_dynshmem';

	base_table();
	subscribe s => $top;

	# idle refill workers have a segment each
	$server->restart_worker;
	session->sync;
	chmod 0500, $folder or die "could not chmod $folder: $!";
	run 'DELETE FROM items WHERE id >= 16';
	poll_until(
		sub { ((worker())[1] // '') =~ /cannot read rows: .*shared memory/ },
		'the worker to say what is missing');
	is((worker())[0], 'running', 'the worker says what is missing, and runs');
	chmod 0700, $folder or die "could not chmod $folder: $!";
	equals_query 's';
	is((worker())[1], undef, 'and has no more to say');
};

scenario 'time', 'refills time out' => sub {
	base_table();
	# ANALYZE would have the query looked at again, which times out, too
	run 'ALTER TABLE items SET (autovacuum_enabled = off)';
	subscribe s => $top;
	$server->set('live_topn.refill_timeout' => '100ms');
	$stops->hold(LiveTopn::RefillStops::BEFORE_QUERY);
	my $before = refills();
	run 'DELETE FROM items WHERE id >= 19';    # the cushion is used up
	poll_until(
		sub {
			run 'UPDATE items SET score = score + 1 WHERE id = 18';
			return refills() >= $before + 3;
		},
		'three attempts');
	my $log = slurp_file($server->node->logfile);
	my $start = time;
	run 'UPDATE items SET score = score + 1 WHERE id = 18' for 1 .. 300;
	session->sync;
	cmp_ok(refills() - $before, '<=', 4 + time - $start,
		'commits do not make them more frequent');
	is((state_of('s'))[0], 'live', 'the result is known all the time');
	like($log,
		qr/refill of live_topn subscription "s" failed: .*longer than live_topn\.refill_timeout \(100ms\)/,
		'the log says why');

	run 'DELETE FROM items WHERE id = 18';     # now it is short
	poll_until(sub { (state_of('s'))[0] eq 'waiting' }, 'it to wait');
	$server->set('live_topn.refill_timeout' => undef);
	$stops->release_all;
	equals_query 's';
};

scenario 'reads', 'all that may run are slow' => sub {
	base_table();
	subscribe s => $top;
	run 'CREATE ROLE reader LOGIN';
	my $session = $server->session('postgres', user => 'reader');

	for my $name (qw(a b c))
	{
		run "CREATE TABLE $name (LIKE items INCLUDING INDEXES)",
		  "INSERT INTO $name TABLE items", "GRANT SELECT ON $name TO reader";
		($name eq 'c' ? $session : session)->subscribe(
			$name, $top =~ s/items/$name/r, cushion => 2);
	}
	$stops->hold(LiveTopn::RefillStops::BEFORE_ANSWER);
	run "DELETE FROM $_ WHERE id > 18" for qw(a b c);
	$stops->wait_for(LiveTopn::RefillStops::BEFORE_ANSWER, 3);

	# the result may not be told before its query was looked at
	run 'ANALYZE items', 'DELETE FROM items WHERE id = 20';
	saw s => 'leave 20 at 1, enter 17 at 3';
	run 'ALTER TABLE items ADD note text',
	  'UPDATE items SET score = 0 WHERE id = 18';
	saw s => 'leave 18 at 2, enter 16 at 3';

	$stops->release_all;
	equals_query 's';
	$session->unsubscribe('c');
	run 'DROP OWNED BY reader', 'DROP ROLE reader';
};

scenario 'slots', 'no replication slot is free' => sub {
	run 'CREATE DATABASE other';
	my ($limit) = writer->selectrow_array(
		q{SELECT current_setting('max_replication_slots')::int
			- count(*) FROM pg_replication_slots});
	run "SELECT pg_create_physical_replication_slot('taken_$_')"
	  for 1 .. $limit;
	my $dbh = $server->connect('other');

	$dbh->do('CREATE EXTENSION live_topn');
	$dbh->do('CREATE TABLE items (id int PRIMARY KEY, score int)');
	$dbh->do("SELECT subscribe_topn(?, 's')", undef, $top);
	my ($state, $message) = sqlstate_of($dbh, q{SELECT topn_sync('3 s')});
	like($message, qr/max_replication_slots|replication slots are in use/,
		'the error says what is missing');
	run "SELECT pg_drop_replication_slot('taken_$_')" for 1 .. $limit;
	poll_until(
		sub {
			$dbh->do('SELECT pg_reload_conf()');
			eval { $dbh->do(q{SELECT topn_sync('1 s')}); 1 };
		},
		'a worker');
	pass('the worker comes by itself');
	$dbh->disconnect;
	run 'DROP DATABASE other';
};

scenario 'WAL', 'the server invalidates the slot' => sub {
	base_table();
	subscribe s => $top;
	session->sync;

	# a worker that is stopped, keeps too much, and is ended for it
	my $pid = $server->worker_pid;
	$server->set(
		'live_topn.debug_abandon' => 'on',
		max_slot_wal_keep_size => '16MB');
	kill 'STOP', $pid;
	run 'UPDATE items SET score = 12345 WHERE id = 1',
	  'CREATE TABLE junk (t text)';
	run "INSERT INTO junk VALUES ('x')", 'SELECT pg_switch_wal()' for 1 .. 5;
	my $checkpointer = $server->connect;
	$checkpointer->do('CHECKPOINT', { pg_async => PG_ASYNC });
	my $log = $server->node->logfile;
	poll_until(
		sub { slurp_file($log) =~ /terminating process $pid to release/ },
		'the worker to be told to end');
	kill 'CONT', $pid;
	$checkpointer->pg_result;
	like(slurp_file($log),
		qr/invalidating (?:obsolete replication )?slot "live_topn_\d+"/,
		'the slot is invalidated');
	$server->set(
		'live_topn.debug_abandon' => undef,
		max_slot_wal_keep_size => undef);

	equals_query 's';
	saw s => 'reset';
	run 'DELETE FROM items WHERE id = 1';
	saw s => 'leave 1 at 1, enter 18 at 3';
	equals_query 's';
	is( writer->selectrow_array(
			q{SELECT string_agg(DISTINCT wal_status, ',')
			  FROM pg_replication_slots WHERE slot_name ~ '^live_topn'}),
		'reserved', 'another slot has taken its place');
	run 'DROP TABLE junk';
};

scenario 'owner', 'a role with subscriptions is dropped' => sub {
	base_table();
	subscribe s => $top;
	run 'GRANT SELECT ON items TO PUBLIC';
	my $elsewhere = $server->connect('template1');
	my $count = sub {
		return scalar writer->selectrow_array(
			q{SELECT count(*) FROM live_topn.subscription WHERE name = 'a'});
	};
	my $subscribe = sub {
		run 'CREATE ROLE owner LOGIN';
		my $dbh = $server->connect('postgres', user => 'owner');
		$dbh->do("SELECT subscribe_topn(?, 'a')", undef, $top);
		$dbh->do(q{SELECT seq FROM topn_snapshot('a')});
		$dbh->disconnect;
	};

	$subscribe->();
	$elsewhere->do('DROP ROLE owner');
	poll_until(sub { $count->() == 0 }, 'the subscription to be dropped');
	pass('the subscription goes with it');

	$subscribe->();
	my $pid = $server->worker_pid;
	$elsewhere->do('ALTER DATABASE postgres ALLOW_CONNECTIONS false');
	$elsewhere->do('SELECT pg_terminate_backend(?)', undef, $pid);
	poll_until(
		sub {
			!$elsewhere->selectrow_array(
				'SELECT count(*) FROM pg_stat_activity WHERE pid = ?',
				undef, $pid);
		},
		'the worker to end');
	$elsewhere->do('DROP ROLE owner');
	$elsewhere->do('ALTER DATABASE postgres ALLOW_CONNECTIONS true');
	$elsewhere->disconnect;
	poll_until(sub { $count->() == 0 }, 'the subscription to be dropped');
	pass('also if there was no worker then');
	equals_query 's';
};

scenario 'WAL', 'how much is kept' => sub {
	run 'CREATE DATABASE busy';
	base_table();
	subscribe s => $top;
	my $retained = sub {
		return scalar writer->selectrow_array(
			'SELECT retained_bytes FROM topn_worker
			WHERE database = current_database()');
	};
	my $dbh = $server->connect('busy');

	my $is_little = sub {
		writer->do('CHECKPOINT');
		return $retained->() < 1_000_000;
	};
	poll_until($is_little, 'WAL to be given back');
	# what is after the beginning of a transaction is kept until it ends
	$dbh->begin_work;
	$dbh->do('SELECT pg_current_xact_id()');
	$server->connect('busy')->do(q{CREATE TABLE filler AS
		SELECT repeat('x', 500) FROM generate_series(1, 20000)});
	cmp_ok($retained->(), '>', 5_000_000, 'topn_worker shows it');
	$dbh->commit;
	poll_until($is_little, 'WAL of another database to be given back');
	pass('an idle database keeps nothing of another one');
	$dbh->disconnect;
	run 'DROP DATABASE busy';
};

done_testing();
