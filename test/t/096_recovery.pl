# Crashes that find a subscription amid something: it waits for rows, holds back
# a batch, was just born.  Clients that poll go on as if nothing had happened.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use File::Copy qw(copy);
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes ();

use LiveTopn::Client;
use LiveTopn::Lsn qw(lsn_cmp);
use LiveTopn::RefillStops;
use LiveTopn::Scenario;
use LiveTopn::Server qw(poll_until);

my $server = LiveTopn::Server->start('recovery');
use_server($server);

my $top = 'SELECT id, score FROM items ORDER BY score DESC, id LIMIT 3';
my ($dboid) = writer->selectrow_array(
	'SELECT oid FROM pg_database WHERE datname = current_database()');
my $data = $server->node->data_dir;
my $file = "$data/live_topn/$dboid";
my $slot = "$data/pg_replslot/live_topn_$dboid/state";

sub table_with_identity
{
	my ($identity) = @_;

	base_table();
	run "ALTER TABLE items REPLICA IDENTITY $identity";
	return;
}

# A client with the snapshot.
sub subscribe_to
{
	my ($name, %options) = @_;
	my $client = LiveTopn::Client->new(name => $name, limit => 3);
	my $arguments =
	  join '', map { ", $_ => '$options{$_}'" } sort keys %options;

	run "SELECT subscribe_topn('$top', '$name', deliver => 'none',
		cushion => 0$arguments)";
	$client->start(
		writer->selectrow_array(
			'SELECT seq, lsn, rows FROM topn_snapshot(?)', undef, $name));
	return $client;
}

# The batches since the last call; the client checks that none is missing.
sub poll
{
	my ($client) = @_;
	my @json = @{
		writer->selectcol_arrayref('SELECT topn_poll(?, ?)',
			undef, $client->{name}, $client->seq)
	};

	$client->receive_batch($_) for @json;
	return ($client->batches)[ -@json .. -1 ] if @json;
	return;
}

# What the client sees of statements, one commit each, is what it would see
# without the crash: of each its batch, as long as there is no throttle.
sub saw_each
{
	my ($client, @commits) = @_;

	poll($client);
	my @batches = $client->batches;
	is(join(' ', map { $_->{xid} } @batches),
		join(' ', @commits), 'each commit has its batch, and no more');
	is((grep { $_->{deltas}[0]{op} eq 'reset' } @batches) + 0,
		0, 'none is a reset');
	shows_result($client);
	return;
}

sub shows_result
{
	my ($client) = @_;

	is( join("\n", $client->rows),
		join(
			"\n",
			@{
				writer->selectcol_arrayref(
					"SELECT row_to_json(q)::text FROM ($top) q")
			}),
		'the client has the result');
	return;
}

# Commit; returns the transaction's id.
sub commit
{
	my ($sql) = @_;

	writer->begin_work;
	run $sql;
	my ($xid) = writer->selectrow_array('SELECT pg_current_xact_id()::text');
	writer->commit;
	return $xid;
}

# The file is another one each time.
sub file_state { return join ' ', (Time::HiRes::stat($file))[ 1, 7, 9 ]; }

# Wait until the windows are saved as they are now.
sub wait_for_checkpoint
{
	my ($lsn) = writer->selectrow_array('SELECT pg_current_wal_lsn()');

	$server->set('live_topn.checkpoint_interval' => '1ms');
	poll_until(
		sub {
			writer->selectrow_array(
				'SELECT applied_lsn >= ?::pg_lsn FROM topn_worker',
				undef, $lsn);
		},
		'all to be applied');
	my $state = file_state();
	poll_until(
		sub {
			run 'INSERT INTO idle SELECT coalesce(max(id), 0) + 1 FROM idle';
			return file_state() ne $state;
		},
		'a checkpoint');
	$server->set('live_topn.checkpoint_interval' => undef);
	return;
}

sub crash
{
	my ($meanwhile) = @_;

	$server->node->stop('immediate');
	$meanwhile->() if $meanwhile;
	$server->node->start;
	LiveTopn::Scenario::reconnect();
	writer->do(q{SELECT topn_sync('60 s')});
	return;
}

for my $saved (0, 1)
{
	scenario 'crash', 'it waits for rows'
	  . ($saved ? ', and was saved so' : '') => sub {
		my $stops = LiveTopn::RefillStops->new($server);

		table_with_identity('FULL');
		my $client = subscribe_to('s');
		$server->set('live_topn.debug_refill_stops' => 'on');
		$stops->hold(LiveTopn::RefillStops::BEFORE_SNAPSHOT);
		my @commits = commit('DELETE FROM items WHERE id = 19');
		$stops->wait_for(LiveTopn::RefillStops::BEFORE_SNAPSHOT);
		push @commits,
		  commit('DELETE FROM items WHERE id = 18'),
		  commit('UPDATE items SET score = 0 WHERE id IN (20, 15)'),
		  commit('INSERT INTO items VALUES (30, 165)');
		is((state_of('s'))[0], 'waiting', 'no batch yet');
		wait_for_checkpoint() if $saved;
		push @commits, commit('DELETE FROM items WHERE id = 16');
		crash();
		saw_each($client, @commits);
		$server->set('live_topn.debug_refill_stops' => undef);
	  };

	scenario 'crash', 'a throttle holds a batch back'
	  . ($saved ? ', which was saved so' : '') => sub {
		table_with_identity('FULL');
		my $client = subscribe_to('s', throttle => '1 h');
		my @commits = commit('UPDATE items SET score = 300 WHERE id = 1');

		writer->do(q{SELECT topn_sync()});
		is(join(' ', map { $_->{xid} } poll($client)),
			"@commits", 'the first goes out at once');
		commit('UPDATE items SET score = 301 WHERE id = 2');
		commit('DELETE FROM items WHERE id = 20');
		wait_for_checkpoint() if $saved;
		commit('UPDATE items SET score = 302 WHERE id = 3');
		crash();
		is(scalar poll($client), undef, 'it is still held back');
		run q{SELECT FROM topn_snapshot('s')};
		my ($batch, @more) = poll($client);
		is(scalar @more, 0, 'then all share a batch');
		isnt($batch->{deltas}[0]{op}, 'reset', 'which is no reset');
		ok(defined $batch->{from}, 'and says so');
		shows_result($client);
	  };
}

for my $identity (qw(FULL DEFAULT))
{
	scenario 'crash', "it was just born, identity $identity" => sub {
		table_with_identity($identity);
		my $client = subscribe_to('s');
		my @commits = (
			commit('UPDATE items SET score = 500 WHERE id = 1'),
			commit('UPDATE items SET score = 600 WHERE id = 20'));

		# batches for topn_poll are not saved
		poll($client);
		crash();
		push @commits, commit('UPDATE items SET score = 501 WHERE id = 2');
		saw_each($client, @commits);
	};
}

scenario 'crash', 'a reset is not published twice' => sub {
	table_with_identity('FULL');
	my $client = subscribe_to('s');

	run 'ALTER TABLE items ALTER score TYPE bigint';
	writer->do(q{SELECT topn_sync()});
	my @batches = poll($client);
	is(join(' ', map { $_->{deltas}[0]{op} } @batches),
		'reset', 'another type of a column');
	run 'UPDATE items SET score = 500 WHERE id = 1';
	poll($client);
	crash();
	run 'UPDATE items SET score = 501 WHERE id = 2';
	poll($client);
	is(join(' ', map { $_->{deltas}[0]{op} } $client->batches),
		'reset leave leave', 'which is all');
	shows_result($client);
};

# What is replayed shows none, and results from before it: with a cushion all of
# them are known at once.
for my $cushion (0, 40)
{
	scenario 'crash', "the cause of an error is gone, cushion $cushion" => sub {
		table_with_identity('FULL');
		run q{ALTER TABLE items ALTER body SET STORAGE plain},
		  q{UPDATE items SET body = repeat('x', 7000)};
		session->subscribe('s', 'SELECT id, body FROM items ORDER BY id LIMIT 3',
			cushion => $cushion, limit => 20);
		$server->set('live_topn.result_memory' => '64kB');
		run q{DELETE FROM items WHERE id = 1},
		  q{SELECT topn_move('s', "limit" => 20)};
		saw s => 'leave 1 at 1, enter 4 at 3', 'error';
		run q{DELETE FROM items WHERE id = 2};
		$server->set('live_topn.debug_abandon' => 'on');
		$server->without_worker(
			sub {
				$server->set(
					'live_topn.debug_abandon' => undef,
					'live_topn.result_memory' => undef);
			});
		saw s => 'reset';
		session->turn_to('s', 'SELECT row_to_json(q)::text FROM
			(SELECT id, body FROM items ORDER BY id LIMIT 20) q');
		equals_query 's';
	};
}

# The file is renamed, then the slot is written: the crash comes in between.
scenario 'crash', 'the windows are saved, the slot is not moved' => sub {
	table_with_identity('FULL');
	my $client = subscribe_to('s');
	my $old = "$PostgreSQL::Test::Utils::tmp_check/slot";
	my $confirmed = sub {
		return writer->selectrow_array(
			'SELECT confirmed_flush_lsn FROM pg_replication_slots
			 WHERE slot_name = ?', undef, "live_topn_$dboid");
	};

	wait_for_checkpoint();
	copy($slot, $old) or die "could not copy $slot: $!";
	my $before = $confirmed->();
	my @commits = (
		commit('UPDATE items SET score = 500 WHERE id = 1'),
		commit('DELETE FROM items WHERE id IN (19, 20)'));
	wait_for_checkpoint();
	poll_until(sub { lsn_cmp($confirmed->(), $before) > 0 },
		'the slot to be moved');
	push @commits, commit('UPDATE items SET score = 501 WHERE id = 2');
	poll($client);
	crash(sub { copy($old, $slot) or die "could not write $slot: $!"; });
	saw_each($client, @commits);
};

done_testing();
