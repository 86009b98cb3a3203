
=head1 NAME

LiveTopn::Session - a connection that listens, with its clients

=head1 SYNOPSIS

  my $session = LiveTopn::Session->new($dbh);
  $session->subscribe('feed', 'SELECT ... LIMIT 3', cushion => 2);
  $dbh2->do('UPDATE ...');
  is($session->difference('feed'), undef);

=cut

package LiveTopn::Session;

use strict;
use warnings;

use Carp qw(croak);

use LiveTopn::Client;
use LiveTopn::Json qw(json_object json_array);

sub new
{
	my ($class, $dbh) = @_;
	return bless { dbh => $dbh }, $class;
}

sub dbh    { return $_[0]{dbh}; }
sub client { return $_[0]{clients}{ $_[1] }; }

# LISTEN, subscribe, read the snapshot.  Options are those of subscribe_topn,
# and limit (found in the query), unranked, keyless, truth (a query with the result as
# row_to_json text, found from the query when its order is total) of our own.
sub subscribe
{
	my ($self, $name, $query, %options) = @_;
	my $dbh = $self->{dbh};
	my (@arguments, @values);

	$self->listen($name, $query, %options);
	for my $option (sort keys %options)
	{
		next if $option =~ /^(limit|unranked|keyless|truth)$/;
		push @arguments, ", $option => ?";
		push @values, $options{$option};
	}
	my $sql = 'SELECT subscribe_topn(?, ?' . join('', @arguments) . ')';
	my $given =
	  $dbh->selectrow_array($sql, undef, $query, $name, @values);
	croak "subscribed as $given, not as $name" if $given ne $name;
	$self->begin($name);
	return $self->{clients}{$name};
}

# The first half of subscribe: be ready for what comes.
sub listen    ## no critic (ProhibitBuiltinHomonyms)
{
	my ($self, $name, $query, %options) = @_;
	my ($limit) = $query =~ /\b(?:LIMIT|FETCH FIRST)\s+(\d+)/i;

	$self->{clients}{$name} = LiveTopn::Client->new(
		name => $name,
		limit => $options{limit} // $limit // 1_000_000,
		ranks => $options{ranks} // 'relative',
		unranked => $options{unranked},
		keyless => $options{keyless},
		old => $options{old});
	$self->{text}{$name} = $query;
	$self->{args}{$name} = $options{args};
	$self->{queries}{$name} = $options{truth}
	  // "SELECT row_to_json(q)::text FROM ($query) q";
	$self->{dbh}->do('LISTEN ' . $self->{dbh}->quote_identifier($name));
	return;
}

# The second half: read the snapshot.
sub begin
{
	my ($self, $name) = @_;
	my ($seq, $lsn, $rows) = $self->snapshot($name);

	$self->{clients}{$name}->start($seq, $lsn, $rows);
	$self->drain;
	return;
}

# Forget what came so far, and go on from another snapshot.
sub begin_again
{
	my ($self, $name) = @_;
	my $client = $self->{clients}{$name};

	$self->drain;
	$self->{clients}{$name} = LiveTopn::Client->new(
		map { $_ => $client->{$_} } qw(name limit ranks unranked keyless old));
	$self->begin($name);
	return;
}

sub unsubscribe
{
	my ($self, $name) = @_;

	$self->{dbh}->do('SELECT unsubscribe_topn(?)', undef, $name);
	$self->forget($name);
	return;
}

# No longer follow a subscription, which goes on.
sub forget
{
	my ($self, $name) = @_;

	$self->{dbh}->do('UNLISTEN ' . $self->{dbh}->quote_identifier($name));
	$self->drain;
	delete $self->{$_}{$name}
	  for qw(clients text args queries truth row_type);
	return;
}

# A subscription shows another part of its query now (topn_move); truth as for
# subscribe.
sub turn_to
{
	my ($self, $name, $truth) = @_;

	$self->{queries}{$name} = $truth;
	delete $self->{truth}{$name};
	return;
}

# (seq, lsn, rows), rows as JSON.
sub snapshot
{
	my ($self, $name) = @_;
	return $self->{dbh}->selectrow_array(
		'SELECT seq, lsn, rows FROM topn_snapshot(?)', undef, $name);
}

# Rows as topn_rows returns them, as row_to_json texts.
sub topn_rows
{
	my ($self, $name) = @_;
	my $dbh = $self->{dbh};

	$self->{row_type}{$name} //=
	  $self->row_type($self->{text}{$name}, $self->{args}{$name});
	return map { $_->[0] } @{
		$dbh->selectall_arrayref(
			'SELECT row_to_json(r)::text FROM topn_rows('
			  . $dbh->quote($name)
			  . ") AS r ($self->{row_type}{$name})")
	};
}

# The column definition list for the rows of a query; args is a list or undef.
sub row_type
{
	my ($self, $text, $args) = @_;
	my $dbh = $self->{dbh};

	return $self->_row_type_of_arguments($text, $args) if $args;
	$dbh->do("CREATE TEMPORARY VIEW row_type AS $text");
	my ($type) = $dbh->selectrow_array(
		q{SELECT string_agg(quote_ident(attname) || ' '
			|| format_type(atttypid, atttypmod), ', ' ORDER BY attnum)
		  FROM pg_attribute WHERE attrelid = 'pg_temp.row_type'::regclass
		  AND attnum > 0});
	$dbh->do('DROP VIEW pg_temp.row_type');
	return $type;
}

# The same, of a query with arguments: of built-in types only.
sub _row_type_of_arguments
{
	my ($self, $text, $args) = @_;
	my $sth = $self->{dbh}->prepare("SELECT * FROM ($text) q LIMIT 0",
		{ pg_placeholder_dollaronly => 1 });

	$sth->execute(@$args);
	return join ', ', map {
		$self->{dbh}->quote_identifier($sth->{NAME}[$_])
		  . " $sth->{pg_type}[$_]"
	} 0 .. $#{ $sth->{NAME} };
}

# Rows of a snapshot as entries { key, row, group }.
sub snapshot_entries
{
	my ($json) = @_;

	return map {
		+{ map { $_->[0] => $_->[1] } @{ json_object($_) } }
	} @{ json_array($json) };
}

# All that was committed is applied and has come in.
sub sync
{
	my ($self) = @_;

	$self->{dbh}->selectrow_array(q{SELECT topn_sync('2 min')});
	$self->drain;
	return;
}

# Take in what has come.  A command goes first: the server sends notifications
# before it is ready for the next.
sub drain
{
	my ($self) = @_;

	$self->{dbh}->do('SELECT 1');
	while (my $notification = $self->{dbh}->pg_notifies)
	{
		my ($channel, undef, $payload) = @$notification;
		my $client = $self->{clients}{$channel};

		utf8::encode($payload) if utf8::is_utf8($payload);
		$client->receive($payload) if $client;
	}
	return;
}

# What the query returns now: a list of row_to_json texts.
sub truth
{
	my ($self, $name) = @_;
	my $sth = $self->{truth}{$name} //= $self->{dbh}->prepare(
		$self->{queries}{$name}, { pg_placeholder_dollaronly => 1 });

	return map { $_->[0] } @{ $self->{dbh}->selectall_arrayref($sth) };
}

# After a sync: undef if the client, the snapshot and the query agree, else a
# text that shows how they differ.
sub difference
{
	my ($self, $name) = @_;

	$self->sync;
	my @truth = $self->truth($name);
	my (undef, undef, $rows) = $self->snapshot($name);
	my @entries = snapshot_entries($rows);
	my @snapshot = map { $_->{row} } @entries;
	my @client = map { $_->{row} } LiveTopn::Client::order_groups(
		[ $self->{clients}{$name}->entries ], \@entries);

	return $self->unordered_difference($name, 'query', \@truth, 'client',
		\@client)
	  // describe_difference('query', \@truth, 'snapshot', \@snapshot);
}

# As describe_difference, for lists of which the order does not matter if rows
# have no positions.
sub unordered_difference
{
	my ($self, $name, $name1, $rows1, $name2, $rows2) = @_;

	($rows1, $rows2) = map { [ sort @$_ ] } $rows1, $rows2
	  if $self->{clients}{$name}{unranked};
	return describe_difference($name1, $rows1, $name2, $rows2);
}

# The same for topn_rows, which is as of now.
sub rows_difference
{
	my ($self, $name) = @_;

	return describe_difference(
		'query', [ $self->truth($name) ],
		'topn_rows', [ $self->topn_rows($name) ]);
}

sub describe_difference
{
	my ($name1, $rows1, $name2, $rows2) = @_;

	return if join("\n", @$rows1) eq join("\n", @$rows2);
	return join("\n",
		"$name1:", (map { "  $_" } @$rows1),
		"$name2:", (map { "  $_" } @$rows2)) . "\n";
}

1;
