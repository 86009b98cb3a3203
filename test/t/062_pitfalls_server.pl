# How others failed: processes, slots, memory.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use PostgreSQL::Test::Utils qw(slurp_file);
use Test::More;

use LiveTopn::Scenario;
use LiveTopn::Server qw(poll_until sqlstate_of);

use_server(
	LiveTopn::Server->start('server', conf => 'restart_after_crash = on'));

my $top = 'SELECT id, score FROM items ORDER BY score DESC, id LIMIT 3';

scenario 'B31', 'a big transaction is collected in memory' => sub {
	base_table();
	subscribe s => 'SELECT id, score, body FROM items
		ORDER BY score DESC, id LIMIT 3';
	session->sync;
	my $before = memory();
	run q{INSERT INTO items SELECT g, g, 'a', repeat('x', 500)
		FROM generate_series(1000, 101000) g};
	equals_query 's';
	run q{UPDATE items SET body = body || 'y'};
	equals_query 's';
	run 'DELETE FROM items WHERE id > 900';
	equals_query 's';

	# logical_decoding_work_mem, and live_topn.memory_limit if a commit was
	# decoded before it was visible
	cmp_ok(memory() - $before, '<', (64 + 64 + 32) * 1024,
		'the worker has grown by less than 160 MB');

	run 'CREATE TABLE other (i int)';
	my $insert = q{DO $$ BEGIN
		FOR i IN 1 .. 5000 LOOP INSERT INTO other VALUES (1); COMMIT; END LOOP;
	END $$};
	run $insert;
	session->sync;
	$before = memory();
	run $insert for 1 .. 4;
	session->sync;
	cmp_ok(memory() - $before, '<', 1024,
		'and not at all by 20,000 transactions elsewhere');
};

# Private memory of the database worker in kB.
sub memory
{
	my $pid = server->worker_pid;

	slurp_file("/proc/$pid/status") =~ /^RssAnon:\s+(\d+) kB/m
	  or die "no RssAnon for $pid";
	return $1;
}

scenario 'B35', 'a worker that was ended stays away' => sub {
	base_table();
	subscribe s => $top;
	server->restart_worker;
	run 'DELETE FROM items WHERE id = 20';
	equals_query 's';    # the client saw no gap

	# the crash of a process takes all connections with it
	kill 'KILL', server->worker_pid;
	poll_until(sub { !eval { writer->do('SELECT 1') } }, 'the crash');
	poll_until(sub { eval { server->connect } }, 'the end of crash recovery');
	LiveTopn::Scenario::reconnect();
	session->listen('s', $top);
	session->begin('s');
	run 'DELETE FROM items WHERE id = 19';
	ids_are s => '18 17 16';
	equals_query 's';
};

scenario 'B35', 'no free process for the worker' => sub {
	base_table();
	subscribe s => $top;
	my $node = server->node;

	# enough for the launchers of PostgreSQL and of the extension
	$node->append_conf('postgresql.conf', 'max_worker_processes = 2');
	$node->restart;
	LiveTopn::Scenario::reconnect();
	my $log_start = -s $node->logfile;
	my ($state, $message) =
	  sqlstate_of(writer, q{SELECT topn_sync('3 s')});
	isnt($state, undef, 'waiting for the worker ends with an error');
	like($message, qr/max_worker_processes/, 'which says what is missing');
	my $log = slurp_file($node->logfile, $log_start);
	my $times = () = $log =~ /max_worker_processes/g;
	cmp_ok($times,
		'<=', 8, 'and the log is not filled with it');

	$node->append_conf('postgresql.conf', 'max_worker_processes = 16');
	$node->restart;
	LiveTopn::Scenario::reconnect();
	session->listen('s', $top);
	session->begin('s');
	run 'DELETE FROM items WHERE id = 20';
	equals_query 's';
};

scenario 'B36', 'one broken subscription stops all others' => sub {
	base_table();
	run 'CREATE ROLE sub_owner LOGIN', 'GRANT SELECT ON items TO sub_owner',
	  'GRANT CREATE ON SCHEMA public TO sub_owner',
	  q{CREATE FUNCTION positive(int) RETURNS boolean IMMUTABLE LANGUAGE sql
		AS 'SELECT $1 > 0'},
	  'CREATE TABLE gone (id int PRIMARY KEY)';
	my $owner = server->session('postgres', user => 'sub_owner');
	$owner->subscribe('a', $top);
	subscribe b => 'SELECT id FROM items WHERE positive(score)
		ORDER BY score DESC, id LIMIT 3';
	subscribe c => 'SELECT id FROM gone ORDER BY id LIMIT 3';
	subscribe s => $top;

	run 'REVOKE SELECT ON items FROM sub_owner',
	  'UPDATE items SET score = 999 WHERE id = 5';
	wait_for_state a => 'error';
	$owner->dbh->disconnect;
	run 'DROP OWNED BY sub_owner', 'DROP ROLE sub_owner',
	  'DROP FUNCTION positive', 'DROP TABLE gone';
	equals_query 's';
	server->node->restart;
	LiveTopn::Scenario::reconnect();
	session->listen('s', $top);
	session->begin('s');
	wait_for_state $_ => 'error' for qw(b c);
	is((state_of('a'))[0], undef, 'a subscription goes with its owner');
	my $pid = server->worker_pid;
	run 'UPDATE items SET score = 1000 WHERE id = 6';
	equals_query 's';
	is(server->worker_pid, $pid, 'the worker goes on');
};

scenario 'B37', 'the slot cannot be made, or is left behind' => sub {
	run 'CREATE DATABASE first';
	my $open = server->connect('first');
	my $dbh = server->connect('first');
	$dbh->begin_work;
	$dbh->do('CREATE TABLE t (id int PRIMARY KEY)');
	$dbh->do('CREATE EXTENSION live_topn');
	$dbh->rollback;
	is(slots('first'), 0, 'CREATE EXTENSION makes no slot');

	$dbh->do('CREATE EXTENSION live_topn');
	$dbh->do('CREATE TABLE t (id int PRIMARY KEY)');
	$open->begin_work;
	$open->do('INSERT INTO t VALUES (1)');
	my $query = 'SELECT id FROM t ORDER BY id LIMIT 3';
	$dbh->do('SELECT subscribe_topn(?, ?)', undef, $query, 's');
	my ($state, $message) = sqlstate_of($dbh, q{SELECT topn_sync('2 s')});
	is($state, '57014', 'waiting for the slot is bounded');
	like($message, qr/\b$open->{pg_pid}\b/, 'the message names who is in the way');
	$open->commit;
	$dbh->do('SELECT topn_sync()');
	is(slots('first'), 1, 'then there is one slot');

	run 'CREATE DATABASE second';
	my $other = server->session('second');
	$other->dbh->do('CREATE EXTENSION live_topn');
	$other->dbh->do('CREATE TABLE t (id int PRIMARY KEY)');
	$other->subscribe('s', $query);
	is(slots('second'), 1, 'another database has another slot');
	$other->unsubscribe('s');
	$dbh->do(q{SELECT unsubscribe_topn('s')});
	$_->disconnect for $open, $dbh, $other->dbh;
	poll_until(sub { !slots('first') && !slots('second') },
		'slots to be dropped with the last subscription');
	run 'DROP DATABASE first', 'DROP DATABASE second';
};

sub slots
{
	return scalar writer->selectrow_array(
		'SELECT count(*) FROM pg_replication_slots WHERE database = ?',
		undef, $_[0]);
}

scenario 'B38', 'a quiet database keeps the WAL of a busy one' => sub {
	run 'CREATE DATABASE busy';
	my $busy = server->connect('busy');
	$busy->do('CREATE TABLE b (i int, t text)');
	$busy->do(q{INSERT INTO b SELECT g, repeat('w', 200)
		FROM generate_series(1, 100000) g});
	poll_until(
		sub {
			# has the server note which transactions are running
			writer->do('CHECKPOINT');
			writer->selectrow_array(
				'SELECT max(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn))
				 < 1000000 FROM pg_replication_slots');
		},
		'the slot to move on');
	pass('the slot has moved on');
	$busy->disconnect;
	run 'DROP DATABASE busy';
};

done_testing();

