# How others failed: order, predicates and values by other rules than the
# server's.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use Test::More;

use LiveTopn::Generator;
use LiveTopn::Scenario;
use LiveTopn::Server;

use_server(LiveTopn::Server->start('values'));
writer->do(LiveTopn::Generator->prepare_database);

my $top = 'SELECT id, score FROM items ORDER BY score DESC, id LIMIT 3';

scenario 'B13', 'NaN, infinities and signed zero have no place' => sub {
	run 'CREATE TABLE f (id int PRIMARY KEY, x float8, n numeric)';
	subscribe d => 'SELECT id, x FROM f ORDER BY x DESC NULLS LAST, id LIMIT 4';
	subscribe a => 'SELECT id, n FROM f ORDER BY n, id LIMIT 4';
	run q{INSERT INTO f VALUES (1, 'NaN', 1.0), (2, 'Infinity', 1.00),
		(3, '-0', 2), (4, 0, 'NaN'), (5, NULL, NULL),
		(6, '-Infinity', 'Infinity'), (7, 'NaN', 1.000)};
	equals_query qw(d a);
	run 'DELETE FROM f WHERE id = 1';
	equals_query qw(d a);
	session->client('a')->take_batches;
	run 'UPDATE f SET n = 1.00 WHERE id = 7';
	saw a => 'update 7 at 2';    # the same number, written otherwise
	run 'DELETE FROM f WHERE id IN (7, 2)';
	equals_query qw(d a);
};

scenario 'B14', 'NULLs at the boundary end the window, or are skipped' => sub {
	base_table();
	run 'UPDATE items SET score = NULL WHERE id % 3 = 0',
	  'UPDATE items SET score = 50 WHERE id IN (4, 5, 7, 8)';
	my @names;
	for my $order ('ASC NULLS LAST', 'ASC NULLS FIRST', 'DESC NULLS FIRST',
		'DESC NULLS LAST')
	{
		for my $tie ('ASC', 'DESC')
		{
			push @names, 'n' . @names;
			subscribe $names[-1] => "SELECT id, score FROM items
				ORDER BY score $order, id $tie LIMIT 3", cushion => 0;
		}
	}
	for (1 .. 15)    # eat every window from the front
	{
		my @first = map { (session->client($_)->keys)[0] =~ /(\d+)/ } @names;
		run "DELETE FROM items WHERE id = $first[$_ % @names]";
		equals_query @names;
	}
};

scenario 'B15', 'text is ordered by its bytes, or by another locale' => sub {
	run 'CREATE TABLE c (id int PRIMARY KEY, s text COLLATE "en-x-icu",
		w text COLLATE ci)';
	subscribe e => 'SELECT id, s FROM c ORDER BY s, id LIMIT 3';
	subscribe n => 'SELECT id, w FROM c ORDER BY w, id DESC LIMIT 3';
	run q{INSERT INTO c VALUES (1, 'a', 'b'), (2, 'B', 'B'), (3, '_', 'a'),
		(4, 'Z', 'A'), (5, U&'\00e9', 'b')};
	ids_are e => '3 1 2';
	equals_query qw(e n);
	session->client('n')->take_batches;
	run 'UPDATE c SET w = upper(w) WHERE id = 5';
	saw n => 'update 5 at 3';    # equal under its collation
	equals_query qw(e n);
};

scenario 'B17', 'numbers are rounded, infinities become null' => sub {
	run 'CREATE TABLE j (id bigint PRIMARY KEY, n numeric, f float8,
		t timestamptz, s text)';
	subscribe s => 'SELECT * FROM j ORDER BY id DESC LIMIT 5';
	run q{INSERT INTO j VALUES
		(9007199254740993, 1012345000999912345001230123445566.00000001, 'NaN',
		 'infinity', E'"\\\\\n\x01\u2028'),
		(2, 'NaN', '-Infinity', '-infinity', NULL)};
	equals_query 's';    # as text, byte for byte
	my ($row) = session->client('s')->rows;
	like($row, qr/"id":9007199254740993,/, '2^53 + 1 is exact');
	like($row, qr/"f":"NaN","t":"infinity"/, 'NaN and infinity are kept');
};

scenario 'B18', 'three-valued logic of its own' => sub {
	base_table();
	subscribe s => "SELECT id, score FROM items WHERE grp = 'x'
		OR body = 'keep' ORDER BY score DESC, id LIMIT 3";
	subscribe i => "SELECT id FROM items WHERE id IN (1, NULL, 3)
		OR NOT (grp = 'zz') ORDER BY id LIMIT 3";
	run 'ALTER TABLE items ALTER grp DROP NOT NULL';
	run "UPDATE items SET grp = NULL, body = 'keep' WHERE id = 5";
	ids_are s => '5';
	run 'UPDATE items SET grp = NULL WHERE id IN (2, 3)';
	ids_are i => '1 3 4';
	equals_query qw(s i);
	run 'UPDATE items SET body = NULL WHERE id = 5';
	ids_are s => '';
	equals_query qw(s i);
};

scenario 'B19', 'a predicate means another thing in another session' => sub {
	run 'CREATE TABLE z (id int PRIMARY KEY, at timestamptz, score int)';
	refused '0A000', q{SELECT subscribe_topn($$SELECT id FROM z
		WHERE at > now() - interval '5 s' ORDER BY score LIMIT 3$$)},
	  'now() is refused';
	refused '0A000', q{SELECT subscribe_topn(
		'SELECT id FROM z ORDER BY random() LIMIT 3')}, 'random() is refused';

	session->dbh->do(q{SET timezone = 'Asia/Tokyo'});
	my $query = q{SELECT id, at FROM z WHERE at::date = '2026-01-02'
		ORDER BY score DESC, id LIMIT 3};
	if (eval { subscribe a => $query; 1 })
	{
		run q{INSERT INTO z VALUES (1, '2026-01-01 23:30+00', 1),
			(2, '2026-01-02 23:30+00', 2)};
		ids_are a => '1';    # by the clock of Tokyo
		equals_query 'a';
	}
	else
	{
		is(session->dbh->state, '0A000', 'refused');
	}
};

scenario 'B22', 'a large value that did not change is lost' => sub {
	run 'CREATE TABLE t (id int PRIMARY KEY, score int, body text, tag text)',
	  'ALTER TABLE t ALTER body SET STORAGE EXTERNAL,
		ALTER tag SET STORAGE EXTERNAL',
	  q{INSERT INTO t SELECT g, g, repeat(chr(96 + g), 20000),
		repeat('k', 9000) || g FROM generate_series(1, 10) g};
	subscribe s => 'SELECT id, score, body FROM t ORDER BY score DESC, id LIMIT 3';
	subscribe p => q{SELECT id FROM t WHERE tag LIKE 'k%'
		ORDER BY score DESC, id LIMIT 3};
	subscribe k => 'SELECT id FROM t ORDER BY body DESC, id LIMIT 3';
	run 'UPDATE t SET score = 100 WHERE id = 1';
	equals_query qw(s p k);
	run 'UPDATE t SET score = 101 WHERE id = 1',
	  'DELETE FROM t WHERE id = 1', 'VACUUM t';
	equals_query qw(s p k);
	run 'UPDATE t SET score = 102 WHERE id = 2',
	  "UPDATE t SET body = 'short' WHERE id = 2";
	equals_query qw(s p k);
	run 'ALTER TABLE t REPLICA IDENTITY FULL',
	  'UPDATE t SET score = 103 WHERE id = 3';
	equals_query qw(s p k);
};

scenario 'B24', 'a generated column is missing in changes' => sub {
	run 'CREATE TABLE g (id int PRIMARY KEY, a int,
		b int GENERATED ALWAYS AS (a * 2) STORED)';
	subscribe s => 'SELECT id, b FROM g WHERE b > 2 ORDER BY b DESC, id LIMIT 3';
	run 'INSERT INTO g (id, a) SELECT i, i FROM generate_series(1, 6) i',
	  'UPDATE g SET a = 50 WHERE id = 1', 'DELETE FROM g WHERE id = 6';
	ids_are s => '1 5 4';
	equals_query 's';
};

scenario 'B25', 'dropped and added columns shift the others' => sub {
	run 'CREATE TABLE w (a int, id int PRIMARY KEY, b text, score int, c int)',
	  q{INSERT INTO w SELECT g, g, 'x', g, g FROM generate_series(1, 5) g};
	subscribe s => 'SELECT id, score FROM w ORDER BY score DESC, id LIMIT 3';
	run 'ALTER TABLE w DROP a', 'ALTER TABLE w DROP c',
	  q{INSERT INTO w VALUES (6, 'y', 60)},
	  'ALTER TABLE w ADD d int NOT NULL DEFAULT 7',
	  q{UPDATE w SET b = 'q' WHERE id = 1},
	  'UPDATE w SET score = 70 WHERE id = 2';
	equals_query 's';
	subscribe d => 'SELECT id, d FROM w ORDER BY d, id LIMIT 4';
	run 'ALTER TABLE w DROP b', 'INSERT INTO w (id, score) VALUES (8, 80)',
	  'DELETE FROM w WHERE id = 5';
	ids_are s => '8 2 6';
	equals_query qw(s d);
};

scenario 'B44', 'rows are shown to roles that may not see them' => sub {
	my @roles = qw(tenant1 tenant2);
	run 'CREATE TABLE r (id int PRIMARY KEY, tenant text, score int,
		secret text)',
	  'ALTER TABLE r ENABLE ROW LEVEL SECURITY',
	  'ALTER TABLE r FORCE ROW LEVEL SECURITY',
	  map({ ("CREATE ROLE $_ LOGIN", "GRANT SELECT (id, tenant, score) ON r TO $_") }
		@roles),
	  'CREATE POLICY p ON r USING (tenant = current_user)',
	  q{INSERT INTO r SELECT g, 'tenant' || 2 - g % 2, g, 'pw' || g
		FROM generate_series(1, 10) g};

	my %session =
	  map { $_ => server->session('postgres', user => $_) } @roles;
	my $query = 'SELECT id, score FROM r ORDER BY score DESC, id LIMIT 3';
	$session{$_}->subscribe("s_$_", $query, cushion => 1) for @roles;
	run q{UPDATE r SET tenant = 'tenant1' WHERE id = 10},
	  'DELETE FROM r WHERE id = 9',
	  'UPDATE r SET score = 100 WHERE id = 8',
	  'DELETE FROM r WHERE id IN (6, 7)';
	for my $role (@roles)
	{
		is($session{$role}->difference("s_$role"),
			undef, "$role sees what its own query shows");
		my @leaks = grep { /pw|tenant[12]"[,}]/ && !/"sub"/ }
		  map { @{ $_->{deltas} } } $session{$role}->client("s_$role")->batches;
		is_deeply(\@leaks, [], "... and nothing else");
	}
	my ($state) = LiveTopn::Server::sqlstate_of($session{tenant1}->dbh,
		q{SELECT subscribe_topn('SELECT secret FROM r ORDER BY id LIMIT 1')});
	is($state, '42501', 'a column without the right is refused');
	($state) = LiveTopn::Server::sqlstate_of($session{tenant1}->dbh,
		q{SELECT * FROM topn_snapshot('s_tenant2')});
	is($state, '42501', 'and so is the subscription of another role');

	run 'REVOKE SELECT (score) ON r FROM tenant1',
	  'UPDATE r SET score = 200 WHERE id = 1';
	wait_for_state s_tenant1 => 'error';
	run map { ("DROP OWNED BY $_", "DROP ROLE $_") } @roles;
};

scenario 'B45', 'payloads are measured in characters' => sub {
	base_table();
	subscribe s => 'SELECT id, body FROM items ORDER BY score DESC, id LIMIT 3';
	for my $change (
		q{body = repeat(U&'\+01F600', 1990) WHERE id = 20},
		q{body = repeat(U&'\+01F600', 2000) WHERE id = 19},
		q{body = repeat(E'\x01', 2000) WHERE id = 18},
		q{body = repeat('x', 100000) WHERE id = 20})
	{
		run "UPDATE items SET $change";
		equals_query 's';
	}
	# around the limit
	for my $length (7700 .. 7710, map { 7800 + 10 * $_ } 0 .. 20)
	{
		run "UPDATE items SET body = repeat('y', $length) WHERE id = 20";
	}
	equals_query 's';

	my $long = 'n' x 63;
	subscribe $long => $top;
	run 'DELETE FROM items WHERE id = 20';
	equals_query $long;
	refused '42622', "SELECT subscribe_topn('$top', '${long}n')",
	  'a name that is no channel';
};

scenario 'never true', 'what the planner drops is not evaluated' => sub {
	base_table();
	subscribe s => 'SELECT id FROM items WHERE NOT (score IN (0 / score, NULL))
		ORDER BY id LIMIT 3';
	run 'UPDATE items SET score = 0 WHERE id = 3';
	equals_query 's';
	saw 's';
	is(state_of('s'), 'live', 'no division by zero');
};

done_testing();
