# Batches are a pure function of the committed history.
#
# One history from a seed is played in several fresh databases: with different
# cushions and memory for them, with slow refills, with the worker restarted in between.  Positions
# in WAL, xids and times aside, the batches must be the same byte for byte.
#
# Every old row is known here (REPLICA IDENTITY FULL): under a key identity
# several commits may share a batch, and which ones depends on the time.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use List::Util qw(max);
use Test::More;

use LiveTopn::Generator;
use LiveTopn::Query;
use LiveTopn::Random;
use LiveTopn::Server;
use LiveTopn::Session;

my $seed = $ENV{ORACLE_SEED} // 1 + int(rand(2**31));

use constant HISTORIES => 3;
use constant TRANSACTIONS => 150;

my $server = LiveTopn::Server->start('purity', extension => 0);
my $databases = 0;

note "first history: ORACLE_SEED=$seed";
for my $history ($seed .. $seed + HISTORIES - 1)
{
	my $expected = play($history, cushion => 20);

	subtest "history $history" => sub {
		cmp_ok(scalar @$expected, '>', 0, 'there are batches');
		for my $variant (
			{ cushion => 0 },
			{ cushion => 1 },
			{ cushion => 0, slices => 1 },
			{ cushion => 2, slices => 1, delay => 5 },
			{ cushion => undef },
			{ cushion => 0, delay => 50 },
			{ cushion => 3, delay => 20 },
			{ cushion => undef, delay => 20, memory => '2kB' },
			{ cushion => undef, memory => 0 })
		{
			compare($history, $expected, %$variant);
		}
	};
	subtest "history $history with restarts" => sub {
		compare($history, $expected, cushion => $_, restarts => 3)
		  for 0, 5, undef;
		compare($history, $expected, cushion => 1, restarts => 3, slices => 1);
	};
}
done_testing();

sub compare
{
	my ($history, $expected, %variant) = @_;
	my $what = join ', ',
	  map { "$_ " . ($variant{$_} // 'default') } sort keys %variant;
	my $got = eval { play($history, %variant) };

	is($@, '', "$what: played") or return;
	is(scalar @$got, scalar @$expected, "$what: number of batches");
	for my $i (0 .. $#$expected)
	{
		next if ($got->[$i] // '') eq $expected->[$i];
		is($got->[$i], $expected->[$i], "$what: batch " . ($i + 1));
		return;
	}
	return;
}

# Play a history in a database of its own; returns the normalized batches of all
# its subscriptions.
sub play
{
	my ($history, %variant) = @_;
	my $random = LiveTopn::Random->new($history);
	my $generator = LiveTopn::Generator->new(
		random => $random,
		identity => $random->pick(qw(full keyless)),
		truncate => 0);
	my $database = 'purity' . ++$databases;

	$server->connect->do("CREATE DATABASE $database");
	my $writer = $server->connect($database);
	my $session = $server->session($database);
	$writer->do('CREATE EXTENSION live_topn');
	$writer->do($_)
	  for LiveTopn::Generator->prepare_database, $generator->create_table;
	$server->set(
		'live_topn.debug_refill_delay' => $variant{delay} // 0,
		'live_topn.slice_offset' => $variant{slices} ? 0 : 1000,
		'live_topn.cushion_memory' => $variant{memory});

	my @queries = map { $generator->query } 1 .. 4;
	my @movable =
	  map { "p$_" } grep { !$queries[$_]->grouped } 0 .. $#queries;
	for my $i (0 .. $#queries)
	{
		my $query = $queries[$i];

		$session->subscribe(
			"p$i", $query->text,
			ranks => $i % 2 && !$query->unranked ? 'absolute' : 'relative',
			old => $i < 2 ? 1 : 0,
			cushion => $variant{cushion},
			args => $query->args,
			limit => max($query->limit, LiveTopn::Generator::MAX_LIMIT),
			unranked => $query->unranked,
			keyless => $query->keyless,
			truth => $query->truth);
	}
	for my $n (1 .. TRANSACTIONS)
	{
		my $transaction = $generator->transaction;

		$transaction = $generator->moving($transaction, @movable)
		  if $random->chance(12) && @movable;
		eval { LiveTopn::Generator::run($writer, $transaction) };
		$server->restart_worker($database)
		  if $variant{restarts}
		  && $n % int(TRANSACTIONS / ($variant{restarts} + 1)) == 0;
	}
	$session->sync;

	my @batches;
	for my $i (0 .. $#queries)
	{
		my @page = $writer->selectrow_array(
			'SELECT "offset", "limit" FROM topn_subscriptions WHERE name = ?',
			undef, "p$i");

		$session->turn_to("p$i", $queries[$i]->on_page(@page)->truth);
		my @truth =
		  map { LiveTopn::Query::entry($_) } $session->truth("p$i");
		my $difference = $session->unordered_difference(
			"p$i", 'query',
			[ map { $_->{row} } @truth ],
			'client',
			[
				map { $_->{row} } LiveTopn::Client::order_groups(
					[ $session->client("p$i")->entries ], \@truth)
			]);

		die "$difference\n" if $difference;
		push @batches, map { normalize($_->{json}) }
		  $session->client("p$i")->batches;
	}
	$session->unsubscribe("p$_") for 0 .. $#queries;
	return \@batches;
}

sub normalize
{
	my ($json) = @_;

	$json =~ s{"lsn":"[^"]*","xid":\d+,"at":"[^"]*"}{"lsn":…,"xid":…,"at":…};
	return $json;
}
