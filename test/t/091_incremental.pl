# A checkpoint appends what has changed to the file of windows, and the file is
# written anew when most of it is of no use any more.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use PostgreSQL::Test::Utils;
use Test::More;

use LiveTopn::Client;
use LiveTopn::Scenario;
use LiveTopn::Stream;
use LiveTopn::Server qw(poll_until write_file);

my $server = LiveTopn::Server->start('incremental',
	conf => "live_topn.checkpoint_interval = 10ms\n"
	  . "wal_keep_size = 256MB\n");
use_server($server);

my $header = 512;
my $spare = 1024 * 1024;    # garbage that is not worth a new file
my $slot = 'live_topn_'
  . $server->connect->selectrow_array(
	'SELECT oid FROM pg_database WHERE datname = current_database()');
my $data = $server->node->data_dir;
my $path = $data . '/' . $slot =~ s/_(\d+)$/\/$1/r;
my $state = "$data/pg_replslot/$slot/state";

my $top = 'SELECT id, score FROM items ORDER BY score DESC, id LIMIT 3';

# Wait until the slot has been moved.
sub wait_for_checkpoint
{
	my ($lsn) = writer->selectrow_array(
		q{SELECT pg_logical_emit_message(true, 'test', '')});

	poll_until(
		sub {
			writer->selectrow_array(
				'SELECT confirmed_flush_lsn >= ? FROM pg_replication_slots
				 WHERE slot_name = ?', undef, $lsn, $slot);
		},
		'a checkpoint');
	return;
}

# Wait until all that was committed is saved; returns the size of the file.
sub saved_size
{
	session->sync;
	wait_for_checkpoint();
	return -s $path;
}

# A table with long rows, of which a window holds many: a megabyte or so.
sub big_table
{
	my ($text) = @_;

	run 'CREATE TABLE big (id int PRIMARY KEY, score int, body text)',
	  "INSERT INTO big SELECT g, g, repeat('$text', 100)
		FROM generate_series(1, 1100) g";
	subscribe big => 'SELECT * FROM big ORDER BY score DESC, id LIMIT 1000';
	return;
}

# A crash after records were appended, and before the header and the slot were
# moved: all that happened since is told by the records, as far as they are
# there, and by WAL.  The stream has what was published, all in all.
scenario 'crash', 'between the records and the header' => sub {
	base_table();
	run 'CREATE TABLE others (id int PRIMARY KEY, score int)',
	  'INSERT INTO others SELECT g, g FROM generate_series(1, 9) g';
	my $other = 'SELECT id FROM others ORDER BY score, id LIMIT 4';
	my %query = (
		s => $top,
		same => $top,
		page => "$top OFFSET 5",
		o => $other,
		quiet => 'SELECT id FROM items WHERE id > 18 ORDER BY id LIMIT 4');
	my %client;

	run "SELECT subscribe_topn('$query{$_}', '$_', deliver => 'stream')"
	  for sort keys %query;
	LiveTopn::Stream::create_slot($server, 'out');
	for my $name (sort keys %query)
	{
		my ($limit) = $query{$name} =~ /LIMIT (\d+)/;

		$client{$name} = LiveTopn::Client->new(name => $name, limit => $limit);
		$client{$name}->start(
			writer->selectrow_array(
				'SELECT seq, lsn, rows FROM topn_snapshot(?)', undef, $name));
	}
	saved_size();
	$server->node->stop;
	my $sector = substr slurp_file($path), 0, $header;
	my $slot_state = slurp_file($state);
	my $start = -s $path;

	for my $part (0, 0.2, 0.4, 0.6, 0.8, 0.95, 1)
	{
		$server->node->start;
		LiveTopn::Scenario::reconnect();
		poll_until(sub { $server->worker_pid }, 'a worker');
		for my $id (1 .. 5)
		{
			my $score = int 1000 * $part + 100 * $id;

			run "UPDATE items SET score = $score WHERE id = $id",
			  "UPDATE others SET score = - $score WHERE id = $id";
			saved_size() if $id % 2;
		}
		my $bytes = -s $path;
		$server->node->stop('immediate');

		my $file = slurp_file($path);
		cmp_ok(length $file, '>', $start, 'something was appended');
		substr($file, 0, $header) = $sector;
		write_file($path,
			substr $file, 0, $start + $part * (length($file) - $start));
		write_file($state, $slot_state);
	}
	$server->node->start;
	LiveTopn::Scenario::reconnect();
	writer->do(q{SELECT topn_sync('60 s')});
	for my $line (
		@{
			writer->selectcol_arrayref(
				'SELECT data FROM pg_logical_slot_get_changes(?, NULL, NULL,
					?, ?)', undef, 'out', 'subscriptions',
				join ',', sort keys %query)
		})
	{
		my ($name) = $line =~ /^\{"sub":"(\w+)"/;
		$client{$name}->receive_batch($line);
	}
	for my $name (sort keys %query)
	{
		my $rows = writer->selectcol_arrayref(
			"SELECT row_to_json(q)::text FROM ($query{$name}) q");

		is(join("\n", $client{$name}->rows), join("\n", @$rows),
			"$name equals its query");
		is(scalar(grep { $_->{deltas}[0]{op} eq 'reset' } $client{$name}->batches),
			0, 'without a reset');
	}
	cmp_ok($client{s}->batches, '>', 30, 'there was much to tell');
	is($client{quiet}->batches, 0, 'or nothing');
	run q{SELECT pg_drop_replication_slot('out')};
};

scenario 'crash', 'in the midst of what follows a checkpoint' => sub {
	base_table();
	subscribe s => $top;
	run 'UPDATE items SET score = 1000 WHERE id = 1';
	saved_size();
	$server->node->stop('immediate');

	my $bytes = slurp_file($path);
	write_file($path, substr $bytes, 0, -1);
	$server->node->start;
	LiveTopn::Scenario::reconnect();
	poll_until(sub { $server->worker_pid }, 'a worker');
	like(slurp_file($server->node->logfile), qr/"live_topn\/\d+" is damaged/,
		'what the header counts must be there');
};

# ---- what is appended ----

scenario 'append', 'what is as it was saved is not written again' => sub {
	base_table();
	big_table('0123456789');
	subscribe s => $top;
	my $before = saved_size();

	cmp_ok($before, '>', 1_000_000, 'there is much');
	run "UPDATE items SET score = 1000 + $_ WHERE id = $_" for 1 .. 3;
	my $after = saved_size();
	cmp_ok($after, '>', $before, 'a change is appended');
	cmp_ok($after, '<', $before + 5000, 'and nothing else');

	run 'INSERT INTO big VALUES (0, 0, NULL)',
	  'UPDATE items SET score = 0 WHERE id = 10';
	is(saved_size(), $after, 'changes of no window are none');

	run 'UPDATE big SET score = 10000 WHERE id = 500';
	cmp_ok(saved_size(), '>', $after + 1_000_000, 'of the other one, too');

	$server->node->restart;
	LiveTopn::Scenario::reconnect();
	session->listen('s', $top);
	session->begin('s');
	session->sync;
	$after = -s $path;
	run 'UPDATE items SET score = 2000 WHERE id = 4';
	saw s => 'leave 1 at 3, enter 4 at 1';
	cmp_ok(saved_size(), '<', $after + 5000,
		'a worker that starts knows what is saved');
	equals_query 's';
};

scenario 'append', 'a lease that is renewed' => sub {
	big_table('0123456789');
	run q{SELECT subscribe_topn('SELECT * FROM big ORDER BY score LIMIT 900',
		'leased', lease => '1 h')};
	my $lease_end = sub {
		return scalar writer->selectrow_array(
			q{SELECT lease_end FROM topn_subscriptions WHERE name = 'leased'});
	};
	my $before = saved_size();
	my $first = $lease_end->();

	run q{SELECT topn_renew('leased')};
	cmp_ok(saved_size(), '<', $before + 200, 'takes a few bytes');
	my $renewed = $lease_end->();
	isnt($renewed, $first, 'it ends later');

	$server->node->stop('immediate');
	$server->node->start;
	LiveTopn::Scenario::reconnect();
	poll_until(sub { $server->worker_pid }, 'a worker');
	is($lease_end->(), $renewed, 'and so it does after a crash');
	is(scalar writer->selectrow_array(
			q{SELECT result_rows FROM topn_stats WHERE name = 'leased'}),
		900, 'with the rows as they were');
};

scenario 'append', 'a subscription with the number of one that was dropped' => sub {
	base_table();
	subscribe s => $top;
	saved_size();

	my $other = $server->connect;
	$other->do('BEGIN');
	$other->do('LOCK TABLE items IN ACCESS EXCLUSIVE MODE');
	run q{CREATE TEMP TABLE kept AS
		SELECT * FROM live_topn.subscription WHERE name = 's'},
	  q{DELETE FROM live_topn.subscription WHERE name = 's'},
	  q{INSERT INTO live_topn.subscription OVERRIDING SYSTEM VALUE
		SELECT * FROM kept};
	wait_for_checkpoint();
	$server->set('live_topn.debug_abandon' => 'on');
	$server->restart_worker;
	is((state_of('s'))[0], 'loading', 'the rows of the other are not its own');
	$server->set('live_topn.debug_abandon' => undef);
	$other->do('ROLLBACK');
	wait_for_state s => 'live';
};

# ---- the file is written anew ----

scenario 'anew', 'after many changes' => sub {
	big_table('0123456789');
	my $most = saved_size();
	my $size = $most;

	while ($size >= $most)
	{
		$most = $size;
		run 'UPDATE big SET score = score + 10000 WHERE id = 500';
		$size = saved_size();
	}
	note "$most bytes become $size";
	cmp_ok($most, '>', 2 * $size, 'most of it was of no use');
	cmp_ok($most, '<', 3 * $size + $spare, 'it does not grow far');
	cmp_ok($size, '<', 1_100_000, 'it has what is needed');

	run 'UPDATE big SET score = 20000 WHERE id = 501';
	saved_size();
	$server->node->stop('immediate');
	$server->node->start;
	LiveTopn::Scenario::reconnect();
	session->listen('big', 'SELECT * FROM big ORDER BY score DESC, id LIMIT 1000');
	session->begin('big');
	equals_query 'big';
	is(scalar writer->selectrow_array('SELECT sum(refills) FROM topn_stats'),
		0, 'nothing had to be read again');
};

scenario 'anew', 'without the subscriptions that were dropped' => sub {
	base_table();
	subscribe s => $top;
	big_table('needle');
	run q{INSERT INTO big SELECT g, g, repeat('needle', 200)
		FROM generate_series(2000, 3000) g};
	my $size = saved_size();

	like(slurp_file($path), qr/needleneedle/, 'they are there');
	run q{SELECT unsubscribe_topn('big')};
	session->forget('big');
	poll_until(sub { -s $path < 100_000 }, 'the file to be written anew');
	unlike(slurp_file($path), qr/needle/, 'they leave no trace');
	run 'UPDATE items SET score = 1000 WHERE id = 1';
	saved_size();
	$server->restart_worker;
	run 'UPDATE items SET score = 1001 WHERE id = 2';
	saw s => 'leave 18 at 3, enter 1 at 1', 'leave 19 at 3, enter 2 at 1';
};

done_testing();
