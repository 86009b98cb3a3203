# The three facts that make a snapshot read exact at a log position.
#
# Each scenario puts one commit where a fact matters: decoded before it is
# visible, between the request of a refill and its query, between the query and
# the merge; and a TRUNCATE while a refill waits for its lock.  Each must give
# the right result at every commit, with a key and with REPLICA IDENTITY FULL,
# and must give a wrong one when the worker is told to ignore the fact: else the
# scenario would prove nothing.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use DBD::Pg qw(:async);
use Test::More;

use LiveTopn::Lsn qw(lsn_cmp);
use LiveTopn::RefillStops;
use LiveTopn::Server qw(poll_until);

my $server = LiveTopn::Server->start('facts',
	conf => "live_topn.debug_refill_stops = on\nlive_topn.slice_offset = 5");
my $writer = $server->connect;
my $stops = LiveTopn::RefillStops->new($server);

# commits of this session wait for no standby
$writer->do('SET synchronous_commit = local');

# keeps the worker: a new slot would wait for the commit that hangs
$writer->do('CREATE TABLE idle (id int PRIMARY KEY)');
$writer->do("SELECT subscribe_topn('SELECT id FROM idle ORDER BY id LIMIT 1',
	'idle', deliver => 'none')");

my $session;
my @history;    # { lsn, ids }: results after each commit

# [name, facts it depends on, may commits share a batch under FULL, scenario,
# is it for FULL only]
my @scenarios = (
	[
		'a refill does not see a commit that was decoded before',
		['redo', 'lsn'], 0, \&decoded_before_visible
	],
	[
		'the first load does not see a commit that was decoded before',
		['redo', 'lsn'], 0, \&decoded_before_first_load
	],
	[
		'commits between the request and the snapshot',
		['undo'], 0, \&between_request_and_snapshot
	],
	[
		'commits between the query and the merge',
		['redo'], 0, \&between_query_and_merge
	],
	[
		'TRUNCATE while the refill waits for its lock',
		['undo'], 1, \&truncate_before_lock
	],
	[
		'WAL ends with a page when the snapshot is taken',
		[], 0, \&end_of_page
	],
	[
		'rows before a slice: a commit that was decoded before',
		['redo', 'lsn'], 0, \&slice_decoded_before
	],
	[
		'rows before a slice: commits before the snapshot',
		['undo'], 0, \&slice_between_request_and_snapshot
	],
	[
		'a slice grows towards the start: commits before the snapshot',
		['undo'], 0, \&slice_backward_snapshot, 1
	],
	[
		'a slice grows towards the start: commits after the query',
		['redo'], 0, \&slice_backward_merge, 1
	],
	[
		'a set is read for a reset: a commit that was decoded before',
		['redo', 'lsn'], 0, \&set_decoded_before, 1
	],
	[
		'a set is read for a reset: commits before the snapshot',
		['undo'], 0, \&set_between_request_and_snapshot, 1
	],
	[
		'a set is read on demand: commits after the query',
		['redo'], 0, \&set_between_query_and_answer, 1
	]);

for my $identity ('DEFAULT', 'FULL')
{
	for my $scenario (@scenarios)
	{
		my ($name, $facts, $truncates, $code, $full) = @$scenario;

		next if $full && $identity ne 'FULL';
		my $may_coalesce = $identity eq 'DEFAULT' || $truncates;

		is(problem($identity, 'none', $may_coalesce, $code),
			undef, "$name (replica identity $identity)");
		isnt(problem($identity, $_, $may_coalesce, $code),
			undef, "  ... goes wrong without fact $_")
		  for @$facts;
	}
}

done_testing();

# ---- scenarios: result 20, 19, 18 of 20 rows, no cushion unless they say so --

sub decoded_before_visible
{
	subscribe(0);
	my $hanging =
	  $server->hanging_commit('INSERT INTO items VALUES (100, 175)');
	$session->sync;    # decoded: fourth, and so not needed yet
	commit('DELETE FROM items WHERE id = 20', '19 18 100');
	$session->sync;
	$server->let_go($hanging);
	return;
}

sub decoded_before_first_load
{
	my $hanging =
	  $server->hanging_commit('INSERT INTO items VALUES (100, 175)');
	subscribe(2);
	@history = ({ lsn => here(), ids => '20 19 18' });
	commit('DELETE FROM items WHERE id = 20', '19 18 100');
	commit('DELETE FROM items WHERE id = 19', '18 100 17');
	$session->sync;
	$server->let_go($hanging);
	return;
}

sub between_request_and_snapshot
{
	subscribe(0);
	$stops->hold(LiveTopn::RefillStops::BEFORE_SNAPSHOT);
	commit('DELETE FROM items WHERE id = 20', '19 18 17');
	$stops->wait_for(LiveTopn::RefillStops::BEFORE_SNAPSHOT);
	commit('INSERT INTO items VALUES (50, 175)', '19 18 50');
	commit('UPDATE items SET score = 185 WHERE id = 17', '19 17 18');
	commit('DELETE FROM items WHERE id = 18', '19 17 50');
	$stops->release(LiveTopn::RefillStops::BEFORE_SNAPSHOT);
	$session->sync;
	return;
}

sub between_query_and_merge
{
	subscribe(2);    # 20 19 18 | 17 16
	$stops->hold(LiveTopn::RefillStops::BEFORE_ANSWER);
	commit('DELETE FROM items WHERE id = 20', '19 18 17');
	commit('DELETE FROM items WHERE id = 19', '18 17 16');
	$stops->wait_for(LiveTopn::RefillStops::BEFORE_ANSWER);
	# after the last row held, and not seen by the query
	commit('INSERT INTO items VALUES (50, 155)', '18 17 16');
	commit('UPDATE items SET score = 153 WHERE id = 3', '18 17 16');
	$stops->release(LiveTopn::RefillStops::BEFORE_ANSWER);
	$session->sync;
	commit('DELETE FROM items WHERE id = 18', '17 16 50');
	commit('DELETE FROM items WHERE id = 17', '16 50 3');
	commit('DELETE FROM items WHERE id = 16', '50 3 15');
	$session->sync;
	return;
}

sub truncate_before_lock
{
	subscribe(0);
	$stops->hold(LiveTopn::RefillStops::BEFORE_LOCK);
	commit('DELETE FROM items WHERE id = 20', '19 18 17');
	$stops->wait_for(LiveTopn::RefillStops::BEFORE_LOCK);
	$writer->begin_work;
	$writer->do('TRUNCATE items');
	$writer->do('INSERT INTO items VALUES (1, 5), (2, 6)');
	$stops->release(LiveTopn::RefillStops::BEFORE_LOCK);
	poll_until(
		sub {
			$writer->selectrow_array("SELECT count(*) > 0 FROM pg_locks
				WHERE relation = 'items'::regclass AND NOT granted");
		},
		'the refill to wait for the lock');
	$writer->commit;
	push @history, { lsn => here(), ids => '2 1' };
	$session->sync;
	return;
}

# The insert position is behind the header of the next page then, and decoding
# does not get there before somebody writes more.
sub end_of_page
{
	subscribe(0);
	$stops->hold(LiveTopn::RefillStops::BEFORE_SNAPSHOT);
	commit('DELETE FROM items WHERE id = 20', '19 18 17');
	$stops->wait_for(LiveTopn::RefillStops::BEFORE_SNAPSHOT);
	fill_page();
	$stops->release(LiveTopn::RefillStops::BEFORE_SNAPSHOT);
	$session->dbh->do(q{SELECT topn_sync('3 s')});
	$session->sync;
	return;
}

# ---- the same with 10 rows before the result: 10, 9, 8 of 20 rows ----

sub slice_decoded_before
{
	my $hanging =
	  $server->hanging_commit('INSERT INTO items VALUES (100, 175)');
	subscribe(0, 10);
	@history = ({ lsn => here(), ids => '11 10 9' });
	commit('DELETE FROM items WHERE id = 20', '10 9 8');
	$session->sync;
	$server->let_go($hanging);
	return;
}

sub slice_between_request_and_snapshot
{
	subscribe(0);
	$stops->hold(LiveTopn::RefillStops::BEFORE_SNAPSHOT);
	commit(q{SELECT topn_move('s', 10)}, '10 9 8');
	$stops->wait_for(LiveTopn::RefillStops::BEFORE_SNAPSHOT);
	commit('INSERT INTO items VALUES (50, 175)', '11 10 9');
	commit('DELETE FROM items WHERE id = 20', '10 9 8');
	commit('UPDATE items SET score = 500 WHERE id = 9', '11 10 8');
	commit('UPDATE items SET score = 5 WHERE id = 50', '10 8 7');
	$stops->release(LiveTopn::RefillStops::BEFORE_SNAPSHOT);
	$session->sync;
	return;
}

sub slice_backward_merge
{
	subscribe(4, 10);    # 6 rows | 14 13 12 11 | 10 9 8 | 7 6 5 4
	$stops->hold(LiveTopn::RefillStops::BEFORE_ANSWER);
	commit('INSERT INTO items VALUES (50, 300), (51, 300), (52, 300)',
		'13 12 11');
	$stops->wait_for(LiveTopn::RefillStops::BEFORE_ANSWER);
	# was read, and is not there any more
	commit('UPDATE items SET score = 1 WHERE id = 16', '12 11 10');
	$stops->release(LiveTopn::RefillStops::BEFORE_ANSWER);
	$session->sync;
	commit('INSERT INTO items VALUES (53, 300), (54, 300), (55, 300),
		(56, 300)', '17 15 14');
	$session->sync;
	return;
}

sub slice_backward_snapshot
{
	subscribe(0, 10);
	$stops->hold(LiveTopn::RefillStops::BEFORE_SNAPSHOT);
	commit('INSERT INTO items VALUES (50, 175)', '11 10 9');
	$stops->wait_for(LiveTopn::RefillStops::BEFORE_SNAPSHOT);
	commit('DELETE FROM items WHERE id = 11', '10 9 8');
	commit('INSERT INTO items VALUES (51, 115)', '51 10 9');
	commit('UPDATE items SET score = 1 WHERE id = 12', '10 9 8');
	commit('UPDATE items SET score = 125 WHERE id = 12', '51 10 9');
	$stops->release(LiveTopn::RefillStops::BEFORE_SNAPSHOT);
	$session->sync;
	return;
}

# ---- a set: those above 170, of which nothing is held ----

sub set_decoded_before
{
	subscribe_set();
	my $hanging =
	  $server->hanging_commit('INSERT INTO items VALUES (100, 175)');
	push @history, { lsn => here(), ids => '18 19 20 100' };
	commit('DELETE FROM items WHERE id = 20', '18 19 100');
	commit(q{SELECT topn_resync('s')}, '18 19 100');
	$session->sync;
	$server->let_go($hanging);
	return;
}

sub set_between_request_and_snapshot
{
	subscribe_set();
	$stops->hold(LiveTopn::RefillStops::BEFORE_SNAPSHOT);
	commit(q{SELECT topn_resync('s')}, '18 19 20');
	$stops->wait_for(LiveTopn::RefillStops::BEFORE_SNAPSHOT);
	commit('DELETE FROM items WHERE id = 20', '18 19');
	commit('INSERT INTO items VALUES (50, 175)', '18 19 50');
	commit('UPDATE items SET score = 5 WHERE id = 50', '18 19');
	commit('UPDATE items SET score = 185 WHERE id = 17', '17 18 19');
	$stops->release(LiveTopn::RefillStops::BEFORE_SNAPSHOT);
	$session->sync;
	return;
}

sub set_between_query_and_answer
{
	my $other = $server->connect;
	my $snapshot = $other->prepare(q{SELECT rows FROM topn_snapshot('s')},
		{ pg_async => PG_ASYNC });

	subscribe_set();
	$stops->hold(LiveTopn::RefillStops::BEFORE_ANSWER);
	$snapshot->execute;
	$stops->wait_for(LiveTopn::RefillStops::BEFORE_ANSWER);
	commit('DELETE FROM items WHERE id = 20', '18 19');
	commit('UPDATE items SET score = 185 WHERE id = 17', '17 18 19');
	$session->sync;
	$stops->release(LiveTopn::RefillStops::BEFORE_ANSWER);
	$snapshot->pg_result;
	my $ids = ids(
		LiveTopn::Session::snapshot_entries($snapshot->fetchrow_array));
	die "the snapshot is $ids\n" if $ids ne '17 18 19';
	return;
}

# ---- steps ----

sub subscribe_set
{
	$session->subscribe('s', 'SELECT id FROM items WHERE score > 170',
		unranked => 1);
	@history = ({ lsn => here(), ids => '18 19 20' });
	return;
}

sub subscribe
{
	my ($cushion, $offset) = @_;

	$session->subscribe('s',
		'SELECT id, score FROM items ORDER BY score DESC, id LIMIT 3'
		  . ($offset ? " OFFSET $offset" : ''),
		cushion => $cushion);
	@history =
	  ({ lsn => here(), ids => $offset ? '10 9 8' : '20 19 18' });
	return;
}

sub commit
{
	my ($sql, $ids) = @_;

	$writer->do($sql);
	push @history, { lsn => here(), ids => $ids };
	return;
}

sub here
{
	return scalar $writer->selectrow_array(
		'SELECT pg_current_wal_insert_lsn()');
}

# Write WAL up to the end of a page.
sub fill_page
{
	my $left = sub {
		return 8192 - $writer->selectrow_array(
			"SELECT (pg_current_wal_insert_lsn() - '0/0') % 8192");
	};
	my $emit = sub {
		$writer->do("SELECT pg_logical_emit_message(false, 'fill',
			repeat('x', $_[0]))");
	};

	$emit->(500) while $left->() < 4000;
	my $before = $left->();
	$emit->(1000);
	my $overhead = $before - $left->() - 1000;
	$emit->($left->() - $overhead);
	is($left->(), 8192 - 24, '  (WAL ends with a page)');
	return;
}

# ---- judgement ----

# Play a scenario on a fresh table; returns what was wrong, or undef.
sub problem
{
	my ($identity, $ignored_fact, $may_coalesce, $scenario) = @_;

	$server->set('live_topn.debug_ignore_fact' => $ignored_fact);
	$writer->do('CREATE TABLE items (id int PRIMARY KEY, score int)');
	$writer->do("ALTER TABLE items REPLICA IDENTITY $identity");
	$writer->do('INSERT INTO items SELECT g, g * 10
		FROM generate_series(1, 20) g');
	$session = $server->session;
	$session->dbh->do('SET synchronous_commit = local');

	my $problem = eval { $scenario->(); wrong_result($may_coalesce) };
	$problem //= $@ || undef;

	$stops->release_all;
	$server->set(synchronous_standby_names => undef);
	eval { $session->unsubscribe('s') };
	$session->dbh->disconnect;
	$writer->do('DROP TABLE items');
	return $problem;
}

# Compare each batch with the result after its commit.
sub wrong_result
{
	my ($may_coalesce) = @_;
	my $client = $session->client('s');
	my $at = 0;
	my $state = ids($client->start_entries);
	my @batches = $client->batches;

	return "the snapshot is $state, not $history[0]{ids}"
	  if $state ne $history[0]{ids};
	for my $batch (@batches, undef)
	{
		# commits before this batch must not have changed the result
		while ($at < $#history
			&& (!$batch || lsn_cmp($history[ $at + 1 ]{lsn}, $batch->{lsn}) < 0))
		{
			my $commit = $history[ ++$at ];

			next if $commit->{ids} eq $state;
			return "no batch for the commit with $commit->{ids} after $state"
			  unless $batch
			  && $may_coalesce
			  && defined $batch->{from}
			  && lsn_cmp($batch->{from}, $commit->{lsn}) <= 0;
		}
		last unless $batch;
		return 'a batch without a commit' if $at == $#history;
		$state = ids(@{ $batch->{after} });
		my $commit = $history[ ++$at ];
		return "$state was published where the result is $commit->{ids}"
		  if $state ne $commit->{ids};
	}
	return;
}

sub ids
{
	my @ids = map { $_->{key} =~ /(\d+)/ } @_;

	# a set has no order
	@ids = sort { $a <=> $b } @ids if $session->client('s')->{unranked};
	return join ' ', @ids;
}
