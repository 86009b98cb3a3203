# Every table: identities, keys that change, rows that are alike, names.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use Test::More;

use LiveTopn::RefillStops;
use LiveTopn::Scenario;
use LiveTopn::Server;

use_server(LiveTopn::Server->start('tables'));

# A query over rows without a total order of its own, and one with it.
sub truth
{
	my ($query, $tie) = @_;

	$query =~ s/(?= LIMIT)/, $tie/;
	return (truth => "SELECT row_to_json(q)::text FROM ($query) q");
}

# Run each statement in a transaction of its own, and look after each.
sub step_by_step
{
	my ($names, @statements) = @_;

	for my $statement (@statements)
	{
		run ref $statement ? ('BEGIN', @$statement, 'COMMIT') : $statement;
		equals_query @$names;
	}
	return;
}

sub keys_are
{
	my ($name, @keys) = @_;

	is_deeply([ session->client($name)->keys ], \@keys, "keys of $name");
	return;
}

scenario 'composite identity', 'the order of the index decides ties' => sub {
	my $query = 'SELECT v FROM t ORDER BY v DESC LIMIT 3';

	run 'CREATE TABLE t (a int, v int, b text, PRIMARY KEY (b, a))',
	  q{INSERT INTO t SELECT g, g / 4, chr(97 + g % 3)
		FROM generate_series(1, 12) g};
	subscribe c => $query, truth($query, 'b, a');
	keys_are c => '{"b":"a","a":12}', '{"b":"a","a":9}', '{"b":"b","a":10}';
	step_by_step ['c'],
	  q{UPDATE t SET a = 1 WHERE a = 12},
	  q{UPDATE t SET b = 'zz' WHERE a = 9},
	  q{DELETE FROM t WHERE v = 3},
	  q{UPDATE t SET v = 5 WHERE a IN (3, 6)},
	  q{UPDATE t SET a = a + 100, b = b || 'x'},
	  [ 'DELETE FROM t', q{INSERT INTO t VALUES (101, 5, 'ax')} ];
};

scenario 'index as identity', 'INCLUDE columns are no part of it' => sub {
	my $query = 'SELECT c, score FROM t ORDER BY score LIMIT 3';

	run 'CREATE TABLE t (c int, a int NOT NULL, score int,
		b int NOT NULL)',
	  'CREATE UNIQUE INDEX t_key ON t (b, a) INCLUDE (c, score)',
	  'ALTER TABLE t REPLICA IDENTITY USING INDEX t_key',
	  'INSERT INTO t SELECT g, g, g % 3, -g FROM generate_series(1, 12) g';
	subscribe i => $query, truth($query, 'b, a');
	keys_are i => map { qq({"b":-$_,"a":$_}) } 12, 9, 6;
	step_by_step ['i'],
	  'UPDATE t SET c = 0 WHERE a = 9',
	  'UPDATE t SET score = 2 WHERE a = 12',
	  'UPDATE t SET a = 13 WHERE a = 6',
	  'DELETE FROM t WHERE a IN (13, 9, 3)',
	  'UPDATE t SET b = -b';
};

scenario 'order of the index', 'is that of the type, whatever the index has' =>
  sub {
	run 'CREATE TABLE t (v int, k text COLLATE "en-x-icu" NOT NULL,
		c text NOT NULL, n int NOT NULL)',
	  'CREATE UNIQUE INDEX t_key ON t (n DESC, k text_pattern_ops,
		c COLLATE "C" DESC NULLS LAST)',
	  'ALTER TABLE t REPLICA IDENTITY USING INDEX t_key',
	  q{INSERT INTO t SELECT 1, k, c, n FROM unnest('{a,B,_,b,A}'::text[]) k,
		unnest('{x,Y,z,_}'::text[]) c, generate_series(1, 2) n};
	for my $query ('SELECT k, c, n FROM t ORDER BY v LIMIT 7',
		'SELECT k, c, n FROM t ORDER BY v DESC, n DESC LIMIT 7',
		'SELECT k, c FROM t ORDER BY k DESC LIMIT 7')
	{
		subscribe o => $query, truth($query, 'n, k, c COLLATE "C"');
		step_by_step ['o'],
		  q{UPDATE t SET v = 1 - v WHERE k IN ('a', 'A')},
		  q{UPDATE t SET c = upper(c) || c WHERE n = 2},
		  q{DELETE FROM t WHERE c LIKE 'X%' AND k = 'B'},
		  q{INSERT INTO t VALUES (0, 'b', 'new', 0), (1, 'B', 'Xx', 2)};
		run q{DELETE FROM t WHERE n = 0 OR c = 'Xx'};
		session->unsubscribe('o');
	}
  };

scenario 'deferrable key', 'rows may have the same key for a while' => sub {
	my $query = 'SELECT id, v FROM t ORDER BY v LIMIT 3';

	run 'CREATE TABLE t (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED,
		v int)',
	  'INSERT INTO t SELECT g, g FROM generate_series(1, 6) g';
	like(
		refused('0A000', "SELECT subscribe_topn('$query')", 'is refused'),
		qr/primary key is deferrable.*REPLICA IDENTITY FULL/s,
		'... with the cure');
	run 'ALTER TABLE t REPLICA IDENTITY FULL';
	subscribe d => $query, keyless => 1;
	step_by_step ['d'],
	  [
		'UPDATE t SET id = 2 WHERE id = 1',
		'UPDATE t SET id = 1 WHERE v = 2'
	  ],
	  [
		'INSERT INTO t VALUES (3, 0)',
		'DELETE FROM t WHERE id = 3 AND v = 3'
	  ],
	  'UPDATE t SET id = id + 1';
};

scenario 'keyless', 'rows that are alike are counted' => sub {
	my $query = 'SELECT v FROM t ORDER BY v LIMIT 3';
	my @names = qw(k bare one);

	run 'CREATE TABLE t (v int, w text)',
	  'ALTER TABLE t REPLICA IDENTITY FULL',
	  q{INSERT INTO t SELECT 1 + g / 6, 'x' FROM generate_series(1, 18) g};
	subscribe k => $query, truth($query, 't USING *<'), keyless => 1;
	subscribe bare => $query, truth($query, 't USING *<'),
	  keyless => 1, cushion => 0;
	my $one = $query =~ s/3$/1/r;
	subscribe one => $one, truth($one, 't USING *<'),
	  keyless => 1, cushion => 0;
	my $any = '(SELECT ctid FROM t ORDER BY v, w LIMIT 1)';
	step_by_step \@names,
	  (map { "DELETE FROM t WHERE ctid = $any" } 1 .. 6),
	  "UPDATE t SET v = 9 WHERE ctid = $any",
	  "UPDATE t SET w = 'y' WHERE ctid = $any",
	  q{INSERT INTO t VALUES (2, 'x'), (2, 'x'), (2, NULL)},
	  'UPDATE t SET v = 2',
	  'UPDATE t SET v = v',
	  'DELETE FROM t WHERE w IS NULL',
	  q{UPDATE t SET w = NULL WHERE ctid IN
		(SELECT ctid FROM t ORDER BY v, w LIMIT 4)},
	  'DELETE FROM t';
};

scenario 'columns under FULL', 'old rows are shorter than the table' => sub {
	my $query = 'SELECT * FROM t ORDER BY v LIMIT 4';

	run 'CREATE TABLE t (gone int, v int, w text)',
	  'ALTER TABLE t REPLICA IDENTITY FULL',
	  q{INSERT INTO t SELECT g, g % 3, 'x' FROM generate_series(1, 9) g},
	  'ALTER TABLE t DROP gone',
	  'ALTER TABLE t ADD n int NOT NULL DEFAULT 7',
	  q{ALTER TABLE t ADD s text DEFAULT 'abc'};
	subscribe f => $query, truth($query, 't USING *<'), keyless => 1;
	step_by_step ['f'],
	  'DELETE FROM t WHERE ctid IN (SELECT ctid FROM t WHERE v = 0 LIMIT 2)',
	  'UPDATE t SET n = 8 WHERE v = 1',
	  'UPDATE t SET s = NULL WHERE v = 0',
	  'UPDATE t SET v = 0',
	  'DELETE FROM t WHERE n = 7';
};

for my $identity ('DEFAULT', 'FULL')
{
	scenario "keys, $identity", 'they change, swap and come back' => sub {
		run 'CREATE TABLE t (id int PRIMARY KEY, v int, w text)',
		  "ALTER TABLE t REPLICA IDENTITY $identity",
		  q{INSERT INTO t SELECT g, g * 10, 'w' || g
			FROM generate_series(1, 12) g};
		my @names = qw(s bare absolute);
		my $query = 'SELECT id, v FROM t ORDER BY v, id LIMIT 4';
		subscribe s => $query;
		subscribe bare => $query, cushion => 0;
		subscribe absolute => $query, ranks => 'absolute';
		step_by_step \@names,
		  'UPDATE t SET id = 20 WHERE id = 1',
		  [
			'UPDATE t SET id = 0 WHERE id = 2',
			'UPDATE t SET id = 2 WHERE id = 3',
			'UPDATE t SET id = 3 WHERE id = 0'
		  ],
		  [ 'DELETE FROM t WHERE id = 4', q{INSERT INTO t VALUES (4, 40, 'x')} ],
		  [ 'DELETE FROM t WHERE id = 4', q{INSERT INTO t VALUES (4, 1, 'x')} ],
		  [
			'UPDATE t SET id = 99 WHERE id = 5',
			'INSERT INTO t VALUES (5, 15)',
			'DELETE FROM t WHERE id = 99'
		  ],
		  [
			'INSERT INTO t VALUES (50, 0)',
			'UPDATE t SET id = 51 WHERE id = 50',
			'UPDATE t SET id = 52, v = 500 WHERE id = 51',
			'UPDATE t SET id = 50 WHERE id = 52'
		  ],
		  [ map { ("UPDATE t SET v = -v WHERE id = 50",
				"UPDATE t SET id = 100 - id WHERE id = 50") } 1 .. 3 ],
		  'UPDATE t SET id = id + 1000',
		  [
			'SAVEPOINT a',
			'DELETE FROM t',
			'ROLLBACK TO a',
			'UPDATE t SET id = id - 1000 WHERE id % 2 = 0'
		  ],
		  [ 'DELETE FROM t', 'INSERT INTO t VALUES (4, 1), (2, 10)' ];
	};
}

scenario 'large key', 'a key out of line did not change' => sub {
	my $stops = LiveTopn::RefillStops->new(server);
	my $long = q{repeat('k', 2300)};

	run 'CREATE TABLE t (k text PRIMARY KEY, v int, w text)',
	  'ALTER TABLE t ALTER k SET STORAGE EXTERNAL',
	  "INSERT INTO t SELECT $long || chr(96 + g), g
		FROM generate_series(1, 9) g";
	my @names = qw(s v bare);
	subscribe s => 'SELECT * FROM t ORDER BY v, k LIMIT 3';
	subscribe v => 'SELECT v FROM t ORDER BY k LIMIT 3';
	subscribe bare => 'SELECT v, k FROM t ORDER BY v, k LIMIT 3', cushion => 0;
	step_by_step \@names,
	  'UPDATE t SET v = -1 WHERE v = 9',    # it was not held
	  'UPDATE t SET v = 10 WHERE v = -1',
	  "UPDATE t SET w = 'x' WHERE v = 1",
	  "UPDATE t SET k = $long || 'zz' WHERE v = 2",
	  "UPDATE t SET k = $long || 'a0' WHERE v = 7",
	  'DELETE FROM t WHERE v = 1',
	  'DELETE FROM t WHERE v IN (3, 4)',
	  'UPDATE t SET v = 100 - v';

	# what a refill read is taken back, by keys that are in old tuples only
	server->set('live_topn.debug_refill_stops' => 'on');
	run "INSERT INTO t SELECT $long || chr(75 + g), g
		FROM generate_series(1, 9) g";
	equals_query @names;
	$stops->hold(LiveTopn::RefillStops::BEFORE_SNAPSHOT);
	run 'DELETE FROM t WHERE v IN (1, 2, 3)';
	$stops->wait_for(LiveTopn::RefillStops::BEFORE_SNAPSHOT);
	run 'UPDATE t SET v = v + 1 WHERE v BETWEEN 4 AND 8',
	  'UPDATE t SET v = -v WHERE v = 9',
	  "UPDATE t SET k = k || 'z' WHERE v = 5", 'VACUUM t';
	$stops->release(LiveTopn::RefillStops::BEFORE_SNAPSHOT);
	equals_query @names;
	server->set('live_topn.debug_refill_stops' => undef);
};

scenario 'names', 'they need quotes, or mean something in JSON' => sub {
	my $dbh = session->dbh;
	my @columns = map { $dbh->quote_identifier($_) } 'a b', '"', '\\', "tab\t",
	  "new\nline", 'SELECT', 'Ünï', '{"op":"leave"}', '$1', "it's";
	my $table = $dbh->quote_identifier(q(we"ird \\ t'able));
	my $columns = join ', ', @columns;
	my $query = "SELECT $columns, $columns[1] AS \"\e[0m\", 1 AS \"?\"
		FROM $table ORDER BY $columns[5] DESC, $columns[0], $columns[1] LIMIT 3";

	run "CREATE TABLE $table ("
	  . join(', ', map { "$_ int" } @columns)
	  . ", PRIMARY KEY ($columns[0], $columns[1]))",
	  "INSERT INTO $table SELECT g, -g, g, g, g, g, g, g, g, g
		FROM generate_series(1, 8) g";
	my @names = ('n', q(na"me), q(b\\s), "it's", '{"sub":1}', 'mit Leer é');
	subscribe $_ => $query for @names;
	step_by_step \@names,
	  "UPDATE $table SET $columns[7] = 0",
	  "UPDATE $table SET $columns[2] = 5, $columns[5] = 9
		WHERE $columns[0] = 7",
	  "DELETE FROM $table WHERE $columns[0] = 8";
};

scenario '1600 columns', 'as many as a table has' => sub {
	my @columns = map { "c$_" } 1 .. 1600;

	run 'CREATE TABLE wide (' . join(', ', map { "$_ smallint" } @columns) . ')',
	  'ALTER TABLE wide ADD PRIMARY KEY (c1600)',
	  'INSERT INTO wide SELECT ' . join(', ', map { "g % $_" } 1 .. 1600)
	  . ' FROM generate_series(1, 9) g';
	subscribe s => 'SELECT * FROM wide ORDER BY c5, c1600 LIMIT 3';
	subscribe few => 'SELECT c1600 FROM wide ORDER BY c1600 LIMIT 3';
	step_by_step [qw(s few)],
	  'UPDATE wide SET c800 = 8 WHERE c1600 = 5',
	  'UPDATE wide SET c5 = 9 WHERE c1600 IN (1, 5)',
	  'DELETE FROM wide WHERE c1600 = 6';

	run 'CREATE TABLE full_wide (' . join(', ', map { "$_ smallint" } @columns)
	  . ')',
	  'ALTER TABLE full_wide REPLICA IDENTITY FULL',
	  'INSERT INTO full_wide SELECT * FROM wide';
	my $query = 'SELECT c1600, c1 FROM full_wide ORDER BY c5 LIMIT 3';
	subscribe f => $query, truth($query, 'full_wide USING *<'), keyless => 1;
	step_by_step ['f'],
	  'UPDATE full_wide SET c800 = 1 WHERE c1600 = 2',
	  'DELETE FROM full_wide WHERE c1600 = 2';
};

scenario 'inheritance', 'children are refused' => sub {
	my $query = 'SELECT id, v FROM parent ORDER BY v, id LIMIT 3';

	run 'CREATE TABLE parent (id int PRIMARY KEY, v int)',
	  'INSERT INTO parent SELECT g, g FROM generate_series(1, 5) g';
	subscribe p => $query;
	run 'CREATE TABLE child (w int) INHERITS (parent)';
	wait_for_state p => 'error';
	refused '0A000', "SELECT subscribe_topn('$query')",
	  'a table with children';
	my $only = $query =~ s/FROM/FROM ONLY/r;
	subscribe o => $only;
	step_by_step ['o'],
	  'INSERT INTO child VALUES (0, 0, 0), (1, -1, 0)',
	  'UPDATE parent SET v = 10 - v',
	  'TRUNCATE ONLY parent';
	run 'DROP TABLE child';
	wait_for_state p => 'live';
	run 'INSERT INTO parent VALUES (7, 7)';
	equals_query qw(p o);
};

done_testing();
