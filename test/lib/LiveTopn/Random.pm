
=head1 NAME

LiveTopn::Random - random choices that depend on a seed and on nothing else

=head1 DESCRIPTION

The 48-bit generator of drand48, one state per object: forked processes and
different Perl versions make the same choices from the same seed.

=cut

package LiveTopn::Random;

use strict;
use warnings;

use constant MODULUS => 2**48;

sub new
{
	my ($class, $seed) = @_;
	my $self = bless { seed => $seed, state => 0 }, $class;

	$self->{state} = (($seed & 0xffffffff) << 16) | 0x330e;
	# neighbouring seeds start alike: let them drift apart
	$self->_next for 1 .. 8;
	return $self;
}

sub seed { return $_[0]{seed}; }

sub _next
{
	my ($self) = @_;
	use integer;

	# integer arithmetic wraps at 2^64, a multiple of the modulus
	$self->{state} = ($self->{state} * 25214903917 + 11) & (MODULUS - 1);
	return $self->{state};
}

# A whole number in [0, $n).
sub below
{
	my ($self, $n) = @_;
	return int($self->_next / MODULUS * $n);
}

# A whole number in [$from, $to].
sub between
{
	my ($self, $from, $to) = @_;
	return $from + $self->below($to - $from + 1);
}

# True in $percent of the calls.
sub chance
{
	my ($self, $percent) = @_;
	return $self->below(100) < $percent;
}

sub pick
{
	my ($self, @choices) = @_;
	return $choices[ $self->below(scalar @choices) ];
}

# One of the keys of a list (value => weight, ...).
sub weighted
{
	my ($self, @pairs) = @_;
	my $total = 0;

	for (my $i = 1; $i < @pairs; $i += 2) { $total += $pairs[$i]; }
	my $point = $self->below($total);
	while (my ($choice, $weight) = splice(@pairs, 0, 2))
	{
		return $choice if $point < $weight;
		$point -= $weight;
	}
	die "weights must be positive";
}

sub shuffle
{
	my ($self, @items) = @_;

	for (my $i = $#items; $i > 0; $i--)
	{
		my $j = $self->below($i + 1);
		@items[ $i, $j ] = @items[ $j, $i ];
	}
	return @items;
}

# $count different items, in random order.
sub sample
{
	my ($self, $count, @items) = @_;
	my @shuffled = $self->shuffle(@items);

	$count = @items if $count > @items;
	return @shuffled[ 0 .. $count - 1 ];
}

1;
