
=head1 NAME

LiveTopn::Load - processes that use a server, whatever happens to it

=head1 SYNOPSIS

  my $load = LiveTopn::Load->new($server);
  $load->start(sub { my ($dbh, $turn) = @_; $dbh->do(...) });
  $load->run;
  ...
  $load->pause;
  $load->stop;

=head1 DESCRIPTION

Each process calls its code again and again, with a connection.  When the code
dies the connection is given up, and made anew as soon as the server lets it.
While the load is paused no process is amid a turn.

=cut

package LiveTopn::Load;

use strict;
use warnings;

use Fcntl qw(:flock);
use POSIX ();
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $number = 0;

# Begins paused.
sub new
{
	my ($class, $server) = @_;
	# tests share the folder
	my $file = "$PostgreSQL::Test::Utils::tmp_check/load_$$\_" . $number++;
	my $self = bless { server => $server, file => $file, pids => [] }, $class;

	append_to_file($file, '');
	append_to_file("$file.pause", '');
	open $self->{lock}, '<', $file or die "could not open $file: $!";
	flock $self->{lock}, LOCK_EX or die "could not lock $file: $!";
	return $self;
}

# Options: pause, microseconds between two turns; report, a code that is told
# of what the other died of.
sub start
{
	my ($self, $code, %options) = @_;
	my $pid = fork // die "could not fork: $!";

	if ($pid)
	{
		push @{ $self->{pids} }, $pid;
		return;
	}
	$SIG{$_} = 'DEFAULT' for qw(INT TERM);
	eval { $self->_work($code, %options); 1 } or print STDERR "# load: $@";
	POSIX::_exit(0);
}

sub _work
{
	my ($self, $code, %options) = @_;
	my $file = $self->{file};
	my $turn = 0;
	my $dbh;

	close $self->{lock};
	open my $lock, '<', $file or die "could not open $file: $!";
	while (-e $file)
	{
		usleep($options{pause} // 5000);
		next if -e "$file.pause" || !flock $lock, LOCK_SH | LOCK_NB;
		unless (
			eval {
				$dbh //= $self->{server}->connect;
				$code->($dbh, $turn++);
				1;
			})
		{
			$options{report}->($@) if $options{report};
			undef $dbh;
		}
		flock $lock, LOCK_UN;
	}
	return;
}

sub run
{
	my ($self) = @_;

	unlink "$self->{file}.pause";
	flock $self->{lock}, LOCK_UN;
	return;
}

# Returns when all are between two turns.
sub pause
{
	my ($self) = @_;

	append_to_file("$self->{file}.pause", '');
	flock $self->{lock}, LOCK_EX;
	return;
}

sub stop
{
	my ($self) = @_;

	$self->run;
	unlink $self->{file};
	waitpid $_, 0 for splice @{ $self->{pids} };
	return;
}

1;
