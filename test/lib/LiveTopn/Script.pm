
=head1 NAME

LiveTopn::Script - how short the script between two results can be

=head1 DESCRIPTION

Results are lists of entries { key, row }, both JSON text.  Rows are told apart
by their key; in a table without a key the key is the whole row, and there may
be equal ones.

=cut

package LiveTopn::Script;

use strict;
use warnings;

use Exporter qw(import);
our @EXPORT_OK = qw(pair_up longest_increasing shortest_script
  absolute_script unranked_script);

# Which row after is which row before: a list of [rank before, rank after],
# in the order of the ranks after.  Equal keys are paired in order.
sub pair_up
{
	my ($before, $after) = @_;
	my (%ranks, @pairs);

	push @{ $ranks{ $before->[$_]{key} } }, $_ + 1 for 0 .. $#$before;
	for my $i (0 .. $#$after)
	{
		my $rank = shift @{ $ranks{ $after->[$i]{key} } // [] };
		push @pairs, [ $rank, $i + 1 ] if defined $rank;
	}
	return @pairs;
}

# Length of the longest increasing subsequence.
sub longest_increasing
{
	my @tails;    # smallest last number of a subsequence of each length

	for my $number (@_)
	{
		my ($low, $high) = (0, scalar @tails);
		while ($low < $high)
		{
			my $middle = ($low + $high) >> 1;
			if   ($tails[$middle] < $number) { $low = $middle + 1; }
			else                             { $high = $middle; }
		}
		$tails[$low] = $number;
	}
	return scalar @tails;
}

# The number of deltas of each kind in a shortest script of list edits.
sub shortest_script
{
	my ($before, $after) = @_;
	my @pairs = pair_up($before, $after);

	return {
		leave => @$before - @pairs,
		enter => @$after - @pairs,
		move => @pairs - longest_increasing(map { $_->[0] } @pairs),
	};
}

# The same where rows have no positions.
sub unranked_script
{
	my ($before, $after) = @_;
	my @pairs = pair_up($before, $after);

	return {
		leave => @$before - @pairs,
		enter => @$after - @pairs,
		move => 0
	};
}

# The number of deltas of each kind with absolute ranks.
sub absolute_script
{
	my ($before, $after) = @_;
	my @pairs = pair_up($before, $after);

	return {
		leave => @$before - @pairs,
		enter => @$after - @pairs,
		move => scalar(grep { $_->[0] != $_->[1] } @pairs),
	};
}

1;
