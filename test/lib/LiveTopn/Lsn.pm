
=head1 NAME

LiveTopn::Lsn - WAL positions as text, compared

=cut

package LiveTopn::Lsn;

use strict;
use warnings;

use Exporter qw(import);
our @EXPORT_OK = qw(lsn_cmp);

sub _number
{
	my ($high, $low) = $_[0] =~ m{^([0-9A-F]+)/([0-9A-F]+)$}i
	  or die "not an LSN: $_[0]";
	return (hex($high) << 32) + hex($low);
}

sub lsn_cmp { return _number($_[0]) <=> _number($_[1]); }

1;
