# Every type: its order, its values as row_to_json prints them, as a key.

use strict;
use warnings;
no warnings 'qw';

use FindBin;
use lib "$FindBin::Bin/../lib";

use Test::More;

use LiveTopn::Scenario;
use LiveTopn::Server;

use_server(LiveTopn::Server->start('types'));

my @not_ours = (
	'CREATE EXTENSION citext',
	'CREATE EXTENSION hstore',
	q{CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2',
		deterministic = false)},
	q{CREATE COLLATION digits (provider = icu, locale = 'en-u-kn-true')},
	q{CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy')},
	q{CREATE TYPE pair AS (x int, "y ""z" text)},
	q{CREATE TYPE floats AS RANGE (subtype = float8)},
	q{CREATE DOMAIN positive AS int CHECK (VALUE > 0)},
	q{CREATE DOMAIN word AS text CHECK (VALUE ~ '^\w*$')},
	q{CREATE DOMAIN big_pair AS pair CHECK ((VALUE).x > 0)},
	q{CREATE DOMAIN feeling AS mood DEFAULT 'ok'},
	q{CREATE DOMAIN words AS word[]});
writer->do($_) for @not_ours;

# A type and its values, in no order; columns of types in @unsorted have none.
my @types = (
	[ smallint => qw(-1 32767 0 1 -32768) ],
	[ bigint => qw(9007199254740993 -9007199254740993 0 1) ],
	[ numeric => qw(1.0 1.00 1 NaN Infinity -Infinity 0 -0.000
		  1012345000999912345001230123445566.00000001) ],
	[ 'numeric(10,3)' => qw(1.0 1.0001 -1 0 NaN) ],
	[ real => qw(NaN Infinity -Infinity -0 0 0.1 1e30 1.1754944e-38) ],
	[ 'double precision' => qw(NaN Infinity -Infinity -0 0 0.1 5e-324 1e300
		  0.30000000000000004) ],
	[ money => qw(1.50 -1 0 92233720368547758.07) ],
	[ boolean => qw(t f) ],
	[ text => 'a', 'A', '', ' ', 'ab', "e\xcc\x81", "\xc3\xa9", "\\", '"',
		"\b\f\n\r\t", "\x01\x1f\x7f", "\xe2\x80\xa8\xe2\x80\xa9",
		'</script>', "\xf0\x9f\x98\x80", '\u0000', '{"op":"leave"}' ],
	[ 'text COLLATE "C"' => qw(a B _ é Z) ],
	[ 'text COLLATE "de-x-icu"' => qw(a B _ é Z ä z) ],
	[ 'text COLLATE ci' => qw(a A b B é É) ],
	[ 'text COLLATE digits' => qw(a10 a9 a09 a1) ],
	[ 'varchar(3)' => qw(a A abc), '' ],
	[ 'char(4)' => qw(a A abc), '' ],
	[ 'varchar COLLATE ci' => qw(x X y) ],
	[ '"char"' => qw(a b), "\\377", '' ],
	[ name => qw(pg_class a Z _) ],
	[ bytea => '\x', '\x00', '\xff00', '\x5c' ],
	[ uuid => '00000000-0000-0000-0000-000000000001',
		'ffffffff-0000-0000-0000-000000000001',
		'10000000-0000-0000-0000-000000000001' ],
	[ date => qw(2026-01-01 infinity -infinity 2026-02-28), '0044-03-15 BC' ],
	[ time => qw(00:00 24:00 12:00:00.000001) ],
	[ timetz => '00:00+00', '01:00+01', '00:00-12' ],
	[ timestamp => 'infinity', '2026-01-01 00:00:00.000001',
		'2026-01-01 00:00:00.000002', '0001-01-01 BC' ],
	[ 'timestamp(0)' => '2026-01-01 00:00:00.4', '2026-01-01 00:00:00.6' ],
	[ timestamptz => 'infinity', '-infinity', '2026-01-01 00:00:00.000001+00',
		'2026-03-29 01:30+00', '2026-03-29 00:30+00',
		'1883-11-18 12:00:00+00' ],
	[ interval => '1 day', '24 hours', '-1 mon', '30 days',
		'1 year 2 mons -3 days 04:05:06.7' ],
	[ 'bit(3)' => qw(101 000 111) ],
	[ varbit => qw(1 10 0), '' ],
	[ inet => qw(10.0.0.1 10.0.0.1/8 ::1 192.168.0.0/16) ],
	[ cidr => qw(10.0.0.0/8 192.168.0.0/16) ],
	[ macaddr => qw(08:00:2b:01:02:03 ff:00:2b:01:02:03) ],
	[ macaddr8 => qw(08:00:2b:01:02:03:04:05) ],
	[ jsonb => '{"a": 1}', '{"a": 1.0}', '[]', '"x"', 'null', '{"b": "\\\\"}',
		'1e400' ],
	[ oid => qw(0 4294967295 1) ],
	[ pg_lsn => qw(0/0 FFFFFFFF/FFFFFFFF 0/1A) ],
	[ xid8 => qw(18446744073709551615 0) ],
	[ tsvector => q('a':1 'b':2), q('b':1A), '' ],
	[ tsquery => q('a' & 'b'), q('a') ],
	[ 'integer[]' => qw({} {1} {1,2} {NULL} {2} {{1,2},{3,4}}) ],
	[ 'text[]' => '{}', '{a,"b c"}', '{"\\"",NULL}', '{"{}"}' ],
	[ 'numeric[]' => qw({1.0} {1.00} {NaN}) ],
	[ int4range => '[1,3)', '(1,2]', 'empty', '(,)', '[2,)' ],
	[ numrange => '[1.0,2]', '[1.00,2]', 'empty' ],
	[ tstzrange => '[2026-01-01 00:00+00,infinity)', 'empty' ],
	[ floats => '[0.1,0.3)', '(,NaN)' ],
	[ int4multirange => '{}', '{[1,3),[5,7)}', '{[1,4)}' ],
	[ datemultirange => '{[2026-01-01,2026-01-03)}', '{(,)}' ],
	[ pair => '(1,a)', '(1,)', '(,"x""y")', '(2,a)' ],
	[ 'pair[]' => '{}', '{"(1,a)","(2,)"}' ],
	[ mood => qw(happy sad ok) ],
	[ 'mood[]' => qw({happy} {} {sad,ok}) ],
	[ positive => qw(1 2147483647 5) ],
	[ word => qw(a A b), '' ],
	[ big_pair => '(1,a)', '(2,)' ],
	[ feeling => qw(happy sad ok) ],
	[ words => '{}', '{a,b}', '{b}' ],
	[ citext => qw(a A b B é É) ],
	[ hstore => 'a=>1', 'a=>1,b=>NULL', '', '"\\""=>"x"' ]);

# Without an order; kept, selected and compared all the same.
my @unsorted = (
	[ json => '{"a": 1}', '{"a":1}', '[1, 2]', "{\n}" ],
	[ xml => '<a/>', '<a b="c">&lt;</a>' ],
	[ point => '(0,0)', '(-0,1e300)', '(NaN,Infinity)' ],
	[ box => '(1,1),(0,0)' ],
	[ 'int[]' => '[0:1]={1,2}', '[2:3]={3,4}' ],    # without bounds in JSON
	[ polygon => '((0,0),(1,1),(1,0))' ],
	[ jsonpath => '$.a[*] ? (@ > 1)' ],
	[ 'point[]' => '{"(0,0)","(1,1)"}' ]);

sub literals { return map { writer->quote($_) } @_; }

# As column beside a key: two orders, or that of the key.
sub column_scenario
{
	my ($type, $sorted, @values) = @_;
	my @literals = literals(@values);

	scenario $type, 'as a column' => sub {
		run "CREATE TABLE t (id int PRIMARY KEY, v $type)";
		run 'INSERT INTO t VALUES '
		  . join(', ', map { "($_, $literals[$_ % @literals])" } 1 .. 6);
		my $order = $sorted ? 'v' : '(v IS NULL)';
		subscribe up => "SELECT * FROM t ORDER BY $order, id LIMIT 4";
		subscribe down => "SELECT v, id FROM t
			ORDER BY $order DESC, id DESC LIMIT 2", cushion => 0;
		my @names = qw(up down);
		run 'INSERT INTO t VALUES '
		  . join(', ', map { "(10 + $_, $literals[$_])" } 0 .. $#literals);
		equals_query @names;
		run 'INSERT INTO t VALUES (9, NULL)';
		equals_query @names;
		for my $i (0 .. $#literals)
		{
			my $up = (session->client('up')->keys)[0];
			my ($id) = $up =~ /(\d+)/;
			run "UPDATE t SET v = $literals[$i] WHERE id = $id";
			equals_query @names;
		}
		run 'DELETE FROM t WHERE id % 2 = 0';
		equals_query @names;
		run 'UPDATE t SET v = NULL';
		equals_query @names;
	};
	return;
}

# As the key itself, and of a table without a key.
sub key_scenario
{
	my ($type, @values) = @_;
	my $plain = $type eq 'feeling' ? 'mood' : $type =~ s/ COLLATE.*//r;
	my $v = $plain eq $type ? 'v' : "v::$plain";
	my @literals = map { "${_}::$plain" } literals(@values);

	scenario $type, 'as the key' => sub {
		run "CREATE TABLE t (v $type PRIMARY KEY, w int)",
		  "CREATE TABLE k (v $type, w int)",
		  'ALTER TABLE k REPLICA IDENTITY FULL';
		my @names = qw(up down bare);
		subscribe up => 'SELECT v, w FROM t ORDER BY v LIMIT 4';
		subscribe down => 'SELECT w FROM t ORDER BY v DESC LIMIT 2',
		  cushion => 0;
		my $bare = 'SELECT v FROM k ORDER BY v, k USING *< LIMIT 3';
		subscribe bare => 'SELECT v FROM k ORDER BY v LIMIT 3',
		  keyless => 1,
		  truth => "SELECT row_to_json(q)::text FROM ($bare) q";
		for my $literal (@literals)
		{
			run "INSERT INTO t VALUES ($literal, 1) ON CONFLICT DO NOTHING",
			  "INSERT INTO k VALUES ($literal, 1), ($literal, 2)";
		}
		equals_query @names;
		for my $literal (@literals)
		{
			# equal, perhaps written otherwise
			run "UPDATE t SET v = $literal, w = w + 1 WHERE $v = $literal",
			  "UPDATE k SET v = $literal WHERE $v = $literal AND w = 1";
			equals_query @names;
		}
		run "DELETE FROM t WHERE $v = $literals[0]",
		  "DELETE FROM k WHERE $v = $literals[0]";
		equals_query @names;
		run 'UPDATE t SET w = 0 WHERE ctid =
			(SELECT ctid FROM t ORDER BY v LIMIT 1)',
		  'DELETE FROM k WHERE ctid IN
			(SELECT ctid FROM k ORDER BY v LIMIT 2)';
		equals_query @names;
	};
	return;
}

for my $type (@types)
{
	column_scenario($type->[0], 1, @{$type}[ 1 .. $#$type ]);
	key_scenario(@$type);
}
for my $type (@unsorted)
{
	next
	  unless eval { writer->do("SELECT '$type->[1]'::$type->[0]"); 1 };
	column_scenario($type->[0], 0, @{$type}[ 1 .. $#$type ]);
}

scenario 'settings', 'each subscriber reads values as its session does' => sub {
	my @settings = (
		{
			TimeZone => 'Asia/Tokyo',
			DateStyle => 'German, DMY',
			IntervalStyle => 'iso_8601',
			bytea_output => 'escape',
			extra_float_digits => -3
		},
		{
			TimeZone => 'America/St_Johns',
			DateStyle => 'SQL, MDY',
			IntervalStyle => 'sql_standard',
			bytea_output => 'hex',
			extra_float_digits => 3
		},
		{ TimeZone => 'UTC', DateStyle => 'ISO' });
	my $query = q{SELECT *, a::date AS day, i::text AS span,
		a::text AS instant, f::text AS float FROM t
		WHERE a::date >= '02.01.2026'::date ORDER BY a::date, id LIMIT 3};
	my @sessions;

	run q{CREATE TABLE t (id int PRIMARY KEY, a timestamptz, d date,
		i interval, b bytea, f float8, r tstzrange, t timestamptz[])};
	for my $n (0 .. $#settings)
	{
		my $session = server->session;

		push @sessions, $session;
		$session->dbh->do("SET $_ = '$settings[$n]{$_}'")
		  for keys %{ $settings[$n] };
		$session->subscribe("s$n", $n == 1 ? $query =~ s/02.01.2026/01-02-2026/r
			: $n == 2 ? $query =~ s/02.01.2026/2026-01-02/r : $query,
			cushion => 1);
	}
	for my $statement (
		q{INSERT INTO t SELECT g, timestamptz '2026-01-01 14:00+00'
			+ g * interval '5 hours', '2026-02-03',
			g * interval '1 day -02:03:04.5', '\x005c80', g / 3.0::float8,
			'[2026-01-02 00:00+00,)', '{2026-01-02 00:00+00}'
			FROM generate_series(0, 9) g},
		q{UPDATE t SET i = '-1 year', f = 0.1::float4, b = '\xff'
			WHERE id % 2 = 0},
		q{UPDATE t SET a = '2026-01-01 23:00+00' WHERE id = 9},
		'DELETE FROM t WHERE id = 3')
	{
		run $statement;
		for my $n (0 .. $#sessions)
		{
			is($sessions[$n]->difference("s$n"),
				undef, "s$n equals its query");
		}
	}
};

scenario 'enum', 'labels are added and renamed' => sub {
	run q{CREATE TYPE e AS ENUM ('a', 'c')},
	  'CREATE TABLE t (id int PRIMARY KEY, m e)',
	  q{INSERT INTO t SELECT g, (ARRAY['a', 'c'])[1 + g % 2]::e
		FROM generate_series(1, 8) g};
	my @names = qw(s d w k);
	subscribe s => 'SELECT id, m FROM t ORDER BY m, id LIMIT 3';
	subscribe d => 'SELECT id, m FROM t ORDER BY m DESC, id LIMIT 3';
	subscribe w => q{SELECT id FROM t WHERE m > 'a' ORDER BY m, id LIMIT 3};
	subscribe k => 'SELECT id, ARRAY[m] AS ms FROM t ORDER BY id LIMIT 3';
	run q{ALTER TYPE e ADD VALUE 'b' BEFORE 'c'};
	equals_query @names;
	saw $_ for @names;
	run q{INSERT INTO t VALUES (10, 'b')};
	equals_query @names;
	run map { "ALTER TYPE e ADD VALUE 'x$_' BEFORE 'b'" } 1 .. 5;
	run q{INSERT INTO t VALUES (11, 'x5'), (12, 'x1')},
	  q{UPDATE t SET m = 'x3' WHERE id IN (2, 1)};
	equals_query @names;
	run 'BEGIN', q{ALTER TYPE e ADD VALUE '0' BEFORE 'a'}, 'COMMIT';
	run q{UPDATE t SET m = '0' WHERE id = 5};
	equals_query @names;
	run q{ALTER TYPE e RENAME VALUE 'a' TO 'zz'};
	equals_query qw(s d k);
	wait_for_state w => 'error';    # it names a label that is no more
	@names = qw(s d k);
	run q{UPDATE t SET m = 'zz' WHERE id = 5};
	equals_query @names;
	run 'DELETE FROM t WHERE id < 6';
	equals_query @names;
	run 'DROP TABLE t', 'DROP TYPE e';
};

scenario 'composite type', 'it changes while values of it are held' => sub {
	run 'CREATE TYPE c AS (x int, y text)',
	  'CREATE TABLE t (id int PRIMARY KEY, v c)',
	  q{INSERT INTO t SELECT g, (g, 'y')::c FROM generate_series(1, 5) g};
	my @names = qw(s o);
	subscribe s => 'SELECT id, v FROM t ORDER BY id LIMIT 3';
	subscribe o => 'SELECT id, v FROM t ORDER BY v DESC LIMIT 3',
	  truth => 'SELECT row_to_json(q)::text FROM
		(SELECT id, v FROM t ORDER BY v DESC, id LIMIT 3) q';
	run 'ALTER TYPE c RENAME ATTRIBUTE y TO why CASCADE';
	equals_query @names;
	run 'ALTER TYPE c ADD ATTRIBUTE z int CASCADE';
	equals_query @names;
	run q{UPDATE t SET v = (9, 'q', 9) WHERE id = 2};
	equals_query @names;
	run 'DROP TABLE t', 'DROP TYPE c';
};

scenario 'generated column', 'stored ones are like others' => sub {
	run 'CREATE TABLE g (id int PRIMARY KEY, a int,
		b int GENERATED ALWAYS AS (a * 2) STORED,
		c text GENERATED ALWAYS AS (repeat(\'x\', a)) STORED)';
	my @names = qw(s f);
	subscribe s => 'SELECT id, b FROM g WHERE b > 2 ORDER BY b DESC, id LIMIT 3';
	subscribe f => 'SELECT c, id FROM g ORDER BY length(c), id LIMIT 3';
	run 'INSERT INTO g (id, a) SELECT i, i FROM generate_series(1, 6) i';
	equals_query @names;
	run 'UPDATE g SET a = 50 WHERE id = 1';
	equals_query @names;
	run 'DELETE FROM g WHERE id = 6';
	equals_query @names;
	run 'ALTER TABLE g REPLICA IDENTITY FULL', 'UPDATE g SET a = 7 - a';
	equals_query @names;
};

done_testing();
