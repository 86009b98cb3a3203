# What somebody without rights might try, and what must not take the worker
# along: scenarios of a reviewer who tried to break it.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use PostgreSQL::Test::Utils;
use Test::More;

use LiveTopn::Server qw(poll_until);

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
	  'INSERT INTO slow SELECT i, i FROM generate_series(1, 2000) i',
	  # ANALYZE would have queries looked at again
	  'ALTER TABLE slow SET (autovacuum_enabled = off)';
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

# What a query's expressions take of the worker's time the others wait for.
for (
	[ 'one row', 'SELECT 1, 32000', qr/of one row took longer than/ ],
	[   'many rows', 'SELECT i, 1000 FROM generate_series(1, 4000) i',
		qr/of rows took the worker much longer than/
	])
{
	my ($what, $rows, $message) = @$_;

	subtest "$what that take too long to evaluate" => sub {
		my $state = sub {
			return join ': ', grep { defined } $super->selectrow_array(
				q{SELECT state, error FROM topn_subscriptions
				WHERE name = 'slow'});
		};

		$super->do('TRUNCATE slow');
		$server->set('live_topn.evaluation_timeout' => '1s');
		subscribe('slow', 'SELECT id FROM slow WHERE '
			  . join(' + ', ('factorial(v)') x 40)
			  . ' > 0 ORDER BY id LIMIT 10');
		my $log_start = -s $server->node->logfile;
		$super->do("INSERT INTO slow $rows");
		ok(value(q{SELECT topn_sync('1 min')}), 'the others go on');
		my $full = qr/$message live_topn\.evaluation_timeout \(1s\)/;
		like($state->(), qr/^error: evaluation $full$/, 'the error says why');
		eval { value(q{SELECT seq FROM topn_snapshot('slow')}) };
		like($@,
			qr/HINT:  Let the expressions .* It goes on by itself when/,
			'and what can be done; so do functions');
		like(slurp_file($server->node->logfile, $log_start),
			qr/$full\n.*HINT:  Let the expressions .* or raise the setting/,
			'so does the log');
		$super->do('UPDATE slow SET v = 1');
		poll_until(sub { $state->() eq 'live' }, 'it to be tried again');
		is(value(q{SELECT count(*) FROM topn_rows('slow') AS (id int)}),
			value('SELECT least(count(*), 10) FROM slow'), 'it comes back');
		$server->set('live_topn.evaluation_timeout' => undef);
		$super->do(q{SELECT unsubscribe_topn('slow')});
	};
}

subtest 'a stranger learns nothing' => sub {
	my @functions = (
		'unsubscribe_topn(%s)', 'topn_snapshot(%s)', 'topn_poll(%s, 0)',
		'topn_resync(%s)', 'topn_renew(%s)', 'topn_move(%s, 1)',
		'topn_rows(%s) AS t (id int)');
	my @internals = (
		'TABLE live_topn.subscription', 'SELECT * FROM live_topn.stats()',
		'SELECT * FROM live_topn.workers()',
		q{SELECT nextval('live_topn.subscription_id_seq')},
		q{DELETE FROM live_topn.subscription},
		q{UPDATE live_topn.subscription SET owner = 'mallory'},
		q{SELECT * FROM live_topn.keyset_queries('SELECT id FROM vault')});

	$super->do($_)
	  for 'CREATE TABLE vault (id int PRIMARY KEY, open int, secret text)',
	  q{INSERT INTO vault VALUES (1, 1, 'sesame'), (2, 2, 'sesame')},
	  'GRANT SELECT (id, open) ON vault TO mallory';
	subscribe('live', 'SELECT * FROM vault ORDER BY id LIMIT 3');
	subscribe('broken', "SELECT id FROM vault
		WHERE 10 / (open - 5) < 9 ORDER BY secret LIMIT 3");
	$super->do('UPDATE vault SET open = 5 WHERE id = 2');
	value('SELECT topn_sync()');
	is( value(q{SELECT state FROM topn_subscriptions WHERE name = 'broken'}),
		'error', 'one is in error');

	for my $name (qw(live broken))
	{
		for my $function (@functions)
		{
			my ($error) = as_mallory(
				'SELECT * FROM ' . sprintf $function, "'$name'");

			like(
				$error // 'none',
				qr/^DBD::Pg::db do failed: ERROR:  (?:permission denied for|must be owner of) subscription "?$name"?[^\n]*$/m,
				"$function of $name");
			unlike($error // '', qr/sesame|division|error:/, 'and no more');
		}
	}
	for my $sql (@internals)
	{
		my ($error) = as_mallory($sql);

		like($error // 'none', qr/permission denied for/, $sql);
	}
	for my $query (
		'SELECT secret FROM vault LIMIT 1',
		'SELECT * FROM vault LIMIT 1',
		q{SELECT id FROM vault WHERE secret > '' LIMIT 1},
		q{SELECT id FROM vault WHERE secret::int = 1 LIMIT 1},
		'SELECT id FROM vault ORDER BY secret LIMIT 1',
		'SELECT id FROM vault ORDER BY md5(secret) LIMIT 1',
		'SELECT vault FROM vault LIMIT 1')
	{
		my ($error) =
		  as_mallory('SELECT subscribe_topn(' . $super->quote($query) . ')');

		like($error // 'none', qr/permission denied for table vault/, $query);
		unlike($error // '', qr/sesame/, 'and no more');
	}
	is_deeply(
		[ as_mallory(q{SELECT subscribe_topn('SELECT id, open FROM vault
			ORDER BY open LIMIT 2', 'mine')}) ], [], 'what they may see');

	# a function of theirs is asked about no row of others
	my @seen;
	$super->do($_)
	  for 'CREATE FUNCTION public.tell(text) RETURNS bool LANGUAGE plpgsql
		COST 0.000001 AS $$BEGIN RAISE EXCEPTION \'saw %\', $1; END$$',
	  'SET SESSION AUTHORIZATION mallory';
	for my $view (qw(topn_subscriptions topn_stats))
	{
		eval { $super->do("SELECT * FROM $view WHERE tell(name)"); };
		push @seen, $@ =~ /saw (\w+)/;
	}
	$super->do('RESET SESSION AUTHORIZATION');
	is_deeply(\@seen, [ 'mine', 'mine' ], 'views show them their own');
	$super->do('SELECT unsubscribe_topn(name) FROM topn_subscriptions');
};

done_testing();
