# Partitioned tables: rows come from many tables, each with its own columns and
# identity, and rows and tables move.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use Test::More;

use LiveTopn::RefillStops;
use LiveTopn::Scenario;
use LiveTopn::Server;

use_server(LiveTopn::Server->start('partitions'));

my $query = 'SELECT id, v, w FROM p ORDER BY v, id LIMIT 4';
my @names = qw(s bare all absolute);

# Partitions p1 and p2 with the columns in other orders, pd the default one,
# and p3, itself partitioned into p31 and p32.
sub partitioned_table
{
	my ($identity) = @_;

	run 'CREATE TABLE p (gone int, id int, v int, w text, PRIMARY KEY (id))
		PARTITION BY RANGE (id)',
	  'ALTER TABLE p DROP gone',
	  'CREATE TABLE p1 (w text, v int, id int NOT NULL)',
	  'CREATE TABLE p2 (x int, id int NOT NULL, y int, w text, v int)',
	  'ALTER TABLE p2 DROP x, DROP y',
	  'ALTER TABLE p ATTACH PARTITION p1 FOR VALUES FROM (0) TO (10)',
	  'ALTER TABLE p ATTACH PARTITION p2 FOR VALUES FROM (10) TO (20)',
	  'CREATE TABLE p3 (v int, w text, id int NOT NULL)
		PARTITION BY LIST (id)',
	  'CREATE TABLE p31 (id int NOT NULL, w text, v int)',
	  'ALTER TABLE p3 ATTACH PARTITION p31 FOR VALUES IN (20, 21, 22, 23)',
	  'CREATE TABLE p32 PARTITION OF p3 DEFAULT',
	  'ALTER TABLE p ATTACH PARTITION p3 FOR VALUES FROM (20) TO (30)',
	  'CREATE TABLE pd PARTITION OF p DEFAULT',
	  map({ "ALTER TABLE $_ REPLICA IDENTITY $identity" }
		qw(p p1 p2 p3 p31 p32 pd)),
	  q{INSERT INTO p SELECT g, (g * 7) % 40, 'w' || g
		FROM generate_series(1, 39) g};
	subscribe s => $query;
	# shares no rows with the others, and so has to read
	subscribe bare => $query =~ s/ORDER/WHERE id < 1000 ORDER/r, cushion => 0;
	subscribe absolute => $query, ranks => 'absolute';
	subscribe all => $query =~ s/4$/100/r;
	return;
}

sub step_by_step
{
	for my $statement (@_)
	{
		run ref $statement ? ('BEGIN', @$statement, 'COMMIT') : $statement;
		equals_query @names;
	}
	return;
}

sub resets
{
	return scalar writer->selectrow_array(
		'SELECT sum(resets) FROM topn_stats');
}

for my $identity ('DEFAULT', 'FULL')
{
	scenario "rows, $identity", 'in partitions whose columns differ' => sub {
		partitioned_table($identity);
		step_by_step
		  'UPDATE p SET v = -id WHERE id IN (5, 15, 21, 25, 35)',
		  'DELETE FROM p WHERE id IN (35, 25)',
		  q{INSERT INTO p VALUES (40, -40, 'x'), (0, -1, 'y'), (22, 0, 'z')
			ON CONFLICT (id) DO UPDATE SET v = excluded.v},
		  'UPDATE p1 SET w = NULL WHERE v < 0',
		  'DELETE FROM p31 WHERE id = 21',
		  'UPDATE p SET v = -v';
		is(resets(), 0, 'no reset');
	};

	scenario "moves, $identity", 'of rows from one partition to another' => sub {
		partitioned_table($identity);
		step_by_step
		  'UPDATE p SET id = id + 100 WHERE id IN (1, 11, 21, 31)',
		  'UPDATE p SET id = id - 100, v = -1 WHERE id = 131',
		  [
			'UPDATE p SET id = 50 WHERE id = 2',
			'UPDATE p SET id = 2 WHERE id = 12',
			'UPDATE p SET id = 12 WHERE id = 22',
			'UPDATE p SET id = 22 WHERE id = 50'
		  ],
		  [
			'DELETE FROM p WHERE id = 3',
			'UPDATE p SET id = 3 WHERE id = 13',
			q{INSERT INTO p VALUES (13, 0, 'new')}
		  ],
		  'UPDATE p SET id = (id + 2010) % 3000 WHERE v < 8',
		  'UPDATE p SET id = 5000 - id';
		is(resets(), 0, 'no reset');
	};

	scenario "DDL, $identity", 'partitions come and go' => sub {
		partitioned_table($identity);
		run q{CREATE TABLE n (v int, id int NOT NULL PRIMARY KEY, w text)},
		  "ALTER TABLE n REPLICA IDENTITY $identity",
		  q{INSERT INTO n SELECT -g, 200 + g, 'n' FROM generate_series(1, 3) g};
		step_by_step
		  'ALTER TABLE p ATTACH PARTITION n FOR VALUES FROM (200) TO (300)',
		  'UPDATE n SET v = v - 1 WHERE id = 201',
		  'UPDATE p SET id = 250, v = -50 WHERE id = 5',
		  'ALTER TABLE p DETACH PARTITION n',
		  'UPDATE n SET v = v - 1',
		  'INSERT INTO p VALUES (260, -60)',
		  'DELETE FROM p WHERE id = 260',
		  [
			'ALTER TABLE p ATTACH PARTITION n FOR VALUES FROM (200) TO (300)',
			'UPDATE p SET v = 0 WHERE id = 202',
			'INSERT INTO p VALUES (210, -10)'
		  ],
		  [
			'UPDATE n SET v = -99 WHERE id = 203',
			'ALTER TABLE p DETACH PARTITION n',
			'UPDATE n SET v = -100 WHERE id = 203',
			'INSERT INTO n VALUES (-1000, 290)'
		  ],
		  'DROP TABLE n',
		  'CREATE TABLE n PARTITION OF p FOR VALUES FROM (200) TO (300)',
		  'INSERT INTO p VALUES (210, -10)',
		  'DROP TABLE n',
		  'DROP TABLE p31',
		  'ALTER TABLE p DETACH PARTITION pd',
		  'ALTER TABLE p ATTACH PARTITION pd DEFAULT',
		  'ALTER TABLE p DETACH PARTITION p3',
		  'UPDATE p3 SET v = v',
		  'ALTER TABLE p ATTACH PARTITION p3 FOR VALUES FROM (20) TO (30)',
		  [
			'ALTER TABLE p DETACH PARTITION p1',
			'ALTER TABLE p ATTACH PARTITION p1 FOR VALUES FROM (0) TO (10)'
		  ],
		  [
			'ALTER TABLE p DETACH PARTITION p1',
			'UPDATE p1 SET v = -100 WHERE id = 9',
			'ALTER TABLE p ATTACH PARTITION p1 FOR VALUES FROM (0) TO (10)'
		  ],
		  'CREATE TABLE n (w text, id int NOT NULL, v int)',
		  q{INSERT INTO n VALUES ('sub', 23, -200), (NULL, 20, -1)},
		  'ALTER TABLE n ADD PRIMARY KEY (id)',
		  "ALTER TABLE n REPLICA IDENTITY $identity",
		  'ALTER TABLE p3 ATTACH PARTITION n FOR VALUES IN (20, 23)',
		  'UPDATE p SET v = -202 WHERE id = 20',
		  'ALTER TABLE p3 DETACH PARTITION n',
		  'DROP TABLE p1, p2, n';
		is(resets(), 0, 'no reset');
	};

	scenario "TRUNCATE, $identity", 'of the table and of partitions' => sub {
		partitioned_table($identity);
		step_by_step
		  'TRUNCATE p1',
		  'INSERT INTO p VALUES (5, 5)',
		  [
			'UPDATE p SET v = 0 WHERE id = 15',
			'TRUNCATE p2',
			q{INSERT INTO p VALUES (15, 1, 'again')}
		  ],
		  'TRUNCATE p3',
		  [ 'TRUNCATE p31', 'INSERT INTO p VALUES (20, 0)', 'TRUNCATE p32' ],
		  [ 'TRUNCATE p', 'INSERT INTO p VALUES (5, 2), (15, 1), (25, 0)' ],
		  [ 'SAVEPOINT a', 'TRUNCATE p', 'ROLLBACK TO a' ],
		  'TRUNCATE p';
		is(resets(), 0, 'no reset');
	};
}

scenario 'concurrently', 'a partition is detached in two steps' => sub {
	partitioned_table('DEFAULT');
	run 'DROP TABLE pd';
	my $old = server->connect;
	$old->begin_work;
	$old->do('SELECT * FROM p LIMIT 1');

	my $detach = server->connect;
	$detach->do('SET synchronous_commit = local');
	$detach->do('ALTER TABLE p DETACH PARTITION p1 CONCURRENTLY',
		{ pg_async => DBD::Pg::PG_ASYNC() });
	LiveTopn::Server::poll_until(
		sub {
			writer->selectrow_array(
				'SELECT inhdetachpending FROM pg_inherits
				 WHERE inhrelid = \'p1\'::regclass');
		},
		'the first step');
	step_by_step
	  'UPDATE p1 SET v = -1 WHERE id = 1',
	  'UPDATE p SET v = -2 WHERE id = 12',
	  'DELETE FROM p1 WHERE id = 2';
	$old->rollback;
	$detach->pg_result;
	step_by_step
	  'UPDATE p1 SET v = -3 WHERE id = 3',
	  'UPDATE p SET v = -4 WHERE id = 13',
	  'ALTER TABLE p ATTACH PARTITION p1 FOR VALUES FROM (0) TO (10)',
	  'UPDATE p SET v = -5 WHERE id = 3';
	is(resets(), 0, 'no reset');
};

scenario 'held refills', 'partitions change while rows are read' => sub {
	my $stops = LiveTopn::RefillStops->new(server);

	partitioned_table('DEFAULT');
	server->set('live_topn.debug_refill_stops' => 'on');
	my $delete = 'DELETE FROM p WHERE id IN
		(SELECT id FROM p ORDER BY v, id LIMIT 3)';

	# before the lock any DDL goes through, before the snapshot some does
	for my $ddl (
		'DROP TABLE p31',
		'ALTER TABLE p DETACH PARTITION p1',
		'ALTER TABLE p ATTACH PARTITION p1 FOR VALUES FROM (0) TO (10)',
		'TRUNCATE p2')
	{
		$stops->hold(LiveTopn::RefillStops::BEFORE_LOCK);
		run $delete;
		$stops->wait_for(LiveTopn::RefillStops::BEFORE_LOCK);
		run $ddl, 'UPDATE p SET v = v - 10 WHERE id % 5 = 1';
		$stops->release(LiveTopn::RefillStops::BEFORE_LOCK);
		equals_query @names;
	}
	$stops->hold(LiveTopn::RefillStops::BEFORE_SNAPSHOT);
	run $delete;
	$stops->wait_for(LiveTopn::RefillStops::BEFORE_SNAPSHOT);
	run 'CREATE TABLE n (id int PRIMARY KEY, v int, w text)',
	  'INSERT INTO n VALUES (201, -500), (202, 500)',
	  'DROP TABLE IF EXISTS other',
	  'INSERT INTO p VALUES (5, 1) ON CONFLICT DO NOTHING';
	$stops->release(LiveTopn::RefillStops::BEFORE_SNAPSHOT);
	equals_query @names;
	server->set('live_topn.debug_refill_stops' => undef);
};

# What is read after such a commit must not be shown as of an earlier one.
for my $identity ('DEFAULT', 'FULL')
{
	for my $gate (
		LiveTopn::RefillStops::BEFORE_LOCK,
		LiveTopn::RefillStops::BEFORE_QUERY)
	{
		scenario "held refill, $identity",
		  'rows of a partition are not older than it' => sub {
			my $stops = LiveTopn::RefillStops->new(server);

			run 'CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)',
			  'CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)',
			  'CREATE TABLE p2 (id int PRIMARY KEY)',
			  map({ "ALTER TABLE $_ REPLICA IDENTITY $identity" } qw(p p1 p2)),
			  'INSERT INTO p SELECT generate_series(1, 9)',
			  'INSERT INTO p2 VALUES (10), (11)';
			subscribe s => 'SELECT id FROM p ORDER BY id LIMIT 3', cushion => 0;
			server->set('live_topn.debug_refill_stops' => 'on');

			# so that it is seen before it is decoded
			writer->do('SET synchronous_commit = off');
			$stops->hold($gate);
			run 'DELETE FROM p WHERE id < 8';
			$stops->wait_for($gate);
			run 'ALTER TABLE p ATTACH PARTITION p2 FOR VALUES FROM (10) TO (20)';
			$stops->release($gate);
			session->sync;
			like(join(' ', map { $_->{json} } session->client('s')->batches),
				qr/^[^ ]*"from":[^ ]*"enter","pos":3,"key":\{"id":10\}[^ ]*$/,
				'the batch is of when it was attached');
			equals_query 's';
			server->set('live_topn.debug_refill_stops' => undef);
		};
	}
}

# A subscription begins with rows that were read once a partition was gone, and
# with a log that still has its rows.  alike: its query is known before.
for my $identity ('DEFAULT', 'FULL')
{
	for my $query ('SELECT id, v FROM p WHERE v < 100 ORDER BY v, id LIMIT 3',
		'SELECT id, v FROM p WHERE v < 100')
	{
		for my $alike (0, 1)
		{
			scenario "held first rows, $identity", $query => sub {
				my $stops = LiveTopn::RefillStops->new(server);
				my @unranked = $query =~ /LIMIT/ ? () : (unranked => 1);

				run 'CREATE TABLE p (id int PRIMARY KEY, v int)
						PARTITION BY RANGE (id)',
				  'CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)',
				  'CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)',
				  map({ "ALTER TABLE $_ REPLICA IDENTITY $identity" }
					qw(p p1 p2)),
				  'INSERT INTO p SELECT g, g FROM generate_series(1, 12) g';
				if ($alike)
				{
					subscribe alike => $query =~ s/100/99/r, @unranked;
					session->sync;
				}
				server->set('live_topn.debug_refill_stops' => 'on');
				$stops->hold(LiveTopn::RefillStops::BEFORE_LOCK);
				session->listen('s', $query, @unranked);
				run "SELECT subscribe_topn('$query', 's', cushion => 0)";
				$stops->wait_for(LiveTopn::RefillStops::BEFORE_LOCK)
				  unless $alike && @unranked && $identity eq 'FULL';
				run 'UPDATE p SET v = -1 WHERE id = 11',
				  'ALTER TABLE p DETACH PARTITION p2';
				$stops->release_all;
				session->begin('s');
				equals_query 's', $alike ? 'alike' : ();
				server->set('live_topn.debug_refill_stops' => undef);
			};
		}
	}
}

scenario 'upkeep', 'it costs no reload, and neither does TRUNCATE' => sub {
	partitioned_table('DEFAULT');
	my $refills = 'SELECT sum(refills) FROM topn_stats';
	run 'ANALYZE p';    # the first of it makes the worker look at p
	equals_query @names;
	my ($before) = writer->selectrow_array($refills);
	run 'VACUUM p', 'ANALYZE p', 'VACUUM ANALYZE p1', 'CREATE INDEX ON p (v)',
	  'REINDEX TABLE p1', 'VACUUM p';
	step_by_step 'UPDATE p SET v = v - 1 WHERE id IN (6, 12)', 'TRUNCATE p',
	  'INSERT INTO p VALUES (1, 1), (12, 0)';
	is(writer->selectrow_array($refills), $before, 'no refill');
};

scenario 'identities', 'of partitions are at least that of the table' => sub {
	run 'CREATE TABLE q (id int, v int, PRIMARY KEY (id))
		PARTITION BY RANGE (id)',
	  'CREATE TABLE q1 PARTITION OF q FOR VALUES FROM (0) TO (10)',
	  'CREATE TABLE q2 PARTITION OF q FOR VALUES FROM (10) TO (20)',
	  'CREATE TABLE q3 PARTITION OF q FOR VALUES FROM (20) TO (30)',
	  'ALTER TABLE q1 REPLICA IDENTITY FULL',
	  'ALTER TABLE q2 ALTER v SET NOT NULL',
	  'CREATE UNIQUE INDEX q2_index ON q2 (v, id)',
	  'ALTER TABLE q2 REPLICA IDENTITY USING INDEX q2_index',
	  'INSERT INTO q SELECT g, g % 10 FROM generate_series(0, 29) g';
	subscribe q => 'SELECT id, v FROM q ORDER BY v, id LIMIT 4';
	for my $statement (
		'UPDATE q SET v = v - 1 WHERE id % 10 < 3',
		'UPDATE q SET id = (id + 10) % 30 WHERE id % 10 = 1 AND id > 9',
		'DELETE FROM q WHERE v < 1',
		'UPDATE q2 SET id = 19 WHERE id = (SELECT min(id) FROM q2)',
		'ALTER TABLE q3 REPLICA IDENTITY FULL',
		'UPDATE q3 SET v = -v',
		'ALTER TABLE q1 REPLICA IDENTITY DEFAULT',
		'UPDATE q1 SET v = -v')
	{
		eval { run $statement };
		equals_query 'q';
	}

	run 'ALTER TABLE q1 REPLICA IDENTITY NOTHING';
	wait_for_state q => 'error';
	like((state_of('q'))[1], qr/partition "q1" of table "q" has no identity/,
		'with the reason');
	refused '0A000', q{SELECT subscribe_topn(
		'SELECT id FROM q ORDER BY v LIMIT 1')}, 'refused as well';
	run 'UPDATE q1 SET v = v - 1', 'DELETE FROM q1 WHERE id = 5',
	  'ALTER TABLE q1 REPLICA IDENTITY DEFAULT';
	wait_for_state q => 'live';
	equals_query 'q';

	run 'CREATE UNLOGGED TABLE u (id int PRIMARY KEY, v int)',
	  'ALTER TABLE q ATTACH PARTITION u FOR VALUES FROM (30) TO (40)';
	wait_for_state q => 'error';
	run 'ALTER TABLE u SET LOGGED', 'INSERT INTO q VALUES (30, -30)';
	wait_for_state q => 'live';
	equals_query 'q';
};

scenario 'keyless', 'rows that are alike, in several partitions' => sub {
	my $rows = 'SELECT v FROM p ORDER BY v LIMIT 4';
	my $truth = 'SELECT row_to_json(q)::text FROM
		(SELECT v FROM p ORDER BY v, p USING *< LIMIT 4) q';

	run 'CREATE TABLE p (id int, v int) PARTITION BY LIST (id)',
	  'CREATE TABLE p1 (v int, x int, id int)',
	  'ALTER TABLE p1 DROP x',
	  'ALTER TABLE p ATTACH PARTITION p1 FOR VALUES IN (1)',
	  'CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2, NULL)',
	  map({ "ALTER TABLE $_ REPLICA IDENTITY FULL" } qw(p p1 p2)),
	  'INSERT INTO p SELECT 1 + g % 2, g / 4 FROM generate_series(1, 16) g';
	@names = qw(k k0);
	subscribe k => $rows, keyless => 1, truth => $truth;
	subscribe k0 => $rows, keyless => 1, truth => $truth, cushion => 0;
	step_by_step
	  'DELETE FROM p WHERE v = 0',
	  'UPDATE p SET id = 3 - id WHERE v = 1',
	  'UPDATE p SET id = NULL WHERE id = 2',
	  'UPDATE p SET v = 1',
	  'TRUNCATE p2',
	  'ALTER TABLE p DETACH PARTITION p1',
	  'ALTER TABLE p ATTACH PARTITION p1 FOR VALUES IN (1)';
};

done_testing();
