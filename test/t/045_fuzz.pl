# Queries and arguments that nobody has thought of.
#
# Random queries from a grammar, of which many are wrong on purpose: each is
# accepted, and then shows its own result, also after changes; or it is refused
# with an SQLSTATE that says why.  If it would run outside of a subscription,
# the reason can only be that it is not supported.  The same worker goes on
# all the time.
#
# Then random arguments for all functions.
#
# ORACLE_SEED picks the first query (each is one more), FUZZ the number of
# queries, and of calls.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use Test::More;

use LiveTopn::FuzzGrammar;
use LiveTopn::Json qw(json_array json_object);
use LiveTopn::Random;
use LiveTopn::Server qw(poll_until);

my $seed = $ENV{ORACLE_SEED} // 1 + int(rand(2**31));
my $number = $ENV{FUZZ} // 300;
my $server = LiveTopn::Server->start('fuzz',
	conf => "statement_timeout = 60s\nmax_connections = 30\n");
my $dbh = $server->connect;
my %count = map { $_ => 0 } qw(accepted refused failed);
my %states;

$dbh->do('SET client_min_messages = error');
$dbh->do($_) for LiveTopn::FuzzGrammar->schema;
$dbh->do("SELECT subscribe_topn('SELECT id FROM keyed LIMIT 1', name)
	FROM (VALUES ('idle'), ('kept')) v (name)");
$dbh->do('SELECT topn_sync()');
my $worker = $server->worker_pid;

note "ORACLE_SEED=$seed";
for my $i (1 .. $number)
{
	my $grammar = LiveTopn::FuzzGrammar->new(
		random => LiveTopn::Random->new($seed + $i));
	my $query = $grammar->query;
	my $failure = try_query($grammar, $query);

	next unless defined $failure;
	fail("query of seed " . ($seed + $i));
	diag "$query->{text}\n$failure";
	last unless alive();
}
pass(join ', ', map { "$count{$_} $_" } sort keys %count);
note 'refused: ' . join ', ',
  map { "$states{$_} $_" } sort { $states{$b} <=> $states{$a} } keys %states;
cmp_ok($count{accepted}, '>', $number / 20, 'some were accepted');
cmp_ok($count{refused}, '>', $number / 20, 'some were refused');

$dbh->do("SET client_min_messages = error");
for my $i (1 .. $number)
{
	my $random = LiveTopn::Random->new($seed + $i);
	my $failure = try_call($random);

	next unless defined $failure;
	fail("call of seed " . ($seed + $i));
	diag $failure;
	last unless alive();
}
pass('calls');
done_testing();

# An SQLSTATE that says what is wrong with what was given.
sub is_clear
{
	my ($state) = @_;
	return $state =~ /^(0A|22|42|21|23|2B|54|55000$|55006$|57014$|P0)/;
}

# Returns undef, or what went wrong.
sub try_query
{
	my ($grammar, $query) = @_;
	my $plain = plain_error($query);

	unless (
		eval {
			$dbh->do('SELECT subscribe_topn(?, ?, args => ?)',
				undef, $query->{text}, 'fuzz', $query->{args});
			1;
		})
	{
		my ($state, $error) = ($dbh->state, $@);

		$count{refused}++;
		$states{$state}++;
		return "XX or worse: $state $error" unless is_clear($state);
		return "it would run, but: $state $error"
		  if !defined $plain && $state !~ /^0A000|^54000|^42P18|^42P02/;
		return;
	}

	$count{accepted}++;
	my $failure = check_result($query);
	for (1 .. 3)
	{
		last if defined $failure;
		eval { $dbh->do($grammar->change) };
		$failure = check_result($query);
	}
	$dbh->do('SELECT unsubscribe_topn(?)', undef, 'fuzz');
	$failure //= 'the worker has ended' if !alive();
	return $failure;
}

# The SQLSTATE of the query outside of a subscription, undef if it runs.
sub plain_error
{
	my ($query, $text) = @_;
	return (plain($query, $text))[1];
}

# (rows, undef) or (undef, SQLSTATE)
sub plain
{
	my ($query, $text) = @_;
	my ($rows, $state);

	$text //= $query->{text};
	$dbh->begin_work;
	$rows = eval {
		my $sth = $dbh->prepare(
			"SELECT row_to_json(q)::text FROM ($text\n) q",
			{ pg_placeholder_dollaronly => 1 });
		$sth->execute(@{ $query->{args} // [] });
		[ map { $_->[0] } @{ $sth->fetchall_arrayref } ];
	};
	$state = $dbh->state || 'client' unless $rows;
	$dbh->rollback;
	return ($rows, $state);
}

# The snapshot has what the query returns; exactly, if that is determined.
sub check_result
{
	my ($query) = @_;
	my $rows = eval {
		($dbh->selectrow_array('SELECT rows FROM topn_snapshot(?)',
			undef, 'fuzz'))[0];
	};
	unless (defined $rows)
	{
		my ($state, $error) = ($dbh->state, $@);

		$count{failed}++;
		return "$state $error" unless is_clear($state) && $state ne '57014';

		# rows that the limit hides are evaluated, too
		return if defined plain_error($query, $query->{unlimited});

		# the last change has ended the error, which is found out by itself
		return "it runs, but: $state $error" unless comes_back();
		return check_result($query);
	}
	my @got = map { row_of($_) } @{ json_array($rows) };
	my ($plain) = plain($query) or return;

	return unless $plain;
	return @got . ' rows, not ' . @$plain . "\n" . join "\n", @got
	  if @got != @$plain;
	if ($query->{total})
	{
		return join "\n", 'shows', @got, 'but the query', @$plain
		  if "@got" ne "@$plain";
		return;
	}
	return unless defined $query->{unlimited};
	my ($unlimited) = plain($query, $query->{unlimited});
	my %all;

	return unless $unlimited;
	$all{$_}++ for @$unlimited;
	for my $row (@got)
	{
		return "shows $row, but the query\n" . join "\n", @$plain
		  unless $all{$row} && $all{$row}-- > 0;
	}
	return;
}

sub comes_back
{
	return eval {
		poll_until(
			sub {
				eval { $dbh->do(q{SELECT topn_snapshot('fuzz')}); 1 };
			},
			'the subscription to come back');
		1;
	};
}

sub row_of
{
	my %entry = map { $_->[0] => $_->[1] } @{ json_object($_[0]) };
	return $entry{row};
}

sub alive
{
	my $pid = eval { $server->worker_pid };
	return defined $pid && $pid == $worker;
}

# ---- calls ----

sub try_call
{
	my ($random) = @_;
	my $grammar = LiveTopn::FuzzGrammar->new(random => $random);
	my $call = $grammar->call;
	my $done = eval {
		my $sth = $dbh->prepare($call->{text});
		$sth->execute(@{ $call->{args} });
		1;
	};

	return describe_call($call) . $dbh->state . " $@"
	  if !$done && !is_clear($dbh->state);

	# what it may have made, and what has not ended by itself meanwhile
	until (
		eval {
			$dbh->do("SELECT unsubscribe_topn(name) FROM topn_subscriptions
				WHERE name NOT IN ('idle', 'kept')");
			1;
		})
	{
		die $@ if $@ !~ /does not exist/;
	}
	return describe_call($call) . 'the worker has ended' unless alive();
	return;
}

sub describe_call
{
	my ($call) = @_;
	return "$call->{text}\n("
	  . join(', ', map { defined $_ ? substr $_, 0, 100 : 'NULL' }
		  @{ $call->{args} })
	  . ")\n";
}
