
=head1 NAME

LiveTopn::GroupQuery - a query for the first rows of each group

=head1 DESCRIPTION

In the form of a subquery that numbers rows (rank is row_number, rank or
dense_rank), or of DISTINCT ON (rank is undef).

=cut

package LiveTopn::GroupQuery;

use strict;
use warnings;

use parent -norequire, 'LiveTopn::Query';

use LiveTopn::Query;

# Arguments: those of LiveTopn::Query, but select is a list of [expression,
# name], or of [undef, name] for *; and keys, a list of [expression, name in
# deltas, direction in ORDER BY]; rank; bound, a condition on n; conditions on
# keys outside of the subquery; outer, the names of the columns selected outside,
# or undef for *; sorted, if there is an ORDER BY outside; named, if the window
# has a name; limit, or undef if it is not known.
sub new
{
	my ($class, %args) = @_;
	return bless {%args}, $class;
}

sub unranked { return 0; }
sub grouped { return 1; }
sub on_page { return $_[0]; }
sub limit   { return $_[0]{limit} // 1_000_000; }

# Can a commit that changes one row make others move or look otherwise?
sub ties { return !defined $_[0]{limit} || $_[0]->_shows_rank; }

sub _shows_rank
{
	my ($self) = @_;

	return 0 unless $self->{rank};
	return !$self->{outer} || grep { $_ eq 'n' } @{ $self->{outer} };
}

sub text
{
	my ($self) = @_;
	my $table = $self->{table};

	return $self->_distinct_on($table, '', '') unless $self->{rank};

	my $window = $self->_partition . $self->_order('');
	my $text =
	    'SELECT '
	  . ($self->{outer} ? $self->_names(@{ $self->{outer} }) : '*')
	  . ' FROM (SELECT '
	  . $self->_columns
	  . ", $self->{rank}() OVER "
	  . ($self->{named} ? 'w' : "($window)")
	  . ' AS n'
	  . $self->_from($table)
	  . ($self->{named} ? " WINDOW w AS ($window)" : '')
	  . ') x WHERE '
	  . join ' AND ', $self->{bound}, @{ $self->{conditions} };
	my @order = (map({ $_->[3] . $_->[2] } @{ $self->{keys} }), 'n');

	return $text . ($self->{sorted} ? ' ORDER BY ' . join ', ', @order : '');
}

sub truth
{
	my ($self, $table) = @_;
	my $text;
	my $tie =
	  $self->{key}
	  ? join ', ', map { "$self->{alias}.$_" } @{ $self->{key} }
	  : "$self->{alias} USING *<";
	my $more = ', ' . $self->_group_json . ' AS __group, '
	  . "$self->{key_json} AS __key";

	$table //= $self->{table};
	if ($self->{rank})
	{
		my @keys = @{ $self->{keys} };
		my $order =
		  join ', ', map({ "__p$_" . ($self->{sorted} ? $keys[$_][2] : '') }
			0 .. $#keys), '__n';
		my @names =
		  $self->{outer}
		  ? @{ $self->{outer} }
		  : (map({ $_->[1] } @{ $self->{select} }), 'n');

		$text =
		    'SELECT '
		  . $self->_names(@names)
		  . ', __group, __key FROM (SELECT '
		  . $self->_columns
		  . $more
		  . join('', map { ", $keys[$_][0] AS __p$_" } 0 .. $#keys)
		  . ", $self->{rank}() OVER ("
		  . $self->_partition
		  . $self->_order($self->{rank} eq 'row_number' ? $tie : '')
		  . ') AS n, row_number() OVER ('
		  . $self->_partition
		  . $self->_order($tie)
		  . ') AS __n'
		  . $self->_from($table)
		  . ') x WHERE '
		  . join(' AND ', $self->{bound}, @{ $self->{conditions} })
		  . " ORDER BY $order";
	}
	else
	{
		$text = $self->_distinct_on($table, $more, $tie);
	}
	$text =~ s/\$(\d+)/$self->_constant($1)/eg;
	return "SELECT row_to_json(q)::text FROM ($text) q";
}

sub _distinct_on
{
	my ($self, $table, $more, $tie) = @_;
	my @keys = @{ $self->{keys} };

	return
	    'SELECT DISTINCT ON ('
	  . join(', ', map { $_->[0] } @keys) . ') '
	  . $self->_columns
	  . $more
	  . $self->_from($table)
	  . ' ORDER BY '
	  . join ', ', map({ $_->[0] . $_->[2] } @keys),
	  grep { length } $self->{order}, $tie;
}

sub _partition
{
	my ($self) = @_;
	return 'PARTITION BY ' . join ', ', map { $_->[0] } @{ $self->{keys} };
}

sub _order
{
	my ($self, $tie) = @_;
	my $order = join ', ', grep { length } $self->{order}, $tie;

	return length $order ? " ORDER BY $order" : '';
}

sub _columns
{
	my ($self) = @_;

	return '*' unless defined $self->{select}[0][0];
	return join ', ', map { "$_->[0] AS " . $self->_names($_->[1]) }
	  @{ $self->{select} };
}

sub _names
{
	my ($self, @names) = @_;
	return join ', ', map { '"' . s/"/""/gr . '"' } @names;
}

sub _from
{
	my ($self, $table) = @_;

	return " FROM $table"
	  . ($self->{alias} ne $table ? " AS $self->{alias}" : '')
	  . (defined $self->{where} ? " WHERE $self->{where}" : '');
}

sub _group_json
{
	my ($self) = @_;

	return '(SELECT row_to_json(g)::text FROM (SELECT '
	  . join(', ',
		map { "$_->[0] AS " . $self->_names($_->[1]) } @{ $self->{keys} })
	  . ') g)';
}

1;
