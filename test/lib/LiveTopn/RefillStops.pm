
=head1 NAME

LiveTopn::RefillStops - hold refills at chosen points

=head1 DESCRIPTION

With live_topn.debug_refill_stops on, a refill passes four gates, each a shared
advisory lock that it takes and releases at once.  A gate is closed while this
object holds its lock.

=cut

package LiveTopn::RefillStops;

use strict;
use warnings;

use LiveTopn::Server qw(poll_until);

use constant {
	CLASS => 1819243378,
	BEFORE_LOCK => 0,
	BEFORE_SNAPSHOT => 1,
	BEFORE_QUERY => 2,
	BEFORE_ANSWER => 3
};

sub new
{
	my ($class, $server) = @_;
	return bless { dbh => $server->connect }, $class;
}

# Close a gate.
sub hold
{
	my ($self, $gate) = @_;
	$self->{dbh}->do("SELECT pg_advisory_lock(${\CLASS}, $gate)");
	return;
}

# Do as many refills stand before a closed gate, or any?
sub stands
{
	my ($self, $gate, $n) = @_;

	$n //= 1;
	return $self->{dbh}->selectrow_array(
		"SELECT count(*) >= $n FROM pg_locks
		 WHERE locktype = 'advisory' AND NOT granted
		 AND classid = ${\CLASS} AND objid = $gate");
}

# Return once they do.
sub wait_for    ## no critic (ProhibitBuiltinHomonyms)
{
	my ($self, $gate, $n) = @_;

	poll_until(sub { $self->stands($gate, $n) }, "a refill at gate $gate");
	return;
}

# Open a gate; the refills before it go on.
sub release
{
	my ($self, $gate) = @_;
	$self->{dbh}->do("SELECT pg_advisory_unlock(${\CLASS}, $gate)");
	return;
}

sub release_all
{
	my ($self) = @_;
	$self->{dbh}->do('SELECT pg_advisory_unlock_all()');
	return;
}

1;
