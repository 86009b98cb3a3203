# Queries whose expressions can fail are not evaluated while decoding.  They go
# through the log when a change concerns them, by the part of the filter that
# cannot fail; and whether they fail does not depend on when they do that.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use Test::More;

use LiveTopn::RefillStops;
use LiveTopn::Scenario;
use LiveTopn::Server qw(poll_until);

my $server = LiveTopn::Server->start('errors',
	conf => "live_topn.debug_refill_stops = on\n"
	  . "autovacuum = off\n");
use_server($server);

my $stops = LiveTopn::RefillStops->new($server);

# 30 items of each of three tenants; of tenant 1, the best is 30.
sub items
{
	run 'CREATE TABLE items (id int PRIMARY KEY, tenant int, score int,
			parts int DEFAULT 1)',
	  'INSERT INTO items SELECT g, (g + 29) / 30, g FROM generate_series(1, 90) g';
	return;
}

sub of_tenant
{
	my ($tenant) = @_;
	return "SELECT id, score / parts AS share FROM items
		WHERE 10 / parts > 0 AND tenant = $tenant
		ORDER BY score + 0 DESC, id LIMIT 3";
}

sub changes
{
	my ($name) = @_;
	my ($changes) = stats_of($name, 'changes');
	return $changes;
}

scenario 'errors', 'changes go to those they concern' => sub {
	items;
	subscribe a => of_tenant(1);
	subscribe b => of_tenant(2);
	my %before = map { $_ => changes($_) } qw(a b);
	run map { "UPDATE items SET score = score + 1 WHERE id = $_" } 41 .. 50;
	is(changes('a') - $before{a}, 0, 'none of them is of a');
	is(changes('b') - $before{b}, 10, 'all are of b');
	run 'UPDATE items SET tenant = 1, score = 100 WHERE id = 60';
	saw a => 'leave 28 at 3, enter 60 at 1';
	saw b => 'leave 60 at 1, enter 57 at 3';
	equals_query qw(a b);
};

scenario 'errors', 'a row beyond the last one held concerns nobody' => sub {
	my $query = 'SELECT id, 10 / parts AS share FROM items
		WHERE tenant = 1 ORDER BY score DESC, id LIMIT 3';

	items;
	subscribe a => $query;
	my $before = changes('a');
	run 'UPDATE items SET parts = 0 WHERE id = 5',
	  'INSERT INTO items VALUES (100, 1, -1, 0)';
	is(changes('a') - $before, 0, 'they are not looked at');
	is(state_of('a'), 'live', 'nor do they raise an error');
	run 'UPDATE items SET score = 100 WHERE id = 6';
	ids_are a => '6 30 29';
	run 'UPDATE items SET score = 100 WHERE id = 5';
	wait_for_state a => 'error';
	run 'UPDATE items SET parts = 1';
	wait_for_state a => 'live';
	equals_query 'a';
};

scenario 'errors', 'so do errors' => sub {
	items;
	subscribe a => of_tenant(1);
	subscribe b => of_tenant(2);
	run 'UPDATE items SET parts = 0 WHERE id = 31';
	wait_for_state b => 'error';
	equals_query 'a';
	saw a => ();
	run 'UPDATE items SET parts = 2 WHERE id = 31',
	  'UPDATE items SET parts = 2 WHERE id = 1';
	wait_for_state b => 'live';
	equals_query qw(a b);

	# the row that is held becomes another tenant's, and an error of his
	run 'UPDATE items SET parts = 0, tenant = 2 WHERE id = 30';
	equals_query 'a';
	wait_for_state b => 'error';
	is(state_of('a'), 'live', 'a goes on');
};

scenario 'errors', 'the order may fail' => sub {
	my $worker = $server->worker_pid;

	items;
	subscribe a => 'SELECT id, score FROM items WHERE tenant = 1
		ORDER BY score + parts DESC, id LIMIT 3';
	run 'INSERT INTO items VALUES (100, 2, 2147483647)';
	is(state_of('a'), 'live', 'a row of another tenant is not looked at');
	run 'INSERT INTO items VALUES (101, 1, 2147483647)';
	wait_for_state a => 'error';
	run 'DELETE FROM items WHERE id = 101';
	wait_for_state a => 'live';
	equals_query 'a';
	is($server->worker_pid, $worker, 'the worker has not ended');
};

scenario 'errors', 'the group may fail, of rows that are in none' => sub {
	items;
	session->subscribe('a', 'SELECT id, n FROM (SELECT id, 10 / parts AS share,
			row_number() OVER (PARTITION BY 10 / parts ORDER BY score DESC) AS n
			FROM items WHERE parts <> 0) q
		WHERE n <= 2 ORDER BY share, n', limit => 2);
	run 'UPDATE items SET parts = 0 WHERE id IN (5, 90)',
	  'UPDATE items SET parts = 2 WHERE id IN (6, 89)';
	equals_query 'a';
};

# All that is logged meanwhile is looked at.
scenario 'errors', 'also while rows are missing' => sub {
	items;
	subscribe a => of_tenant(1), cushion => 0;
	session->sync;
	$stops->hold(LiveTopn::RefillStops::BEFORE_QUERY);
	run 'DELETE FROM items WHERE id = 30';
	$stops->wait_for(LiveTopn::RefillStops::BEFORE_QUERY);
	run 'UPDATE items SET parts = 0 WHERE tenant = 2',
	  'UPDATE items SET score = 50 WHERE id = 5';
	$stops->release(LiveTopn::RefillStops::BEFORE_QUERY);
	equals_query 'a';
	is(state_of('a'), 'live', 'a is not in error');
};

scenario 'errors', 'a commit that concerns it late, and in another partition' => sub {
	run 'CREATE TABLE items (id int PRIMARY KEY, tenant int, score int,
			parts int DEFAULT 1) PARTITION BY RANGE (id)',
	  'CREATE TABLE items_1 PARTITION OF items FOR VALUES FROM (0) TO (50)',
	  'CREATE TABLE items_2 PARTITION OF items FOR VALUES FROM (50) TO (500)',
	  'INSERT INTO items SELECT g, g % 2, g FROM generate_series(1, 90) g';
	subscribe a => of_tenant(1);
	session->sync;
	run 'BEGIN',
	  'UPDATE items SET score = 1000 WHERE id = 2',
	  'UPDATE items SET score = 1000 WHERE id = 60',
	  'UPDATE items SET score = 1000 WHERE id = 89',
	  'UPDATE items SET score = 999 WHERE id = 3',
	  'UPDATE items SET score = 998 WHERE id = 51',
	  'COMMIT';
	saw a => 'leave 85 at 3, leave 87 at 2, enter 3 at 2, enter 51 at 3,'
	  . ' update 89 at 1';
	equals_query 'a';
};

scenario 'errors', 'a page moves and a reset comes with a change' => sub {
	items;
	subscribe a => of_tenant(1), limit => 5;
	subscribe b => of_tenant(2);
	session->sync;
	run 'BEGIN',
	  'UPDATE items SET score = 1000 WHERE id IN (3, 33)',
	  q{SELECT topn_move('a', 1, 4)},
	  q{SELECT topn_resync('b')},
	  'COMMIT';
	session->turn_to('a', 'SELECT row_to_json(q) FROM ('
		  . of_tenant(1) =~ s/LIMIT 3/LIMIT 4 OFFSET 1/r . ') q');
	equals_query qw(a b);
	is_deeply([ stats_of('a', 'batches') ], [1], 'one batch for both');

	# alone
	run q{SELECT topn_move('a', 0, 3)}, q{SELECT topn_resync('b')};
	session->turn_to('a', 'SELECT row_to_json(q) FROM (' . of_tenant(1) . ') q');
	equals_query qw(a b);
};

scenario 'errors', 'a page moves when a partition goes' => sub {
	my $query = 'SELECT id FROM items WHERE 10 / parts > 0 ORDER BY id DESC LIMIT 3';

	run 'CREATE TABLE items (id int PRIMARY KEY, parts int DEFAULT 1)
		PARTITION BY RANGE (id)',
	  map { ("CREATE TABLE items_$_ PARTITION OF items
			FOR VALUES FROM (${_}0) TO (${_}9)",
		  "ALTER TABLE items_$_ REPLICA IDENTITY FULL") } 1 .. 3;
	run 'INSERT INTO items SELECT g FROM generate_series(10, 38) g WHERE g % 10 < 9';
	subscribe a => $query;
	writer->begin_work;
	run q{SELECT topn_move('a', 1)}, 'ALTER TABLE items DETACH PARTITION items_3';
	writer->commit;
	saw a => 'leave 36 at 3, leave 37 at 2, leave 38 at 1, enter 27 at 1, enter 26 at 2, enter 25 at 3';
	session->turn_to('a', "SELECT row_to_json(q)::text FROM ($query OFFSET 1) q");
	equals_query 'a';
};

scenario 'errors', 'restarts' => sub {
	items;
	subscribe a => of_tenant(1);
	subscribe b => of_tenant(2), throttle => '50ms';
	run 'UPDATE items SET score = 1000 WHERE id IN (3, 33)';
	session->sync;
	$server->restart_worker;
	run 'UPDATE items SET score = 1001 WHERE id IN (4, 34)';
	equals_query 'a';
	poll_until(sub { !defined session->difference('b') }, 'b to be told');
	is_deeply([ stats_of('a', 'refills', 'resets') ], [ 0, 0 ],
		'nothing is read again');
};

# Whom changes before that have not concerned has not got them in the log.
scenario 'errors', 'a commit of several tables, some of it undone' => sub {
	items;
	run 'CREATE TABLE others (LIKE items INCLUDING ALL)',
	  'INSERT INTO others SELECT * FROM items';
	subscribe a => of_tenant(1);
	subscribe b => of_tenant(2) =~ s/items/others/r;
	session->sync;
	run 'BEGIN',
	  'DELETE FROM items WHERE id = 31',
	  'UPDATE others SET score = 1000 WHERE id = 1',
	  'SAVEPOINT undone',
	  'UPDATE items SET parts = 0 WHERE id = 1',
	  'ROLLBACK TO undone',
	  'UPDATE others SET score = 1000, parts = 10 WHERE id = 31',
	  'UPDATE items SET tenant = 2 WHERE id = 30',
	  'COMMIT';
	saw a => 'leave 30 at 1, enter 27 at 3';
	saw b => 'leave 58 at 3, enter 31 at 1';
	run 'BEGIN',
	  'UPDATE others SET score = 1000 WHERE id = 2',
	  'TRUNCATE items',
	  'INSERT INTO items SELECT id, tenant, score + 1, 1 FROM others',
	  'ALTER TABLE others ALTER score TYPE bigint',
	  'COMMIT';
	equals_query qw(a b);
	is_deeply([ map { state_of($_) } qw(a b) ],
		[ 'live', undef, 'live', undef ], 'both go on');
};

# They have one template, whose expressions have the values as parameters.
scenario 'errors', 'values of others' => sub {
	my %filters = (
		case => 'CASE WHEN tenant = ? THEN 12 / parts ELSE 0 END > 3',
		coalesce => 'coalesce(nullif(tenant, ?) / parts, 7) = 7',
		any => "tenant + 0 = ANY (ARRAY[?, 7])",
		text => q{tenant::text || 'x' = '?x'});
	my @names;

	items;
	for my $filter (sort keys %filters)
	{
		for my $tenant (1 .. 3)
		{
			push @names, "${filter}_$tenant";
			subscribe $names[-1] => 'SELECT id, tenant FROM items WHERE '
			  . $filters{$filter} =~ s/\?/$tenant/r
			  . ' ORDER BY score + 0, id LIMIT 4';
		}
	}
	equals_query @names;
	run 'UPDATE items SET parts = 0 WHERE id = 31';
	wait_for_state "case_2" => 'error';
	is(state_of($_), 'live', "$_ goes on") for qw(case_1 case_3 any_2 text_2);
	run 'UPDATE items SET parts = 2, tenant = 3 WHERE id = 31',
	  'UPDATE items SET tenant = 2 WHERE id = 1';
	wait_for_state $_ => 'live' for @names;
	equals_query @names;
};

# Comparing under such a collation looks at catalogs.
scenario 'errors', 'a page moves when the order is not evaluated while decoding' =>
  sub {
	run 'CREATE COLLATION IF NOT EXISTS blind (provider = icu,
			locale = \'und-u-ks-level2\', deterministic = false)',
	  'CREATE TABLE names (id int PRIMARY KEY, name text, parts int DEFAULT 1)',
	  q{INSERT INTO names SELECT g, chr(96 + g) FROM generate_series(1, 20) g};
	my $query = 'SELECT id, 10 / parts AS share FROM names
		ORDER BY name COLLATE blind, id LIMIT 3';

	subscribe a => $query, limit => 6;
	session->sync;
	run 'BEGIN', q{SELECT topn_move('a', 2, 4)},
	  q{UPDATE names SET name = 'C' WHERE id = 9}, 'COMMIT',
	  q{SELECT topn_move('a', 1, 6)};
	session->turn_to('a', 'SELECT row_to_json(q) FROM ('
		  . $query =~ s/LIMIT 3/LIMIT 6 OFFSET 1/r . ') q');
	equals_query 'a';
	run 'BEGIN', q{SELECT topn_move('a', 0, 2)},
	  'UPDATE names SET parts = 0 WHERE id = 1', 'COMMIT';
	wait_for_state a => 'error';
	run 'UPDATE names SET parts = 5 WHERE id = 1';
	wait_for_state a => 'live';
	session->turn_to('a', 'SELECT row_to_json(q) FROM ('
		  . $query =~ s/LIMIT 3/LIMIT 2/r . ') q');
	equals_query 'a';
};

# The planner evaluates first what costs least.
scenario 'errors', 'a read evaluates the order of rows that satisfy the filter' => sub {
	items;
	run 'UPDATE items SET parts = 0 WHERE id > 10';
	subscribe a => 'SELECT id FROM items WHERE parts = 1 + 0 * tenant
		ORDER BY 100 / parts NULLS FIRST, id LIMIT 3', cushion => 0;
	subscribe b => 'SELECT id FROM items
		WHERE (parts + 1) * 2 - 2 + id - id <> 0
		ORDER BY 100 / parts DESC, id DESC LIMIT 3', cushion => 0;
	for my $id (1, 10, 3, 9, 2)
	{
		run "DELETE FROM items WHERE id = $id";
		equals_query qw(a b);
	}
	is_deeply([ map { (state_of($_))[0] } qw(a b) ], [qw(live live)],
		'no other rows raise errors');
};

done_testing();
