
=head1 NAME

LiveTopn::Client - the reference client of a subscription

=head1 DESCRIPTION

Keeps a result up to date from the payloads of one channel and nothing else,
and dies when a payload breaks a rule of the interface:

=over

=item * a payload is a batch, or a part of one, in the order of the parts;

=item * batches are numbered without gaps, except that a reset may leave one,
and their LSNs grow;

=item * positions are in range, and the row there has the key of the delta;

=item * with relative ranks the list never grows beyond N in between;

=item * without positions a row that is there leaves or is updated, and a row
that is not there enters;

=item * with absolute ranks the ranks before and after fit together;

=item * "set" has attributes of the row that really change, and nothing else;

=item * "old" is there if it was asked for, and has what the list has;

=item * no delta and no batch is without effect;

=item * either all rows and deltas name their group, or none do; positions and
limits are of the group.

=back

Payloads that come before start() are kept, and those that the snapshot already
has are dropped then: LISTEN first, then read the snapshot.

=cut

package LiveTopn::Client;

use strict;
use warnings;

use LiveTopn::Json qw(json_object json_array json_string);
use LiveTopn::Lsn qw(lsn_cmp);

use constant MAX_PAYLOAD => 7999;

# Arguments: name; limit; ranks ('relative'); unranked, if rows have no
# positions, so that the order of entries() means nothing; keyless, if the table has no key;
# old, if old values were asked for.
sub new
{
	my ($class, %args) = @_;

	return bless {
		ranks => 'relative',
		%args,
		list => undef,       # entries { key, row, group }, undef before start()
		seq => undef,
		lsn => '0/0',
		early => [],         # payloads before start()
		parts => undef,      # of the batch that is coming in
		batches => [],
		columns => undef,    # names of the attributes of a row
		key_columns => undef,
		group_columns => undef    # '' if there are no groups
	}, $class;
}

# Begin with what topn_snapshot returned.
sub start
{
	my ($self, $seq, $lsn, $rows) = @_;

	$self->_fail('already started') if defined $self->{list};
	$self->{list} = $self->_read_rows($rows);
	$self->_check_list($self->{list});
	$self->{seq} = $seq;
	$self->{start_seq} = $seq;
	$self->{lsn} = $self->{start_lsn} = $lsn;
	$self->{is_whole} = 1;
	$self->{start_list} = [ @{ $self->{list} } ];
	$self->receive($_) for splice @{ $self->{early} };
	return;
}

# Take the payload of a notification.  Returns the batch if it completed one
# that the client did not have yet.
sub receive
{
	my ($self, $payload) = @_;

	unless (defined $self->{list})
	{
		push @{ $self->{early} }, $payload;
		return;
	}

	$self->_fail(length($payload) . ' bytes in one payload')
	  if length $payload > MAX_PAYLOAD;
	my $json = $self->_assemble($payload);
	return unless defined $json;
	return $self->receive_batch($json);
}

# Take a whole batch, as topn_poll and the output plugin give it.  The first
# one is a reset, or start() came before.
sub receive_batch
{
	my ($self, $json) = @_;

	# what the snapshot has may be of another time, with other columns
	return if defined $self->{list} && _seq($json) <= $self->{start_seq};

	my $batch = $self->_read_batch($json);

	if (!defined $self->{list})
	{
		my $delta = $batch->{deltas}[0];

		$self->_fail('does not begin with a reset') if $delta->{op} ne 'reset';
		$self->start($batch->{seq}, $batch->{lsn}, $delta->{rows});
		return $batch;
	}
	$self->_accept($batch);
	return $batch;
}

sub _seq
{
	my ($json) = @_;
	my ($seq) = grep { $_->[0] eq 'seq' } @{ json_object($json) };

	return $seq->[1];
}

# The result may have so many rows from now on, and batches do not exceed that
# on the way.
sub set_limit
{
	my ($self, $limit) = @_;

	$self->{limit} = $limit;
	return;
}

# The result: a list of entries { key, row, group }, each JSON text; group is
# undef if there are none.  The order of groups is that of the snapshot, with
# later ones at the end: what it should be a client cannot know.
sub entries { return @{ $_[0]{list} }; }
sub start_entries { return @{ $_[0]{start_list} }; }
sub rows    { return map { $_->{row} } @{ $_[0]{list} }; }
sub keys    { return map { $_->{key} } @{ $_[0]{list} }; }
sub seq     { return $_[0]{seq}; }
sub lsn     { return $_[0]{lsn}; }
sub name    { return $_[0]{name}; }

# After a crash the server no longer knows that it has shown commits without
# effect in a snapshot or a reset: they may be among those of the next batch.
sub expect_crashes { $_[0]{crashes} = 1; return; }

# Entries with their groups in the order in which they appear in others.
sub order_groups
{
	my ($entries, $others) = @_;
	my ($order, $of_group) = _by_group(@$entries);
	my ($first) = _by_group(@$others);
	my %known = map { $_ => 1 } @$first;

	return map { @{ $of_group->{$_} // [] } }
	  @$first, grep { !$known{$_} } @$order;
}

# All batches since start(), oldest first.  Each has seq, lsn, xid, at, from
# (undef for one commit), deltas, json, and the result before and after.
sub batches { return @{ $_[0]{batches} }; }

# Batches since the last call.
sub take_batches { return splice @{ $_[0]{batches} }; }

# ---- payloads ----

# The whole batch as JSON if this payload is its end.
sub _assemble
{
	my ($self, $payload) = @_;
	my $members = json_object($payload);
	my %field = map { $_->[0] => $_->[1] } @$members;
	my $parts = $self->{parts};

	unless (exists $field{part})
	{
		$self->_fail("a batch amid the parts of batch $parts->{seq}")
		  if $parts;
		return $payload;
	}

	$self->_check_fields('part', $members, [qw(sub seq part parts data)]);
	$self->_fail("part names subscription $field{sub}")
	  if json_string($field{sub}) ne $self->{name};
	$parts = $self->{parts} //=
	  { seq => $field{seq}, parts => $field{parts}, data => [] };
	$self->_fail("part $field{part} of $field{parts} of batch $field{seq}"
		  . " where part "
		  . (@{ $parts->{data} } + 1)
		  . " of $parts->{parts} of batch $parts->{seq} was expected")
	  if $field{seq} != $parts->{seq}
	  || $field{parts} != $parts->{parts}
	  || $field{part} != @{ $parts->{data} } + 1;
	push @{ $parts->{data} }, json_string($field{data});
	return if @{ $parts->{data} } < $parts->{parts};

	$self->{parts} = undef;
	$self->_fail('a batch in a single part') if $parts->{parts} < 2;
	my $json = join '', @{ $parts->{data} };
	$self->_fail('parts for a batch that fits one payload')
	  if length $json <= MAX_PAYLOAD;
	return $json;
}

sub _read_batch
{
	my ($self, $json) = @_;
	my $members = json_object($json);
	my %field = map { $_->[0] => $_->[1] } @$members;
	my %batch = (json => $json);

	$self->_check_fields('batch', $members,
		[qw(sub seq lsn xid at deltas)], [qw(from error)]);
	$self->_fail("batch names subscription $field{sub}")
	  if json_string($field{sub}) ne $self->{name};
	for my $number (qw(seq xid))
	{
		$self->_fail("$number is $field{$number}")
		  unless $field{$number} =~ /^[0-9]+$/
		  || ($number eq 'xid' && $field{xid} eq 'null');
		$batch{$number} = $field{$number};
	}
	for my $lsn (grep { exists $field{$_} } qw(lsn from))
	{
		$batch{$lsn} = json_string($field{$lsn});
		$self->_fail("$lsn is $batch{$lsn}")
		  unless $batch{$lsn} =~ m{^[0-9A-F]{1,8}/[0-9A-F]{1,8}$};
	}
	$batch{at} = json_string($field{at});
	$self->_fail("at is $batch{at}")
	  unless $batch{at} =~
	  /^\d{4,}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?[-+]\d\d(:\d\d){0,2}$/;
	$batch{deltas} =
	  [ map { $self->_read_delta($_) } @{ json_array($field{deltas}) } ];
	$batch{error} = json_string($field{error}) if exists $field{error};
	$self->_fail('a batch without deltas, or an error with some')
	  unless @{ $batch{deltas} } xor exists $batch{error};
	# no commit made a reset
	$self->_fail('a batch without xid')
	  if $batch{xid} eq 'null'
	  && !exists $batch{error}
	  && $batch{deltas}[0]{op} ne 'reset';
	return \%batch;
}

my %fields_of = (
	leave => [qw(op pos key)],
	move => [qw(op from to key)],
	enter => [qw(op pos key row)],
	update => [qw(op pos key set)],
	reset => [qw(op rows)]);

sub _read_delta
{
	my ($self, $json) = @_;
	my $members = json_object($json);
	my %delta = map { $_->[0] => $_->[1] } @$members;

	$self->_fail("a delta without op: $json") unless exists $delta{op};
	$delta{op} = json_string($delta{op});
	$self->_fail("unknown op $delta{op}") unless $fields_of{ $delta{op} };
	$self->_fail("a move without positions: $json")
	  if $self->{unranked} && $delta{op} eq 'move';
	$self->_check_group(\%delta) unless $delta{op} eq 'reset';
	$self->_check_fields(
		$delta{op}, $members,
		[
			grep { $_ ne 'pos' || !$self->{unranked} }
			  @{ $fields_of{ $delta{op} } }
		],
		[
			exists $delta{group} ? 'group' : (),
			$delta{op} eq 'move' ? 'set' : (),
			$self->{old} && $delta{op} =~ /leave|move|update/ ? 'old' : ()
		]);
	$self->_fail("old values, or none, where they should not be: $json")
	  if $self->{old}
	  && (exists $delta{old} xor exists $delta{set} || $delta{op} eq 'leave');
	for my $position (grep { exists $delta{$_} } qw(pos from to))
	{
		$self->_fail("$position is $delta{$position}: $json")
		  unless $delta{$position} =~ /^[1-9][0-9]*$/;
	}
	$self->_check_key($delta{key}) if exists $delta{key};
	$self->_check_row($delta{row}) if exists $delta{row};
	$delta{json} = $json;
	return \%delta;
}

sub _read_rows
{
	my ($self, $json) = @_;
	my @list;

	for my $element (@{ json_array($json) })
	{
		my $members = json_object($element);
		my %entry = map { $_->[0] => $_->[1] } @$members;

		$self->_check_group(\%entry);
		$self->_check_fields('row', $members,
			[ qw(key row), exists $entry{group} ? 'group' : () ]);
		$self->_check_key($entry{key});
		$self->_check_row($entry{row});
		push @list, \%entry;
	}
	return \@list;
}

# ---- rules ----

sub _accept
{
	my ($self, $batch) = @_;
	my @before = @{ $self->{list} };
	my $reset = grep { $_->{op} eq 'reset' } @{ $batch->{deltas} };
	my $error = exists $batch->{error};

	$self->{current} = $batch;
	$self->_fail("batch $batch->{seq} after batch $self->{seq}")
	  if $batch->{seq} != $self->{seq} + 1
	  && !($reset && $batch->{seq} > $self->{seq});
	my $order = lsn_cmp($batch->{lsn}, $self->{lsn});
	$self->_fail("lsn $batch->{lsn} after $self->{lsn}")
	  if $order < 0 || ($order == 0 && !$reset && !$error);
	$self->_fail("from $batch->{from} is not before lsn $batch->{lsn}")
	  if defined $batch->{from}
	  && lsn_cmp($batch->{from}, $batch->{lsn}) >= 0;
	$self->_fail("from $batch->{from}, but batch $self->{seq} has"
		  . " lsn $self->{lsn}")
	  if defined $batch->{from}
	  && lsn_cmp($batch->{from}, $self->{lsn}) <= 0
	  && !($self->{crashes} && $self->{is_whole});

	my @after;
	if ($reset)
	{
		$self->_fail('a reset among other deltas')
		  if @{ $batch->{deltas} } > 1;

		# the query may have other columns now
		$self->{$_} = undef for qw(columns key_columns group_columns);
		@after = @{ $self->_read_rows($batch->{deltas}[0]{rows}) };
	}
	else
	{
		@after =
		  $self->{unranked}
		  ? $self->_apply_unranked($batch->{deltas}, @before)
		  : $self->_apply($batch->{deltas}, @before);
		$self->_fail('a batch without effect')
		  if !$error && _text(@before) eq _text(@after);
		$self->_check_comings($batch->{deltas});
	}
	$self->_check_list(\@after);

	$batch->{before} = \@before;
	$batch->{after} = \@after;
	$self->{list} = \@after;
	$self->{seq} = $batch->{seq};
	$self->{lsn} = $batch->{lsn};
	$self->{is_whole} = $reset;
	push @{ $self->{batches} }, $batch;
	$self->{current} = undef;
	return;
}

# The lists of groups are edited each on its own.
sub _apply
{
	my ($self, $deltas, @list) = @_;
	my ($order, $lists) = _by_group(@list);
	my ($changed, $deltas_of) = _by_group(@$deltas);

	push @$order, grep { !exists $lists->{$_} } @$changed;
	for my $group (@$changed)
	{
		my @before = @{ $lists->{$group} // [] };

		$lists->{$group} = [
			$self->{ranks} eq 'absolute'
			? $self->_apply_absolute($deltas_of->{$group}, @before)
			: $self->_apply_relative($deltas_of->{$group}, @before)
		];
	}
	return map { @{ $lists->{$_} } } @$order;
}

# Groups in order of appearance, and a list of the members of each.
sub _by_group
{
	my (@order, %of_group);

	for my $member (@_)
	{
		my $group = $member->{group} // '';

		push @order, $group unless $of_group{$group};
		push @{ $of_group{$group} }, $member;
	}
	return (\@order, \%of_group);
}

# A list edit, one delta after the other.
sub _apply_relative
{
	my ($self, $deltas, @list) = @_;

	for my $delta (@$deltas)
	{
		my $op = $delta->{op};

		if ($op eq 'leave')
		{
			$self->_check_position($delta, 'pos', scalar @list);
			$self->_check_same_key($delta, $list[ $delta->{pos} - 1 ]);
			splice @list, $delta->{pos} - 1, 1;
		}
		elsif ($op eq 'move')
		{
			$self->_check_position($delta, 'from', scalar @list);
			$self->_check_same_key($delta, $list[ $delta->{from} - 1 ]);
			$self->_check_position($delta, 'to', scalar @list);
			$self->_fail("a move without effect: $delta->{json}")
			  if $delta->{from} == $delta->{to};
			my ($entry) = splice @list, $delta->{from} - 1, 1;
			splice @list, $delta->{to} - 1, 0, $self->_set($delta, $entry);
		}
		elsif ($op eq 'enter')
		{
			$self->_check_position($delta, 'pos', @list + 1);
			splice @list, $delta->{pos} - 1, 0,
			  { key => $delta->{key}, row => $delta->{row},
				group => $delta->{group} };
		}
		else
		{
			$self->_check_position($delta, 'pos', scalar @list);
			my $entry = $list[ $delta->{pos} - 1 ];
			$self->_check_same_key($delta, $entry);
			$list[ $delta->{pos} - 1 ] = $self->_set($delta, $entry);
		}
		$self->_fail(@list . " rows in between, after $delta->{json}")
		  if @list > $self->{limit};
	}
	return @list;
}

# Rows are found by their keys.
sub _apply_unranked
{
	my ($self, $deltas, @list) = @_;

	for my $delta (@$deltas)
	{
		my ($place) = grep { $list[$_]{key} eq $delta->{key} } 0 .. $#list;

		if ($delta->{op} eq 'enter')
		{
			push @list, { key => $delta->{key}, row => $delta->{row} };
			next;
		}
		$self->_fail("nobody has the key: $delta->{json}")
		  unless defined $place;
		$self->_check_same_key($delta, $list[$place]);
		if ($delta->{op} eq 'leave')
		{
			splice @list, $place, 1;
		}
		else
		{
			$list[$place] = $self->_set($delta, $list[$place]);
		}
	}
	return @list;
}

# All at once: ranks before in "from" and in the "pos" of leave, after in the
# others.
sub _apply_absolute
{
	my ($self, $deltas, @before) = @_;
	my (%gone, @after);

	my $take = sub {
		my ($delta, $field) = @_;
		my $rank = $delta->{$field};

		$self->_check_position($delta, $field, scalar @before);
		$self->_check_same_key($delta, $before[ $rank - 1 ]);
		$self->_fail("rank $rank before is used twice: $delta->{json}")
		  if $gone{$rank}++;
		return $before[ $rank - 1 ];
	};
	my $put = sub {
		my ($delta, $rank, $entry) = @_;

		$self->_fail("rank $rank after is used twice: $delta->{json}")
		  if defined $after[ $rank - 1 ];
		$self->_fail("rank $rank is beyond the limit: $delta->{json}")
		  if $rank > $self->{limit};
		$after[ $rank - 1 ] = $entry;
	};

	for my $delta (@$deltas)
	{
		if ($delta->{op} eq 'leave')
		{
			$take->($delta, 'pos');
		}
		elsif ($delta->{op} eq 'move')
		{
			$self->_fail("a move to the same rank: $delta->{json}")
			  if $delta->{from} == $delta->{to};
			my $entry = $take->($delta, 'from');
			$put->($delta, $delta->{to}, $self->_set($delta, $entry));
		}
		elsif ($delta->{op} eq 'enter')
		{
			$put->(
				$delta, $delta->{pos},
				{ key => $delta->{key}, row => $delta->{row},
				  group => $delta->{group} });
		}
		else
		{
			my $entry = $take->($delta, 'pos');
			$put->($delta, $delta->{pos}, $self->_set($delta, $entry));
		}
	}

	# whoever is not mentioned has kept its rank
	for my $rank (grep { !$gone{$_} } 1 .. @before)
	{
		$self->_fail("rank $rank is taken from a row that is not mentioned: "
			  . $before[ $rank - 1 ]{key})
		  if defined $after[ $rank - 1 ];
		$after[ $rank - 1 ] = $before[ $rank - 1 ];
	}
	for my $rank (1 .. @after)
	{
		$self->_fail("nobody has rank $rank afterwards")
		  unless defined $after[ $rank - 1 ];
	}
	return @after;
}

# The entry with the attributes of "set" replaced.
sub _set
{
	my ($self, $delta, $entry) = @_;

	return $entry unless exists $delta->{set};
	my $set = json_object($delta->{set});
	my $row = json_object($entry->{row});

	$self->_fail("an empty set: $delta->{json}") unless @$set;
	$self->_check_old($delta, $set, $row) if $self->{old};
	for my $change (@$set)
	{
		my ($name, $value) = @$change;
		my ($attribute) = grep { $_->[0] eq $name } @$row;

		$self->_fail("set of \"$name\", which the row does not have")
		  unless $attribute;
		$self->_fail("set of \"$name\" to the value it has: $delta->{json}")
		  if $attribute->[1] eq $value;
		$attribute->[1] = $value;
	}
	return { %$entry, row => _object_text($row) };
}

sub _check_position
{
	my ($self, $delta, $field, $max) = @_;

	$self->_fail("$field is beyond $max: $delta->{json}")
	  if $delta->{$field} > $max;
	return;
}

sub _check_same_key
{
	my ($self, $delta, $entry) = @_;

	$self->_fail("$delta->{json} concerns a row with key $entry->{key}")
	  if $delta->{key} ne $entry->{key};
	$self->_fail("$delta->{json} concerns row $entry->{row}")
	  if $delta->{op} eq 'leave'
	  && $self->{old}
	  && $delta->{old} ne $entry->{row};
	return;
}

# The attributes of "old" are those of "set", as the row had them.
sub _check_old
{
	my ($self, $delta, $set, $row) = @_;
	my %had = map { $_->[0] => $_->[1] } @$row;
	my $old = _object_text([ map { [ $_->[0], $had{ $_->[0] } ] } @$set ]);

	$self->_fail("old values of $delta->{json} where the list has $old")
	  if $delta->{old} ne $old;
	return;
}

# A row that leaves and comes back is a move or an update.  One of several equal
# rows may leave while the rank of another one changes.
sub _check_comings
{
	my ($self, $deltas) = @_;
	my %seen;

	for my $delta (@$deltas)
	{
		# a row may leave a group and enter another
		my $key = $delta->{key} . ' ' . ($delta->{group} // '');
		my $before = $seen{$key};
		$seen{$key} = $delta->{op};
		next unless defined $before;
		next
		  if $self->{keyless}
		  && "$before $delta->{op}" !~ /leave enter|enter leave/;
		$self->_fail("$before and $delta->{op} of key $delta->{key}");
	}
	return;
}

sub _check_list
{
	my ($self, $list) = @_;
	my %seen;

	my ($groups, $of_group) = _by_group(@$list);
	for my $group (@$groups)
	{
		my $rows = @{ $of_group->{$group} };

		$self->_fail("$rows rows in a result of $self->{limit}")
		  if $rows > $self->{limit};
	}
	return if $self->{keyless};
	for my $entry (@$list)
	{
		$self->_fail("two rows with key $entry->{key}")
		  if $seen{ $entry->{key} }++;
	}
	return;
}

# All rows have the same attributes in the same order, and so have all keys.
sub _check_row { return _check_names(@_, 'columns'); }
sub _check_key { return _check_names(@_, 'key_columns'); }

# Groups go with all or with none.
sub _check_group
{
	my ($self, $members) = @_;

	return $self->_check_names($members->{group} // '{}', 'group_columns');
}

sub _check_names
{
	my ($self, $json, $which) = @_;
	my $names = join ',', map { $_->[0] } @{ json_object($json) };

	$self->{$which} //= $names;
	$self->_fail("attributes are $names where $self->{$which} were expected")
	  if $names ne $self->{$which};
	return;
}

sub _check_fields
{
	my ($self, $what, $members, $required, $optional) = @_;
	my %allowed = map { $_ => 1 } @$required, @{ $optional // [] };
	my %seen;

	for my $member (@$members)
	{
		$self->_fail("$what has an unknown field $member->[0]")
		  unless $allowed{ $member->[0] };
		$self->_fail("$what has field $member->[0] twice")
		  if $seen{ $member->[0] }++;
	}
	for my $name (@$required)
	{
		$self->_fail("$what lacks field $name") unless $seen{$name};
	}
	return;
}

sub _text
{
	return join "\n",
	  map { ($_->{group} // '') . "\t$_->{key}\t$_->{row}" } @_;
}

sub _object_text
{
	my ($members) = @_;

	return '{'
	  . join(',',
		map { LiveTopn::Json::json_quote($_->[0]) . ":$_->[1]" } @$members)
	  . '}';
}

sub _fail
{
	my ($self, $message) = @_;
	my $where = $self->{current} ? "\n  in $self->{current}{json}" : '';

	die "subscription $self->{name}: $message$where\n";
}

1;
