
=head1 NAME

LiveTopn::Stream - pg_recvlogical, running

=head1 SYNOPSIS

  my $stream = LiveTopn::Stream->start($server, 'slot',
	  subscriptions => 'feed', snapshot => 'on');
  $client->receive_batch($_) for $stream->lines;
  $stream->stop;

=cut

package LiveTopn::Stream;

use strict;
use warnings;

use IPC::Run ();
use PostgreSQL::Test::Utils;

use LiveTopn::Server qw(poll_until);

my $number = 0;

# Make a slot; returns its name.
sub create_slot
{
	my ($server, $slot, $database) = @_;

	$server->connect($database)->do(
		q{SELECT pg_create_logical_replication_slot(?, 'live_topn')},
		undef, $slot);
	return $slot;
}

# Options are those of the output plugin; user, database, startpos and
# arguments (a list of others) of pg_recvlogical.
sub start
{
	my ($class, $server, $slot, %options) = @_;
	my $connstr =
	  $server->node->connstr(delete $options{database} // 'postgres');
	my $user = delete $options{user};
	my $startpos = delete $options{startpos};
	my @arguments = @{ delete $options{arguments} // [] };
	my $self = bless {
		# tests share the folder
		file => "$PostgreSQL::Test::Utils::tmp_check/stream_$$\_" . $number++,
		read => 0,
		rest => '',
		error => ''
	}, $class;

	push @arguments, '-o', "$_=$options{$_}" for sort keys %options;
	push @arguments, '-U', $user if defined $user;
	push @arguments, '-I', $startpos if defined $startpos;
	$self->{run} = IPC::Run::start(
		[
			'pg_recvlogical', '--start', '--no-loop', '-S', $slot,
			'-d', $connstr, '-f', $self->{file}, '-s', 1, '-F', 1,
			@arguments
		],
		'<', \undef, '>', '/dev/null', '2>', \$self->{error});
	return $self;
}

# The lines that came since the last call.
sub lines
{
	my ($self) = @_;

	return unless -e $self->{file};
	my $new = slurp_file($self->{file}, $self->{read});
	my @lines = split /^/, $self->{rest} . $new;

	$self->{read} += length $new;
	$self->{rest} = @lines && $lines[-1] !~ /\n\z/ ? pop @lines : '';
	chomp @lines;
	return @lines;
}

# Wait for lines until the condition, which is given all of them, is true.
sub wait_for
{
	my ($self, $condition, $what) = @_;
	my @lines;

	poll_until(
		sub {
			push @lines, $self->lines;
			die "pg_recvlogical ended: $self->{error}\n"
			  unless $self->running || $condition->(@lines);
			$condition->(@lines);
		},
		$what);
	return @lines;
}

sub running
{
	my ($self) = @_;

	$self->{run}->pump_nb if $self->{run}->pumpable;
	return $self->{run}->pumpable;
}

# End it; returns what it said on standard error.
sub stop
{
	my ($self, $signal) = @_;

	$self->{run}->signal($signal // 'INT') if $self->running;
	$self->{run}->finish;
	return $self->{error};
}

# Wait for it to end by itself.
sub finish
{
	my ($self) = @_;

	$self->{run}->finish;
	return $self->{error};
}

1;
