# How many rows a window holds beyond its result: fixed, or as many as pay.
#
# All is counted in commits, so that nothing depends on how fast the machine is;
# except for what a refill costs, and only by its order of magnitude.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use List::Util qw(max min sum);
use Test::More;

use LiveTopn::Scenario;
use LiveTopn::Server qw(poll_until);

use constant LIMIT => 10;

my $server = LiveTopn::Server->start('cushion', conf => "autovacuum = off\n");
my $followed = 0;
use_server($server);

# 20,000 items in five groups, all far above where new ones go.
sub items
{
	run 'CREATE TABLE items (id int PRIMARY KEY, grp int, score int, body text)',
	  q(INSERT INTO items SELECT g, g % 5, 100000 + g, repeat('x', 200)
		FROM generate_series(1, 20000) g),
	  'CREATE INDEX ON items (grp, score, id)', 'ANALYZE items';
	return;
}

# No two queries are equal, so that each has a cushion of its own.
sub follow
{
	my ($name, %options) = @_;

	return session->subscribe(
		$name,
		'SELECT id, score, body FROM items WHERE grp = '
		  . ($options{grp} // 0)
		  . ' AND id <> -'
		  . ++$followed
		  . ' ORDER BY score, id LIMIT '
		  . LIMIT,
		cushion => $options{cushion});
}

sub stats
{
	my ($name) = @_;

	return writer->selectrow_hashref(
		'SELECT * FROM topn_stats WHERE name = ?', undef, $name);
}

# Everything is applied, and no refill is under way any more.
sub settle
{
	poll_until(
		sub {
			session->sync;
			writer->selectrow_array('SELECT sum(refills) = 0 FROM topn_worker');
		},
		'refills to end');
	return;
}

# One commit each; which, depends on the number of the commit.
sub commits
{
	my ($n, $sql_of, $step) = @_;

	writer->do('SET synchronous_commit = off');
	for my $i (1 .. $n)
	{
		run $sql_of->($i);
		settle() if $step && $i % $step == 0;
	}
	writer->do('RESET synchronous_commit');
	settle();
	return;
}

sub first_of
{
	my ($grp) = @_;
	return "id = (SELECT id FROM items WHERE grp = $grp
		ORDER BY score, id LIMIT 1)";
}

# The first rows leave, one by one.
sub drain
{
	my ($n, @groups) = @_;

	commits(
		$n,
		sub { 'DELETE FROM items WHERE ' . first_of($groups[ $_[0] % @groups ]) },
		1);
	return;
}

# Many commits far beyond the boundary, in the server.
sub far_away
{
	my ($n) = @_;

	run "DO \$\$BEGIN
		FOR i IN 1..$n LOOP
			UPDATE items SET score = score + 1 WHERE id = 20000 - i % 500;
			COMMIT;
		END LOOP;
	END\$\$";
	settle();
	return;
}

scenario 'fixed', 'a cushion of n is one refill for n + 1 departures' => sub {
	items();
	follow("c$_", cushion => $_) for 0, 1, 5, 20;
	settle();
	is(stats("c$_")->{held_rows}, LIMIT + $_, "$_: held rows at first")
	  for 0, 1, 5, 20;
	drain(210, 0);
	for my $n (0, 1, 5, 20)
	{
		my $stats = stats("c$n");

		is($stats->{cushion}, $n, "$n: it stays what it is");

		# one refill is the first load, which brings fewer
		my $departures = 210 - $n + int(($n + 1) / 2) - 1;
		is($stats->{refills}, 1 + int($departures / ($n + 1)) + 1,
			"$n: refills");
		cmp_ok($stats->{refilled_rows},
			'<=', LIMIT + 210 + 2 * $n, "$n: each row is read once");
		cmp_ok($stats->{held_rows}, '<=', LIMIT + 2 * $n, "$n: held rows");
	}
	equals_query map { "c$_" } 0, 1, 5, 20;
};

scenario 'adaptive', 'it grows where rows leave, and shrinks when they stay' =>
  sub {
	items();
	follow('a');
	follow('quiet', grp => 1);
	settle();
	my $least = stats('a')->{cushion};

	cmp_ok($least, '<', LIMIT, 'it begins small');
	drain(150, 0);
	my $first = stats('a');
	cmp_ok($first->{cushion}, '>', 2 * $least, 'it grows with departures');
	drain(150, 0);
	my $second = stats('a');
	cmp_ok($second->{cushion}, '>', 2 * $least, 'and stays large');
	cmp_ok($second->{refills} - $first->{refills},
		'<', $first->{refills}, 'so that refills become fewer');
	is(stats('quiet')->{cushion}, $least,
		'that of another window stays what it was');

	my $refills = sub { join ' ', map { stats($_)->{refills} } qw(a quiet) };
	my $before = $refills->();
	far_away(20_000);
	my $after = stats('a');
	is($after->{cushion}, $least, 'it shrinks to what it was');
	cmp_ok($after->{held_rows}, '<=', LIMIT + 4 * $least, 'and gives back rows');
	is($refills->(), $before, 'commits far away cost no refill');
	equals_query 'a', 'quiet';
  };

scenario 'adaptive', 'what arrives needs no cushion' => sub {
	items();
	follow('a');
	settle();
	my $least = stats('a')->{cushion};

	commits(600,
		sub { "INSERT INTO items VALUES (100000 + $_[0], 0, 90000 - $_[0], '')" });
	is(stats('a')->{refills}, 1, 'only the first load');
	is(stats('a')->{cushion}, $least, 'it stays small');
	cmp_ok(stats('a')->{held_rows}, '<=', LIMIT + 4 * $least, 'held rows');
	equals_query 'a';
};

scenario 'adaptive', 'rows that come and go' => sub {
	items();
	follow('a');
	follow('fixed', cushion => 2);
	settle();

	# no drift: a row leaves, another comes
	commits(
		800,
		sub {
			my $i = $_[0];
			return $i % 13 < 6
			  ? 'DELETE FROM items WHERE ' . first_of(0)
			  : "INSERT INTO items VALUES (100000 + $i, 0, 50000 + $i * 37 % 101, '')"
			  if $i % 13 < 12;
			return "DELETE FROM items WHERE id IN (SELECT id FROM items
				WHERE grp = 0 ORDER BY score, id LIMIT 1 OFFSET 3)";
		},
		4);
	cmp_ok(stats('a')->{cushion}, '>', 2, 'it grows');
	cmp_ok(stats('a')->{refills}, '<', stats('fixed')->{refills},
		'there are fewer refills than with a cushion of two');
	equals_query 'a', 'fixed';
};

scenario 'memory', 'shared out fairly when it is short' => sub {
	my @names = map { "m$_" } 0 .. 4;
	my $sum = sub {
		my ($what) = @_;
		return sum(map { stats($_)->{$what} } @names);
	};
	my $beyond = sub { return $sum->('held_rows') - @names * LIMIT; };

	items();
	follow("m$_", grp => $_) for 0 .. 3;
	settle();
	follow('m4', grp => 4);
	settle();
	drain(800, 0 .. 3);
	my $row_bytes = $sum->('bytes') / $sum->('held_rows');
	my $free = $beyond->();

	# half of it
	my $limit = int($free * $row_bytes / 2 / 1024);
	$server->set('live_topn.cushion_memory' => $limit . 'kB');
	session->sync;
	poll_until(sub { $beyond->() * $row_bytes <= $limit * 1024 },
		'rows to be given back');
	my @cushions = map { stats($_)->{cushion} } @names[ 0 .. 3 ];
	cmp_ok(min(@cushions), '>', 0, 'nobody goes without');
	cmp_ok(max(@cushions), '<=', 2 * min(@cushions) + 2,
		"windows with the same load get about the same (@cushions)");

	drain(200, 0 .. 3);
	cmp_ok($beyond->() * $row_bytes,
		'<=', $limit * 1024, 'the limit holds while rows leave');
	equals_query @names;

	$server->set('live_topn.cushion_memory' => 0);
	session->sync;
	poll_until(sub { $beyond->() == 0 }, 'all cushions to be given back');
	drain(40, 0 .. 3);
	is($beyond->(), 0, 'no cushion without memory');
	equals_query @names;

	$server->set('live_topn.cushion_memory' => undef);
	drain(400, 0 .. 3);
	cmp_ok($beyond->(), '>', 0, 'they grow again when it is there');
	equals_query @names;
};

scenario 'cushion', 'an empty page, and no memory for a cushion' => sub {
	my $top = 'SELECT id, score FROM items ORDER BY score DESC, id';

	$server->set('live_topn.cushion_memory' => 0);
	items();
	subscribe empty => "$top LIMIT 0", limit => 3, cushion => undef;
	subscribe far => "$top LIMIT 0 OFFSET 5000", limit => 3, cushion => undef;
	run 'UPDATE items SET score = score + 1 WHERE id = 1';
	equals_query qw(empty far);

	writer->do("SELECT topn_move('empty', \"limit\" => 3)");
	session->turn_to('empty', "SELECT row_to_json(q) FROM ($top LIMIT 3) q");
	is(session->difference('empty'), undef, 'a page with rows follows');
	$server->set('live_topn.cushion_memory' => undef);
};

done_testing();
