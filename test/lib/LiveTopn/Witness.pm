
=head1 NAME

LiveTopn::Witness - compares the batches of a client with the replayed history

=head1 SYNOPSIS

  my $witness = LiveTopn::Witness->new(name => 'feed', client => $client,
	  truth => sub { ... });
  for my $commit ($shadow->commits)
  {
	  $witness->before($commit);
	  $shadow->replay($commit);
	  $witness->after($commit);
  }
  $witness->finish;

=head1 DESCRIPTION

Each batch must show the result at its commit, and each commit that changed
the result must be in a batch: of its own, or one that begins with it or before.

=cut

package LiveTopn::Witness;

use strict;
use warnings;

use LiveTopn::Lsn qw(lsn_cmp);

# Arguments: name; client, with all its batches; unranked, if its rows have no
# positions; truth, a code that returns the result as it is in the copy, as
# entries.
sub new
{
	my ($class, %args) = @_;
	my $self = bless {
		%args,
		left => [ $args{client}->batches ],
		open => undef,    # [text, lsn] of the first commit without a batch
		batches => 0,
		resets => 0
	}, $class;

	$self->{shown} = $self->{true} =
	  $self->_text($args{client}->start_entries);
	return $self;
}

sub batches { return $_[0]{batches}; }
sub resets  { return $_[0]{resets}; }

# A reset may be at any position, and the last of the commits of a batch may be
# one of the catalog only; they show what the last commit of the table made.
sub before
{
	my ($self, $commit) = @_;

	while (my $batch = $self->{left}[0])
	{
		last
		  if ($commit && lsn_cmp($batch->{lsn}, $commit->{lsn}) >= 0)
		  || !(_is_reset($batch) || defined $batch->{from});
		$self->_take;
	}
	return;
}

sub after
{
	my ($self, $commit) = @_;
	my $left = $self->{left};

	$self->{true} = $self->_text($self->{truth}->());
	die "$self->{name}: a batch where no commit is: $left->[0]{json}\n"
	  if @$left && lsn_cmp($left->[0]{lsn}, $commit->{lsn}) < 0;
	$self->_take while @$left && $left->[0]{lsn} eq $commit->{lsn};
	if ($self->{shown} eq $self->{true}) { $self->{open} = undef; }
	else
	{
		$self->{open} //=
		  [ "commit of $commit->{xid} at $commit->{lsn}", $commit->{lsn} ];
	}
	return;
}

sub finish
{
	my ($self) = @_;

	$self->before;
	die "$self->{name}: a batch where no commit is: $self->{left}[0]{json}\n"
	  if @{ $self->{left} };
	die "$self->{name}: $self->{open}[0] without a batch\n" if $self->{open};
	return;
}

# The next batch shows the truth.
sub _take
{
	my ($self) = @_;
	my $batch = shift @{ $self->{left} };

	$self->{shown} = $self->_text(@{ $batch->{after} });
	$self->{ _is_reset($batch) ? 'resets' : 'batches' }++;
	die "$self->{name}: batch $batch->{json} shows\n$self->{shown}\n"
	  . "query:\n$self->{true}\n"
	  if $self->{shown} ne $self->{true};
	die "$self->{name}: $self->{open}[0] without a batch, before"
	  . " $batch->{json}\n"
	  if $self->{open}
	  && !_is_reset($batch)
	  && lsn_cmp($batch->{from} // $batch->{lsn}, $self->{open}[1]) > 0;
	$self->{open} = undef;
	return;
}

sub _is_reset
{
	my ($batch) = @_;
	return $batch->{deltas}[0] && $batch->{deltas}[0]{op} eq 'reset';
}

sub _text
{
	my ($self, @entries) = @_;

	# only a snapshot tells how groups stand among each other
	@entries = sort { $a->{group} cmp $b->{group} } @entries
	  if @entries && defined $entries[0]{group};
	my @lines = map { "$_->{key} $_->{row}" } @entries;

	@lines = sort @lines if $self->{unranked};
	return join "\n", @lines;
}

1;
