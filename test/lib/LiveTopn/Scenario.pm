
=head1 NAME

LiveTopn::Scenario - what happens, then what must be seen

=head1 SYNOPSIS

  use_server(LiveTopn::Server->start('pitfalls'));

  scenario 'B12', 'a row leaves by failing the predicate' => sub {
	  base_table();
	  subscribe s => 'SELECT id FROM items WHERE grp = \'a\' ... LIMIT 3';
	  run q(UPDATE items SET grp = 'b' WHERE id = 20);
	  saw s => 'leave 20 at 1, enter 17 at 3';
	  equals_query 's';
  };

=head1 DESCRIPTION

Each scenario is a subtest with a session of its own; what it subscribed to and
its tables are dropped when it ends.  Another subscription keeps the database
worker running in between.

=cut

package LiveTopn::Scenario;

use strict;
use warnings;

use Test::More;

use LiveTopn::Server qw(sqlstate_of);
use LiveTopn::Session;

use Exporter qw(import);
our @EXPORT = qw(use_server server session writer scenario base_table run
  subscribe subscribe_set equals_query saw deltas_are ids_are stats_of refused
  state_of wait_for_state);

my ($server, $session, $writer);
my @kept = ('idle');    # subscriptions, each to the table of its name

sub use_server
{
	($server) = @_;
	reconnect();
	$writer->do('CREATE TABLE IF NOT EXISTS idle (id int PRIMARY KEY)');
	$writer->do("SELECT subscribe_topn('SELECT id FROM idle ORDER BY id
		LIMIT 1', 'idle', deliver => 'none')");
	return;
}

# Do not clean up the subscription and the table of that name.
sub keep { push @kept, $_[0]; return; }

sub server  { return $server; }
sub session { return $session; }
sub writer  { return $writer; }

# After the server was restarted.
sub reconnect
{
	$writer = $server->connect;
	$session = $server->session;
	for my $dbh ($writer, $session->dbh)
	{
		$dbh->do('SET client_min_messages = warning');
		# see LiveTopn::Server::hanging_commit
		$dbh->do('SET synchronous_commit = local');
	}
	return;
}

sub scenario
{
	my ($id, $symptom, $code) = @_;

	subtest "$id: $symptom" => sub {
		reconnect();
		my $done = eval { $code->(); 1 };

		is($done ? '' : $@, '', 'played to the end');
		clean_up();
	};
	return;
}

sub clean_up
{
	my $dbh = eval { $server->connect } or return;

	$dbh->do('SET client_min_messages = warning');
	$dbh->do('SET synchronous_commit = local');
	for my $name (
		@{
			$dbh->selectcol_arrayref(
				'SELECT name FROM topn_subscriptions WHERE name <> ALL (?)',
				undef, \@kept)
		})
	{
		$dbh->do('SELECT unsubscribe_topn(?)', undef, $name);
	}
	for my $table (
		@{
			$dbh->selectcol_arrayref(
				"SELECT oid::regclass::text FROM pg_class
				 WHERE relnamespace = 'public'::regnamespace
				 AND relkind IN ('r', 'p') AND relname <> ALL (?)
				 AND NOT relispartition", undef, \@kept)
		})
	{
		$dbh->do("DROP TABLE IF EXISTS $table CASCADE");
	}
	return;
}

# ---- what happens ----

# 20 items; the best is 20.
sub base_table
{
	run("CREATE TABLE items (id int PRIMARY KEY, score int,
			grp text NOT NULL DEFAULT 'a', body text)",
		"INSERT INTO items SELECT g, g * 10, 'a', 'r' || g
			FROM generate_series(1, 20) g");
	return;
}

sub run
{
	$writer->do($_) for @_;
	return;
}

# Options as for LiveTopn::Session::subscribe; the cushion is 2 by default.
sub subscribe
{
	my ($name, $query, %options) = @_;
	return $session->subscribe($name, $query, cushion => 2, %options);
}

# Subscribe without an order to some columns of a table whose rows have an id.
sub subscribe_set
{
	my ($name, $query, %options) = @_;

	return subscribe(
		$name => $query,
		unranked => 1,
		truth =>
		  "SELECT row_to_json(q)::text FROM ($query ORDER BY id) q",
		%options);
}

# ---- what must be seen ----

# Client, snapshot, topn_rows and query agree.
sub equals_query
{
	for my $name (@_)
	{
		is( eval {
				$session->difference($name)
				  // $session->rows_difference($name);
			} // ($@ || undef),
			undef,
			"$name equals its query");
	}
	return;
}

# What came since it was last asked: one text per batch, like
# 'leave 20 at 1, enter 17 at 3' (without 'at' if rows have no positions), or
# 'error'; nothing if none are given.
sub saw
{
	my ($name, @expected) = @_;

	$session->sync;
	my @batches = map {
		exists $_->{error} ? 'error' : join ', ',
		  map { _describe($_) } @{ $_->{deltas} }
	} $session->client($name)->take_batches;
	is_deeply(\@batches, \@expected,
		"$name saw " . (@expected ? join('; ', @expected) : 'nothing'));
	return;
}

sub _describe
{
	my ($delta) = @_;

	return 'reset' if $delta->{op} eq 'reset';
	my ($id) = $delta->{key} =~ /^\{"id":(-?\d+)\}$/ or return $delta->{json};
	return "move $id from $delta->{from} to $delta->{to}"
	  if $delta->{op} eq 'move';
	return "$delta->{op} $id"
	  . (exists $delta->{pos} ? " at $delta->{pos}" : '');
}

# The deltas of each batch that came since it was last asked, as they are.
sub deltas_are
{
	my ($name, @expected) = @_;

	$session->sync;
	is_deeply(
		[
			map { $_->{json} =~ /"deltas":(.*)\}$/ }
			  $session->client($name)->take_batches
		],
		\@expected,
		"$name saw these deltas");
	return;
}

# Columns of topn_stats.
sub stats_of
{
	my ($name, @columns) = @_;

	$session->sync;
	return $writer->selectrow_array('SELECT '
		  . join(', ', @columns)
		  . ' FROM topn_stats WHERE name = ?', undef, $name);
}

sub ids_are
{
	my ($name, $ids) = @_;

	$session->sync;
	is(join(' ', map { /^\{"id":(-?\d+)\}$/ } $session->client($name)->keys),
		$ids, "$name is $ids");
	return;
}

sub refused
{
	my ($sqlstate, $sql, $what) = @_;
	my ($state, $message) = sqlstate_of($writer, $sql);

	is($state, $sqlstate, $what) or diag($message // 'no error');
	return $message;
}

# state and error of topn_subscriptions
sub state_of
{
	return $writer->selectrow_array(
		'SELECT state, error FROM topn_subscriptions WHERE name = ?',
		undef, $_[0]);
}

sub wait_for_state
{
	my ($name, $state) = @_;

	ok( eval {
			LiveTopn::Server::poll_until(
				sub { ((state_of($name))[0] // '') eq $state },
				"$name to be $state");
		},
		"$name is in state $state") or diag($@);
	return;
}

1;
