# Groups that nobody touches are dropped, and read again when somebody does:
# clients see no difference.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use DBD::Pg qw(:async);
use Test::More;

use LiveTopn::RefillStops;
use LiveTopn::Scenario;
use LiveTopn::Server;

my $server = LiveTopn::Server->start('dropped',
	conf => "live_topn.group_memory = 0\n"
	  . "live_topn.debug_refill_stops = on\n");
use_server($server);

my $stops = LiveTopn::RefillStops->new($server);
my $gate = LiveTopn::RefillStops::BEFORE_SNAPSHOT;
my $numbered = 'SELECT id, price, n FROM (SELECT *, row_number()
	OVER (PARTITION BY thing ORDER BY price DESC) AS n FROM bid) x
	WHERE n <= 2 ORDER BY thing, n';

# Bids on four things, ten each; higher numbers are higher bids.
sub bids
{
	my ($identity, $query, $limit) = @_;

	run 'CREATE TABLE bid (id int PRIMARY KEY, thing text, price int)',
	  "ALTER TABLE bid REPLICA IDENTITY $identity",
	  q{INSERT INTO bid SELECT g, 't' || g % 4, g FROM generate_series(1, 40) g};
	$query //= $numbered;
	session->subscribe(
		's', $query,
		limit => $limit // 2,
		truth => "SELECT row_to_json(y)::text FROM ($query, id) y");
	return;
}

sub statistics
{
	my (@columns) = @_;

	session->sync;
	return join ' ',
	  writer->selectrow_array('SELECT '
		  . join(', ', @columns)
		  . q{ FROM topn_stats WHERE name = 's'});
}

sub groups_are
{
	my ($numbers, $what) = @_;

	is(statistics(qw(groups groups_dropped groups_loaded)), $numbers, $what);
	return;
}

# What came since, each delta as "group: what".
sub deltas_are
{
	my ($expected, $what) = @_;

	session->sync;
	my @deltas = map {
		my ($group) = $_->{group} =~ /^\{"thing":"?(.*?)"?\}$/;
		my ($id) = $_->{key} =~ /(\d+)/;
		"$group: $_->{op} $id" . ($_->{op} eq 'reset' ? '' : " at " . ($_->{pos} // $_->{to}))
	} map { @{ $_->{deltas} } } session->client('s')->take_batches;
	is(join(', ', @deltas), $expected, $what);
	return;
}

scenario 'dropped', 'a group comes back when it is touched' => sub {
	bids 'FULL';
	groups_are '0 4 4', 'the snapshot had all groups, and none is held';
	is(statistics(qw(held_rows result_rows)), '0 8', 'nor any row');
	run q{INSERT INTO bid VALUES (41, 't1', 100)};
	deltas_are 't1: leave 33 at 2, t1: enter 41 at 1, t1: update 37 at 2',
	  'what the group was is known';
	groups_are '0 4 5', 'it is dropped again';
	run q{DELETE FROM bid WHERE id IN (41, 40)};
	deltas_are 't0: leave 40 at 1, t0: enter 32 at 2, t0: update 36 at 1, '
	  . 't1: leave 41 at 1, t1: enter 33 at 2, t1: update 37 at 1',
	  'two at once';
	is(statistics('refills'), 4, '... are one refill');
	run q{UPDATE bid SET thing = 't3' WHERE id = 36};
	deltas_are 't0: leave 36 at 1, t0: enter 28 at 2, t0: update 32 at 1, '
	  . 't3: leave 35 at 2, t3: enter 36 at 2',
	  'a row goes from one to another';
	equals_query 's';
};

scenario 'dropped', 'changes that do not show' => sub {
	bids 'FULL';
	my $loaded = statistics('groups_loaded');
	run q{UPDATE bid SET price = price}, q{UPDATE bid SET thing = thing};
	is(statistics('groups_loaded'), $loaded, 'rows that stay what they are');
	run q{INSERT INTO bid VALUES (50, 't0', -1)};
	is(statistics('groups_loaded'), $loaded + 1, 'one far down is read for');
	deltas_are '', '... in vain';
	is(statistics('result_rows'), 8, 'rows of results are counted');
	equals_query 's';
};

scenario 'dropped', 'groups that were empty, and that become so' => sub {
	bids 'FULL';
	my $loaded = statistics('groups_loaded');
	run q{INSERT INTO bid VALUES (41, 'new', 1)};
	is(statistics('groups_loaded'), $loaded, 'a new group is not read');
	deltas_are 'new: enter 41 at 1', 'it appears';
	run q{DELETE FROM bid WHERE thing IN ('new', 't2')};
	deltas_are 'new: leave 41 at 1, t2: leave 34 at 2, t2: leave 38 at 1',
	  'two vanish';
	is(statistics(qw(groups_dropped result_rows)), '3 6', 'those are forgotten');
	run q{INSERT INTO bid VALUES (41, 't2', 1)};
	deltas_are 't2: enter 41 at 1', 'it is there again';
	equals_query 's';
};

scenario 'dropped', 'commits while a group is read' => sub {
	bids 'FULL';
	$stops->hold($gate);
	run q{INSERT INTO bid VALUES (41, 't1', 100)};
	$stops->wait_for($gate);
	run q{UPDATE bid SET price = 101 WHERE id = 37},
	  q{DELETE FROM bid WHERE id = 41},
	  q{UPDATE bid SET thing = 't2' WHERE id = 37},
	  'DELETE FROM bid WHERE id = 33';
	$stops->release($gate);
	deltas_are 't1: leave 33 at 2, t1: enter 41 at 1, t1: update 37 at 2, '
	  . 't1: move 37 at 1, t1: update 41 at 2, '
	  . 't1: leave 41 at 2, t1: enter 33 at 2, '
	  . 't1: leave 37 at 1, t1: enter 29 at 2, t1: update 33 at 1, '
	  . 't2: leave 34 at 2, t2: enter 37 at 1, t2: update 38 at 2, '
	  . 't1: leave 33 at 1, t1: enter 25 at 2, t1: update 29 at 1',
	  'each has its batch';
	equals_query 's';
};

scenario 'dropped', 'a worker that starts again' => sub {
	bids 'FULL';
	server->restart_worker('postgres');
	groups_are '0 4 0', 'it knows what was dropped';
	run q{DELETE FROM bid WHERE id = 39};
	deltas_are 't3: leave 39 at 1, t3: enter 31 at 2, t3: update 35 at 1',
	  'and goes on';
	$stops->hold($gate);
	run q{DELETE FROM bid WHERE id = 35}, q{INSERT INTO bid VALUES (60, 't3', 0)};
	$stops->wait_for($gate);
	server->restart_worker('postgres');
	$stops->release($gate);
	deltas_are 't3: leave 35 at 1, t3: enter 27 at 2, t3: update 31 at 1',
	  'so it does when one was being read';
	is(statistics('resets'), 0, 'without a reset');
	equals_query 's';
};

scenario 'dropped', 'resets' => sub {
	bids 'FULL';
	run q{SELECT topn_resync('s')};
	deltas_are ': reset ', 'one that was asked for';
	equals_query 's';
	run 'TRUNCATE bid', q{INSERT INTO bid VALUES (1, 't0', 1)};
	session->sync;
	is(statistics('resets'), 2, 'TRUNCATE is told by one');
	equals_query 's';
};

scenario 'dropped', 'who asks for all of them goes before they are read' => sub {
	bids 'FULL';
	session->subscribe('other', $numbered);
	groups_are '0 4 8', 'both have read them';
	$stops->hold($gate);
	my $asker = $server->connect;
	$asker->do(q{SELECT topn_snapshot('other')}, { pg_async => PG_ASYNC });
	$stops->wait_for($gate);
	run q{SELECT unsubscribe_topn('other')};
	$stops->release($gate);
	ok(!eval { $asker->pg_result; 1 }, 'there is no answer');
	run 'UPDATE bid SET price = 100 WHERE id = 5';
	deltas_are 't1: leave 33 at 2, t1: enter 5 at 1, t1: update 37 at 2',
	  'a change of one of them';
	is(statistics('groups_dropped'), 4, 'none is held');
};

scenario 'dropped', 'old rows are not whole any more' => sub {
	bids 'FULL';
	run 'ALTER TABLE bid REPLICA IDENTITY DEFAULT',
	  q{UPDATE bid SET thing = 't1' WHERE id = 40},
	  'DELETE FROM bid WHERE id IN (39, 38)';
	equals_query 's';
	is(statistics(qw(groups groups_dropped)), '4 0', 'all groups are held');
	run 'ALTER TABLE bid REPLICA IDENTITY FULL',
	  q{UPDATE bid SET thing = 't2' WHERE id = 40};
	equals_query 's';
};

scenario 'dropped', 'what is not dropped' => sub {
	bids 'DEFAULT';
	groups_are '4 0 0', 'groups of a table whose old rows are not whole';
	run 'UPDATE bid SET price = 100 WHERE id = 1';
	equals_query 's';
};

for my $rank (qw(rank dense_rank))
{
	scenario 'ranks', "$rank: any number of rows may be equal" => sub {
		bids 'FULL', $numbered =~ s/row_number/$rank/r, 100;
		run 'UPDATE bid SET price = id / 20';
		equals_query 's';
		run q{INSERT INTO bid VALUES (41, 't1', 2)};
		equals_query 's';
		run q{DELETE FROM bid WHERE price = 2};
		equals_query 's';
	};
}

scenario 'limit', 'those that were not touched for longest go first' => sub {
	server->set('live_topn.group_memory' => '1MB');
	run 'CREATE TABLE bid (id int PRIMARY KEY, thing int, price int)',
	  'ALTER TABLE bid REPLICA IDENTITY FULL',
	  'INSERT INTO bid SELECT g, g % 100, g FROM generate_series(1, 400) g';
	session->subscribe('s', $numbered, limit => 2);
	groups_are '100 0 0', 'all groups fit';
	my $touch = sub { run map { "UPDATE bid SET price = price + 1
		WHERE thing = $_" } 0 .. 9 };
	$touch->() for 1 .. 3;
	my $limit = int(statistics('bytes') / 1024 / 2);
	server->set('live_topn.group_memory' => "${limit}kB");
	run 'UPDATE bid SET price = price + 1 WHERE thing = 9';
	my ($groups, $dropped, $loaded) =
	  split / /, statistics(qw(groups groups_dropped groups_loaded));
	cmp_ok($dropped, '>', 20, 'some are dropped');
	cmp_ok($groups, '>', 20, 'others are not');
	is($groups + $dropped, 100, 'each is one or the other');
	$touch->();
	is(statistics('groups_loaded'), 0, 'all that were in use are held');
	equals_query 's';
	server->set('live_topn.group_memory' => '0');
};

done_testing();
