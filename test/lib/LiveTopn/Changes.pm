
=head1 NAME

LiveTopn::Changes - what must hold after every change

=head1 SYNOPSIS

  use_server(LiveTopn::Server->start('ddl'));
  bystander();

  change 'a column is added' => sub {
	  base_table();
	  subscribe s => $top;
	  run 'ALTER TABLE items ADD extra int';
	  saw 's';
	  right 's';
  };

=head1 DESCRIPTION

A scenario (see LiveTopn::Scenario) after which the worker is still the same
process, and a subscription to another table has seen nothing.

=cut

package LiveTopn::Changes;

use strict;
use warnings;

use Test::More;

use LiveTopn::Scenario;
use LiveTopn::Session;

use Exporter qw(import);
our @EXPORT = qw(bystander change right in_error is_reset resume resets);

# Have a subscription that nothing concerns.
sub bystander
{
	my $dbh = server->connect;

	$dbh->do('SET client_min_messages = warning');
	$dbh->do('CREATE TABLE bystander (id int PRIMARY KEY)');
	$dbh->do('INSERT INTO bystander SELECT generate_series(1, 9)');
	$dbh->do(q{SELECT subscribe_topn('SELECT id FROM bystander ORDER BY id
		LIMIT 3', 'bystander', deliver => 'none')});
	LiveTopn::Scenario::keep('bystander');
	$dbh->do('SELECT topn_sync()');
	return;
}

sub bystander_seen
{
	my $dbh = server->connect;

	$dbh->do('SELECT topn_sync()');
	return join ' ', $dbh->selectrow_array(
		q{SELECT s.state, t.last_seq, t.refills FROM topn_subscriptions s
			JOIN topn_stats t USING (name) WHERE s.name = 'bystander'});
}

# One without an identifier; the options are restarts => 1 if the worker ends
# on the way.  CHANGES in the environment, a pattern, selects some.
sub change
{
	my ($what, $code, %options) = @_;

	return if length($ENV{CHANGES} // '') && $what !~ /$ENV{CHANGES}/;
	scenario 'change', $what => sub {
		my $pid = server->worker_pid;
		my $seen = bystander_seen();

		$code->();
		session->sync;
		return if $options{restarts};
		is(server->worker_pid, $pid, 'the worker goes on');
		is(bystander_seen(), $seen, 'another subscription saw nothing');
	};
	return;
}

# Client, query, snapshot and topn_rows agree, and the subscription is live.
# The batches are taken.
sub right
{
	for my $name (@_)
	{
		# the types may be others than before
		delete session->{$_}{$name} for qw(truth row_type);
		equals_query $name;
		is((state_of($name))[0], 'live', "$name is live");
		is( eval {
				LiveTopn::Session::describe_difference(
					'query', [ session->truth($name) ],
					'topn_rows', [ session->topn_rows($name) ]);
			} // ($@ || undef),
			undef,
			"topn_rows of $name");
		session->client($name)->take_batches;
	}
	return;
}

# In state error, for the reason given, which was published.
sub in_error
{
	my ($name, $reason) = @_;

	session->sync;
	my ($state, $error) = state_of($name);
	is($state, 'error', "$name is in error");
	like($error // '', $reason, 'the reason');
	return unless session->client($name);
	my ($batch) = session->client($name)->take_batches;
	like($batch->{error} // '', $reason, 'its client was told');
	return;
}

# It is live again, and its client was told by a reset.
sub is_reset
{
	my ($name) = @_;

	wait_for_state $name => 'live';
	saw $name => 'reset';
	right $name;
	return;
}

# How often it was reset.
sub resets
{
	return scalar writer->selectrow_array(
		'SELECT resets FROM topn_stats WHERE name = ?', undef, $_[0]);
}

# Clients of a server that was restarted begin anew.
sub resume
{
	my (%queries) = @_;

	LiveTopn::Scenario::reconnect();
	for my $name (sort keys %queries)
	{
		session->listen($name, $queries{$name});
		session->begin($name);
	}
	return;
}

1;
