# A page far from the start: under REPLICA IDENTITY FULL rows before it are
# counted, not held.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use Test::More;

use LiveTopn::RefillStops;
use LiveTopn::Scenario;
use LiveTopn::Server qw(poll_until);

my $server = LiveTopn::Server->start('slice',
	conf => "live_topn.slice_offset = 20\n"
	  . "live_topn.debug_refill_stops = on\n");
use_server($server);

my $stops = LiveTopn::RefillStops->new($server);
my $top = 'SELECT id, score FROM items ORDER BY score DESC, id';

# 300 items, the best is 300; the 3 after the first 100 are subscribed to.
sub far_page
{
	my ($identity, %options) = @_;

	run 'CREATE TABLE items (id int PRIMARY KEY, score int)',
	  "ALTER TABLE items REPLICA IDENTITY $identity",
	  'INSERT INTO items SELECT g, g * 10 FROM generate_series(1, 300) g';
	session->subscribe(
		's', "$top LIMIT 3 OFFSET 100",
		cushion => 4,
		limit => 3,
		%options);
	return;
}

sub statistics
{
	session->sync;
	return { map { $_ => writer->selectrow_array(
				"SELECT $_ FROM topn_stats WHERE name = 's'") }
		  qw(rows_before skipped_rows_held held_rows refills refilled_rows
		  resets coalesced) };
}

sub counts
{
	my ($before, $skipped, $what) = @_;
	my $is = statistics();

	is("$is->{rows_before} $is->{skipped_rows_held}",
		"$before $skipped", $what);
	return;
}

scenario 'slice', 'what is held' => sub {
	far_page 'FULL';
	ids_are s => '200 199 198';
	counts 96, 4, 'rows before are counted';
	is(statistics()->{held_rows}, 11, 'cushion, page, cushion');
};

scenario 'slice', 'a key tells no old values' => sub {
	far_page 'DEFAULT';
	counts 0, 100, 'rows before are held';
	run 'INSERT INTO items VALUES (1000, 10000)';
	saw s => 'leave 198 at 3, enter 201 at 1';
};

scenario 'slice', 'nor can equal rows be parted' => sub {
	run 'CREATE TABLE items (id int, score int)',
	  'ALTER TABLE items REPLICA IDENTITY FULL',
	  'INSERT INTO items SELECT g / 2, g / 2 FROM generate_series(1, 300) g';
	session->subscribe('s', "$top LIMIT 3 OFFSET 100", keyless => 1);
	counts 0, 100, 'rows before are held';
	equals_query 's';
};

scenario 'slice', 'rows that come, go and cross it' => sub {
	far_page 'FULL';
	run 'INSERT INTO items VALUES (1000, 10000)';
	saw s => 'leave 198 at 3, enter 201 at 1';
	run 'DELETE FROM items WHERE id = 250';
	saw s => 'leave 201 at 1, enter 198 at 3';
	run 'UPDATE items SET score = 20000 WHERE id = 10';
	saw s => 'leave 198 at 3, enter 201 at 1';
	run 'UPDATE items SET score = 5 WHERE id = 280';
	saw s => 'leave 201 at 1, enter 198 at 3';
	run 'UPDATE items SET score = 20001 WHERE id = 199';
	saw s => 'leave 199 at 2, enter 201 at 1';
	run 'UPDATE items SET score = 15 WHERE id = 201';
	saw s => 'leave 201 at 1, enter 197 at 3';
	run 'UPDATE items SET id = 2000 WHERE id = 290',
	  'UPDATE items SET score = score WHERE id > 250';
	saw 's';
	equals_query 's';
};

scenario 'slice', 'it is refilled on both sides' => sub {
	far_page 'FULL';
	my $before = statistics();
	for my $i (1 .. 40)
	{
		run "INSERT INTO items VALUES ($i + 1000, 10000)";
		equals_query 's' if $i % 8 == 0;
	}
	my $after = statistics();
	cmp_ok($after->{refilled_rows} - $before->{refilled_rows},
		'<=', 60, 'towards the start it reads what it lacks');
	cmp_ok($after->{held_rows}, '<=', 20, 'and drops what it does not need');
	for my $i (1 .. 80)
	{
		run "DELETE FROM items WHERE id = (SELECT max(id) FROM items)";
		equals_query 's' if $i % 16 == 0;
	}
	cmp_ok(statistics()->{refilled_rows} - $after->{refilled_rows},
		'<=', 160, 'and towards the end');
	run 'DELETE FROM items WHERE score > 1500';
	equals_query 's';
	is(statistics()->{coalesced}, 0, 'each commit had its batch');
};

scenario 'slice', 'past the end' => sub {
	far_page 'FULL';
	run 'DELETE FROM items WHERE id > 60';
	ids_are s => '';
	is_deeply([ @{ statistics() }{qw(held_rows resets)} ], [ 4, 0 ],
		'just a cushion is held');
	run 'INSERT INTO items SELECT g, g FROM generate_series(61, 99) g';
	counts 95, 4, 'and the others are counted';
	run 'INSERT INTO items VALUES (100, -5), (101, -6), (102, -7)';
	ids_are s => '101 102';
	run 'INSERT INTO items VALUES (103, 2000)';
	ids_are s => '100 101 102';
	run 'DELETE FROM items WHERE id IN (1, 2, 3, 4, 5)';
	ids_are s => '';
	equals_query 's';

	# a first read there
	session->subscribe('t', "$top LIMIT 3 OFFSET 150", cushion => 4);
	run 'INSERT INTO items SELECT g, g FROM generate_series(200, 300) g';
	equals_query 's', 't';
	run 'DELETE FROM items';
	equals_query 's', 't';
	run 'INSERT INTO items SELECT g, g FROM generate_series(1, 200) g';
	equals_query 's', 't';
};

scenario 'slice', 'TRUNCATE' => sub {
	far_page 'FULL';
	run 'TRUNCATE items';
	ids_are s => '';
	counts 0, 0, 'there is nothing before';
	run 'INSERT INTO items SELECT g, g FROM generate_series(1, 300) g';
	equals_query 's';
	is(statistics()->{resets}, 0, 'no reset');
	cmp_ok(statistics()->{held_rows}, '<=', 20, 'it is a slice again');
};

scenario 'slice', 'a page that moves' => sub {
	my $page = sub {
		my ($offset) = @_;
		run "SELECT topn_move('s', $offset)";
		session->turn_to('s', "SELECT row_to_json(q)::text
			FROM ($top LIMIT 3 OFFSET $offset) q");
		equals_query 's';
	};

	far_page 'FULL';
	my $before = statistics();
	$page->($_) for 102, 98, 100;
	is(statistics()->{refilled_rows},
		$before->{refilled_rows}, 'rows that are held are not read again');
	$page->(110);
	cmp_ok(statistics()->{refilled_rows} - $before->{refilled_rows},
		'<=', 20, 'beside it: only what is missing');
	$page->($_) for 250, 0, 200, 190, 180, 299, 1000, 3, 30, 10;
	my $is = statistics();
	cmp_ok($is->{held_rows}, '<=', 30, 'it remains small');
	is($is->{resets}, 0, 'no reset');
};

scenario 'slice', 'the identity changes' => sub {
	far_page 'FULL';
	run 'ALTER TABLE items REPLICA IDENTITY DEFAULT';
	equals_query 's';
	run 'UPDATE items SET score = 20000 WHERE id = 10';
	equals_query 's';
	counts 0, 100, 'rows before are held now';
	run 'ALTER TABLE items REPLICA IDENTITY FULL',
	  'INSERT INTO items SELECT g, 7 FROM generate_series(301, 400) g';
	equals_query 's';
	is(statistics()->{resets}, 0, 'no reset');
};

scenario 'slice', 'it changes while the rows are read' => sub {
	far_page 'DEFAULT';
	run q{SELECT topn_move('s', 0)};
	session->sync;
	$stops->hold(LiveTopn::RefillStops::BEFORE_LOCK);
	run 'ALTER TABLE items REPLICA IDENTITY FULL',
	  'TRUNCATE items',
	  'INSERT INTO items SELECT g, g FROM generate_series(1, 300) g';
	run q{SELECT topn_move('s', 290)};
	run 'ALTER TABLE items REPLICA IDENTITY DEFAULT',
	  'UPDATE items SET score = 1000 WHERE id = 5',
	  'ALTER TABLE items REPLICA IDENTITY FULL',
	  'DELETE FROM items WHERE id IN (299, 4)';
	$stops->release(LiveTopn::RefillStops::BEFORE_LOCK);
	session->turn_to('s', "SELECT row_to_json(q)::text
		FROM ($top LIMIT 3 OFFSET 290) q");
	equals_query 's';
};

scenario 'slice', 'partitions' => sub {
	run 'CREATE TABLE items (id int PRIMARY KEY, score int)
		PARTITION BY HASH (id)',
	  map { ("CREATE TABLE items_$_ PARTITION OF items
			FOR VALUES WITH (MODULUS 2, REMAINDER $_)",
		  "ALTER TABLE items_$_ REPLICA IDENTITY FULL") } 0, 1;
	run 'INSERT INTO items SELECT g, g * 10 FROM generate_series(1, 300) g';
	session->subscribe('s', "$top LIMIT 3 OFFSET 100", cushion => 4);
	counts 96, 4, 'rows before are counted';
	run 'UPDATE items SET id = id + 1000 WHERE id > 250';
	equals_query 's';
	run 'TRUNCATE items_0';
	equals_query 's';
	run 'ALTER TABLE items_1 REPLICA IDENTITY DEFAULT',
	  'UPDATE items SET score = score + 1 WHERE id % 7 = 0';
	equals_query 's';
	is(statistics()->{rows_before}, 0, 'one without old values is enough');
};

scenario 'slice', 'WITH TIES, and no limit' => sub {
	far_page 'FULL';
	run 'UPDATE items SET score = id / 10';
	session->subscribe(
		't' => "SELECT id, score FROM items ORDER BY score DESC
			OFFSET 100 FETCH FIRST 3 ROWS WITH TIES",
		limit => 1000,
		truth => "SELECT row_to_json(q)::text FROM (SELECT id, score
			FROM (SELECT id, score, rank() OVER w, row_number() OVER w2
				FROM items WINDOW w AS (ORDER BY score DESC),
					w2 AS (ORDER BY score DESC, id)) r
			WHERE row_number > 100
				AND rank <= (SELECT rank FROM (SELECT rank() OVER w,
					row_number() OVER w2 FROM items
					WINDOW w AS (ORDER BY score DESC),
						w2 AS (ORDER BY score DESC, id)) x
					WHERE row_number = 103)
			ORDER BY score DESC, id) q");
	session->subscribe('u' => "$top OFFSET 250");
	run 'DELETE FROM items WHERE id % 50 = 0',
	  'INSERT INTO items SELECT g, 25 FROM generate_series(301, 310) g';
	equals_query qw(s t u);
};

scenario 'slice', 'restarts' => sub {
	far_page 'FULL';
	run 'INSERT INTO items VALUES (1000, 10000)';
	session->sync;
	my $before = statistics();
	$server->restart_worker;
	run 'INSERT INTO items VALUES (1001, 10000)';
	equals_query 's';
	my $after = statistics();
	is($after->{refills}, 0, 'nothing is read');
	is("@$after{qw(rows_before resets)}",
		($before->{rows_before} + 1) . ' 0', 'the count goes on');
	run 'DELETE FROM items WHERE id BETWEEN 150 AND 260';
	equals_query 's';
};

done_testing();
