
=head1 NAME

LiveTopn::Consumer - consumer.py, which goes on from its file after each death

=head1 SYNOPSIS

  my $consumer = LiveTopn::Consumer->new($server, 'slot', 'feed', 'other');
  $consumer->follow;
  my @lines = $consumer->all;

=cut

package LiveTopn::Consumer;

use strict;
use warnings;

use FindBin;
use POSIX qw(WNOHANG);
use PostgreSQL::Test::Utils;

use LiveTopn::Server qw(poll_until);

my $number = 0;

sub new
{
	my ($class, $server, $slot, @names) = @_;
	return bless {
		server => $server,
		slot => $slot,
		names => join(',', @names),
		file => "$PostgreSQL::Test::Utils::tmp_check/consumer_$$\_" . $number++,
		pid => undef
	}, $class;
}

# Take lines as they come; it ends when the server does.
sub follow
{
	my ($self) = @_;

	return if $self->{pid} && waitpid($self->{pid}, WNOHANG) == 0;
	$self->_start(10**9);
	return;
}

# All lines that were committed, from the first one on.
sub all
{
	my ($self) = @_;

	$self->stop;
	poll_until(
		sub {
			$self->_start('all');
			waitpid delete $self->{pid}, 0;
			return $? == 0;
		},
		'a consumer to have all');
	return -e $self->{file} ? split /\n/, slurp_file($self->{file}) : ();
}

sub stop
{
	my ($self) = @_;
	my $pid = delete $self->{pid} or return;

	kill 'TERM', $pid;
	waitpid $pid, 0;
	return;
}

sub _start
{
	my ($self, $count) = @_;

	$self->{pid} = fork // die "could not fork: $!";
	return if $self->{pid};
	open STDERR, '>>', "$PostgreSQL::Test::Utils::log_path/consumer.log";
	exec '/usr/bin/python3', "$FindBin::Bin/../consumer.py",
	  $self->{server}->node->connstr('postgres'),
	  @$self{qw(slot names file)}, $count
	  or POSIX::_exit(1);
}

1;
