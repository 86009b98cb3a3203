# Hundreds of subscriptions to one table, of a few kinds that differ in
# constants.  After every commit each client's list must equal its query: a
# change is told to all that it concerns, and the server, which looks whether
# that is so (live_topn.debug_check_routing), finds nobody left out.
#
# ORACLE_SEED picks the first round (printed; each round is one more),
# ORACLE_SECONDS the time at most.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

use LiveTopn::Random;
use LiveTopn::Server;
use LiveTopn::Session;

my $seed = $ENV{ORACLE_SEED} // 1 + int(rand(2**31));
my $deadline = time() + ($ENV{ORACLE_SECONDS} // 20);

use constant {
	SUBSCRIPTIONS => 150,
	COMMITS => 25,
	TENANTS => 12,
};

my @identities = (
	'PRIMARY KEY (id)',
	'PRIMARY KEY (id), full',
	'PRIMARY KEY (tenant, id)',
	'partitioned, PRIMARY KEY (tenant, id)',
	'none, full');

# Each gives the text of a query.
my @kinds = (
	sub { "tenant = $_[0]{t} ORDER BY score DESC NULLS LAST, id" },
	sub { "tenant = $_[0]{t}::bigint ORDER BY score, id DESC" },
	sub { "tenant = $_[0]{t} AND price >= $_[0]{p} ORDER BY price, id" },
	sub { "tenant IN ($_[0]{t}, $_[0]{u}, NULL) ORDER BY price DESC, id" },
	sub { "tenant = $_[0]{t} OR tenant = $_[0]{u} ORDER BY id" },
	sub { "(tenant = $_[0]{t} AND score > 3) OR tenant = $_[0]{u} ORDER BY id" },
	sub { "kind = '$_[0]{k}' ORDER BY score NULLS FIRST, id" },
	sub { "kind = ANY ('{$_[0]{k},e,NULL}') AND tenant > 2 ORDER BY id" },
	sub { "kind = '$_[0]{k}'::bpchar AND $_[0]{t} = tenant ORDER BY id" },
	sub { "price BETWEEN $_[0]{p} AND $_[0]{q} ORDER BY score DESC, id" },
	sub { "price > $_[0]{p} AND price < $_[0]{q} ORDER BY price, id" },
	sub { "$_[0]{p} <= price ORDER BY price DESC, id" },
	sub { "large = repeat('$_[0]{k}', 3000) ORDER BY price, id" },
	sub { "large < repeat('$_[0]{k}', 3000) AND score < 6 ORDER BY id" },
	sub { "score IS NULL ORDER BY price, id" },
	sub { "upper(kind) = upper('$_[0]{k}') ORDER BY id" },
	sub { "true ORDER BY large, id" },
	sub { "false ORDER BY id" },
	sub { "tenant = NULL::int ORDER BY id" },
	sub { "true ORDER BY score DESC, id" });

my $server =
  LiveTopn::Server->start('many', conf => "live_topn.debug_check_routing = on");
my $writer = $server->connect;
my $session = $server->session;
my ($random, $identity, $last_name, %followed);
my $commits = 0;
my $rounds = 0;

note "first round: ORACLE_SEED=$seed";
for (my $round = $seed; $rounds == 0 || time() < $deadline; $round++)
{
	$random = LiveTopn::Random->new($round);
	$identity = $identities[ $round % @identities ];
	my $played = eval { play(); 1 };

	$rounds++;
	next if $played;
	fail("round $round, identity $identity");
	diag "to repeat: ORACLE_SEED=$round ORACLE_SECONDS=0\n$@";
	last;
}
cmp_ok($commits, '>=', COMMITS, "$commits commits in $rounds rounds");
my $log = slurp_file($server->node->logfile);
unlike($log, qr/was not told of a change/, 'nobody was left out');
done_testing();

sub play
{
	create_table();
	subscribe_all(SUBSCRIPTIONS);
	compare_all();
	for (1 .. COMMITS)
	{
		transact();
		compare_all();
		come_and_go() if $random->chance(25);
		disturb()     if $random->chance(15);
	}
	$session->unsubscribe($_) for sort keys %followed;
	%followed = ();
	$writer->do('DROP TABLE item');
	return;
}

sub create_table
{
	my ($key) = $identity =~ /(PRIMARY KEY \([^)]*\))/;
	my $partitioned = $identity =~ /partitioned/;

	$writer->do('CREATE TABLE item (id int NOT NULL, tenant int NOT NULL,'
		  . ' kind varchar(10), price bigint, score int, large text'
		  . (defined $key ? ", $key" : '') . ')'
		  . ($partitioned ? ' PARTITION BY LIST (tenant)' : ''));
	if ($partitioned)
	{
		$writer->do("CREATE TABLE item_$_ PARTITION OF item FOR VALUES IN ("
			  . join(', ', map { $_ * 4 - 3 .. $_ * 4 } $_) . ')')
		  for 1 .. TENANTS / 4;
	}
	$writer->do('ALTER TABLE item ALTER large SET STORAGE EXTERNAL');
	$writer->do('ALTER TABLE item REPLICA IDENTITY FULL')
	  if $identity =~ /full/;
	$writer->do('INSERT INTO item SELECT i, ' . row_values('i')
		  . ' FROM generate_series(1, 150) i');
	return;
}

# All columns but the id, from a number.
sub row_values
{
	my ($i) = @_;
	my $salt = $random->between(1, 1000);
	my $number = sub { "abs(hashint4($i + $salt + $_[0])) % $_[1]" };

	return join ', ',
	  '1 + ' . $number->(1, TENANTS),
	  "nullif(chr(97 + " . $number->(2, 6) . "), 'f')",
	  'nullif(' . $number->(3, 40) . ', 7)',
	  'nullif(' . $number->(4, 10) . ', 0)',
	  'repeat(chr(97 + ' . $number->(5, 6) . '), '
	  . ($random->chance(2) ? 3000 : 3) . ')';
}

sub subscribe_all
{
	my ($n) = @_;
	my $dbh = $session->dbh;
	my @names;

	$dbh->begin_work;
	for (1 .. $n)
	{
		my ($name, $query) = plan();

		$session->listen($name, $query,
			keyless => scalar($identity =~ /none/));
		$dbh->do('SELECT subscribe_topn(?, ?, cushion => ?)',
			undef, $query, $name, $random->pick(0, 1, 3, undef));
		push @names, $name;
	}
	$dbh->commit;
	$session->begin($_) for @names;
	$followed{$_} = 1 for @names;
	return;
}

sub plan
{
	my ($low, $high) =
	  sort { $a <=> $b } map { $random->between(-1, 41) } 1 .. 2;
	my $condition = $random->pick(@kinds)->(
		{
			t => $random->between(0, TENANTS),
			u => $random->between(1, TENANTS),
			k => $random->pick(qw(a b c d e f)),
			p => $low,
			q => $high
		});

	return ('m' . ++$last_name,
		'SELECT id, tenant, kind, price, score, large'
		  . " FROM item WHERE $condition LIMIT "
		  . $random->between(1, 8));
}

sub come_and_go
{
	my ($gone) = $random->pick(sort keys %followed);

	$session->unsubscribe($gone);
	delete $followed{$gone};
	subscribe_all($random->between(1, 3));
	compare_all();
	return;
}

# What makes the server look at everything again, or start anew.
sub disturb
{
	my $what = $random->below(5);

	if    ($what == 0) { $server->restart_worker; }
	elsif ($what == 1) { $writer->do('VACUUM item'); }
	elsif ($what == 2) { $writer->do('ANALYZE item'); }
	elsif ($what == 3)
	{
		$writer->do('ALTER TABLE item ADD more int');
		transact();
		compare_all();
		$writer->do('ALTER TABLE item DROP more');
	}
	elsif ($identity !~ /none|partitioned/)
	{
		my $to = $random->pick(qw(FULL DEFAULT));
		$writer->do("ALTER TABLE item REPLICA IDENTITY $to");
	}
	transact();
	compare_all();
	return;
}

sub transact
{
	$writer->begin_work;
	change() for 1 .. $random->between(1, 4);
	if ($random->chance(10)) { $writer->rollback; }
	else                     { $writer->commit; }
	$commits++;
	return;
}

sub change
{
	my $some = 'id % ' . $random->between(1, 60) . ' = 0';
	my $one = 'id = ' . $random->between(1, 160);
	my $which = $random->chance(3) ? $some : $one;
	my $id = $random->between(200, 100_000_000);
	my $salt = $random->between(1, 1000);

	my $number = "abs(hashint4(id + $salt))";
	my %weight = (
		"UPDATE item SET score = $number % 10 WHERE $which" => 8,
		"UPDATE item SET price = $number % 40 WHERE $which" => 6,
		"UPDATE item SET tenant = 1 + $number % @{[TENANTS]} WHERE $which" => 4,
		"UPDATE item SET kind = nullif(chr(97 + $number % 6), 'f')"
		  . " WHERE $which" => 3,
		"UPDATE item SET large = repeat('b', 3000) WHERE $one" => 2,
		"UPDATE item SET id = $id WHERE $one" => 2,
		"INSERT INTO item VALUES ($id, " . row_values($id) . ')' => 4,
		"DELETE FROM item WHERE $which" => 2,
		"INSERT INTO item SELECT $id + i, " . row_values('i')
		  . ' FROM generate_series(1, 40) i' => 1,
		'TRUNCATE item' => $random->chance(5) ? 3 : 0);
	my $statement =
	  $random->weighted(map { $_ => $weight{$_} } sort keys %weight);

	$writer->do($statement);
	return;
}

sub compare_all
{
	$session->sync;
	for my $name (sort keys %followed)
	{
		my $difference = LiveTopn::Session::describe_difference(
			'query', [ $session->truth($name) ],
			'client', [ $session->client($name)->rows ]);

		die "$name: $session->{text}{$name}\n$difference" if $difference;
	}
	return;
}
