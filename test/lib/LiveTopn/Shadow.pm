
=head1 NAME

LiveTopn::Shadow - the committed history of a table, replayed commit by commit

=head1 DESCRIPTION

A logical slot of its own with the plugin test_decoding remembers the commits,
and a copy of the table replays them in the order of their commit records.
Nothing of live_topn takes part.

Create the object while nobody writes to the table.

=cut

package LiveTopn::Shadow;

use strict;
use warnings;

my $identifier = qr/(?:[a-z_][a-z0-9_\$]*|"(?:[^"]|"")*")/;
my $value = qr/null|unchanged-toast-datum|B?'(?:[^']|'')*'|[^' ]+/;

# Arguments: dbh; table; key, a list of its key columns or undef; slot, the
# name of the slot.
sub new
{
	my ($class, %args) = @_;
	my $self = bless {
		copy => "$args{table}_shadow",
		slot => 'shadow',
		%args
	}, $class;
	my $dbh = $self->{dbh};

	$dbh->do("CREATE TABLE $self->{copy} (LIKE $self->{table})");
	$dbh->do("INSERT INTO $self->{copy} SELECT * FROM $self->{table}");
	$dbh->do("CREATE INDEX ON $self->{copy} ("
		  . join(', ', map { _quote($_) } @{ $self->{key} })
		  . ')')
	  if $self->{key};
	$self->{columns} = $dbh->selectcol_arrayref(
		'SELECT attname FROM pg_attribute
		 WHERE attrelid = ?::regclass AND attnum > 0 ORDER BY attnum',
		undef, $self->{copy});
	$dbh->do('SELECT pg_create_logical_replication_slot(?, ?)',
		undef, $self->{slot}, 'test_decoding');
	return $self;
}

sub copy { return $_[0]{copy}; }

sub drop
{
	my ($self) = @_;

	$self->{dbh}->do('SELECT pg_drop_replication_slot(?)', undef, $self->{slot});
	$self->{dbh}->do("DROP TABLE $self->{copy}");
	return;
}

# The commits that concern the table, or have moved a subscription, since the
# object was made, or since the last call: a list of { xid, lsn, changes,
# moves }.  lsn is the end of the commit record, moves a hash of [offset, limit]
# by name, where undef is no limit.
sub commits
{
	my ($self) = @_;
	my $lines = $self->{dbh}->selectall_arrayref(
		"SELECT lsn, xid, data FROM pg_logical_slot_get_changes(?, NULL, NULL,
			'include-xids', 'off', 'skip-empty-xacts', 'on')",
		undef, $self->{slot});
	my (@commits, @changes, %moves);

	for my $line (@$lines)
	{
		my ($lsn, $xid, $data) = @$line;

		if ($data eq 'COMMIT')
		{
			push @commits,
			  {
				xid => $xid,
				lsn => $lsn,
				changes => [@changes],
				moves => {%moves}
			  } if @changes || %moves;
			@changes = %moves = ();
		}
		elsif ($data =~ /^table live_topn\.subscription: UPDATE: .* new-tuple:(.*)\z/s)
		{
			my $text = $1;
			my $tuple = _tuple(\$text);
			my ($name, @page) =
			  map { /^'(.*)'\z/ ? $1 : undef } @$tuple{qw(name offset limit)};

			$moves{$name} = \@page;
		}
		elsif ($data =~ /^table .*?: TRUNCATE:/
			|| $data =~ /^table public\.$self->{table}(?:_[0-9]+)?: /)
		{
			push @changes, $data;
		}
	}
	return @commits;
}

sub truncates
{
	my ($commit) = @_;
	return scalar grep { /: TRUNCATE: / } @{ $commit->{changes} };
}

# Apply a commit to the copy.
sub replay
{
	my ($self, $commit) = @_;
	my $dbh = $self->{dbh};

	$dbh->begin_work;
	$self->_apply($_) for @{ $commit->{changes} };
	$dbh->commit;
	return;
}

sub _apply
{
	my ($self, $change) = @_;
	my ($dbh, $copy) = @$self{qw(dbh copy)};
	my ($relations, $action, $rest) =
	  $change =~ /^table (.*?): ([A-Z]+):(.*)\z/s
	  or die "not understood: $change";

	if ($action eq 'TRUNCATE')
	{
		# with the table, or all its partitions
		$dbh->do("TRUNCATE $copy")
		  if grep { $_ eq "public.$self->{table}" } split /, /, $relations;
		return;
	}

	pos($rest) = 0;
	my $old = $rest =~ /\G old-key:/gc ? _tuple(\$rest) : undef;
	$rest =~ /\G new-tuple:/gc;
	my $tuple = _tuple(\$rest);
	die "not understood: $change" if pos($rest) != length $rest;

	if ($action eq 'DELETE')
	{
		$dbh->do("DELETE FROM $copy WHERE " . $self->_row($tuple));
	}
	elsif ($action eq 'INSERT')
	{
		$dbh->do("INSERT INTO $copy ("
			  . join(', ', map { _quote($_) } sort keys %$tuple)
			  . ') VALUES ('
			  . join(', ', map { $tuple->{$_} } sort keys %$tuple)
			  . ')');
	}
	else
	{
		$dbh->do("UPDATE $copy SET "
			  . join(', ',
				map { _quote($_) . " = $tuple->{$_}" } sort keys %$tuple)
			  . ' WHERE '
			  . $self->_row($old // $tuple));
	}
	return;
}

# Columns of a tuple as { name => SQL literal }, without those that an update
# left out of line and unchanged.
sub _tuple
{
	my ($text) = @_;
	my %tuple;

	while ($$text =~ /\G ($identifier)\[(?:.*?)\]:($value)/gcs)
	{
		my ($name, $literal) = ($1, $2);

		next if $literal eq 'unchanged-toast-datum';
		$name =~ s/^"(.*)"$/$1/ and $name =~ s/""/"/g;
		$literal = "'$literal'" unless $literal eq 'null' || $literal =~ /'/;
		$tuple{$name} = $literal;
	}
	return \%tuple;
}

# The condition that finds the row of an old tuple; of equal rows, one.
sub _row
{
	my ($self, $tuple) = @_;
	my $copy = $self->{copy};

	return join ' AND ', map { _quote($_) . " = $tuple->{$_}" }
	  @{ $self->{key} }
	  if $self->{key};
	my $row = join ', ', map { $tuple->{$_} // 'null' } @{ $self->{columns} };
	return "ctid = (SELECT ctid FROM $copy
		WHERE $copy *= ROW($row)::$copy LIMIT 1)";
}

sub _quote { return '"' . $_[0] =~ s/"/""/gr . '"'; }

1;
