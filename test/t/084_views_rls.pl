# Views over one table, and row security: a subscription shows what its owner's
# own query shows, whoever else changes what.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use Test::More;

use LiveTopn::RefillStops;
use LiveTopn::Scenario;
use LiveTopn::Server;

use_server(LiveTopn::Server->start('views_rls'));

my @roles = qw(ann bob);
writer->do("CREATE ROLE $_ LOGIN") for @roles, 'staff';

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

# Sessions of the two roles that subscribed to a query, as s_ann and s_bob.
sub both
{
	my ($query, %options) = @_;
	my %session = map { $_ => server->session('postgres', user => $_) } @roles;

	$session{$_}->subscribe("s_$_", $query, cushion => 1, %options) for @roles;
	return \%session;
}

# Each role's list is what its own query returns.
sub both_equal
{
	my ($session, $what) = @_;

	for my $role (@roles)
	{
		is( eval {
				$session->{$role}->difference("s_$role")
				  // $session->{$role}->rows_difference("s_$role");
			} // ($@ || undef),
			undef,
			"$role sees what it may: $what");
	}
	return;
}

sub own_table
{
	run 'CREATE TABLE r (id int PRIMARY KEY, owner name, score int,
		secret text)',
	  'ALTER TABLE r ENABLE ROW LEVEL SECURITY',
	  map({ "GRANT SELECT (id, owner, score) ON r TO $_" } @roles, 'staff'),
	  'CREATE POLICY own ON r FOR SELECT USING (owner = current_user)',
	  q{INSERT INTO r SELECT g, (ARRAY['ann', 'bob'])[1 + g % 2], g, 'pw' || g
		FROM generate_series(1, 20) g};
	return;
}

my $query = 'SELECT id, score FROM r ORDER BY score DESC, id LIMIT 3';

scenario 'view', 'columns have other names, rows are fewer' => sub {
	my @names = qw(v w b);

	run 'CREATE TABLE t (id int PRIMARY KEY, a int, b text)',
	  q{INSERT INTO t SELECT g, g % 5, 'b' || g FROM generate_series(1, 20) g},
	  'CREATE VIEW v ("the id", "a+1", "B", a) AS
		SELECT id, a + 1, b, id FROM t WHERE a > 0',
	  'CREATE VIEW w AS SELECT "the id" AS a, "B" || \'!\' AS id FROM v
		WHERE "a+1" < 5',
	  'CREATE VIEW barrier WITH (security_barrier) AS
		SELECT id, a, 10 / a AS fraction FROM t WHERE a <> 0';
	subscribe v => 'SELECT * FROM v ORDER BY "a+1" DESC, "the id" LIMIT 3';
	subscribe w => 'SELECT id, a FROM w ORDER BY a LIMIT 3';
	subscribe b => 'SELECT fraction, id FROM barrier WHERE 20 / a > 4
		ORDER BY fraction, id LIMIT 3';
	is((session->client('v')->keys)[0], '{"id":4}',
		'the key has the names of the table');
	step_by_step \@names,
	  'UPDATE t SET a = 0 WHERE id IN (1, 4, 9)',
	  'UPDATE t SET a = 9 WHERE id = 10',
	  q{UPDATE t SET b = 'x', id = 100 - id WHERE id < 5},
	  'UPDATE v SET "B" = NULL WHERE "the id" = 96',
	  'DELETE FROM t WHERE a = 4',
	  'ALTER TABLE t REPLICA IDENTITY FULL',
	  'UPDATE t SET a = a + 1';
};

scenario 'view and table', 'subscriptions that read the same, by other names' => sub {
	run 'CREATE TABLE t (id int PRIMARY KEY, a int)',
	  'INSERT INTO t SELECT g, g % 5 FROM generate_series(1, 20) g',
	  'CREATE VIEW v AS SELECT id, a FROM t WHERE a > 1',
	  'CREATE VIEW w AS SELECT id, a FROM t WHERE a > 1';
	subscribe t => 'SELECT id, a FROM t WHERE a > 1 ORDER BY a, id LIMIT 3';
	subscribe $_ => "SELECT id, a FROM $_ ORDER BY a, id LIMIT 3" for qw(v w);
	step_by_step ['t', 'v', 'w'],
	  'CREATE OR REPLACE VIEW v AS SELECT id, a FROM t WHERE a > 2',
	  'CREATE OR REPLACE VIEW w AS SELECT id, a FROM t WHERE a > 3',
	  'UPDATE t SET a = 3 WHERE id = 1';
};

scenario 'view changed', 'its definition is replaced' => sub {
	run 'CREATE TABLE t (id int PRIMARY KEY, a int)',
	  'INSERT INTO t SELECT g, g % 5 FROM generate_series(1, 20) g',
	  'CREATE VIEW v AS SELECT id, a FROM t WHERE a > 1';
	subscribe v => 'SELECT id, a FROM v ORDER BY a, id LIMIT 3';
	step_by_step ['v'],
	  'CREATE OR REPLACE VIEW v AS SELECT id, a FROM t WHERE a > 2',
	  'UPDATE t SET a = 3 WHERE id = 1',
	  'CREATE OR REPLACE VIEW v AS SELECT id, -a AS a FROM t',
	  'UPDATE t SET a = 4 WHERE id = 1',
	  'ALTER VIEW v SET (security_barrier = true)',
	  'UPDATE t SET a = 5 WHERE id = 1',
	  [
		'UPDATE t SET a = 7 WHERE id = 2',
		'CREATE OR REPLACE VIEW v AS SELECT id, a FROM t WHERE a > 3',
		'UPDATE t SET a = 8 WHERE id = 3'
	  ];
	run 'ALTER VIEW v RENAME TO other';
	wait_for_state v => 'error';
	run 'CREATE VIEW v AS SELECT id, a FROM t WHERE a < 3';
	wait_for_state v => 'live';
	equals_query 'v';
	run 'DROP VIEW v', 'ALTER VIEW other RENAME TO v';
	wait_for_state v => 'live';
	equals_query 'v';
};

scenario 'view refused', 'it is more than a view of one table' => sub {
	run 'CREATE TABLE t (id int PRIMARY KEY, a int)',
	  'CREATE VIEW nokey AS SELECT a FROM t',
	  'CREATE VIEW joined AS SELECT t.id, u.a FROM t JOIN t u USING (id)',
	  'CREATE VIEW grouped AS SELECT a AS id, count(*) FROM t GROUP BY a',
	  'CREATE VIEW sorted AS SELECT id FROM t ORDER BY a LIMIT 5',
	  'CREATE VIEW twice AS SELECT id FROM t UNION ALL SELECT id FROM t',
	  'CREATE VIEW sub AS SELECT id FROM t WHERE a IN (SELECT 1)',
	  'CREATE VIEW now_view AS SELECT id FROM t WHERE now() > \'2026-01-01\'';
	for my $view (qw(nokey joined grouped sorted twice sub now_view))
	{
		my $message = refused '0A000',
		  "SELECT subscribe_topn('SELECT * FROM $view LIMIT 1')", $view;
		like($message, qr/HINT/, '... with a hint');
	}
};

scenario 'view rights', 'the owner of the view reads the table' => sub {
	run 'CREATE TABLE t (id int PRIMARY KEY, a int, secret text)',
	  q{INSERT INTO t SELECT g, g, 'pw' FROM generate_series(1, 9) g},
	  'CREATE VIEW v AS SELECT id, a FROM t WHERE a % 2 = 0',
	  'GRANT SELECT ON v TO ann, bob';
	my $session = both('SELECT * FROM v ORDER BY a DESC LIMIT 3');
	both_equal $session, 'at first';
	run 'UPDATE t SET a = 10 WHERE id = 2', 'DELETE FROM t WHERE id = 8';
	both_equal $session, 'after changes';
	run 'REVOKE SELECT ON v FROM ann', 'UPDATE t SET a = 20 WHERE id = 4';
	wait_for_state s_ann => 'error';
	is($session->{bob}->difference('s_bob'), undef, 'bob goes on');
	run 'GRANT SELECT (id, a) ON v TO ann';
	wait_for_state s_ann => 'live';
	both_equal $session, 'granted again';
	run 'ALTER VIEW v SET (security_invoker = true)';
	wait_for_state "s_$_" => 'error' for @roles;
	run 'GRANT SELECT (id, a) ON t TO ann, bob';
	wait_for_state "s_$_" => 'live' for @roles;
	both_equal $session, 'as invoker';
};

scenario 'row security', 'two roles, one query' => sub {
	own_table();
	my $session = both($query);
	both_equal $session, 'at first';
	for my $statement (
		q{UPDATE r SET owner = 'ann' WHERE id = 19},
		'DELETE FROM r WHERE id IN (20, 19)',
		q{UPDATE r SET score = 100, owner = 'bob' WHERE id IN (2, 3)},
		q{UPDATE r SET owner = NULL WHERE id = 2},
		'DELETE FROM r WHERE id > 10')
	{
		run $statement;
		both_equal $session, $statement;
	}
	for my $role (@roles)
	{
		unlike(
			join('', map { $_->{json} }
				$session->{$role}->client("s_$role")->batches),
			qr/pw|"owner"|"id":20.*"s_bob"/,
			"$role was told nothing else");
	}
	ok( !eval { $session->{ann}->snapshot('s_bob'); 1 },
		'ann may not read the result of bob');
};

scenario 'policies', 'they change' => sub {
	own_table();
	my $session = both($query);
	for my $statement (
		'ALTER POLICY own ON r USING (owner = current_user AND score < 15)',
		'UPDATE r SET score = score + 1',
		'CREATE POLICY even ON r FOR SELECT TO ann USING (id % 4 = 0)',
		'CREATE POLICY small ON r AS RESTRICTIVE FOR SELECT TO bob
			USING (score < 12)',
		'DELETE FROM r WHERE score BETWEEN 10 AND 13',
		'GRANT staff TO bob',
		'CREATE POLICY staff ON r FOR SELECT TO staff USING (true)',
		'DROP POLICY small ON r',
		'UPDATE r SET score = score + 1 WHERE id % 3 = 0',
		'REVOKE staff FROM bob',
		'UPDATE r SET score = score + 1 WHERE id % 3 = 1',
		'ALTER ROLE ann BYPASSRLS',
		'UPDATE r SET score = score + 1 WHERE id % 3 = 0',
		'ALTER ROLE ann NOBYPASSRLS',
		'DROP POLICY own ON r',
		'ALTER TABLE r DISABLE ROW LEVEL SECURITY',
		'UPDATE r SET score = -score',
		'ALTER TABLE r ENABLE ROW LEVEL SECURITY',
		'DROP POLICY staff ON r')
	{
		run $statement;
		both_equal $session, $statement;
	}
	run 'ALTER ROLE bob RENAME TO bert';
	run q{CREATE POLICY own ON r FOR SELECT USING (owner = current_user)},
	  'UPDATE r SET score = score + 7 WHERE id = 5';
	both_equal $session, 'a role is renamed';
	run 'ALTER ROLE bert RENAME TO bob';
	both_equal $session, 'and back';
};

scenario 'policy and commit', 'a policy is changed amid changes' => sub {
	own_table();
	my $stops = LiveTopn::RefillStops->new(server);
	my $session = both($query);

	run 'BEGIN',
	  q{INSERT INTO r VALUES (50, 'ann', 50), (51, 'bob', 51)},
	  'ALTER POLICY own ON r USING (owner <> current_user)',
	  q{INSERT INTO r VALUES (52, 'ann', 52), (53, 'bob', 53)}, 'COMMIT';
	both_equal $session, 'in one transaction';

	# the policy changes as soon as a refill lets it
	server->set('live_topn.debug_refill_stops' => 'on');
	$stops->hold(LiveTopn::RefillStops::BEFORE_ANSWER);
	run 'DELETE FROM r WHERE id > 14';
	$stops->wait_for(LiveTopn::RefillStops::BEFORE_ANSWER);
	$session->{$_}->client("s_$_")->take_batches for @roles;
	my $waiting = server->connect;    # for the lock of the refill
	$waiting->do(
		'ALTER POLICY own ON r USING (id < 5 AND owner <> current_user)',
		{ pg_async => DBD::Pg::PG_ASYNC() });
	$stops->release_all;
	$waiting->pg_result;
	both_equal $session, 'after a refill';
	server->set('live_topn.debug_refill_stops' => undef);
};

scenario 'barriers', 'what a policy hides reaches no function' => sub {
	own_table();
	run q{UPDATE r SET score = 0 WHERE owner = 'bob'};
	my $ann = server->session('postgres', user => 'ann');
	$ann->subscribe(a => 'SELECT id, 100 / score AS share FROM r
		WHERE 100 / score > 1 ORDER BY 100 / score, id LIMIT 3', cushion => 0);
	for my $statement (
		q{UPDATE r SET owner = 'bob', score = 0 WHERE id = 20},
		q{UPDATE r SET score = 1 WHERE id = 18},
		'DELETE FROM r WHERE id IN (16, 14)',
		q{INSERT INTO r VALUES (30, 'bob', 0), (31, 'ann', 7)})
	{
		run $statement;
		is($ann->difference('a'), undef, $statement);
	}
	run 'UPDATE r SET score = 0 WHERE id = 18';
	wait_for_state a => 'error';
	like((state_of('a'))[1], qr/division by zero/, 'its own error');
	run 'UPDATE r SET score = 1 WHERE id = 18';
	LiveTopn::Server::poll_until(sub { (state_of('a'))[0] eq 'live' },
		'a to be live');
	is($ann->difference('a'), undef, 'on again');
};

scenario 'forced', 'row security for the owner of the table' => sub {
	own_table();
	run 'ALTER TABLE r OWNER TO ann';
	my $session = both($query);
	both_equal $session, 'the owner sees all';
	run 'ALTER TABLE r FORCE ROW LEVEL SECURITY';
	both_equal $session, 'until forced';
	run q{UPDATE r SET score = score + 10 WHERE id IN (7, 8)};
	both_equal $session, 'after changes';
	run 'ALTER TABLE r NO FORCE ROW LEVEL SECURITY',
	  q{UPDATE r SET score = score + 10 WHERE id IN (7, 8)};
	both_equal $session, 'not forced';
};

scenario 'row security on partitions', 'the policy of the root counts' => sub {
	run 'CREATE TABLE p (id int PRIMARY KEY, owner name, score int)
		PARTITION BY RANGE (id)',
	  'CREATE TABLE p1 (score int, owner name, id int NOT NULL)',
	  'ALTER TABLE p ATTACH PARTITION p1 FOR VALUES FROM (0) TO (10)',
	  'CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (30)',
	  'ALTER TABLE p ENABLE ROW LEVEL SECURITY',
	  'ALTER TABLE p1 ENABLE ROW LEVEL SECURITY',
	  'CREATE POLICY own ON p USING (owner = current_user)',
	  'GRANT SELECT ON p TO ann, bob',
	  q{INSERT INTO p SELECT g, (ARRAY['ann', 'bob'])[1 + g % 2], g
		FROM generate_series(1, 20) g};
	my $session = both($query =~ s/FROM r/FROM p/r);
	for my $statement (
		'UPDATE p SET id = id % 10 + 20, score = 100 WHERE id IN (3, 4)',
		'DELETE FROM p WHERE id > 15',
		q{UPDATE p SET owner = 'bob'},
		'ALTER POLICY own ON p USING (score > 8)')
	{
		run $statement;
		both_equal $session, $statement;
	}
};

done_testing();
