
=head1 NAME

LiveTopn::Generator - random tables, queries and transactions from a seed

=head1 DESCRIPTION

Values come from small domains, so that ties, equal rows, key conflicts and
swaps abound, and the domains hold what is hard: NaN, -0, infinities, 1.0 and
1.00, strings that a collation takes for equal, NULL.

A generated table has

=over

=item * a primary key of one or two columns, or a unique index as its replica
identity, or REPLICA IDENTITY FULL with or without a key;

=item * one to four further columns, sometimes a large one stored out of line,
sometimes dropped columns before and between them, or columns added when there
were rows already;

=item * sometimes partitions, whose columns come in another order.

=back

Nothing generated may fail when it is evaluated: a query that raises an error
for some row is another test's business.

=cut

package LiveTopn::Generator;

use strict;
use warnings;
no warnings 'qw';

use LiveTopn::GroupQuery;
use LiveTopn::Query;

# No result has more rows, unless WITH TIES.
use constant MAX_LIMIT => 20;

# Types: a domain of values; expressions over a column %c which can be selected
# and, where sort is set, ordered by; conditions beyond the usual comparisons.
my %types = (
	'integer' => {
		values => [ -2 .. 3, 7 ],
		expressions => [ '-%c', '%c % 3', '%c * 2 + 1', 'coalesce(%c, 0)' ],
		conditions => [ '%c % 2 = 0', 'abs(%c) < 3' ],
	},
	'bigint' => {
		values =>
		  [ 0, 1, 2, '9007199254740993', '-9007199254740993' ],
		expressions => [ '-%c', 'coalesce(%c, 1)' ],
	},
	'numeric' => {
		values => [
			qw(NaN Infinity -Infinity 1.0 1.00 1 0 -2.5
			  1012345000999912345001230123445566.00000001)
		],
		expressions => [ '-%c', 'round(%c)', 'coalesce(%c, 0.0)' ],
	},
	'double precision' => {
		values => [qw(NaN Infinity -Infinity -0 0 0.1 1 1e300)],
		expressions => [ '-%c', 'coalesce(%c, 0)' ],
	},
	'real' => { values => [qw(NaN Infinity -0 0 0.1 1)] },
	'text' => {
		values => [
			'', qw(a A b B ab aB Z _ Å é), 'a b', 'it\'s', "\"\\\n\t\x01",
			"e\xcc\x81"
		],
		expressions =>
		  [ 'upper(%c)', 'length(%c)', 'coalesce(%c, \'none\')' ],
		conditions => [ 'length(%c) > 1', '%c || \'x\' < \'b\'' ],
		collations => [ '"C"', '"en-x-icu"', '"de-x-icu"', 'ci' ],
	},
	'varchar' => {
		values => [qw(a A b ab)],
		expressions => ['lower(%c)'],
		collations => ['"C"'],
	},
	'char(3)' => { values => [ 'a', 'ab', 'B', '' ] },
	'boolean' => {
		values => [qw(t f)],
		expressions => [ 'NOT %c', '%c IS TRUE' ],
		conditions => [ '%c', 'NOT %c', '%c IS NOT TRUE' ],
	},
	'timestamptz' => {
		values => [
			'infinity', '-infinity',
			'2026-01-01 00:00:00.000001+00', '2026-01-01 00:00:00.000002+00',
			'2026-01-01 01:00:00+01', '1999-12-31 23:59:59+00'
		],
	},
	'date' => {
		values => [qw(2026-01-01 2026-01-02 infinity 0044-03-15)],
		expressions => ['%c + 1'],
	},
	'interval' => { values => [ '1 day', '24 hours', '-1 mon', '30 days' ] },
	'uuid' => {
		values => [
			'00000000-0000-0000-0000-000000000001',
			'ffffffff-0000-0000-0000-000000000001',
			'10000000-0000-0000-0000-000000000001'
		],
	},
	'bytea' => { values => [ '\x', '\x00', '\xff00' ] },
	'inet' => { values => [qw(10.0.0.1 10.0.0.1/8 ::1)] },
	'integer[]' => {
		values => [qw({} {1} {1,2} {NULL} {2})],
		expressions => [ 'cardinality(%c)', '%c[1]' ],
		conditions => [ '%c @> ARRAY[1]', '2 = ANY (%c)' ],
	},
	'jsonb' => {
		values => [ '{"a": 1}', '{"a": 1.0}', '[]', '{"b": "x"}' ],
		expressions => [ '%c -> \'a\'', '%c ->> \'b\'' ],
		conditions => ['%c @> \'{"a": 1}\''],
	},
	'json' => {
		values => [ '{"a": 1}', '{"a":1}', '[1, 2]' ],
		unsortable => 1,
		expressions => ['%c ->> \'a\''],
	});

my @type_names = sort keys %types;

# Types of key columns, with their domains.
my %key_types = (
	'integer' => [ 1 .. 30 ],
	'bigint' => [ map { '90071992547409' . $_ } 10 .. 35 ],
	'text' => [ map { my $a = $_; map { "$a$_" } 1 .. 3 } qw(a A b B é Z _) ],
	'text COLLATE "C"' =>
	  [ map { my $a = $_; map { "$a$_" } 1 .. 3 } qw(a A b B é Z _) ],
	'uuid' =>
	  [ map { sprintf '%08d-0000-0000-0000-000000000000', $_ } 1 .. 25 ]);

my @comparisons = (
	'%c = %v', '%c <> %v', '%c < %v', '%c <= %v', '%c > %v', '%c >= %v',
	'%c IN (%v, %v)', '%c IN (%v, NULL)', '%c NOT IN (%v, %v)',
	'%c NOT IN (%v, NULL)', '%c BETWEEN %v AND %v', '%c IS NULL',
	'%c IS NOT NULL', '%c IS DISTINCT FROM %v', '%c = ANY (ARRAY[%v, %v])',
	'coalesce(%c > %v, true)', 'CASE WHEN %c < %v THEN true END');

# Arguments: random; table, its name; and to narrow the choice: identity (pk,
# full, index, keyless), partitioned, large, truncate (0 or 1 each).
sub new
{
	my ($class, %args) = @_;
	my $self = bless { table => 'feed', truncate => 1, %args }, $class;

	$self->_choose_table;
	return $self;
}

sub keyless { return $_[0]{identity} eq 'keyless'; }

# Names of the key columns in the order of the index, undef without a key.
sub key_columns
{
	my ($self) = @_;
	return $self->{key} ? [ map { $_->{name} } @{ $self->{key} } ] : undef;
}

sub table   { return $_[0]{table}; }

# A key without old images: a window may cover several commits with one batch.
sub key_identity { return scalar $_[0]{identity} =~ /^(pk|index)$/; }

# Statements that make what every generated table needs.
sub prepare_database
{
	return 'CREATE COLLATION IF NOT EXISTS ci (provider = icu,
		locale = \'und-u-ks-level2\', deterministic = false)';
}

sub _choose_table
{
	my ($self) = @_;
	my $random = $self->{random};
	my @columns;

	$self->{identity} //=
	  $random->weighted(pk => 45, full => 20, index => 15, keyless => 20);
	$self->{partitioned} //= $random->chance(20);
	$self->{identity} = 'pk'
	  if $self->{partitioned} && $self->{identity} eq 'index';

	unless ($self->keyless)
	{
		for my $i (1 .. $random->pick(1, 1, 1, 2))
		{
			my $type = $random->pick(qw(integer integer), sort keys %key_types);
			push @columns,
			  {
				name => "k$i",
				type => $type =~ s/ COLLATE.*//r,
				collate => $type =~ / (COLLATE.*)/ ? $1 : '',
				values => $key_types{$type},
				key => 1,
			  };
		}
		# the key's columns in the order of the index
		$self->{key} = [ $random->shuffle(@columns) ];
	}
	for my $i (1 .. $random->between(1, 4))
	{
		my $type = $random->pick('integer', 'text', @type_names);
		my $collations = $types{$type}{collations};
		push @columns,
		  {
			name => "c$i",
			type => $type,
			collate => $collations && $random->chance(60)
			? 'COLLATE ' . $random->pick(@$collations)
			: '',
			%{ $types{$type} },
		  };
	}
	push @columns,
	  {
		name => 'big',
		type => 'text',
		collate => '',
		values => [qw(a b c)],
		large => 1,
		expressions => ['length(%c)'],
	  } if $self->{large} // $random->chance(12);
	$_->{name} = 'odd "name' for grep { $_->{name} eq 'c4' } @columns;

	# columns are added late only at the end, and must allow it
	@columns = $random->shuffle(@columns);
	my @late =
	  @columns > 1 && $random->chance(15)
	  ? grep { !$_->{key} && !$_->{large} } $columns[-1]
	  : ();
	$_->{late} = 1 for @late;

	$self->{columns} = \@columns;
	$self->{dropped} = $random->chance(20);
	if ($self->{partitioned})
	{
		my @candidates =
		  grep { $_->{type} eq 'integer' || $_->{type} eq 'bigint' }
		  $self->keyless ? grep { !$_->{late} } @columns : @{ $self->{key} };
		if (@candidates)
		{
			$self->{partition_column} = $random->pick(@candidates);
			$self->{partition_by} = $random->pick(qw(hash list range));
		}
		else
		{
			$self->{partitioned} = 0;
		}
	}
	return;
}

# ---- the table ----

# Statements that make the table, with some rows.
sub create_table
{
	my ($self) = @_;
	my $random = $self->{random};
	my $table = $self->{table};
	my @late = grep { $_->{late} } @{ $self->{columns} };
	my @definitions =
	  map { _definition($_) } grep { !$_->{late} } @{ $self->{columns} };
	my @sql;

	if ($self->{dropped})
	{
		unshift @definitions, 'dropped1 integer DEFAULT 1';
		splice @definitions, -1, 0, 'dropped2 text';
	}
	push @definitions, 'PRIMARY KEY (' . $self->_key_list . ')'
	  if $self->{key} && ($self->{identity} ne 'index' || $random->chance(30));
	push @sql, "CREATE TABLE $table (" . join(', ', @definitions) . ')'
	  . $self->_partition_clause;
	push @sql, $self->_create_partitions(@definitions)
	  if $self->{partitioned};
	if ($self->{identity} eq 'index')
	{
		push @sql, "ALTER TABLE $table ALTER $_->{name} SET NOT NULL"
		  for @{ $self->{key} };
		push @sql,
		    "CREATE UNIQUE INDEX ${table}_identity ON $table ("
		  . join(', ',
			map { $_->{name} . $random->pick('', '', ' DESC') }
			  @{ $self->{key} })
		  . ')';
		push @sql,
		  "ALTER TABLE $table REPLICA IDENTITY USING INDEX ${table}_identity";
	}
	if ($self->{identity} =~ /^(full|keyless)$/)
	{
		push @sql, "ALTER TABLE $_ REPLICA IDENTITY FULL"
		  for $table, $self->{partitioned} ? $self->_storage_tables : ();
	}
	for my $name ($self->_storage_tables)
	{
		push @sql, "ALTER TABLE $name ALTER big SET STORAGE EXTERNAL"
		  if grep { $_->{large} } @{ $self->{columns} };
	}

	{
		local $self->{columns} =
		  [ grep { !$_->{late} } @{ $self->{columns} } ];
		push @sql, $self->_insert(20);
	}
	push @sql, "ALTER TABLE $table DROP dropped1, DROP dropped2"
	  if $self->{dropped};
	push @sql,
	    "ALTER TABLE $table ADD "
	  . _definition($_)
	  . ' DEFAULT '
	  . $self->_value($_)
	  for @late;
	push @sql, $self->_insert(10);
	my @indexed = map { _quote_name($_->{name}) } $random->sample(2,
		grep { !$_->{unsortable} && !$_->{large} } @{ $self->{columns} });
	push @sql, "CREATE INDEX ON $table (" . join(', ', @indexed) . ')'
	  if @indexed && $random->chance(30);
	push @sql, "ANALYZE $table" if $random->chance(50);
	return @sql;
}

sub drop_table
{
	my ($self) = @_;
	return "DROP TABLE $self->{table}";
}

sub _definition
{
	my ($column) = @_;
	return
	    _quote_name($column->{name}) . " $column->{type}"
	  . ($column->{collate} ? " $column->{collate}" : '');
}

sub _key_list
{
	my ($self) = @_;
	return join ', ', map { $_->{name} } @{ $self->{key} };
}

sub _storage_tables
{
	my ($self) = @_;
	return $self->{table} unless $self->{partitioned};
	return map { "$self->{table}_$_" } 1 .. 3;
}

sub _partition_clause
{
	my ($self) = @_;

	return '' unless $self->{partitioned};
	return " PARTITION BY $self->{partition_by} ("
	  . _quote_name($self->{partition_column}{name}) . ')';
}

# Leaves are made on their own, with the columns in another order, and attached.
sub _create_partitions
{
	my ($self, @definitions) = @_;
	my $table = $self->{table};
	my $values = $self->{partition_column}{values};
	my $middle = $values->[ @$values / 2 ];
	my ($low, $high) = sort { $a <=> $b } $middle, $values->[-1];
	my %bounds = (
		hash => [
			map { "FOR VALUES WITH (MODULUS 3, REMAINDER $_)" } 0 .. 2 ],
		list => [
			"FOR VALUES IN ($values->[0], $values->[1])",
			"FOR VALUES IN ($middle, $values->[-1])", 'DEFAULT'
		],
		range => [
			"FOR VALUES FROM (MINVALUE) TO ($low)",
			"FOR VALUES FROM ($low) TO ($high)", 'DEFAULT'
		]);
	my @sql;

	for my $i (1 .. 3)
	{
		my @columns = grep { !/^PRIMARY KEY/ } @definitions;
		@columns = $self->{random}->shuffle(@columns) if $i != 1;
		# a leaf may have had columns of its own
		unshift @columns, 'gone integer' if $i == 2;
		push @sql, "CREATE TABLE ${table}_$i (" . join(', ', @columns) . ')';
		push @sql, "ALTER TABLE ${table}_$i DROP gone" if $i == 2;
		push @sql, "ALTER TABLE ${table}_$i ALTER $_->{name} SET NOT NULL"
		  for @{ $self->{key} // [] };
		push @sql, "ALTER TABLE $table ATTACH PARTITION ${table}_$i "
		  . $bounds{ $self->{partition_by} }[ $i - 1 ];
	}
	return @sql;
}

# ---- transactions ----

# A transaction: { steps => [...], commit => boolean, single => boolean }.  A
# step is { sql }, and guarded if its failure is undone to a savepoint.  Single
# says that the transaction changes at most one row, and keeps its key; its
# step returns the key as JSON.
sub transaction
{
	my ($self) = @_;
	my $random = $self->{random};
	my @steps;

	if ($random->chance(55))
	{
		my $sql = $self->_single_row_change . ' RETURNING ' . $self->_key_json;
		return { steps => [ { sql => $sql } ], commit => 1, single => 1 };
	}

	for (1 .. $random->pick(1, 1, 2, 3, 5))
	{
		push @steps, $self->_change;
		if ($random->chance(12))
		{
			push @steps, { sql => 'SAVEPOINT s' }, $self->_change,
			  $self->_change,
			  { sql => $random->pick('ROLLBACK TO s', 'RELEASE s') };
		}
	}
	return { steps => \@steps, commit => $random->chance(90) };
}

# The same transaction, in which some of the subscriptions are moved as well.
sub moving
{
	my ($self, $transaction, @names) = @_;
	my $random = $self->{random};
	my @steps = $random->chance(60) ? @{ $transaction->{steps} } : ();

	for (1 .. $random->pick(1, 1, 1, 2))
	{
		my @page = map { $_ // 'NULL' } $random->pick(undef, 0 .. 6, 10, 25),
		  $random->pick(undef, 0 .. 5, 8, 13, MAX_LIMIT);

		$page[ $random->below(2) ] = 1 if "@page" eq 'NULL NULL';
		splice @steps, $random->below(@steps + 1), 0,
		  { sql => "SELECT topn_move('"
			  . $random->pick(@names)
			  . "', $page[0], $page[1])" };
	}
	return { steps => \@steps, commit => $transaction->{commit}, moves => 1 };
}

# Run a transaction.  Returns the keys it changed if it was a single change,
# an empty list otherwise; dies if it failed, after rolling it back.
sub run
{
	my ($dbh, $transaction) = @_;

	return @{ $dbh->selectcol_arrayref($transaction->{steps}[0]{sql}) }
	  if $transaction->{single};

	$dbh->do('BEGIN');
	my $done = eval {
		for my $step (@{ $transaction->{steps} })
		{
			unless ($step->{guarded})
			{
				$dbh->do($step->{sql});
				next;
			}
			$dbh->do('SAVEPOINT guard');
			my $succeeded = eval { $dbh->do($step->{sql}); 1 };
			$dbh->do('ROLLBACK TO guard') unless $succeeded;
			$dbh->do('RELEASE guard');
		}
		1;
	};
	my $error = $@;
	$dbh->do($done && $transaction->{commit} ? 'COMMIT' : 'ROLLBACK');
	die $error unless $done;
	return;
}

sub truncates
{
	my ($transaction) = @_;
	return scalar grep { $_->{sql} =~ /^TRUNCATE/ } @{ $transaction->{steps} };
}

# A transaction as a psql script.
sub as_sql
{
	my ($transaction) = @_;
	my @steps = @{ $transaction->{steps} };

	return "$steps[0]{sql};\n" if $transaction->{single};
	return join '', "BEGIN;\n",
	  map({
			$_->{guarded}
			? "SAVEPOINT guard;\n$_->{sql};\n-- if it fails: ROLLBACK TO guard;\n"
			: "$_->{sql};\n"
		} @steps),
	  $transaction->{commit} ? "COMMIT;\n" : "ROLLBACK;\n";
}

# One row inserted, updated or deleted; its key stays.
sub _single_row_change
{
	my ($self) = @_;
	my $random = $self->{random};
	my $table = $self->{table};
	my $what = $random->weighted(
		insert => 30,
		upsert => 10,
		update => 35,
		nothing => 3,
		delete => 22);

	return $self->_insert(1) if $what eq 'insert';
	return $self->_upsert if $what eq 'upsert';
	return "DELETE FROM $table WHERE " . $self->_one_row
	  if $what eq 'delete';
	my ($column) = $random->sample(1, $self->_attributes);
	return "UPDATE $table SET "
	  . _quote_name($column->{name}) . ' = '
	  . _quote_name($column->{name})
	  . ' WHERE '
	  . $self->_one_row
	  if $what eq 'nothing';
	return "UPDATE $table SET " . $self->_assignments . ' WHERE '
	  . $self->_one_row;
}

# Any change, as steps.
sub _change
{
	my ($self) = @_;
	my $random = $self->{random};
	my $table = $self->{table};
	my $what = $random->weighted(
		single => 50,
		insert => 12,
		update => 10,
		update_all => 2,
		delete => 8,
		delete_all => 1,
		rekey => 12,
		swap => 4,
		truncate => $self->{truncate} ? 1 : 0);

	return { sql => $self->_single_row_change } if $what eq 'single';
	return { sql => $self->_insert($random->between(2, 15)) }
	  if $what eq 'insert';
	return {
		sql => "UPDATE $table SET "
		  . $self->_assignments
		  . ' WHERE '
		  . $self->_condition
	  } if $what eq 'update';
	return { sql => "UPDATE $table SET " . $self->_assignments }
	  if $what eq 'update_all';
	return { sql => "DELETE FROM $table WHERE " . $self->_condition }
	  if $what eq 'delete';
	return { sql => "DELETE FROM $table" } if $what eq 'delete_all';
	return { sql => "TRUNCATE $table" } if $what eq 'truncate';

	# the rest changes keys
	return { sql => $self->_single_row_change } unless $self->{key};
	my ($column) = $random->sample(1, @{ $self->{key} });
	my ($from, $to) = $random->sample(2, @{ $column->{values} });
	my $name = _quote_name($column->{name});
	my $set = sub {
		my ($old, $new) = map { _literal($_, $column->{type}) } @_;
		return {
			sql => "UPDATE $table SET $name = $new WHERE $name = $old",
			guarded => 1
		};
	};
	return {
		sql => "UPDATE $table SET $name = "
		  . $self->_value($column, 0) . ', '
		  . $self->_assignments
		  . ' WHERE '
		  . $self->_one_row,
		guarded => 1
	  } if $what eq 'rekey';
	# to a value nobody has, and back
	my $nobody =
	    $column->{type} eq 'text' ? 'nobody'
	  : $column->{type} eq 'uuid' ? '99999999-0000-0000-0000-000000000000'
	  :                             -1;
	return ($set->($from, $nobody), $set->($to, $from), $set->($nobody, $to));
}

sub _attributes
{
	my ($self) = @_;
	return grep { !$_->{key} } @{ $self->{columns} };
}

sub _assignments
{
	my ($self) = @_;
	my $random = $self->{random};
	my @columns =
	  $random->sample($random->pick(1, 1, 1, 2), $self->_attributes);

	return join ', ',
	  map { _quote_name($_->{name}) . ' = ' . $self->_value($_) } @columns;
}

sub _insert
{
	my ($self, $count) = @_;
	my @columns = @{ $self->{columns} };
	my %seen;
	my @rows;

	for (1 .. $count)
	{
		my @values = map { $self->_value($_) } @columns;
		push @rows, '(' . join(', ', @values) . ')';
	}
	return
	    "INSERT INTO $self->{table} ("
	  . join(', ', map { _quote_name($_->{name}) } @columns)
	  . ') VALUES '
	  . join(', ', @rows)
	  . ($self->{key} ? ' ON CONFLICT DO NOTHING' : '');
}

sub _upsert
{
	my ($self) = @_;
	my ($column) = $self->{random}->sample(1, $self->_attributes);
	my $name = _quote_name($column->{name});

	return $self->_insert(1) unless $self->{key};
	return $self->_insert(1) =~
	  s/DO NOTHING$/"(" . $self->_key_list . ") DO UPDATE SET $name = excluded.$name"/er;
}

# A condition that at most one row meets; of equal rows it is any, of others the
# same one in every run.
sub _one_row
{
	my ($self) = @_;
	my $table = $self->{table};

	return join ' AND ',
	  map { _quote_name($_->{name}) . ' = ' . $self->_value($_, 0) }
	  @{ $self->{key} }
	  if $self->{key};
	return "(tableoid, ctid) = (SELECT tableoid, ctid FROM $table WHERE "
	  . $self->_condition
	  . " ORDER BY $table USING *< LIMIT 1)";
}

# The key of a row of the table, as the deltas show it.
sub _key_json
{
	my ($self) = @_;
	return $self->key_json($self->{table});
}

sub key_json
{
	my ($self, $alias) = @_;

	return "row_to_json($alias)::text" unless $self->{key};
	return '(SELECT row_to_json(k)::text FROM (SELECT '
	  . join(', ', map { "$alias.$_->{name}" } @{ $self->{key} })
	  . ') k)';
}

# A random value of the column, as SQL; null with the given chance.
sub _value
{
	my ($self, $column, $null) = @_;
	my $random = $self->{random};

	return 'NULL'
	  if $random->chance($null // ($column->{key} ? 0 : 15));
	my $value = $random->pick(@{ $column->{values} });
	return "repeat('$value', " . $random->pick(10, 3000, 6000) . ')'
	  if $column->{large};
	return _literal($value, $column->{type});
}

# ---- settings ----

# Some of ours, none of which changes a result: name => value.
sub settings
{
	my ($self) = @_;
	my $random = $self->{random};
	my %settings = (
		slice_offset => $random->between(0, 8),
		group_memory => $random->pick('0', '1kB', '256MB'),
		cushion_memory => $random->pick('0', '1kB', '64MB'),
		result_memory => $random->pick('16MB', '1GB'));

	return { map { ("live_topn.$_" => $settings{$_}) }
		  $random->sample($random->pick(1, 1, 2), sort keys %settings) };
}

# ---- queries ----

# A random query, as LiveTopn::Query; perhaps one of those before, on the same
# page or on another one, which then share their rows.
sub query
{
	my ($self) = @_;
	my $random = $self->{random};
	my @known = @{ $self->{queries} // [] };

	return $self->_on_some_page($random->pick(@known))
	  if @known && $random->chance(45);
	my $query = $self->_new_query;
	push @{ $self->{queries} }, $query;
	return $query;
}

sub _on_some_page
{
	my ($self, $query) = @_;
	my $random = $self->{random};

	return $query
	  if $query->grouped || !$query->has_limit || $random->chance(40);
	return $query->on_page($random->pick(0, 0, $query->{offset}, 1 .. 4),
		$random->pick(1 .. 5, 8, 13, MAX_LIMIT));
}
sub _new_query
{
	my ($self) = @_;
	my $random = $self->{random};
	my $alias = $random->chance(25) ? 'f' : $self->{table};
	my (@order, @args);
	local $self->{alias} = $alias;

	if ($random->chance(30))
	{
		my $query = $self->_group_query($alias);

		return $query if $query;
	}

	my @select = $self->_select_list;

	my $unranked = $random->chance(15);
	if (!$unranked && $random->chance(95))
	{
		for my $column (
			$random->sample(
				$random->pick(1, 1, 2, 3),
				grep { !$_->{unsortable} } @{ $self->{columns} }))
		{
			push @order, $self->_order_item($column, \@select);
		}
	}

	my $ties = @order && $random->chance(15);
	my $limit =
	  $unranked || (!$ties && $random->chance(12))
	  ? $random->pick('', 'LIMIT ALL', 'LIMIT NULL')
	  : $random->pick(1 .. 5, 8, 13, MAX_LIMIT);
	my $where = $random->chance(65) ? $self->_condition(\@args) : undef;
	my @list =
	  defined $select[0][0]
	  ? map { "$_->[0] AS " . _quote_name($_->[1]) } @select
	  : $random->pick('*', "$alias.*");

	return LiveTopn::Query->new(
		table => $self->{table},
		alias => $alias,
		select => join(', ', @list),
		where => $where,
		order => join(', ', @order),
		limit => $limit,
		offset => !$unranked && $random->chance(25) ? $random->pick(1 .. 4, 10) : 0,
		ties => $ties ? 1 : 0,
		args => \@args,
		key => $self->key_columns,
		key_json => $self->key_json($alias));
}

# A select list: [text, name, column or undef]; the text is undef for *.
sub _select_list
{
	my ($self) = @_;
	my $random = $self->{random};
	my @select;

	if ($random->chance(20))
	{
		push @select, map { [ undef, $_->{name}, $_ ] } @{ $self->{columns} };
	}
	else
	{
		for my $column (
			$random->sample(
				$random->between(1, 4), @{ $self->{columns} }))
		{
			my $name = 's' . @select;

			if ($column->{expressions} && $random->chance(30))
			{
				push @select, [ $self->_expression($column), $name ];
			}
			elsif ($random->chance(20))
			{
				push @select, [ $self->_column($column), $name, $column ];
			}
			else
			{
				push @select,
				  [ $self->_column($column), $column->{name}, $column ];
			}
		}
	}
	return @select;
}

# The type's equal values all look alike, so that they can be partition keys.
sub _is_partition_key
{
	my ($column) = @_;

	return $column->{type} !~ /^(numeric|double|real|interval|json|jsonb|char|integer\[\])/
	  && $column->{collate} !~ /ci/
	  && !$column->{large};
}

# A random query for the first rows of each group, or undef if there is no
# column for it.
sub _group_query
{
	my ($self, $alias) = @_;
	my $random = $self->{random};
	my @candidates = grep { _is_partition_key($_) } @{ $self->{columns} };
	my (@keys, @args, @order);

	# mostly by columns of few values
	my @attributes = grep { !$_->{key} } @candidates;
	@candidates = @attributes if @attributes && $random->chance(85);
	return unless @candidates;

	my $direction = sub {
		return $random->pick('', '', ' DESC')
		  . $random->pick('', '', ' NULLS FIRST', ' NULLS LAST');
	};
	for my $column ($random->sample($random->pick(1, 1, 2), @candidates))
	{
		my $expression =
		  "$alias." . _quote_name($column->{name});
		my $name = $column->{name};
		my $outer = 'x.' . _quote_name($name);

		if ($column->{type} eq 'integer' && $random->chance(25))
		{
			$_ .= ' % 3' for $expression, $outer;
			$name = 'key' . (@keys + 1);
		}
		push @keys, [ $expression, $name, $direction->(), $outer, $column ];
	}
	for my $column ($random->sample($random->pick(0, 1, 1, 2),
			grep { !$_->{unsortable} } @{ $self->{columns} }))
	{
		push @order, $self->_order_item($column, []);
	}

	# a key that is selected as well would be called as it is there
	my @select = grep { ($_->[0] // '') !~ / % 3$/ } $self->_select_list;
	return unless @select;
	my %query = (
		table => $self->{table},
		alias => $alias,
		keys => \@keys,
		order => join(', ', @order),
		where => $random->chance(50) ? $self->_condition(\@args) : undef,
		args => \@args,
		key => $self->key_columns,
		key_json => $self->key_json($alias));

	if ($random->chance(25))
	{
		return LiveTopn::GroupQuery->new(
			%query,
			select => \@select,
			limit => 1);
	}

	# outside of the subquery its columns are known by their names
	my %named = map { $_->[1] => 1 }
	  grep { $_->[2] && $_->[1] eq $_->[2]{name} } @select;
	my $visible = !grep { !$named{ $_->[4]{name} } } @keys;
	my @bound = $self->_bound(\@args, $visible ? @keys : ());
	my $rank =
	  @order
	  ? $random->pick(qw(row_number row_number rank dense_rank))
	  : 'row_number';
	my @outer = $random->sample($random->between(1, 3),
		map { $_->[1] } @select);

	push @outer, 'n' if $random->chance(40);
	return LiveTopn::GroupQuery->new(
		%query,
		select => \@select,
		rank => $rank,
		bound => $bound[0],
		limit => $rank eq 'row_number' ? $bound[1] : undef,
		conditions => $visible && $random->chance(20)
		? ["$keys[0][3] IS NOT NULL"]
		: [],
		outer => $random->chance(50) ? \@outer : undef,
		sorted => $visible && $random->chance(50),
		named => $random->chance(20));
}

# A condition on the rank n, and how many ranks meet it, undef if that depends
# on the group.
sub _bound
{
	my ($self, $args, @keys) = @_;
	my $random = $self->{random};
	my $limit = $random->pick(1, 1, 2, 3, 5, 8);
	my $after = $limit + 1;
	my ($integer) = grep { $_->[4]{type} eq 'integer' } @keys;

	return ("n <= $integer->[3] % 3 + " . $random->pick(0, 1, 3), undef)
	  if $integer && $random->chance(40);
	if ($random->chance(15))
	{
		push @$args, [ $limit, 'integer' ];
		return ('n <= $' . @$args . '::integer', $limit);
	}
	if ($random->chance(20))
	{
		my $first = $random->between(1, 3);
		my $last = $first + $limit - 1;

		return ($random->pick(
				"n BETWEEN $first AND $last",
				"n >= $first AND n <= $last",
				"n > $first - 1 AND $last >= n"), $limit);
	}
	return ('n = ' . $limit, 1) if $random->chance(10);
	return ($random->pick("n <= $limit", "n < $after", "$limit >= n"), $limit);
}

sub _column
{
	my ($self, $column) = @_;
	my $name = _quote_name($column->{name});

	return $self->{alias} && $self->{random}->chance(20)
	  ? "$self->{alias}.$name"
	  : $name;
}

sub _expression
{
	my ($self, $column) = @_;
	my $template = $self->{random}->pick(@{ $column->{expressions} });

	return $template =~ s/%c/$self->_column($column)/egr;
}

sub _order_item
{
	my ($self, $column, $select) = @_;
	my $random = $self->{random};
	my ($position) =
	  grep { ($select->[ $_ - 1 ][2] // 0) == $column } 1 .. @$select;
	# an output column that hides the column of that name
	my ($hidden) = grep {
		     $_->[1] eq $column->{name}
		  && ($_->[2] // 0) != $column
	} @$select;
	my $item;

	if (defined $position && $random->chance(20))
	{
		$item = $position;
	}
	elsif (defined $position && $random->chance(20))
	{
		$item = _quote_name($select->[ $position - 1 ][1]);
	}
	elsif ($column->{expressions}
		&& $column->{type} ne 'json'
		&& $random->chance(25))
	{
		$item = $self->_expression($column);
	}
	else
	{
		$item =
		  $hidden
		  ? "$self->{alias}." . _quote_name($column->{name})
		  : $self->_column($column);
		$item .= ' COLLATE ' . $random->pick('"C"', '"en-x-icu"', 'ci')
		  if $column->{type} =~ /^(text|varchar|char)/ && $random->chance(20);
	}
	$item .= $random->pick('', ' ASC', ' DESC', ' DESC', ' USING <', ' USING >');
	$item .= $random->pick('', '', ' NULLS FIRST', ' NULLS LAST');
	return $item;
}

# A condition; constants become arguments now and then if $args is given.
sub _condition
{
	my ($self, $args) = @_;
	my $random = $self->{random};
	my @atoms = map { $self->_atom($args) } 1 .. $random->pick(1, 1, 1, 2, 3);
	my $condition = shift @atoms;

	for my $atom (@atoms)
	{
		$condition =
		  "($condition " . $random->pick('AND', 'OR', 'OR') . " $atom)";
		$condition = "NOT $condition" if $random->chance(15);
	}
	return $condition;
}

sub _atom
{
	my ($self, $args) = @_;
	my $random = $self->{random};
	my $column = $random->pick(@{ $self->{columns} });
	my @templates =
	    $column->{large}      ? ('length(%c) > 100')
	  : $column->{unsortable} ? ('%c IS NOT NULL')

	  # arrays in an array are one array of more dimensions
	  : $column->{type} =~ /\[\]/ ? (grep { !/ANY/ } @comparisons)
	  :                             @comparisons;
	my $template =
	  $column->{conditions} && $random->chance(30)
	  ? $random->pick(@{ $column->{conditions} })
	  : $random->pick(@templates);

	# LIKE needs a collation that tells all strings apart
	$template = '%c LIKE \'a%\''
	  if $column->{type} eq 'text'
	  && $column->{collate} !~ /ci/
	  && !$column->{large}
	  && $random->chance(15);
	$template =~ s/%c/$self->_column($column)/eg;
	$template =~ s{%v}
	{
		my $value = $random->pick(@{ $column->{values} });
		if ($args && $random->chance(15))
		{
			push @$args, [ $value, $column->{type} ];
			'$' . @$args . "::$column->{type}";
		}
		else { _literal($value, $column->{type}); }
	}eg;
	return $template;
}

sub _literal
{
	my ($value, $type) = @_;

	return $value if $type eq 'integer' && $value >= 0;
	$value =~ s/'/''/g;
	$value = $value =~ /\\/ ? "E'" . $value =~ s/\\/\\\\/gr . "'" : "'$value'";
	return "$value\::$type";
}

sub _quote_name
{
	my ($name) = @_;

	return $name if $name =~ /^[a-z][a-z0-9_]*$/;
	return '"' . $name =~ s/"/""/gr . '"';
}

1;
