
=head1 NAME

LiveTopn::FuzzGrammar - random queries and calls, right ones and wrong ones

=head1 SYNOPSIS

  my $grammar = LiveTopn::FuzzGrammar->new(random => $random);
  my $query = $grammar->query;

=head1 DESCRIPTION

Unlike LiveTopn::Generator, whose queries are all supported, this one makes
whatever the parser takes, and sometimes what it does not.

=cut

package LiveTopn::FuzzGrammar;

use strict;
use warnings;

# Statements that make what the queries are over.
sub schema
{
	return (
		q{CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy')},
		'CREATE TYPE pair AS (x int, y text)',
		'CREATE DOMAIN positive AS int CHECK (VALUE > 0)',
		q{CREATE TABLE keyed (id int PRIMARY KEY, i int, n numeric, f float8,
			t text, b boolean, ts timestamptz, d date, iv interval, a int[],
			j jsonb, js json, m mood, c pair, p positive, by bytea,
			"odd ""name" int, g int GENERATED ALWAYS AS (i * 2) STORED)},
		'CREATE TABLE full_rows (LIKE keyed)',
		'ALTER TABLE full_rows REPLICA IDENTITY FULL',
		'CREATE TABLE parted (LIKE keyed, PRIMARY KEY (id))
			PARTITION BY HASH (id)',
		'CREATE TABLE parted1 PARTITION OF parted
			FOR VALUES WITH (MODULUS 2, REMAINDER 0)',
		'CREATE TABLE parted2 PARTITION OF parted
			FOR VALUES WITH (MODULUS 2, REMAINDER 1)',
		'CREATE TABLE nokey (LIKE keyed)',
		'CREATE UNLOGGED TABLE unlogged (LIKE keyed, PRIMARY KEY (id))',
		'CREATE TABLE parent (LIKE keyed, PRIMARY KEY (id))',
		'CREATE TABLE child () INHERITS (parent)',
		'CREATE VIEW simple AS SELECT * FROM keyed WHERE i > 0',
		'CREATE VIEW nested AS SELECT id, i AS k, t FROM simple WHERE b',
		'CREATE VIEW joined AS SELECT k.id, k.i, f.t FROM keyed k
			JOIN full_rows f USING (id)',
		'CREATE VIEW grouped AS SELECT i, count(*) AS id FROM keyed GROUP BY i',
		'CREATE MATERIALIZED VIEW stored AS SELECT * FROM keyed',
		'CREATE FUNCTION set_of() RETURNS SETOF keyed LANGUAGE sql STABLE
			AS $$SELECT * FROM keyed$$',
		'CREATE FUNCTION twice(int) RETURNS int LANGUAGE sql IMMUTABLE
			AS $$SELECT $1 * 2$$',
		'CREATE FUNCTION slow(int) RETURNS int LANGUAGE plpgsql IMMUTABLE
			AS $$BEGIN RETURN $1; END$$',
		map({ _fill($_) } qw(keyed full_rows parted parent)));
}

sub _fill
{
	my ($table) = @_;
	return "INSERT INTO $table (id, i, n, f, t, b, ts, d, iv, a, j, js, m, c,
			p, by, \"odd \"\"name\")
		SELECT g, nullif(g % 7, 3), g / 3.0, sqrt(g),
			(ARRAY['a', 'B', NULL, 'é', '', 'x\"\\y'])[1 + g % 6], g % 3 = 0,
			timestamptz '2026-01-01 UTC' + g * interval '1 hour',
			date '2026-01-01' + g, g * interval '1 minute',
			ARRAY[g, NULL, g % 2], jsonb_build_object('k', g % 5),
			json_build_object('k', g), (enum_range(NULL::mood))[1 + g % 3],
			ROW(g % 4, 'y')::pair, 1 + g % 9, decode(lpad(to_hex(g), 8, '0'),
			'hex'), g
		FROM generate_series(1, 40) g";
}

sub new
{
	my ($class, %args) = @_;
	return bless {%args}, $class;
}

sub pick { my ($self, @choices) = @_; return $self->{random}->pick(@choices); }
sub chance { return $_[0]{random}->chance($_[1]); }

# { text, args, total, unlimited }: total if the order of the rows is
# determined by the query; unlimited, the same without its limit, if it is
# known.
sub query
{
	my ($self) = @_;

	$self->{args} = [];
	$self->{depth} = 0;
	my $query = $self->_select;

	$query = { text => $self->_mangle($query->{text}) } if $self->chance(12);
	return { text => $self->_other, args => undef } if $self->chance(6);
	$query->{args} = @{ $self->{args} } ? $self->{args} : undef;
	$query->{args} = [ @{ $self->{args} }, 'one too many' ]
	  if $self->chance(2);
	return $query;
}

# Most of it plain, now and then one strange part.
sub _select
{
	my ($self) = @_;
	my $strange = $self->chance(45) ? $self->{random}->below(12) : -1;
	my ($from, $alias) = $self->_from($strange == 0);
	my $list = $self->_list($strange == 1);
	my $where = $self->chance(60) ? $self->_condition(2) : undef;
	my @order = map { $self->_order_item($strange == 2) }
	  1 .. $self->pick(0, 1, 1, 2);
	my $total = $self->chance(70);
	my ($distinct, $tail, $with) = ('', '', '');

	push @order, "$alias.id" if $total;
	$distinct = $self->pick('ALL ', 'DISTINCT ', 'DISTINCT ON (i) ',
		'DISTINCT ON (1, t) ')
	  if $strange == 3;
	$tail = $self->pick(
		' GROUP BY id', ' GROUP BY id, i HAVING count(*) > 0',
		' GROUP BY GROUPING SETS ((id), ())', ' HAVING true',
		' WINDOW w AS (ORDER BY id)')
	  if $strange == 4;
	$with = $self->pick(
		'WITH q AS (SELECT 1) ',
		'WITH RECURSIVE r AS (SELECT 1 UNION SELECT 2) ',
		'WITH x AS MATERIALIZED (SELECT * FROM keyed) ')
	  if $strange == 5;
	my $limit = $self->_limit($strange == 6);
	my $end =
	  $strange == 7
	  ? $self->pick(' FOR UPDATE', ' FOR SHARE OF keyed NOWAIT',
		' INTO gone', ';', '; SELECT 1', ' -- comment', ' /* open', ';;',
		' UNION ALL SELECT 1 LIMIT 1', "\0")
	  : '';
	my $core =
	    "${with}SELECT $distinct$list FROM $from"
	  . (defined $where ? " WHERE $where" : '')
	  . $tail
	  . (@order ? ' ORDER BY ' . join(', ', @order) : '');

	$core = $self->pick(
		"($core)", "TABLE $alias", "VALUES (1), (2)",
		"SELECT 1", "SELECT", "SELECT * FROM ($core) s",
		"($core) UNION ALL ($core)")
	  if $strange == 8;
	return {
		text => "$core$limit$end",
		total => $total && $strange < 0,
		unlimited => $core
	};
}

sub _from
{
	my ($self, $strange) = @_;
	my $table = $self->{random}->weighted(
		keyed => 50,
		full_rows => 15,
		parted => 15,
		simple => 8,
		parent => 2,
		nokey => 2,
		unlogged => 2,
		nested => 3,
		joined => 1,
		grouped => 1,
		stored => 1);

	return $self->pick(
		[ "ONLY $table", $table ],
		[ "$table t (id, i)", 't' ],
		[ "$table TABLESAMPLE SYSTEM (50)", $table ],
		[ "$table, full_rows f", $table ],
		[ "$table CROSS JOIN LATERAL (SELECT 1) l", $table ],
		[ "$table LEFT JOIN nokey n USING (id)", $table ],
		[ 'set_of()', 'set_of' ],
		[ 'generate_series(1, 3) id', 'id' ],
		[ "(SELECT * FROM $table) s", 's' ],
		[ "(SELECT * FROM $table LIMIT 3) s", 's' ],
		[ 'ROWS FROM (set_of()) WITH ORDINALITY', 'set_of' ],
		[ 'pg_class', 'pg_class' ],
		[ 'pg_stat_activity', 'pg_stat_activity' ],
		[ 'live_topn.subscription', 'subscription' ],
		[ 'topn_subscriptions', 'topn_subscriptions' ],
		[ 'information_schema.tables', 'tables' ],
		[ 'missing', 'missing' ],
		[ '(VALUES (1, 2)) v (id, i)', 'v' ],
		[ "public.$table", $table ],
		[ "other.public.$table", $table ],
		[ "$table AS \"odd \"\"alias\"", '"odd ""alias"' ])->@*
	  if $strange;
	return $self->chance(20) ? ("$table x", 'x') : ($table, $table);
}

sub _list
{
	my ($self, $strange) = @_;
	my @items = map { $self->_expression(2) } 1 .. $self->pick(1, 1, 2, 3);

	push @items, $self->pick(
		'count(*)', 'sum(i) OVER (ORDER BY id)', 'row_number() OVER ()',
		'generate_series(1, 2)', 'unnest(a)', 'random()', 'now()',
		'(SELECT max(i) FROM keyed)', 'EXISTS (SELECT 1)', 'keyed', 'keyed.*',
		'ctid', 'xmin', 'tableoid', 'tableoid::regclass', 'cmin',
		'nextval(\'none\')', 'pg_sleep(1000)', 'lo_import(\'/etc/passwd\')',
		'GROUPING(i)', '$1', 'NULL', "''", '1/0', '(c).x', '(c).*',
		'slow(i)', 'i AS "a""b"', "i AS \"new\nline\"", 'current_user',
		'CURRENT_TIMESTAMP', 'array_agg(i) FILTER (WHERE b)',
		'ROW(id, i)', 'ROW()', 'ARRAY[]::int[]', '\'{bad\'::int[]', 'i.i',
		'to_char(ts, \'YYYY\')', 'ts::text', 'ts::date', 'i::regclass::text',
		'xmlelement(name x)', 'mood \'none\'', 'to_regclass(t)::text')
	  if $strange;
	@items = $self->pick('*', 'id, *', '*, *', 'i, t') if $self->chance(15);
	return join ', ', @items;
}

sub _column
{
	my ($self) = @_;
	return $self->pick(qw(id i i i n f t t b ts d iv a j m c p by g),
		'"odd ""name"', ($self->chance(5) ? ('js', 'none') : ()));
}

# Any expression, perhaps of the wrong type.
sub _expression
{
	my ($self, $depth) = @_;

	return $self->_column if $depth <= 0 || $self->chance(55);
	my $e = sub { $self->_expression($depth - 1) };
	my $i = sub { $self->_number($depth - 1) };
	return $self->{random}->pick(
		sub { $i->() },
		sub { 'coalesce(t, ' . $self->_constant . ')' },
		sub { 'length(t)' },
		sub { 'upper(t) || ' . $self->_constant },
		sub { '(' . $self->_condition($depth - 1) . ')' },
		sub { 'CASE WHEN ' . $self->_condition($depth - 1) . ' THEN '
			  . $i->() . ' ELSE ' . $i->() . ' END' },
		sub { 'a[' . $i->() . ']' },
		sub { "j -> 'k'" },
		sub { "j ->> 'k'" },
		sub { '(c).x' },
		sub { 'twice(' . $i->() . ')' },
		sub { 'row_to_json(ROW(i, t))' },
		sub { 'n::' . $self->pick(qw(int text float8 numeric(3,1) bool)) },
		sub { 'i::' . $self->pick(qw(text int8 positive bit(4) numeric)) },
		sub { 't COLLATE ' . $self->pick('"C"', '"en-x-icu"', '"none"') },
		sub { 'nullif(' . $e->() . ', ' . $e->() . ')' },
		sub { 'greatest(' . $i->() . ', ' . $i->() . ')' },
		sub { 'extract(epoch FROM iv)' },
		sub { 'md5(t)' },
		sub { 'd + ' . $i->() },
		sub { 'f / ' . $i->() },
		sub { 'ARRAY[' . $i->() . ', i]' },
		sub { 'i IS NOT DISTINCT FROM ' . $i->() },
		sub { $self->_parameter('int') }
	)->();
}

sub _number
{
	my ($self, $depth) = @_;

	return $self->pick('i', 'id', 'g', 'p', '1', '0', '-1', '7', 'NULL')
	  if $depth <= 0 || $self->chance(60);
	return '('
	  . $self->_number($depth - 1) . ' '
	  . $self->pick(qw(+ - * % /)) . ' '
	  . $self->_number($depth - 1) . ')';
}

sub _constant
{
	my ($self) = @_;
	return $self->pick("'a'", "''", "'é'", "E'\\\\'", "'x''y'", 'NULL',
		q{$$d$$}, "U&'\\0061'", "'" . 'z' x 300 . "'");
}

sub _parameter
{
	my ($self, $type) = @_;

	push @{ $self->{args} },
	  $self->chance(90)
	  ? $self->pick(0, 1, 5, '-3')
	  : $self->pick('x', '', undef, '99999999999999999999');
	return '$' . scalar(@{ $self->{args} }) . "::$type";
}

sub _condition
{
	my ($self, $depth) = @_;
	my $n = sub { $self->_number($depth) };

	return $self->{random}->pick(
		sub { $n->() . ' ' . $self->pick(qw(< <= = >= > <>)) . ' ' . $n->() },
		sub { 't ' . $self->pick(qw(< = > ~ !~ LIKE), 'SIMILAR TO') . ' '
			  . $self->_constant },
		sub { 'i IN (' . $n->() . ', ' . $n->() . ')' },
		sub { 'i = ANY (a)' },
		sub { 'i BETWEEN ' . $n->() . ' AND ' . $n->() },
		sub { $self->_column . ' IS ' . $self->pick('NULL', 'NOT NULL') },
		sub { 'b' },
		sub { 'm ' . $self->pick(qw(< = >)) . " 'ok'" },
		sub { 'c = ROW(1, ' . $self->_constant . ')::pair' },
		sub { '(i, id) > (' . $n->() . ', ' . $n->() . ')' },
		sub { 'j @> \'{"k": 1}\'' },
		sub { 'ts < ' . $self->pick("'2026-01-02 UTC'", 'now()') },
		sub { 'EXISTS (SELECT 1 FROM keyed)' },
		sub { 'i = ' . $self->_parameter('int') },
		sub { 'true' },
		sub { 'false' },
		sub { 'random() < 0.5' }
	)->() if $depth <= 0 || $self->chance(60);
	return $self->pick(
		'NOT (' . $self->_condition($depth - 1) . ')',
		'('
		  . $self->_condition($depth - 1) . ' '
		  . $self->pick(qw(AND OR)) . ' '
		  . $self->_condition($depth - 1) . ')');
}

sub _order_item
{
	my ($self, $strange) = @_;

	return $self->pick(
		'99', '0', '-1', "'x'", 'NULL', 'js', 'random()', 'count(*)',
		'i USING <>', 'i USING ~', 't USING ~<~', 't USING <', 'none',
		'(SELECT 1)', 'row_number() OVER ()', 'a', 'c', 'keyed', 'ROW(i, t)',
		'i COLLATE "C"', 't COLLATE "none"', '$1', 'i ASC DESC', 'now()')
	  if $strange;
	return $self->pick($self->_column, $self->_column, $self->_expression(1),
		'1')
	  . $self->pick('', '', ' ASC', ' DESC')
	  . $self->pick('', '', ' NULLS FIRST', ' NULLS LAST');
}

sub _limit
{
	my ($self, $strange) = @_;

	return $self->pick(
		'', ' LIMIT ALL', ' LIMIT NULL', ' LIMIT 0', ' LIMIT -1',
		' LIMIT 2147483648', ' LIMIT 9223372036854775807',
		' LIMIT 99999999999999999999', " LIMIT '5'", ' LIMIT 2.5',
		' LIMIT 1e1', ' LIMIT (SELECT 3)', ' LIMIT i', ' LIMIT random()',
		' LIMIT 3 OFFSET -1', ' LIMIT 3 OFFSET 9223372036854775807',
		' LIMIT 3 OFFSET NULL', ' OFFSET 2', ' LIMIT 1 + 2',
		" LIMIT length('abc')", ' LIMIT 1/0', ' LIMIT \'x\'',
		' FETCH FIRST ROW ONLY', ' FETCH FIRST 3 ROWS WITH TIES',
		' FETCH FIRST NULL ROWS WITH TIES', ' LIMIT 3 LIMIT 3',
		' OFFSET 1 FETCH NEXT 2 ROWS ONLY', ' LIMIT 1000000')
	  if $strange;
	my $offset = $self->chance(20) ? $self->pick(' OFFSET 2', ' OFFSET 0',
		' OFFSET 100') : '';
	return ' LIMIT ' . $self->pick(1 .. 5, 10, 50) . $offset
	  if $self->chance(92);
	push @{ $self->{args} }, $self->pick(1, 3, 0, -1, undef, 'x');
	return ' LIMIT $' . @{ $self->{args} } . '::bigint';
}

# Delete, double or swap words; put in strange ones.
sub _mangle
{
	my ($self, $text) = @_;
	my @words = split /(?<=\W)|(?=\W)/, $text;
	my $at = $self->{random}->below(scalar @words);

	return $self->{random}->pick(
		sub { splice @words, $at, 1; join '', @words },
		sub { splice @words, $at, 0, $words[$at]; join '', @words },
		sub { splice @words, $at, 0, ' ', $self->pick(
				'SELECT', '(', ')', "'", '"', '$0', '$99', '$1', ',', '--',
				'::', '%s', '\\', 'ORDER BY', 'LIMIT', '[', 'E\'\\', "\x01",
				'ł', '$tag$'), ' ';
			join '', @words },
		sub { substr $text, 0, length(join '', @words[ 0 .. $at ]) },
		sub { join '', reverse @words }
	)->();
}

# What is no query at all.
sub _other
{
	my ($self) = @_;
	return $self->pick(
		'', ' ', ';', '--', 'INSERT INTO keyed VALUES (1)',
		'DELETE FROM keyed RETURNING id', 'UPDATE keyed SET i = 1',
		'DROP TABLE keyed', 'BEGIN', 'COMMIT', 'ROLLBACK',
		'EXPLAIN SELECT id FROM keyed LIMIT 1', 'SHOW ALL',
		'COPY keyed TO STDOUT', 'DO $$BEGIN END$$', 'CALL nothing()',
		'VALUES (1) LIMIT 1', 'TABLE keyed LIMIT 2',
		'DECLARE c CURSOR FOR SELECT 1', 'EXECUTE p', 'LISTEN x', 'VACUUM',
		'SELECT id FROM keyed LIMIT 1; DROP TABLE keyed',
		'WITH x AS (DELETE FROM keyed RETURNING *) SELECT * FROM x LIMIT 1',
		'SELECT ' . '(' x 5000 . '1' . ')' x 5000 . ' FROM keyed LIMIT 1',
		'SELECT id FROM keyed WHERE '
		  . join(' OR ', map { "i = $_" } 1 .. 3000)
		  . ' ORDER BY id LIMIT 3',
		'SELECT id FROM keyed WHERE ' . 'NOT ' x 20000 . 'b LIMIT 1',
		'SELECT ' . join(', ', map { "i + $_" } 1 .. 1700)
		  . ' FROM keyed ORDER BY id LIMIT 1',
		'SELECT id FROM keyed WHERE t = \'' . 'long ' x 100_000
		  . '\' LIMIT 1',
		'SELECT id AS "' . 'é' x 100 . '" FROM keyed LIMIT 1',
		"SELECT id FROM keyed LIMIT 1\0");
}

# A statement that changes some row.
sub change
{
	my ($self) = @_;
	my $table = $self->pick(qw(keyed keyed full_rows parted));
	my $id = $self->{random}->between(1, 40);

	return $self->pick(
		"UPDATE $table SET i = " . $self->pick(0 .. 9, 'NULL') . " WHERE id = $id",
		"UPDATE $table SET t = " . $self->_constant . ", b = NOT b WHERE id = $id",
		"DELETE FROM $table WHERE id = $id",
		"INSERT INTO $table (id, i, t, b, n, f) SELECT $id, 5, 'a', true, 1, 0
			WHERE NOT EXISTS (SELECT FROM $table WHERE id = $id)",
		"UPDATE $table SET n = n + 1, f = -f, m = 'happy', a = ARRAY[1] WHERE id > $id"
	);
}

# ---- calls ----

# A call of some function: { text, args }.
sub call
{
	my ($self) = @_;
	my ($function, @kinds) = $self->pick(
		[ 'subscribe_topn', qw(query name array deliver ranks int interval
			  interval) ],
		[ 'unsubscribe_topn', 'name' ],
		[ 'topn_snapshot', 'name' ],
		[ 'topn_poll', qw(name bigint interval) ],
		[ 'topn_resync', 'name' ],
		[ 'topn_renew', 'name' ],
		[ 'topn_move', qw(name bigint bigint) ],
		[ 'topn_sync', 'interval' ],
		[ 'live_topn.keyset_queries', qw(query array array) ])->@*;
	my @args = map { $self->_argument($_) } @kinds;

	return {
		text => "SELECT $function(" . join(', ', map { '?' } @args) . ')',
		args => \@args
	};
}

sub _argument
{
	my ($self, $kind) = @_;

	return undef if $self->chance(15);    ## no critic
	return $self->pick(
		'SELECT id FROM keyed ORDER BY id LIMIT 3',
		'SELECT id FROM keyed WHERE i = $1::int ORDER BY i, id LIMIT 3',
		'SELECT * FROM parted ORDER BY t DESC, id LIMIT 3', '', 'x')
	  if $kind eq 'query';
	return $self->pick(
		'idle', 'idle', 'a', '', ' ', "it's", '"', 'a"b', '\\', "a\nb",
		"a\tb", '%s%n', '{"x":1}', 'é' x 31, 'é' x 32, 'x' x 63, 'x' x 64,
		'x' x 100_000, "\x01", 'null', '$1', 'ſ', "\xf0\x9f\x98\x80" x 15,
		"\xf0\x9f\x98\x80" x 16, "\xc3\x28", "\xff", "a\0b",
		"x'); DROP TABLE keyed; --")
	  if $kind eq 'name';
	return $self->pick([], ['1'], ['x'], [undef], [ '1', '2' ],
		[ ('1') x 1000 ], [''], ["'"], ["1'; DROP TABLE keyed"])
	  if $kind eq 'array';
	return $self->pick(qw(notify stream both none), '', 'NOTIFY', 'none ',
		'x' x 10_000)
	  if $kind eq 'deliver';
	return $self->pick(qw(relative absolute), '', 'x') if $kind eq 'ranks';
	return $self->pick(0, 1, -1, 5, 2147483647, -2147483648, 1_000_000)
	  if $kind eq 'int';
	return $self->pick(0, 1, -1, 2, 9223372036854775807,
		'-9223372036854775808', 4294967296)
	  if $kind eq 'bigint';
	return $self->pick(
		'0', '1 ms', '-1 ms', '1 us', '10 ms', '-178000000 years', '1 mon',
		'-1 mon', '00:00:00.0005', '1 day -86399.99 s');
}

1;
