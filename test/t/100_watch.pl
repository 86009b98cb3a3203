# topn_watch, the terminal client: what it shows is what the query returns.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use JSON::PP qw(decode_json);
use PostgreSQL::Test::Utils;
use Test::More;

use LiveTopn::Random;
use LiveTopn::Server qw(poll_until);

my $server = LiveTopn::Server->start('watch');
my $dbh = $server->connect;
my $random = LiveTopn::Random->new($ENV{ORACLE_SEED} // int(rand(2**31)));
my $folder = PostgreSQL::Test::Utils::tempdir();
my @tmux = ('tmux', '-S', "$folder/tmux", '-f', '/dev/null');
my $options = '-h ' . $server->node->host . ' -p ' . $server->node->port
  . ' -d postgres';

note('seed ' . $random->seed);
$dbh->do($_)
  for 'CREATE TABLE items (id int PRIMARY KEY, name text, score int)',
  q{INSERT INTO items SELECT g, 'item ' || g, g * 10
	FROM generate_series(1, 40) g};

my $top = 'SELECT id, name, score FROM items ORDER BY score DESC, id LIMIT 10';

# ---- what a terminal shows ----

sub start_watch
{
	my ($arguments) = @_;

	system(@tmux, 'new-session', '-d', '-s', 'watch', '-x', 100, '-y', 24,
		"topn_watch $options $arguments 2>$folder/stderr") == 0
	  or die "could not start tmux\n";
	return;
}

sub screen
{
	my @lines = split /\n/, `@tmux capture-pane -t watch -p 2>&1`;
	return @lines;
}

# The rows on the screen as "id name score".
sub shown
{
	my @rows;

	for my $line (screen())
	{
		push @rows, "$1 $2 $3"
		  if $line =~ /^\s*\d+\s[ +^v]\s+(\d+)\s+(item \S+)\s+(-?\d+)\s*$/;
	}
	return join "\n", @rows;
}

sub expected
{
	my ($query) = @_;
	return join "\n", map { join ' ', @$_ }
	  @{ $dbh->selectall_arrayref($query // $top) };
}

sub shows_query
{
	my ($what, $query) = @_;

	eval { poll_until(sub { shown() eq expected($query) }, $what) };
	is(shown(), expected($query), $what);
	return;
}

sub status { return (screen())[-1] // ''; }

sub names
{
	return join ' ', map { $_->[0] } @{ $dbh->selectall_arrayref(
			'SELECT name FROM topn_subscriptions ORDER BY name') };
}

sub change_randomly
{
	my ($n) = @_;

	for (1 .. $n)
	{
		my $id = $random->between(1, 60);
		my $score = $random->between(1, 500);

		$dbh->do(
			$random->chance(20)
			? "DELETE FROM items WHERE id = $id"
			: "INSERT INTO items VALUES ($id, 'item $id', $score)
			   ON CONFLICT (id) DO UPDATE SET score = $score,
			   name = 'item $id'");
	}
	return;
}

sub quit
{
	system(@tmux, 'send-keys', '-t', 'watch', 'q');
	poll_until(sub { system("@tmux has-session -t watch 2>/dev/null") != 0 },
		'topn_watch to end');
	return;
}

start_watch("'$top'");
shows_query('the result at the start');
$dbh->do('UPDATE items SET score = 999 WHERE id = 3');
shows_query('a row has entered');
$dbh->do('UPDATE items SET score = 1 WHERE id = 3');
shows_query('a row has left');
change_randomly(200);
shows_query('after random changes');
like(status(), qr/topn_\d+ +10 rows +\d+ batches/, 'the status line');

my ($first) = status() =~ /(topn_\d+)/;
$server->node->restart;
$dbh = $server->connect;
poll_until(sub { status() =~ /reconnected 1 times/ }, 'a new connection');
change_randomly(50);
shows_query('after a restart of the server');
poll_until(sub { names() !~ /\b$first\b/ },
	'the subscription of the first session to go');
pass('the subscription of the first session has gone');
quit();
poll_until(sub { names() eq '' }, 'the subscription to go');
pass('nothing is left');

# Joined: what it does not own stays.  Absolute ranks are applied otherwise.
for my $ranks ('relative', 'absolute')
{
	$dbh->do("SELECT subscribe_topn('$top', 'feed', ranks => '$ranks')");
	start_watch('--follow=feed');
	shows_query("$ranks: the result of a subscription that is there");
	change_randomly(200);
	shows_query("$ranks: after random changes");
	quit();
	is(names(), 'feed', "$ranks: it stays");
	$dbh->do(q{SELECT unsubscribe_topn('feed')});
}

# Groups: where they stand among each other is not known, in them it is.
my $grouped = 'SELECT id, name, score, rn FROM (SELECT *, id % 3 AS team,
	row_number() OVER (PARTITION BY id % 3 ORDER BY score DESC, id) AS rn
	FROM items) q WHERE rn <= 4';
start_watch("'$grouped'");
change_randomly(100);
my $truth = sub {
	return join "\n", sort map { join ' ', @$_ } @{
		$dbh->selectall_arrayref("SELECT rn, id % 3, id, name, score, rn FROM ($grouped) q")
	};
};
my $seen = sub {
	return join "\n", sort map {
		/^ *(\d+) [ +^v] +(\d+) +(\d+) +(item \S+) +(\d+) +(\d+)$/
		  ? "$1 $2 $3 $4 $5 $6" : ()
	} screen();
};
eval { poll_until(sub { $seen->() eq $truth->() }, 'groups') };
is($seen->(), $truth->(), 'groups after random changes');
quit();

start_watch("--stream '$top'");
shows_query('from a slot: the result at the start');
change_randomly(200);
shows_query('from a slot: after random changes');
$dbh->do(q{SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots
	WHERE temporary});
poll_until(sub { status() =~ /reconnected 1 times/ }, 'a new connection');
change_randomly(50);
shows_query('from a slot: after the connection was lost');
quit();
poll_until(
	sub {
		!$dbh->selectrow_array(
			'SELECT count(*) FROM pg_replication_slots WHERE temporary');
	},
	'the slot to go');
pass('the slot has gone');

# Widths, control characters, large batches that come in parts.
$dbh->do(q{UPDATE items SET name = E'item ein\u00e9\t' || repeat('x', 9000)});
my $wide = q{SELECT id, left(name, 8) AS name, score, name AS whole FROM items
	ORDER BY score DESC, id LIMIT 3};
$dbh->do('SELECT subscribe_topn(?, ?)', undef, $wide, 'wide');
start_watch('--follow wide');
poll_until(sub { (screen())[2] =~ /item ein/ }, 'a row');
$dbh->do(q{UPDATE items SET score = 1000 + id, name = name || '!'});
poll_until(sub { (screen())[2] =~ /\b10\d\d\b/ }, 'a change in parts');
like((screen())[2], qr/item ein +10\d\d +item ein\S+\.x{25,35}$/, 'cut where it is too wide');
quit();
$dbh->do(q{SELECT unsubscribe_topn('wide')});

# ---- JSON ----

my ($output, $stderr) = ('', '');
my $watch = IPC::Run::start([ 'topn_watch', split(/ /, $options), '--json', $top ],
	'>', \$output, '2>', \$stderr);
poll_until(sub { $watch->pump_nb; $output =~ /\n/ }, 'the first line');
$dbh->do('UPDATE items SET score = 5000 WHERE id = (SELECT min(id) FROM items)');
poll_until(sub { $watch->pump_nb; $output =~ /\n.*\n/ }, 'the second line');
$server->node->stop;
poll_until(sub { $watch->pump_nb; $stderr =~ /trying again.*\n/ }, 'a message');
$server->node->start;
$dbh = $server->connect;
poll_until(sub { $watch->pump_nb; $output =~ /\n.*\n.*\n/ }, 'the third line');
$watch->signal('INT');
$watch->finish;
my @batches = map { decode_json($_) } split /\n/, $output;
is($batches[0]{deltas}[0]{op}, 'reset', 'JSON begins with a reset');
is($batches[1]{seq}, $batches[0]{seq} + 1, 'then come the batches');
is($batches[2]{deltas}[0]{op}, 'reset', 'and a reset after a lost connection');
like($stderr,
	qr/lost, trying again: server closed the connection unexpectedly$/m,
	'of which it says why it was lost');
is($watch->result(0), 0, 'interrupted, it ends well');
poll_until(sub { names() eq '' }, 'the subscription to go');

# ---- what is wrong is said ----

sub fails_with
{
	my ($arguments, $status, $message) = @_;
	my ($stdout, $stderr) = ('', '');

	IPC::Run::run([ 'topn_watch', split(/ /, $options), @$arguments ],
		'>', \$stdout, '2>', \$stderr);
	is($? >> 8, $status, "@$arguments: exit status");
	like($stderr, $message, "@$arguments: message");
	return;
}

fails_with([], 2, qr/give one query, or a subscription with --follow/);
fails_with([ '--follow=x', 'SELECT' ], 2, qr/give one query/);
fails_with(['SELECT 1'], 2, qr/standard output is no terminal.*--json/s);
fails_with([ '--json', 'SELECT 1' ], 1, qr/a subscribed query must/);
fails_with([ '--json', '--follow=nobody' ], 1, qr/"nobody" does not exist/);
fails_with([ '--json', '--dbname=template1', 'SELECT 1' ],
	1, qr/"template1" lacks the extension: CREATE EXTENSION live_topn$/);
fails_with([ '--json', '-p', '1', $top ], 1, qr/failed/);
program_help_ok('topn_watch');
program_version_ok('topn_watch');
program_options_handling_ok('topn_watch');

done_testing();
