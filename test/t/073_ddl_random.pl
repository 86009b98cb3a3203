# Random DDL among random changes, in transactions of several sessions and over
# restarts of the worker.  A subscription is in error exactly while nobody could
# make it anew, and otherwise its client's list is what its query returns.
#
# DDL_SEED	   of the first round
# DDL_SECONDS  how long (20)
# DDL_RESTARTS how probable a restart of the worker is after a step (0.06)

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use DBD::Pg qw(:async);
use Test::More;
use Time::HiRes qw(time);

use LiveTopn::Scenario;
use LiveTopn::Server qw(poll_until sqlstate_of);
use LiveTopn::Session;

my $seed = $ENV{DDL_SEED} || 1 + int rand 2**30;
my $restarts = $ENV{DDL_RESTARTS} || 0.06;

use_server(
	LiveTopn::Server->start('ddl_random',
		conf => "logical_decoding_work_mem = 64kB\ndeadlock_timeout = 50ms\n"));

my $end = time() + ($ENV{DDL_SECONDS} || 20);
my @queries = (
	'SELECT id, score FROM items ORDER BY score DESC, id LIMIT 3',
	'SELECT * FROM items ORDER BY score DESC, id LIMIT 4',
	'SELECT id FROM items ORDER BY id LIMIT 5',
	q{SELECT id, grp FROM items WHERE grp = 'a' ORDER BY id DESC LIMIT 3},
	'SELECT id, rated(score) AS rate FROM items ORDER BY rated(score), id LIMIT 3',
	'SELECT id, m FROM items ORDER BY m DESC, id LIMIT 3',
	'SELECT id, score FROM v ORDER BY score, id LIMIT 3',
	'SELECT id, body FROM items ORDER BY body COLLATE "C", id LIMIT 3',
	'SELECT a, score FROM heap ORDER BY score, a LIMIT 4',
	'SELECT * FROM parts ORDER BY score DESC, id LIMIT 4',
	'SELECT id, score FROM other.items ORDER BY score DESC, id LIMIT 3',
	q{SELECT id, score, m FROM items WHERE grp <> 'b'},
	'SELECT * FROM parts WHERE score > 2',
	'SELECT a FROM heap WHERE score > 1');

# DDL; what fails, fails
my @ddl = (
	map({ "ALTER TABLE items $_" } 'ADD a int',
		'ADD a int DEFAULT 4',
		'ADD b text DEFAULT md5(random()::text)',
		'DROP a',
		'DROP b',
		'DROP score',
		'ADD score int',
		'ADD score bigint DEFAULT 5',
		'RENAME score TO points',
		'RENAME points TO score',
		'ALTER score TYPE bigint',
		'ALTER score TYPE int',
		'ALTER score TYPE int USING -score',
		'ALTER score TYPE numeric(12, 2)',
		'ALTER score TYPE text',
		'ALTER score TYPE int USING id',
		'ALTER body TYPE varchar(500)',
		'ALTER body TYPE text',
		'ALTER grp TYPE text COLLATE "C"',
		'REPLICA IDENTITY FULL',
		'REPLICA IDENTITY DEFAULT',
		'REPLICA IDENTITY NOTHING',
		'REPLICA IDENTITY USING INDEX items_other',
		'DROP CONSTRAINT items_pkey',
		'ADD PRIMARY KEY (id)',
		'SET UNLOGGED',
		'SET LOGGED',
		'RENAME TO things',
		'SET SCHEMA other',
		'ALTER body SET STORAGE EXTERNAL'),
	'ALTER TABLE things RENAME TO items',
	'ALTER TABLE other.items SET SCHEMA public',
	'CREATE TABLE other.items (id int PRIMARY KEY, score int)',
	'DROP TABLE other.items',
	'VACUUM FULL items', 'VACUUM ANALYZE items', 'CLUSTER items USING items_other',
	'REINDEX TABLE items',
	'CREATE UNIQUE INDEX items_other ON items (grp, id)',
	'DROP INDEX items_other',
	'TRUNCATE items',
	map({ "CREATE OR REPLACE FUNCTION rated(int) RETURNS int IMMUTABLE $_" }
		q{LANGUAGE sql AS 'SELECT $1'},
		q{LANGUAGE sql AS 'SELECT -$1'},
		q{LANGUAGE plpgsql AS 'BEGIN RETURN $1 % 7; END'}),
	'DROP FUNCTION rated',
	q{ALTER TYPE mood ADD VALUE IF NOT EXISTS 'b' BEFORE 'a'},
	q{ALTER TYPE mood RENAME VALUE 'a' TO 'x'},
	q{ALTER TYPE mood RENAME VALUE 'x' TO 'a'},
	'CREATE OR REPLACE VIEW v AS SELECT id, score FROM items WHERE id > 3',
	'CREATE OR REPLACE VIEW v AS SELECT id, score FROM items WHERE id > 10',
	'DROP VIEW v',
	'ALTER TABLE heap REPLICA IDENTITY FULL',
	'ALTER TABLE heap REPLICA IDENTITY DEFAULT',
	'ALTER TABLE heap ALTER score TYPE int USING -score',
	'ALTER TABLE heap ADD z int DEFAULT 1', 'ALTER TABLE heap DROP z',
	'TRUNCATE heap',
	'ALTER TABLE parts ADD z int', 'ALTER TABLE parts DROP z',
	'ALTER TABLE parts ALTER score TYPE int USING -score',
	'ALTER TABLE parts DETACH PARTITION parts1',
	'ALTER TABLE parts ATTACH PARTITION parts1 FOR VALUES FROM (0) TO (15)',
	'ALTER TABLE parts1 REPLICA IDENTITY FULL',
	'ALTER TABLE parts1 REPLICA IDENTITY DEFAULT',
	'TRUNCATE parts2', 'TRUNCATE parts',
	'DROP TABLE items', \&make_items);

# What brings subscriptions back; most of it fails.
my @repairs = (
	'ALTER TABLE things RENAME TO items',
	'ALTER TABLE items ADD score int',
	'ALTER TABLE items SET LOGGED',
	'ALTER TABLE items REPLICA IDENTITY FULL',
	'ALTER TABLE heap REPLICA IDENTITY FULL',
	q{CREATE FUNCTION rated(int) RETURNS int IMMUTABLE LANGUAGE sql
		AS 'SELECT $1 / 2'},
	'CREATE VIEW v AS SELECT id, score FROM items',
	'CREATE TABLE other.items (id int PRIMARY KEY, score int)');

my (@log, $writer, $session, @others);
my ($rounds, $checks, $errors) = (0, 0, 0);

sub make_items
{
	return (
		'CREATE TABLE items (id int PRIMARY KEY, score int, grp text NOT NULL
			DEFAULT \'a\', body text, m mood)',
		q{INSERT INTO items SELECT g, g % 20, chr(97 + g % 3), 'b' || g,
			CASE g % 2 WHEN 0 THEN 'c'::mood END FROM generate_series(1, 25) g},

		# no identity, but no two rows are alike without one either
		'CREATE UNIQUE INDEX ON items (abs(id))');
}

sub make_everything
{
	my $dbh = server->connect;

	$dbh->do('SET client_min_messages = warning');
	$dbh->do($_)
	  for 'DROP SCHEMA IF EXISTS other CASCADE',
	  'DROP TABLE IF EXISTS items, things, heap, parts, parts1 CASCADE',
	  'DROP FUNCTION IF EXISTS rated', 'DROP TYPE IF EXISTS mood CASCADE',
	  'CREATE SCHEMA other',
	  q{CREATE TYPE mood AS ENUM ('a', 'c')}, make_items(),
	  q{CREATE FUNCTION rated(int) RETURNS int IMMUTABLE LANGUAGE sql
		AS 'SELECT $1'},
	  'CREATE VIEW v AS SELECT id, score FROM items WHERE id > 5',
	  'CREATE TABLE other.items (id int PRIMARY KEY, score int)',
	  'CREATE TABLE heap (a int, score int)',
	  'ALTER TABLE heap REPLICA IDENTITY FULL',
	  'INSERT INTO heap SELECT g % 5, g % 7 FROM generate_series(1, 20) g',
	  'CREATE TABLE parts (id int PRIMARY KEY, score int)
		PARTITION BY RANGE (id)',
	  'CREATE TABLE parts1 PARTITION OF parts FOR VALUES FROM (0) TO (15)',
	  'CREATE TABLE parts2 (score int, id int NOT NULL)',
	  'ALTER TABLE parts ATTACH PARTITION parts2 FOR VALUES FROM (15) TO (100)',
	  'INSERT INTO parts SELECT g, g % 9 FROM generate_series(1, 30) g';
	return;
}

sub dml
{
	my $id = 1 + int rand 30;
	my $score = int rand 40;
	my $table = (qw(items items items parts))[ rand 4 ];

	return (
		"INSERT INTO $table (id, score) VALUES ($id, $score)",
		"INSERT INTO $table (id, score) VALUES ($id, $score)
			ON CONFLICT (id) DO UPDATE SET score = $score",
		"UPDATE $table SET score = $score WHERE id = $id",
		"UPDATE $table SET id = id + 7 WHERE id = $id",
		"UPDATE items SET body = repeat('x$id', $score * 100) WHERE id = $id",
		"UPDATE items SET grp = chr(97 + $id % 3),
			m = (ARRAY['c', NULL]::mood[])[1 + $id % 2]
			WHERE id % 5 = $id % 5",
		"DELETE FROM $table WHERE id = $id",
		"DELETE FROM $table WHERE id % 4 = $id % 4",
		"INSERT INTO $table (id, score) SELECT g, g % 20
			FROM generate_series(1, 30) g ON CONFLICT DO NOTHING",
		"INSERT INTO heap (a, score) VALUES ($id % 5, $score % 5)",
		"DELETE FROM heap WHERE a = $id % 5",
		"UPDATE heap SET score = $score % 4 WHERE a = $id % 5",
		"INSERT INTO other.items VALUES ($id, $score)
			ON CONFLICT (id) DO UPDATE SET score = excluded.score",
		"DELETE FROM other.items WHERE id = $id")[ rand 14 ];
}

sub ddl
{
	my $ddl = $ddl[ rand @ddl ];
	return ref $ddl ? $ddl->() : $ddl;
}

sub execute
{
	my ($dbh, @statements) = @_;

	for my $statement (@statements)
	{
		my $done = eval { $dbh->do($statement); 1 };

		push @log, $statement =~ s/\s+/ /gr
		  . ($done ? ';' : '; -- failed: ' . $dbh->errstr =~ s/\n.*//sr);
	}
	return;
}

# A transaction of several statements, some of them rolled back.
sub transaction
{
	my @statements;

	for (1 .. 1 + int rand 5)
	{
		my @some = rand() < 0.4 ? ddl() : dml();
		@some = ('SAVEPOINT s', @some, 'ROLLBACK TO s') if rand() < 0.15;

		push @statements, @some;
	}
	execute($writer, 'BEGIN');
	for my $statement (@statements)
	{
		# what fails is undone alone
		$writer->do('SAVEPOINT t');
		execute($writer, $statement);
		$writer->do('ROLLBACK TO t') if $log[-1] =~ /-- failed/;
	}
	execute($writer, rand() < 0.85 ? 'COMMIT' : 'ROLLBACK');
	return;
}

# Changes by other sessions, which may have to wait for the writer.
sub start_others
{
	for my $dbh (@others)
	{
		my $sql = join '; ', map { dml() =~ s/\s+/ /gr } 1 .. 1 + int rand 3;

		push @log, "-- at the same time: $sql";
		$dbh->do("BEGIN; $sql; COMMIT", { pg_async => PG_ASYNC });
	}
	return;
}

sub finish_others
{
	for my $dbh (@others)
	{
		next if eval { $dbh->pg_result; 1 };
		push @log, '-- which failed: ' . $dbh->errstr =~ s/\n.*//sr;
		$dbh->do('ROLLBACK');
	}
	return;
}

sub difference_of
{
	my ($name) = @_;

	return $session->difference($name) // $session->rows_difference($name)
	  unless $session->client($name)->{unranked};

	# which order a snapshot of a set is in depends on what is the identity
	$session->sync;
	my @truth = $session->truth($name);
	my @snapshot =
	  LiveTopn::Session::snapshot_entries(($session->snapshot($name))[2]);
	my %rows = (
		client => [ map { $_->{row} } $session->client($name)->entries ],
		snapshot => [ map { $_->{row} } @snapshot ],
		topn_rows => [ $session->topn_rows($name) ]);
	for my $what (sort keys %rows)
	{
		my $difference = $session->unordered_difference($name,
			'query', \@truth, $what, $rows{$what});

		return $difference if defined $difference;
	}
	return;
}

# Undef if all is as it should be, else what is not.
sub problem
{
	$session->sync;
	for my $i (0 .. $#queries)
	{
		my $name = "q$i";
		my $dbh = server->connect;
		my ($state, $error);

		$dbh->do('SET client_min_messages = error');
		$dbh->begin_work;
		my $reason = (sqlstate_of($dbh, 'SELECT subscribe_topn(?)',
			$queries[$i]))[1];
		$dbh->rollback;
		my $expected = defined $reason ? 'error' : 'live';
		my $there = eval {
			poll_until(
				sub {
					($state, $error) = $dbh->selectrow_array(
						'SELECT state, error FROM topn_subscriptions
						 WHERE name = ?', undef, $name);
					$state eq $expected;
				},
				"$name to be $expected");
		};
		return "$name is $state ("
		  . ($error // 'no error')
		  . ") and should be $expected ("
		  . ($reason // 'no reason') . ")\n$queries[$i]"
		  unless $there;
		if (defined $reason)
		{
			$errors++;
			next;
		}
		delete $session->{$_}{$name} for qw(truth row_type);
		my $difference = difference_of($name);

		return "$name\n$queries[$i]\n$difference" if defined $difference;
		$checks++;
	}
	return;
}

sub play
{
	make_everything();
	$session = server->session;
	$writer = server->connect;
	@others = map { server->connect } 1 .. 2;
	for my $dbh ($session->dbh, $writer, @others)
	{
		$dbh->do('SET client_min_messages = error');
		$dbh->do('SET lock_timeout = 2000');
	}
	# a table may lose its key at any time
	$session->subscribe(
		"q$_", $queries[$_],
		cushion => int rand 4,
		keyless => 1,
		unranked => $queries[$_] !~ /ORDER BY/)
	  for 0 .. $#queries;
	my $pid = server->worker_pid;

	for my $step (1 .. 30)
	{
		my $together = rand() < 0.7;

		start_others() if $together;
		transaction() for 1 .. 1 + int rand 3;
		execute($writer, rand() < 0.5 ? ddl() : dml()) for 1 .. 2;
		execute($writer, make_items(), @repairs) if rand() < 0.4;
		finish_others() if $together;
		if (rand() < $restarts)
		{
			push @log, '-- the worker is restarted';
			server->restart_worker;
			$pid = server->worker_pid;
		}
		my $problem = eval { problem() } // ($@ || undef);
		return "step $step: $problem" if defined $problem;
		return 'the worker is another one' if $pid != server->worker_pid;
	}
	$session->unsubscribe("q$_") for 0 .. $#queries;
	return;
}

note "first round: DDL_SEED=$seed";
while (time() < $end)
{
	@log = ();
	srand $seed;
	my $problem = eval { play() } // ($@ || undef);
	$rounds++;
	if (!defined $problem)
	{
		$seed++;
		next;
	}
	fail("round $seed");
	diag("$problem\nto repeat: DDL_SEED=$seed DDL_SECONDS=1\n",
		join("\n", @log[ ($#log > 80 ? $#log - 80 : 0) .. $#log ]));
	last;
}
ok($checks > 0,
	"$rounds rounds: $checks results compared, $errors subscriptions in error");

done_testing();
