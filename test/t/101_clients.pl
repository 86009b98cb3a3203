# The reference clients: after each batch their list is what the query returns.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use JSON::PP;
use PostgreSQL::Test::Utils;
use Test::More;

use LiveTopn::Random;
use LiveTopn::Server qw(poll_until);

my $server = LiveTopn::Server->start('clients');
my $dbh = $server->connect;
my $random = LiveTopn::Random->new($ENV{ORACLE_SEED} // int(rand(2**31)));
my $json = JSON::PP->new->canonical;
my $clients = "$FindBin::Bin/../../clients";
my ($host, $port) = ($server->node->host, $server->node->port);

# where Debian's node looks for packages, whosever node this is
$ENV{NODE_PATH} = join ':', $ENV{NODE_PATH} // (), '/usr/share/nodejs';

note('seed ' . $random->seed);
$dbh->do($_)
  for 'CREATE TABLE items (id int PRIMARY KEY, team text, name text, score int)',
  'ALTER TABLE items REPLICA IDENTITY FULL';

my %commands = (
	javascript => ['node', "$clients/tests/follow.js", $host, $port, 'postgres'],
	python => [
		'/usr/bin/python3', "$clients/tests/follow.py",
		"host=$host port=$port dbname=postgres"
	],
	'python, without an encoding' => [
		'/usr/bin/python3', "$clients/tests/follow.py",
		"host=$host port=$port dbname=postgres client_encoding=SQL_ASCII"
	]);

my %queries = (
	relative => 'SELECT id, name, score FROM items ORDER BY score DESC, id LIMIT 8',
	absolute => 'SELECT id, name, score FROM items ORDER BY score DESC, id LIMIT 8',
	unordered => 'SELECT id, name, score FROM items WHERE score > 100',
	grouped => q{SELECT id, team, score, rn FROM (SELECT *, row_number()
		OVER (PARTITION BY team ORDER BY score DESC, id) AS rn FROM items) q
		WHERE rn <= 3},
	'grouped, absolute' => q{SELECT id, team, score FROM (SELECT *, row_number()
		OVER (PARTITION BY team ORDER BY score DESC, id) AS rn FROM items) q
		WHERE rn <= 3 ORDER BY team, rn},
	large => q{SELECT id, score, repeat(name, 2000) AS name FROM items
		ORDER BY score DESC, id LIMIT 2});

sub change
{
	my $id = $random->between(1, 30);
	my $score = $random->between(1, 200);

	$dbh->do(
		$random->chance(25)
		? "DELETE FROM items WHERE id = $id"
		: "INSERT INTO items VALUES ($id, 'team ' || $id % 4, E'n\u00e4me $id', $score)
		   ON CONFLICT (id) DO UPDATE SET score = $score");
	return;
}

# What the rows must be; without order, any will do, and where a new group
# belongs among the others a client does not know.
sub rows
{
	my ($name, $rows) = @_;
	my @rows = map { $json->encode($_) } @$rows;

	@rows = sort @rows if $name =~ /^(unordered|grouped)/;
	return join "\n", @rows;
}

sub truth
{
	my ($name) = @_;

	return rows(
		$name,
		[
			map { decode_json($_->[0]) } @{ $dbh->selectall_arrayref(
				"SELECT row_to_json(q) FROM ($queries{$name}) q") }
		]);
}

# Follow the output of a client until its list is the result.
sub agrees
{
	my ($name, $run, $output, $what) = @_;
	my $truth = truth($name);
	my $last;

	eval {
		poll_until(
			sub {
				$run->pump_nb;
				my @lines = split /\n/, $$output;
				return 0 unless @lines && $$output =~ /\n\z/;
				$last = rows($name, decode_json($lines[-1])->[1]);
				return $last eq $truth;
			},
			$what);
	};
	is($last, $truth, $what);
	return;
}

for my $language (sort keys %commands)
{
	for my $name (sort keys %queries)
	{
		my ($output, $errors) = ('', '');

		change() for 1 .. 20;
		$dbh->do('SELECT subscribe_topn(?, ?, ranks => ?)',
			undef, $queries{$name}, $name,
			$name =~ /absolute$/ ? 'absolute' : 'relative');
		my $run = IPC::Run::start([ @{ $commands{$language} }, $name ],
			'>', \$output, '2>', \$errors);
		agrees($name, $run, \$output, "$language, $name: at the start");
		for my $round (1 .. 3)
		{
			change() for 1 .. 40;
			agrees($name, $run, \$output, "$language, $name: round $round");
		}

		# its list at each batch, by the numbers of the batches
		my %seen = map { $_->[0] => 1 } map { decode_json($_) } split /\n/, $output;
		my ($seq) = $dbh->selectrow_array('SELECT seq FROM topn_snapshot(?)',
			undef, $name);
		ok($seen{$seq}, "$language, $name: has the last batch");
		my ($first) = decode_json((split /\n/, $output)[0])->[0];
		is(scalar keys %seen, $seq - $first + 1, "$language, $name: no batch missed");

		if ($name eq 'relative')
		{
			# a lost notification shows at the next batch
			$dbh->do(q{NOTIFY relative,
				'{"sub":"relative","seq":100000,"deltas":[]}'});
			change() for 1 .. 20;
			agrees($name, $run, \$output, "$language: after a gap");
		}
		$run->kill_kill;
		$dbh->do('SELECT unsubscribe_topn(?)', undef, $name);
		is($errors, '', "$language, $name: no errors");
	}
}

done_testing();
