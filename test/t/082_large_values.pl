# Large values that an update leaves alone are not in WAL: in the select list,
# in WHERE and in ORDER BY, of rows that are held and of others.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use Test::More;

use LiveTopn::RefillStops;
use LiveTopn::Scenario;
use LiveTopn::Server;

use_server(LiveTopn::Server->start('large_values'));

# Large, and hard to compress if storage is to be out of line all the same.
my %value_of = (
	external => sub { "repeat(chr(96 + ($_[0]) % 26), 20000)" },
	extended => sub {
		"(SELECT chr(96 + ($_[0]) % 26)
			|| string_agg(md5(($_[0])::text || i::text), '')
			FROM generate_series(1, 300) i)";
	},
	main => sub { "repeat(chr(96 + ($_[0]) % 26), 30000)" });

# 12 rows; body and tag are large.
sub large_table
{
	my ($storage, $identity) = @_;
	my $value = $value_of{$storage};

	run "CREATE TABLE t (id int PRIMARY KEY, score int, body text, tag text)",
	  map({ "ALTER TABLE t ALTER $_ SET STORAGE $storage" } qw(body tag)),
	  "ALTER TABLE t REPLICA IDENTITY $identity",
	  'INSERT INTO t SELECT g, g * 10, '
	  . $value->('g') . ", 'k' || " . $value->('g + 1')
	  . ' FROM generate_series(1, 12) g';
	return $value;
}

my %query_of = (
	s => 'SELECT id, score, body FROM t ORDER BY score DESC, id LIMIT 3',
	p => q{SELECT id FROM t WHERE tag LIKE 'k%' ORDER BY score DESC, id LIMIT 3},
	k => 'SELECT id FROM t ORDER BY body DESC, id LIMIT 3',
	f => q{SELECT id, length(body), tag FROM t WHERE body < 'm'
		ORDER BY score, id LIMIT 3},
	u => 'SELECT id, score FROM t ORDER BY score, id LIMIT 3',

	# conditions that can be looked up, beside ones that cannot be evaluated
	i => 'SELECT id FROM t WHERE tag IS NOT NULL ORDER BY score DESC, id LIMIT 3',
	n => q{SELECT id FROM t WHERE tag > 'k' AND score IN (-1, 40, 60, 500)
		ORDER BY id LIMIT 3},
	r => q{SELECT id FROM t WHERE body > 'a' AND score > 55 ORDER BY id LIMIT 3});
my @names = sort keys %query_of;

# Those without a cushion have another setting, so as not to share the rows of
# those with one.
sub subscribe_all
{
	for my $name (@names)
	{
		subscribe $name => $query_of{$name};
		session->dbh->do(q{SET TimeZone = 'Asia/Tokyo'});
		subscribe "${name}0" => $query_of{$name}, cushion => 0;
		session->dbh->do('RESET TimeZone');
	}
	return;
}

sub check_all { return equals_query map { ($_, "${_}0") } @names; }

sub resets
{
	return scalar writer->selectrow_array(
		'SELECT sum(resets) FROM topn_stats');
}

for my $storage (sort keys %value_of)
{
	for my $identity ('DEFAULT', 'FULL')
	{
		scenario "$storage, $identity", 'they did not change' => sub {
			my $value = large_table($storage, $identity);

			subscribe_all();
			for my $statement (
				'UPDATE t SET score = 500 WHERE id = 1',     # comes in
				'UPDATE t SET score = 501 WHERE id = 1',     # held
				'UPDATE t SET score = 115 WHERE id = 1',
				'UPDATE t SET score = 0 WHERE id IN (1, 12)',
				'UPDATE t SET id = id + 100 WHERE id IN (2, 11)',
				q{UPDATE t SET body = 'short' WHERE id = 10},
				'UPDATE t SET score = -1 WHERE id = 10',
				"UPDATE t SET body = ${\$value->(25)}, score = 300 WHERE id = 5",
				'UPDATE t SET score = 301 WHERE id = 5',
				'UPDATE t SET tag = NULL WHERE id = 5',
				'DELETE FROM t WHERE id = 5',
				'UPDATE t SET score = -score',
				'DELETE FROM t WHERE score > -60')
			{
				run $statement;
				check_all();
			}
			is(resets(), 0, 'no reset');
		};

		scenario "$storage, $identity, one transaction", 'they change or not' =>
		  sub {
			my $value = large_table($storage, $identity);

			subscribe_all();
			run 'BEGIN',
			  'UPDATE t SET score = 500 WHERE id = 1',
			  'UPDATE t SET score = -500 WHERE id = 1',
			  'UPDATE t SET score = 600 WHERE id = 1', 'COMMIT';
			check_all();
			run 'BEGIN',
			  "UPDATE t SET body = ${\$value->(24)} WHERE id = 2",
			  'UPDATE t SET score = 700 WHERE id = 2',
			  'UPDATE t SET id = 200 WHERE id = 2',
			  "INSERT INTO t VALUES (2, 650, ${\$value->(2)}, 'k')",
			  'UPDATE t SET score = 640 WHERE id = 2', 'COMMIT';
			check_all();
			run 'BEGIN',
			  'UPDATE t SET score = 800 WHERE id = 3',
			  'DELETE FROM t WHERE id = 3', 'COMMIT';
			check_all();
			run 'BEGIN',
			  'SAVEPOINT a',
			  q{UPDATE t SET body = 'x', score = 900 WHERE id = 4},
			  'ROLLBACK TO a',
			  'UPDATE t SET score = 910 WHERE id = 4', 'COMMIT';
			check_all();
			run 'BEGIN',
			  "UPDATE t SET score = 920 WHERE id = 6",
			  'TRUNCATE t',
			  "INSERT INTO t VALUES (6, 1, ${\$value->(3)}, 'k')",
			  'UPDATE t SET score = 2 WHERE id = 6', 'COMMIT';
			check_all();
			is(resets(), 0, 'no reset');
		  };
	}
}

for my $identity ('DEFAULT', 'FULL')
{
	scenario "gone, $identity", 'the row is gone before its change is read' =>
	  sub {
		my $value = large_table('external', $identity);
		my $pid = server->worker_pid;

		subscribe_all();
		kill STOP => $pid;
		run 'UPDATE t SET score = 500 WHERE id = 1',
		  "UPDATE t SET body = ${\$value->(20)} WHERE id = 1",
		  'UPDATE t SET score = 510 WHERE id = 2',
		  'UPDATE t SET id = 20 WHERE id = 2',
		  'DELETE FROM t WHERE id = 20',
		  'UPDATE t SET score = 520 WHERE id = 3',
		  q{UPDATE t SET body = 'x', tag = 'y' WHERE id = 3},
		  'UPDATE t SET score = 5 WHERE id = 12',
		  'VACUUM t';
		kill CONT => $pid;
		check_all();
		is(resets(), 0, 'no reset');
	  };

	scenario "during a refill, $identity", 'rows are read again meanwhile' =>
	  sub {
		my $stops = LiveTopn::RefillStops->new(server);
		my $value = large_table('external', $identity);

		server->set('live_topn.debug_refill_stops' => 'on');
		subscribe_all();
		for my $gate (LiveTopn::RefillStops::BEFORE_SNAPSHOT,
			LiveTopn::RefillStops::BEFORE_QUERY,
			LiveTopn::RefillStops::BEFORE_ANSWER)
		{
			$stops->hold($gate);
			run 'DELETE FROM t WHERE id IN (SELECT id FROM t
				ORDER BY score DESC LIMIT 2)';
			$stops->wait_for($gate);
			run 'UPDATE t SET score = score + 1000 WHERE id IN
				(SELECT id FROM t ORDER BY score LIMIT 2)',
			  'UPDATE t SET score = score + 1 WHERE id IN
				(SELECT id FROM t ORDER BY score DESC LIMIT 2)',
			  "UPDATE t SET body = ${\$value->(7)} WHERE id IN
				(SELECT id FROM t ORDER BY score LIMIT 1)",
			  'VACUUM t';
			$stops->release($gate);
			check_all();
		}
		server->set('live_topn.debug_refill_stops' => undef);
		is(resets(), 0, 'no reset');
	  };
}

scenario 'keyless', 'large rows that are alike' => sub {
	my $query = 'SELECT v, body FROM k ORDER BY v LIMIT 3';

	run 'CREATE TABLE k (v int, body text)',
	  'ALTER TABLE k ALTER body SET STORAGE EXTERNAL',
	  'ALTER TABLE k REPLICA IDENTITY FULL',
	  q{INSERT INTO k SELECT g / 4, repeat(chr(97 + g / 8), 9000)
		FROM generate_series(1, 20) g};
	subscribe $_ => $query,
	  keyless => 1,
	  cushion => /bare/ ? 0 : 2,
	  truth => $query =~ s/(SELECT .* v) (LIMIT 3)/SELECT row_to_json(q)::text
		FROM ($1, k USING *< $2) q/r
	  for qw(k bare);
	my $one = '(SELECT ctid FROM k ORDER BY v LIMIT 1)';
	for my $statement (
		"UPDATE k SET v = 9 WHERE ctid = $one",
		"DELETE FROM k WHERE ctid = $one",
		'UPDATE k SET v = 0 WHERE v = 4',
		"DELETE FROM k WHERE ctid = $one",
		q{UPDATE k SET body = repeat('z', 9000) WHERE v = 0},
		'UPDATE k SET v = -v')
	{
		run $statement;
		equals_query qw(k bare);
	}
};

scenario 'partitions', 'a row takes its large value along' => sub {
	run 'CREATE TABLE p (id int PRIMARY KEY, v int, body text)
		PARTITION BY RANGE (id)',
	  'CREATE TABLE p1 (body text, id int NOT NULL, v int)',
	  'ALTER TABLE p ATTACH PARTITION p1 FOR VALUES FROM (0) TO (10)',
	  'CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (30)',
	  map({ "ALTER TABLE $_ ALTER body SET STORAGE EXTERNAL" } qw(p1 p2)),
	  q{INSERT INTO p SELECT g, g, repeat(chr(96 + g), 9000)
		FROM generate_series(1, 20) g};
	subscribe p => 'SELECT * FROM p ORDER BY v, id LIMIT 3';
	subscribe o => 'SELECT id FROM p ORDER BY body DESC, id LIMIT 3',
	  cushion => 0;
	for my $statement (
		'UPDATE p SET id = id + 20, v = -1 WHERE id = 9',
		'UPDATE p SET v = -2 WHERE id = 15',
		'UPDATE p SET id = 9, v = 10 WHERE id = 29',
		'UPDATE p SET v = -3 WHERE id IN (9, 8)',
		'DELETE FROM p WHERE v < 0')
	{
		run $statement;
		equals_query qw(p o);
	}
};

scenario 'not visible', 'the commit waits for a standby' => sub {
	my $value = large_table('external', 'DEFAULT');

	subscribe_all();
	my $hanging = server->hanging_commit(
		'UPDATE t SET score = 1000 + score WHERE id IN (1, 2)');
	run 'DELETE FROM t WHERE id IN (10, 11)',
	  "UPDATE t SET body = ${\$value->(9)} WHERE id = 3";
	server->let_go($hanging);
	check_all();
};

# Nothing large here: a refill that missed the commit gets it from the log.
scenario 'seen in between', 'visible after a refill read, before its answer' =>
  sub {
	my $stops = LiveTopn::RefillStops->new(server);

	base_table();
	my $hanging = server->hanging_commit('UPDATE items
		SET score = 95 WHERE id IN (1, 2)');
	subscribe s => 'SELECT id, score FROM items ORDER BY score DESC LIMIT 3',
	  truth => q{SELECT row_to_json(q)::text FROM (SELECT id, score FROM items
		ORDER BY score DESC, id LIMIT 3) q};
	server->set('live_topn.debug_refill_stops' => 'on');
	$stops->hold(LiveTopn::RefillStops::BEFORE_ANSWER);
	run 'DELETE FROM items WHERE id > 9';
	$stops->wait_for(LiveTopn::RefillStops::BEFORE_ANSWER);
	server->let_go($hanging);

	# go on until the worker has had a turn in which it could forget
	my $turns = 'SELECT commits FROM topn_worker
		WHERE database = current_database()';
	for (1 .. 2)
	{
		my ($before) = writer->selectrow_array($turns);
		LiveTopn::Server::poll_until(
			sub {
				run 'INSERT INTO idle VALUES (1) ON CONFLICT (id)
					DO UPDATE SET id = 1';
				return writer->selectrow_array($turns) > $before;
			},
			'the worker to get on');
	}
	$stops->release_all;
	equals_query 's';
	ids_are s => '1 2 9';
	server->set('live_topn.debug_refill_stops' => undef);
  };

scenario 'megabytes', 'rows of several megabytes' => sub {
	run 'CREATE TABLE big (id int PRIMARY KEY, score int, a text, b bytea)',
	  q{INSERT INTO big SELECT g, g, repeat(md5(g::text), 100000),
		decode(repeat(md5(g::text), 50000), 'hex')
		FROM generate_series(1, 4) g};
	subscribe big => 'SELECT * FROM big ORDER BY score LIMIT 2', cushion => 1;
	subscribe by => 'SELECT id FROM big ORDER BY a, id LIMIT 2', cushion => 0;
	my @both = qw(big by);
	for my $statement (
		'UPDATE big SET score = -1 WHERE id = 4',
		q{UPDATE big SET a = a || '"' WHERE id = 4},
		q{UPDATE big SET a = repeat(E'\x01', 60000) WHERE id = 1},
		'DELETE FROM big WHERE id = 4',
		'ALTER TABLE big REPLICA IDENTITY FULL',
		'UPDATE big SET score = -score')
	{
		run $statement;
		equals_query @both;
	}
};

scenario 'lz4', 'values compressed in another way' => sub {
	if (!eval { writer->do('SET default_toast_compression = lz4'); 1 })
	{
		plan skip_all => 'the server does not know lz4';
	}
	run 'RESET default_toast_compression';
	run 'CREATE TABLE z (id int PRIMARY KEY, a text COMPRESSION pglz,
		b text COMPRESSION lz4)',
	  q{INSERT INTO z SELECT g, repeat('a', 5000), repeat('b', 5000)
		FROM generate_series(1, 4) g};
	subscribe z => 'SELECT id, a, b FROM z ORDER BY b, a, id LIMIT 2';
	run 'UPDATE z SET a = b, b = a WHERE id = 1';
	equals_query 'z';
	session->client('z')->take_batches;
	run 'ALTER TABLE z ALTER a SET COMPRESSION lz4',
	  q{UPDATE z SET a = repeat('b', 4999) || 'b' WHERE id = 1};
	saw 'z';    # the same value, compressed otherwise
};

# The rows are read again, and do not tell which of them was changed.
scenario 'large values', 'the row that was changed moves' => sub {
	large_table 'external', 'DEFAULT';
	subscribe
	  s => 'SELECT id FROM t WHERE length(tag) > 5 ORDER BY score DESC, id LIMIT 5';
	run 'UPDATE t SET score = 85 WHERE id = 10';
	saw s => 'move 10 from 3 to 4';
	run 'UPDATE t SET score = 95 WHERE id = 10';
	saw s => 'move 10 from 4 to 3';
};

done_testing();
