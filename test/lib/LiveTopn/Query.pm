
=head1 NAME

LiveTopn::Query - a query to subscribe to, and how to check it

=cut

package LiveTopn::Query;

use strict;
use warnings;

use LiveTopn::Json qw(json_object json_string);

# Arguments: table; alias; select; where and order, perhaps empty; limit, or
# how to say that there is none: '', 'LIMIT ALL' or 'LIMIT NULL';
# offset, perhaps 0; ties, if rows equal to the last one belong to it; args,
# a list of [value, type]; key, the names of the key columns in index order or
# undef for the whole row; key_json, SQL for the key of a row.
sub new
{
	my ($class, %args) = @_;
	return bless { offset => 0, %args }, $class;
}

# The query after topn_move; undef is no limit.
sub on_page
{
	my ($self, $offset, $limit) = @_;
	return bless { %$self, offset => $offset, limit => $limit // '' },
	  ref $self;
}

# No result is larger.
sub limit { return $_[0]{ties} || !$_[0]->has_limit ? 1_000_000 : $_[0]{limit}; }
sub has_limit { return $_[0]{limit} =~ /^[0-9]+$/; }

# Rows have no positions.
sub unranked
{
	my ($self) = @_;
	return $self->{order} eq '' && !$self->has_limit && !$self->{offset};
}

sub ties    { return $_[0]{ties}; }
sub keyless { return !$_[0]{key}; }
sub grouped { return 0; }

# What to subscribe to.
sub text
{
	my ($self) = @_;
	return $self->_text($self->{table}, '', '', $self->_count);
}

# Values of $1 ... $n, undef if there are none.
sub args
{
	my ($self) = @_;
	return @{ $self->{args} } ? [ map { $_->[0] } @{ $self->{args} } ] : undef;
}

# The same query with the identity appended to its order, over the table or a
# copy of it.  Returns rows as one column of JSON, read by entry().
sub truth
{
	my ($self, $table) = @_;
	my $alias = $self->{alias};
	my @tie =
	  $self->{key} ? map { "$alias.$_" } @{ $self->{key} } : "$alias USING *<";
	my $count = $self->has_limit ? $self->{limit} : 'ALL';

	# the identity would part equal rows
	$count = '(SELECT count(*) FROM ('
	  . $self->_text($table // $self->{table}, '', '', $self->_count)
	  . ') equal)'
	  if $self->{ties};

	my $text = $self->_text($table // $self->{table},
		", $self->{key_json} AS __key",
		join(', ', @tie),
		"LIMIT $count OFFSET $self->{offset}");

	$text =~ s/\$(\d+)/$self->_constant($1)/eg;
	return "SELECT row_to_json(q)::text FROM ($text) q";
}

# A row of truth() as { key, row, group }.
sub entry
{
	my ($json) = @_;

	$json =~ s/(?:,"__group":("(?:[^"\\]|\\.)*"))?,"__key":("(?:[^"\\]|\\.)*")\}\z/}/
	  or die "no key in $json";
	return {
		key => json_string($2),
		row => $json,
		defined $1 ? (group => json_string($1)) : ()
	};
}

sub _text
{
	my ($self, $table, $more, $tie, $count) = @_;
	my $order = join ', ', grep { length } $self->{order}, $tie;

	return
	    "SELECT $self->{select}$more FROM $table"
	  . ($self->{alias} ne $table ? " AS $self->{alias}" : '')
	  . (defined $self->{where} ? " WHERE $self->{where}" : '')
	  . (length $order ? " ORDER BY $order" : '')
	  . " $count";
}

sub _count
{
	my ($self) = @_;

	return "OFFSET $self->{offset} FETCH FIRST $self->{limit} ROWS WITH TIES"
	  if $self->{ties};
	return ($self->has_limit ? "LIMIT $self->{limit}" : $self->{limit})
	  . ($self->{offset} ? " OFFSET $self->{offset}" : '');
}

sub _constant
{
	my ($self, $number) = @_;
	my $value = $self->{args}[ $number - 1 ][0];

	$value =~ s/'/''/g;
	$value =~ s/\\/\\\\/g;
	return "E'$value'";
}

1;
