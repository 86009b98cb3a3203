# What somebody without rights might try, and what must not take the worker
# along: scenarios of a reviewer who tried to break it.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use Test::More;

use LiveTopn::Server;

my $server = LiveTopn::Server->start('hostile');
my $super = $server->connect;

$super->do($_)
  for 'CREATE ROLE mallory LOGIN', 'GRANT CREATE ON SCHEMA public TO mallory';

sub as_mallory
{
	$super->do('SET SESSION AUTHORIZATION mallory');
	my @results = map { eval { $super->do($_); 1 } ? undef : $@ } @_;
	$super->do('RESET SESSION AUTHORIZATION');
	return grep { defined } @results;
}

sub value
{
	my ($sql, @params) = @_;
	return ($super->selectrow_array($sql, undef, @params))[0];
}

sub subscribe
{
	my ($name, $query, %options) = @_;
	my $more = join '', map { ", $_ => '$options{$_}'" } sort keys %options;

	$super->do("SELECT subscribe_topn(?, name => ?$more)",
		undef, $query, $name);
	value(q{SELECT topn_sync('1 min')});
	return;
}

sub worker { return value('SELECT pid FROM topn_worker'); }

subtest "a cast to json that the owner of a type makes is not run" => sub {
	is_deeply(
		[   as_mallory(
				q{CREATE TYPE mood AS ENUM ('a', 'b')},
				'CREATE TABLE trap (id int PRIMARY KEY, v mood, a mood[])',
				q{INSERT INTO trap VALUES (1, 'a', '{a,NULL}'), (2, 'b', '{}')}
			)
		],
		[], 'a table with such a type');
	subscribe('trap', 'SELECT id, v, a FROM trap ORDER BY id LIMIT 3');
	is_deeply(
		[   as_mallory(
				q{CREATE FUNCTION grab(mood) RETURNS json LANGUAGE plpgsql AS
				  $$BEGIN ALTER ROLE mallory SUPERUSER; RETURN '{}'; END$$},
				'CREATE CAST (mood AS json) WITH FUNCTION grab(mood)',
				q{UPDATE trap SET v = 'b' WHERE id = 1})
		],
		[], 'the cast is made and a row changed');
	value('SELECT topn_sync()');
	is( value(q{SELECT rows->0->'row' #>> '{v}' FROM topn_snapshot('trap')}),
		'b', 'the value is printed');
	ok(!value(q{SELECT rolsuper FROM pg_roles WHERE rolname = 'mallory'}),
		'nothing was run');
};

subtest "messages of others are not ours" => sub {
	my $id = value(q{SELECT id FROM live_topn.subscription});
	my $seq = value(q{SELECT last_seq FROM topn_stats});

	is_deeply(
		[   as_mallory(
				map { "SELECT pg_logical_emit_message(true, 'live_topn', '$_')" }
				  "R $id", "R 1 $id", 'R' . " $id" x 1000, "P $id 99 99", 'B', ''
			)
		],
		[], 'forged');
	value('SELECT topn_sync()');
	is(value(q{SELECT last_seq FROM topn_stats}), $seq, 'no reset');
	$super->do(q{SELECT topn_resync('trap')});
	value('SELECT topn_sync()');
	is(value(q{SELECT last_seq FROM topn_stats}), $seq + 1, 'ours is one');
};

subtest "a held result is published in a transaction" => sub {
	my $worker = worker();

	$super->do($_)
	  for 'CREATE TYPE pair AS (a int, b text)',
	  'CREATE TABLE pairs (id int PRIMARY KEY, c pair)',
	  q{INSERT INTO pairs SELECT i, row(i % 3, 'x')::pair
		FROM generate_series(1, 200) i};
	subscribe('pairs', 'SELECT * FROM pairs ORDER BY c DESC LIMIT 10',
		throttle => '1 hour');
	$super->do(q{UPDATE pairs SET c = row(id, 'y')::pair
		WHERE id BETWEEN 50 AND 60});
	value('SELECT topn_sync()');
	$super->do(q{UPDATE pairs SET c = row(NULL, 'y')::pair
		WHERE id BETWEEN 55 AND 66});
	ok( value(
			q{SELECT (SELECT array_agg(id) FROM topn_rows('pairs')
					AS (id int, c pair)) =
				(SELECT array_agg(id) FROM (SELECT id FROM pairs
					ORDER BY c DESC, id LIMIT 10) q)}),
		'the result is right');
	is(worker(), $worker, 'the worker has lived on');
};

subtest "queries that nobody wants any more give way" => sub {
	$super->do($_)
	  for 'CREATE TABLE slow (id int PRIMARY KEY, v int)',
	  'INSERT INTO slow SELECT i, i FROM generate_series(1, 2000) i';
	$super->do(
		q{SELECT subscribe_topn('SELECT * FROM slow
			WHERE factorial(20000 + id) > ' || i || ' ORDER BY v LIMIT 1000',
			name => 'slow' || i) FROM generate_series(1, 3) i});
	$super->do(
		q{SELECT unsubscribe_topn('slow' || i) FROM generate_series(1, 3) i});
	subscribe('after', 'SELECT id FROM pairs ORDER BY id LIMIT 5');
	is( value(q{SELECT count(*) FROM topn_rows('after') AS (id int)}),
		5, 'the next one is served');
};

subtest "a worker that evaluates can be told to end" => sub {
	$super->do('DELETE FROM slow WHERE id > 1');
	subscribe('endless', 'SELECT id FROM slow
		WHERE factorial(25000 + v) > 0 ORDER BY id LIMIT 10');
	my $worker = worker();

	$super->do('INSERT INTO slow SELECT i, i FROM generate_series(2, 200) i');
	$super->do('SELECT pg_terminate_backend(?)', undef, $worker);
	$server->node->poll_query_until('postgres',
		"SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $worker")
	  or die "worker $worker does not end\n";
	$super->do(q{SELECT unsubscribe_topn('endless')});
	ok(value(q{SELECT topn_sync('1 min')}), 'the others go on');
};

done_testing();
