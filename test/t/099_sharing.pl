# Subscriptions with equal queries share the rows of one feed, whatever their
# names, their pages and their delivery.  Nobody sees that but in the statistics.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use Test::More;
use Time::HiRes qw(time);

use LiveTopn::RefillStops;
use LiveTopn::Scenario;
use LiveTopn::Server qw(poll_until);

my $server = LiveTopn::Server->start('sharing',
	conf => "live_topn.slice_offset = 20\n"
	  . "live_topn.debug_refill_stops = on\n"
	  . "autovacuum = off\n");
use_server($server);

my $stops = LiveTopn::RefillStops->new($server);
my $top = 'SELECT id, score FROM items ORDER BY score DESC, id';

# 300 items, the best is 300.
sub items
{
	my ($identity) = @_;

	run 'CREATE TABLE items (id int PRIMARY KEY, score int, grp int DEFAULT 1)',
	  'ALTER TABLE items REPLICA IDENTITY ' . ($identity // 'FULL'),
	  'INSERT INTO items SELECT g, g * 10 FROM generate_series(1, 300) g';
	return;
}

sub statistic
{
	my ($what, $name) = @_;
	return writer->selectrow_array(
		"SELECT $what FROM topn_stats WHERE name = ?", undef, $name);
}

# These show the same rows, and nobody else does.
sub share
{
	my ($n, @names) = @_;

	for my $name (@names)
	{
		ok( eval {
				poll_until(
					sub { statistic('shared', $name) == $n },
					"$n to share with $name");
			},
			"$n share the rows of $name") or diag($@);
	}
	return;
}

# How many came since it was last asked.
sub batches
{
	return scalar(my @batches = session->client($_[0])->take_batches);
}

# Whoever reads a result gets what was held back of it.
sub reads
{
	for my $name (@_)
	{
		session->snapshot($name);
		equals_query $name;
	}
	return;
}

scenario 'sharing', 'a hundred subscriptions of one query' => sub {
	my @names = map { "n$_" } 1 .. 100;

	items;
	session->listen($_, "$top LIMIT 3") for @names;
	session->dbh->begin_work;
	session->dbh->do('SELECT subscribe_topn(?, ?)', undef, "$top LIMIT 3", $_)
	  for @names;
	session->dbh->commit;
	session->begin($_) for @names;
	share 100, @names[ 0, 50, 99 ];
	is(statistic('refills', 'n1'), 1, 'the table was read once');
	is( writer->selectrow_array(
			'SELECT count(DISTINCT (held_rows, bytes)) FROM topn_stats
			 WHERE name <> ?', undef, 'idle'),
		1,
		'all show what one of them holds');

	run 'UPDATE items SET score = 5000 WHERE id = 7';
	saw $_ => 'leave 298 at 3, enter 7 at 1' for 'n1', 'n50', 'n100';
	equals_query 'n1', 'n77', 'n100';
};

scenario 'sharing', 'pages, ranks, delivery and options are of each' => sub {
	items;
	subscribe a => "$top LIMIT 3";
	subscribe b => "$top LIMIT 5 OFFSET 2", limit => 5;
	subscribe c => "$top LIMIT 2", ranks => 'absolute';
	subscribe d => "$top LIMIT 3", old => 1, cushion => 7;
	session->dbh->do("SELECT subscribe_topn('$top LIMIT 4', 'e', deliver => 'none')");
	share 5, qw(a b c d e);
	is(statistic('refills', 'a') <= 3, 1, 'rows that are held are not read');

	run 'UPDATE items SET score = 2991 WHERE id = 1';
	saw a => 'leave 298 at 3, enter 1 at 2';
	saw b => 'leave 294 at 5, enter 299 at 1';
	saw c => 'leave 299 at 2, enter 1 at 2';
	equals_query qw(a b c d);
	is(statistic('last_seq', $_), 1, "$_ has its own numbers") for qw(a b c d e);
	run 'UPDATE items SET score = 2971 WHERE id = 2';
	saw a => ();
	is(statistic('last_seq', 'a'), 1, 'a batch comes where the page shows it');
	is(statistic('last_seq', 'b'), 2, 'and only there');
};

scenario 'sharing', 'who comes later begins at its own commit, without a read' => sub {
	items;
	subscribe a => "$top LIMIT 5", cushion => 20;
	is(statistic('refills', 'a'), 1, 'one read');

	# analysis waits; meanwhile rows come and go
	$stops->hold(LiveTopn::RefillStops::BEFORE_LOCK);
	session->listen('b', "$top LIMIT 3");
	session->dbh->do("SELECT subscribe_topn('$top LIMIT 3', 'b', cushion => 2)");
	run 'UPDATE items SET score = 9000 WHERE id = 9',
	  'DELETE FROM items WHERE id = 300',
	  'UPDATE items SET score = 8000 WHERE id = 8';
	$stops->release_all;
	session->begin('b');
	my ($first) = grep { $_->{seq} == 1 } session->client('b')->batches;
	equals_query 'b';
	is(statistic('last_seq', 'b'), 3, 'all three commits since its birth were told');
	share 2, qw(a b);
	is(statistic('refills', 'a'), 1, 'still one read');
};

scenario 'sharing', 'who is the largest leaves, and rows go' => sub {
	items;
	subscribe a => "$top LIMIT 3";
	subscribe b => "$top LIMIT 100", limit => 100;
	share 2, qw(a b);
	cmp_ok(statistic('held_rows', 'a'), '>=', 100, 'rows for both');
	session->unsubscribe('b');
	run 'UPDATE items SET score = 5000 WHERE id = 5';
	share 1, 'a';
	cmp_ok(statistic('held_rows', 'a'), '<', 20, 'rows for one');
	equals_query 'a';

	subscribe b => "$top LIMIT 100", limit => 100;
	share 2, qw(a b);
	session->unsubscribe('a');
	run 'DELETE FROM items WHERE id > 250';
	equals_query 'b';
};

scenario 'sharing', 'a page moves, alone' => sub {
	items;
	subscribe a => "$top LIMIT 3";
	subscribe b => "$top LIMIT 3", limit => 8;
	share 2, qw(a b);
	writer->do("SELECT topn_move('b', \"limit\" => 8)");
	session->turn_to('b', "SELECT row_to_json(q) FROM ($top LIMIT 8) q");
	is(session->difference('b'), undef, 'b is longer');
	saw a => ();
	share 2, qw(a b);

	# in the same transaction as a change
	writer->begin_work;
	run 'UPDATE items SET score = 5000 WHERE id = 5';
	writer->do("SELECT topn_move('b', \"offset\" => 2)");
	writer->commit;
	session->turn_to('b', "SELECT row_to_json(q) FROM ($top LIMIT 8 OFFSET 2) q");
	is(session->difference('b'), undef, 'b has moved');
	saw a => 'leave 298 at 3, enter 5 at 1';
	is(statistic('last_seq', 'b'), 2, 'by one batch each time');
	share 2, qw(a b);
};

scenario 'sharing', 'a page moves too far to share' => sub {
	items;
	subscribe a => "$top LIMIT 3";
	subscribe b => "$top LIMIT 3", limit => 3;
	share 2, qw(a b);
	writer->begin_work;
	run 'UPDATE items SET score = 5000 WHERE id = 5';
	writer->do("SELECT topn_move('b', \"offset\" => 150)");
	writer->commit;
	session->turn_to('b',
		"SELECT row_to_json(q) FROM ($top LIMIT 3 OFFSET 150) q");
	is(session->difference('b'), undef, 'b has moved');
	saw a => 'leave 298 at 3, enter 5 at 1';
	share 1, qw(a b);
	cmp_ok(statistic('held_rows', 'a'), '<', 20, 'a holds its own');
	cmp_ok(statistic('rows_before', 'b'), '>', 100, 'b counts rows before');
	is(statistic('last_seq', 'b'), 1, 'by one batch');

	# and comes back
	writer->do("SELECT topn_move('b', \"offset\" => 0)");
	session->turn_to('b', "SELECT row_to_json(q) FROM ($top LIMIT 3) q");
	is(session->difference('b'), undef, 'b is back');
	run 'UPDATE items SET score = 6000 WHERE id = 6';
	is(session->difference('b'), undef, 'b goes on');
	share 2, qw(a b);
};

# Rows of one partition go with all others: all is read again.
for my $filter ('score > 0', 'score / 2 > 0')
{
	scenario 'sharing', "rows are lost as a page moves too far, $filter" => sub {
		my $rows = "SELECT id, score FROM items WHERE $filter
			ORDER BY score DESC, id";

		run 'CREATE TABLE items (id int PRIMARY KEY, score int)
				PARTITION BY RANGE (id)',
		  'CREATE TABLE items_1 PARTITION OF items
				FOR VALUES FROM (0) TO (150)',
		  'CREATE TABLE items_2 PARTITION OF items
				FOR VALUES FROM (150) TO (500)',
		  map({ "ALTER TABLE $_ REPLICA IDENTITY FULL" }
			qw(items items_1 items_2)),
		  'INSERT INTO items SELECT g, g FROM generate_series(1, 300) g';
		subscribe a => "$rows LIMIT 3";
		subscribe b => "$rows LIMIT 3", limit => 3;
		share 2, qw(a b);
		writer->begin_work;
		run 'TRUNCATE items_2';
		writer->do(q{SELECT topn_move('b', "offset" => 120)});
		writer->commit;
		session->turn_to('b',
			"SELECT row_to_json(q) FROM ($rows LIMIT 3 OFFSET 120) q");
		is(session->difference('b'), undef, 'b has moved');
		equals_query 'a';
	};
}

scenario 'sharing', 'a page far from the start, with the same one' => sub {
	my $far = sub {
		my ($offset, $limit) = @_;
		my $page = "$top LIMIT " . ($limit // 3) . " OFFSET $offset";
		return wantarray ? ($page, limit => $limit // 3) : $page;
	};
	my $move = sub {
		my ($name, $offset) = @_;

		writer->do('SELECT topn_move(?, ?)', undef, $name, $offset);
		session->turn_to($name,
			'SELECT row_to_json(q) FROM (' . $far->($offset) . ') q');
		is(session->difference($name), undef, "$name has moved to $offset");
	};

	items;
	subscribe a => $far->(150), cushion => 4;
	subscribe b => $far->(150), cushion => 4;
	subscribe c => $far->(150), cushion => 4;
	subscribe d => $far->(150, 4), cushion => 4;
	share 3, qw(a b c);
	share 1, 'd';
	cmp_ok(statistic('held_rows', 'a'), '<', 30, 'a slice is held');
	is(statistic('refills', 'a'), 1, 'which was read once');
	run 'UPDATE items SET score = 1495 WHERE id = 1',
	  'UPDATE items SET score = 5000 WHERE id = 2',
	  'DELETE FROM items WHERE id = 300',
	  'UPDATE items SET score = 5000 WHERE id = 148';
	equals_query qw(a b c d);
	session->client($_)->take_batches for qw(a b c);

	# within what is held, on both sides, and beyond
	for my $offset (149, 152, 147, 100, 290, 25)
	{
		$move->('b', $offset);
		saw a => ();
		run 'UPDATE items SET score = score + 1 WHERE id = ' . (151 - $offset % 5);
		session->sync;
		equals_query qw(a b c);
		$move->('b', 150);
		run 'UPDATE items SET score = score + 1 WHERE id = 150';
		share 3, qw(a b c);
		equals_query qw(a b c);
		session->client($_)->take_batches for qw(a b c);
	}

	# two at once, in the same transaction as a change
	writer->begin_work;
	writer->do("SELECT topn_move('$_', 140)") for qw(a b);
	run 'UPDATE items SET score = 4000 WHERE id = 3';
	writer->commit;
	for my $name (qw(a b))
	{
		session->turn_to($name,
			'SELECT row_to_json(q) FROM (' . $far->(140) . ') q');
	}
	share 2, qw(a b);
	share 1, 'c';
	run 'UPDATE items SET score = 4000 WHERE id = 4';
	equals_query qw(a b c);
	$move->('a', 0);
	share 1, qw(a b c);
	equals_query qw(a b c);
};

# A comparison of rows makes each query a template of its own.
for my $filter ('', 'WHERE (score, id) > (20, 0)')
{
	for my $then ('', 'restart', 'move')
	{
		scenario 'sharing', "with a view, $then $filter" => sub {
			my $query = sub {
				return "SELECT id, score FROM $_[0] $filter
					ORDER BY score DESC, id LIMIT 3";
			};

			items;
			run 'CREATE VIEW seen AS SELECT * FROM items';
			session->sync;
			subscribe a => $query->('items'), cushion => 8;
			subscribe b => $query->('seen'), cushion => 0;
			subscribe c => $query->('items'), cushion => 0;
			share 3, qw(a b c);
			session->sync;
			$server->restart_worker if $then eq 'restart';
			if ($then eq 'move')
			{
				run q{SELECT topn_move('b', 100)};
				session->turn_to('b', 'SELECT row_to_json(q) FROM ('
					  . $query->('seen') . ' OFFSET 100) q');
				equals_query 'b';
			}
			run 'CREATE OR REPLACE VIEW seen AS
				SELECT * FROM items WHERE score % 4 <> 0';
			equals_query qw(a b c);
		};
	}
}

for my $places ([ 250, 100 ], [ 100, 250 ])
{
	scenario 'sharing', "pages that move far at once, to @$places" => sub {
		my $last = $places->[0];
		my $moved = sub {
			my ($sql, @names) = @_;
			my $before = statistic('refilled_rows', 'a');

			run $sql;
			session->turn_to($_,
				"SELECT row_to_json(q) FROM ($top LIMIT 3 OFFSET $last) q")
			  for @names;
			equals_query @names;
			cmp_ok(statistic('refilled_rows', 'a') - $before,
				'<', 30, 'what is between is not read');
		};

		items;
		subscribe $_ => "$top LIMIT 3" for qw(a b c);
		share 3, qw(a b c);
		$moved->(
			"SELECT topn_move(n, $last) FROM unnest(ARRAY['a', 'b', 'c']) n",
			qw(a b c));
		share 3, qw(a b c);
		$last = $places->[1];
		$moved->(
			"SELECT topn_move('a', $last), unsubscribe_topn('b'),
				unsubscribe_topn('c')", 'a');
	};
}

scenario 'sharing', 'pages that come from far have all rows before them' => sub {
	items;
	subscribe a => "$top LIMIT 3 OFFSET 60", cushion => 0;
	subscribe b => "$top LIMIT 3 OFFSET 80", cushion => 0;
	my $move = sub {
		my ($name, $offset) = @_;

		writer->do('SELECT topn_move(?, ?)', undef, $name, $offset);
		session->turn_to($name,
			"SELECT row_to_json(q) FROM ($top LIMIT 3 OFFSET $offset) q");
	};

	$move->('a', 0);
	$move->('b', 7);
	share 2, qw(a b);
	equals_query qw(a b);
	run 'UPDATE items SET score = 5000 WHERE id IN (3, 5, 295)';
	equals_query qw(a b);
};

# What is far, and has to be on its own, is another matter after each.
scenario 'sharing', 'slice_offset is set anew' => sub {
	my $set = sub {
		$server->set('live_topn.slice_offset' => shift);
		run 'UPDATE items SET score = 5000 WHERE id = 5',
		  'UPDATE items SET score = 50 WHERE id = 5';
		equals_query qw(a b c d);
	};

	items;
	subscribe a => "$top LIMIT 3", cushion => 2;
	subscribe b => "$top LIMIT 3 OFFSET 10", cushion => 2;
	subscribe c => "$top LIMIT 3 OFFSET 10", cushion => 2;
	subscribe d => "$top LIMIT 3 OFFSET 50", cushion => 2;
	share 3, qw(a b c);
	$set->(5);
	share 1, qw(a d);
	share 2, qw(b c);
	run 'UPDATE items SET score = score + 1 WHERE id > 250';
	equals_query qw(a b c d);
	$set->(100);
	share 4, qw(a b c d);
	$server->set('live_topn.slice_offset' => undef);
	share 3, qw(a b c);
};

scenario 'sharing', 'results that are held back' => sub {
	items;
	subscribe a => "$top LIMIT 3", throttle => '1 hour';
	subscribe b => "$top LIMIT 5", throttle => '1 hour';
	subscribe c => "$top LIMIT 3";
	share 2, qw(a b);
	run 'UPDATE items SET score = 5000 WHERE id = 5';
	saw a => 'leave 298 at 3, enter 5 at 1';
	saw b => 'leave 296 at 5, enter 5 at 1';
	run 'UPDATE items SET score = 6000 WHERE id = 6',
	  'DELETE FROM items WHERE id = 300';
	saw $_ => () for qw(a b);

	# who reads it is told of it, and nobody else
	reads 'a';
	saw a => 'leave 300 at 2, enter 6 at 1';
	saw b => ();
	share 1, qw(a b);
	run 'UPDATE items SET score = 7000 WHERE id = 7';
	saw $_ => () for qw(a b);
	reads 'b';
	saw b => 'leave 297 at 5, leave 300 at 2, enter 7 at 1, enter 6 at 2';
	saw a => ();

	# nor is anything lost when the worker ends
	run 'UPDATE items SET score = 8000 WHERE id = 8';
	$server->restart_worker;
	reads qw(a b);
};

scenario 'sharing', 'a throttle lets all through at the same time' => sub {
	my $interval = 0.3;
	my $start = time();
	my @late = ('c' .. 'f');
	my @names = qw(a b);
	my $update = sub {
		run 'UPDATE items SET score = ' . (5000 + int(rand(1000)))
		  . ' WHERE id = ' . (1 + int(rand(20)));
		session->drain;
	};

	items;
	subscribe a => "$top LIMIT 3", throttle => '300 ms';
	subscribe b => "$top LIMIT 5", throttle => '300 ms';

	# there is always something that is held back
	while (@late)
	{
		my $name = shift @late;

		push @names, $name;
		session->listen($name, "$top LIMIT 4");
		session->dbh->do("SELECT subscribe_topn('$top LIMIT 4', '$name',
			throttle => '300 ms')");
		ok( eval {
				poll_until(
					sub { $update->(); statistic('shared', $name) == @names },
					"$name to share");
			},
			"$name shares, while all changes") or diag($@);
		session->begin($name);
	}
	my $took = time() - $start;
	for my $name (@names)
	{
		cmp_ok(scalar session->client($name)->batches,
			'<=', 2 + $took / $interval, "$name has not too many batches");
	}
	reads @names;
};

# The best n of each of four groups.
sub best
{
	my ($n) = @_;
	return "SELECT id, score, n FROM (SELECT *, row_number()
		OVER (PARTITION BY grp ORDER BY score DESC) AS n FROM items) x
		WHERE n <= $n ORDER BY grp, n";
}

for my $identity (qw(DEFAULT FULL))
{
	for my $memory ($identity eq 'FULL' ? qw(256MB 0) : '256MB')
	{
		scenario 'groups', "identity $identity, memory $memory" => sub {
			server->set('live_topn.group_memory' => $memory);
			items $identity;
			run 'UPDATE items SET grp = id % 4';
			subscribe a => best(2), limit => 2;
			subscribe b => best(2), limit => 2, ranks => 'absolute';
			subscribe c => best(2), limit => 2, cushion => 5;
			subscribe other => best(3), limit => 3;
			share 3, qw(a b c);
			share 1, 'other';
			is(statistic('refills', 'a'), 1, 'the table was read once')
			  if $memory ne '0';
			is_deeply([ map { statistic('result_rows', $_) } qw(a b c other) ],
				[ 8, 8, 8, 12 ], 'results of all groups');
			session->client($_)->take_batches for qw(a b c other);

			run 'UPDATE items SET grp = 1, score = 5000 WHERE id = 3',
			  'DELETE FROM items WHERE id IN (300, 299)',
			  'INSERT INTO items VALUES (500, 500, 7)';
			session->sync;
			is(batches($_), 3, "$_ saw each commit") for qw(a b c);
			equals_query qw(a b c other);

			# rows run out in groups that some are subscribing to
			$stops->hold(LiveTopn::RefillStops::BEFORE_QUERY);
			run 'DELETE FROM items WHERE id > 250';
			session->listen('d', best(2), limit => 2);
			session->dbh->do('SELECT subscribe_topn(?, ?)', undef, best(2), 'd');
			run 'UPDATE items SET grp = 7 WHERE id = 249',
			  'UPDATE items SET score = 6000 WHERE id = 4';
			$stops->release_all;
			session->begin('d');
			share 4, qw(a b c d);
			equals_query qw(a b c d other);

			# a reset is of one, and so is who leaves
			writer->do(q{SELECT topn_resync('b')});
			session->sync;
			session->unsubscribe('a');
			run 'UPDATE items SET score = 7000 WHERE id = 9', 'TRUNCATE items',
			  'INSERT INTO items SELECT g, g, g % 3 FROM generate_series(1, 50) g';
			share 3, qw(b c d);
			equals_query qw(b c d other);

			$server->restart_worker;
			run 'UPDATE items SET score = 8000 WHERE id = 9',
			  'DELETE FROM items WHERE grp = 2';
			equals_query qw(b c d other);
			run 'UPDATE items SET score = 9000 WHERE id = 9';
			share 3, qw(b c d);
			equals_query qw(b c d other);
		};

		scenario 'groups', "identity $identity, memory $memory: a throttle" => sub {
			server->set('live_topn.group_memory' => $memory);
			items $identity;
			run 'UPDATE items SET grp = id % 4';
			subscribe $_ => best(2), limit => 2, throttle => '1 hour'
			  for qw(a b c);
			share 3, qw(a b c);
			run 'UPDATE items SET score = 5000 WHERE id = 5';
			session->sync;
			is(batches($_), 1, "$_ is told at once") for qw(a b c);

			# rows go from one group to another, which shows when it is read
			run 'UPDATE items SET grp = 3 WHERE id IN (300, 298)',
			  'INSERT INTO items VALUES (400, 4000, 9)',
			  'DELETE FROM items WHERE grp = 2 AND score > 500',
			  'UPDATE items SET grp = 0 WHERE id = 298';
			saw $_ => () for qw(a b c);
			reads 'b';
			share 1, 'b';
			share 2, qw(a c);
			saw $_ => () for qw(a c);
			run 'UPDATE items SET grp = 9 WHERE id = 298';
			reads qw(a b c);
		};
	}
}
server->set('live_topn.group_memory' => '256MB');

scenario 'sharing', 'expressions that can fail' => sub {
	my $computed = 'SELECT id, 1000 / score AS share, upper(name) AS name FROM items
		WHERE score > 0 ORDER BY name COLLATE "en-x-icu" DESC, score DESC, id';

	items;
	run q{ALTER TABLE items ADD name text DEFAULT 'x'};
	subscribe a => "$computed LIMIT 3";
	subscribe b => "$computed LIMIT 30", limit => 30;
	subscribe c => "$computed LIMIT 3", throttle => '20 ms';
	subscribe d => "$computed LIMIT 3", throttle => '20 ms';
	share 2, qw(a b c d);
	run map { "UPDATE items SET score = 5000 + $_ WHERE id = $_" } 1 .. 5;
	reads qw(a b c d);
	run 'DELETE FROM items WHERE id > 150';
	subscribe e => "$computed LIMIT 5", limit => 5;
	run q{UPDATE items SET name = 'y' WHERE id = 7};
	share 3, qw(a b e);
	reads qw(a b c d e);

	writer->begin_work;
	run 'UPDATE items SET score = 9000 WHERE id = 9';
	writer->do("SELECT topn_move('b', 60, 3)");
	writer->commit;
	session->turn_to('b', "SELECT row_to_json(q) FROM ($computed LIMIT 3 OFFSET 60) q");
	run 'UPDATE items SET score = 9100 WHERE id = 10';
	reads qw(a b e);
	share 2, qw(a e);
	share 1, 'b';

	session->client($_)->take_batches for qw(a e);
	run q{ALTER TABLE items ADD CHECK (score IS NOT NULL)};
	run 'CREATE FUNCTION fails(int) RETURNS int IMMUTABLE LANGUAGE sql AS $$ SELECT 1 / ($1 - 77) $$';
	subscribe f => 'SELECT id, fails(score) AS f FROM items ORDER BY id LIMIT 3';
	subscribe g => 'SELECT id, fails(score) AS f FROM items ORDER BY id LIMIT 2', limit => 2;
	share 2, qw(f g);
	run 'UPDATE items SET score = 77 WHERE id = 1';
	wait_for_state $_, 'error' for qw(f g);
	saw $_ => 'error' for qw(f g);
	run 'UPDATE items SET score = 78 WHERE id = 1';
	wait_for_state $_, 'live' for qw(f g);
	run 'UPDATE items SET score = 79 WHERE id = 1';
	reads qw(a b e f g);
	share 2, qw(f g);
};

scenario 'sharing', 'a reset is of one' => sub {
	items;
	subscribe a => "$top LIMIT 3";
	subscribe b => "$top LIMIT 3";
	share 2, qw(a b);
	writer->do(q{SELECT topn_resync('b')});
	saw a => ();
	saw b => 'reset';
};

scenario 'sharing', 'what is not shared' => sub {
	items;
	run "CREATE ROLE sharer", "GRANT SELECT ON items TO sharer";
	subscribe a => "$top LIMIT 3";
	subscribe throttled => "$top LIMIT 3", throttle => '1 ms';
	subscribe otherwise => "$top LIMIT 3", throttle => '2 ms';
	subscribe far => "$top LIMIT 3 OFFSET 50";
	subscribe farther => "$top LIMIT 3 OFFSET 51";
	subscribe all => $top;
	subscribe other => "SELECT id, score FROM items WHERE grp = 1 ORDER BY score DESC, id LIMIT 3";
	writer->do('SET ROLE sharer');
	writer->do("SELECT subscribe_topn('$top LIMIT 3', 'owned')");
	writer->do('RESET ROLE');
	session->sync;
	share 1, qw(a throttled otherwise far farther all other owned);
	writer->do("SELECT unsubscribe_topn('owned')");
	run 'DROP OWNED BY sharer', 'DROP ROLE sharer';
};

scenario 'sharing', 'equal after analysis, from other texts and arguments' => sub {
	items;
	run 'CREATE VIEW seen AS SELECT * FROM items WHERE grp = 1';
	my $of_one = 'SELECT id, score FROM items WHERE grp = 1 ORDER BY score DESC, id LIMIT 3';

	subscribe a => $of_one;
	subscribe b => 'SELECT id, score FROM items WHERE grp = $1
		ORDER BY score DESC, id LIMIT $2', args => [ 1, 3 ], limit => 3, truth => "SELECT row_to_json(q) FROM ($of_one) q";
	subscribe c => 'SELECT id, score FROM seen ORDER BY score DESC, id LIMIT 3';
	share 3, qw(a b c);

	# what only one of them names
	run 'CREATE OR REPLACE VIEW seen AS SELECT * FROM items WHERE grp = 2';
	share 2, qw(a b);
	share 1, 'c';
	equals_query qw(a c);
	saw a => ();
	saw c => 'reset';
	run 'UPDATE items SET grp = 2 WHERE id = 300';
	saw $_ => 'leave 300 at 1, enter 297 at 3' for qw(a b);
	equals_query qw(a c);

	run 'CREATE OR REPLACE VIEW seen AS SELECT * FROM items WHERE grp = 1';
	share 3, qw(a b c);
	equals_query qw(a c);

	# an error of its text is its own
	run 'ALTER VIEW seen RENAME TO unseen';
	wait_for_state 'c', 'error';
	wait_for_state 'a', 'live';
	share 2, qw(a b);
	saw a => ();
	run 'UPDATE items SET score = 7000 WHERE id = 7';
	equals_query 'a';
	run 'ALTER VIEW unseen RENAME TO seen';
	wait_for_state 'c', 'live';
	run 'UPDATE items SET score = 8000 WHERE id = 8';
	share 3, qw(a b c);
	equals_query qw(a c);
};

scenario 'sharing', 'an error of the query is of all' => sub {
	items;
	subscribe $_ => "$top LIMIT 3" for qw(a b);
	share 2, qw(a b);
	run 'ALTER TABLE items RENAME score TO points';
	wait_for_state $_, 'error' for qw(a b);
	saw $_ => 'error' for qw(a b);
	run 'ALTER TABLE items RENAME points TO score';
	wait_for_state $_, 'live' for qw(a b);
	saw $_ => 'reset' for qw(a b);
	run 'UPDATE items SET score = 8000 WHERE id = 8';
	equals_query qw(a b);
	share 2, qw(a b);
};

scenario 'sharing', 'an error is told once, whoever has it looked at again' => sub {
	my $wide = 'SELECT id, score, body FROM items ORDER BY score DESC, id LIMIT 100';

	items;
	run q{ALTER TABLE items ADD body text DEFAULT repeat('x', 1000)};
	run "CREATE VIEW seen AS $wide" =~ s/ ORDER.*//r;
	subscribe a => $wide;
	subscribe b => $wide =~ s/items/seen/r;
	share 2, qw(a b);
	server->set('live_topn.result_memory' => '64kB');
	wait_for_state $_, 'error' for qw(a b);

	# each text is analysed again, and what it selects read
	share 1, qw(a b);
	session->sync;
	saw $_ => 'error' for qw(a b);
	server->set('live_topn.result_memory' => '1GB');
	wait_for_state $_, 'live' for qw(a b);
	saw $_ => 'reset' for qw(a b);
	run 'UPDATE items SET score = 8000 WHERE id = 8';
	share 2, qw(a b);
	equals_query qw(a b);
};

scenario 'sharing', 'counters never go back' => sub {
	my @counters = qw(changes refills refilled_rows refill_ms work_ms);
	my %before;
	my $count = sub {
		my ($name, $when) = @_;
		my @now = stats_of($name, @counters);
		my @less = grep { $now[$_] < ($before{$name} // \@now)->[$_] } 0 .. $#now;

		is_deeply([ @counters[@less] ], [], "of $name, $when");
		$before{$name} = \@now;
	};

	items;
	subscribe a => "$top LIMIT 3";
	run map { "UPDATE items SET score = 5000 + $_ WHERE id = $_" } 1 .. 5;
	$count->('a', 'alone');
	subscribe b => "$top LIMIT 30", limit => 30;
	$count->('b', 'that is new');
	run map { "UPDATE items SET score = 6000 + $_ WHERE id = $_" } 1 .. 5;
	share 2, qw(a b);
	$count->($_, 'once they share') for qw(a b);
	writer->do("SELECT topn_move('b', 150, 3)");
	session->turn_to('b', "SELECT row_to_json(q) FROM ($top LIMIT 3 OFFSET 150) q");
	share 1, qw(a b);
	$count->($_, 'once they part') for qw(a b);
	writer->do("SELECT topn_move('b', 0)");
	session->turn_to('b', "SELECT row_to_json(q) FROM ($top LIMIT 3) q");
	run map { "UPDATE items SET score = 7000 + $_ WHERE id = $_" } 1 .. 5;
	share 2, qw(a b);
	$count->($_, 'once they share again') for qw(a b);
	is(statistic('changes', 'a'), 15, 'what both have seen counts once');
};

scenario 'sharing', 'a restart' => sub {
	items;
	subscribe a => "$top LIMIT 3";
	subscribe b => "$top LIMIT 5", ranks => 'absolute';
	subscribe c => "$top LIMIT 2 OFFSET 3", limit => 2;
	share 3, qw(a b c);
	run 'UPDATE items SET score = 8000 WHERE id = 8';
	$server->restart_worker;
	run 'UPDATE items SET score = 9000 WHERE id = 9',
	  'DELETE FROM items WHERE id = 300';
	equals_query qw(a b c);
	share 3, qw(a b c);
	is(statistic('resets', $_), 0, "$_ has no reset") for qw(a b c);
	is(statistic('last_seq', 'a'), 3, 'numbers go on');
	is(statistic('refills', 'a') <= 1, 1, 'rows were not read again');
};

# Each has all rows at first; who takes them over must not drop what others
# show that have yet to come.
scenario 'sharing', 'a restart, of pages of all sizes' => sub {
	my %limit = map { ("s$_" => $_ * 7) } 1 .. 9;
	my @names = sort keys %limit;

	items;
	for my $name (@names)
	{
		subscribe $name => "$top LIMIT 63", limit => 63;
		share substr($name, 1), $name;
	}
	writer->begin_work;
	writer->do('SELECT topn_move(?, 0, ?)', undef, $_, $limit{$_}) for @names;
	writer->commit;
	session->turn_to($_,
		"SELECT row_to_json(q) FROM ($top LIMIT $limit{$_}) q") for @names;
	equals_query @names;
	$server->restart_worker;
	share 9, @names;
	equals_query @names;
	is(statistic('refills', 's1'), 0, 'no rows are read');
};

scenario 'sharing', 'short of rows, all wait, and nobody misses a commit' => sub {
	items;
	subscribe a => "$top LIMIT 3", cushion => 0;
	subscribe b => "$top LIMIT 6", cushion => 0;
	share 2, qw(a b);
	$stops->hold(LiveTopn::RefillStops::BEFORE_QUERY);
	run 'DELETE FROM items WHERE id = 299', 'DELETE FROM items WHERE id > 290';
	subscribe_later('c');
	run 'UPDATE items SET score = 7000 WHERE id = 7';
	$stops->release_all;
	session->begin('c');
	equals_query qw(a b c);
	is(statistic('last_seq', $_), 3, "$_ has all three") for qw(a b);
	share 3, qw(a b c);
};

sub subscribe_later
{
	my ($name) = @_;

	session->listen($name, "$top LIMIT 4");
	session->dbh->do("SELECT subscribe_topn('$top LIMIT 4', '$name', cushion => 0)");
	return;
}

done_testing();
