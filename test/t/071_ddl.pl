# DDL while subscribed.  A subscription goes on without a gap where its query
# still means the same, is reset where it means something else, and is in error
# while it means nothing; it comes back by itself.  Others are not touched.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use PostgreSQL::Test::Utils qw(slurp_file);
use Test::More;

use LiveTopn::Changes;
use LiveTopn::RefillStops;
use LiveTopn::Scenario;
use LiveTopn::Server qw(poll_until);

use_server(
	LiveTopn::Server->start(
		'ddl', conf => 'logical_decoding_work_mem = 64kB'));
bystander();

my $top = 'SELECT id, score FROM items ORDER BY score DESC, id LIMIT 3';
my $all = 'SELECT * FROM items ORDER BY score DESC, id LIMIT 3';

# It follows changes as before.
sub goes_on
{
	my ($name) = @_;

	saw $name;
	run 'UPDATE items SET score = score + 1 WHERE id = 18';
	saw $name => 'update 18 at 3';
	run 'DELETE FROM items WHERE id IN (17, 16, 15)';
	saw $name;
	run 'DELETE FROM items WHERE id = 19';
	saw $name => 'leave 19 at 2, enter 14 at 3';
	right $name;
	run 'DELETE FROM items WHERE id < 100',
	  'INSERT INTO items (id, score) SELECT g, g * 10
		FROM generate_series(1, 20) g';
	right $name;
	session->client($name)->take_batches;
	return;
}

# ---- statistics ----

change 'what changes no more than files and statistics' => sub {
	my $stops = LiveTopn::RefillStops->new(server);

	base_table();
	subscribe s => $top;
	run 'UPDATE items SET score = 201 WHERE id = 20';
	saw s => 'update 20 at 1';

	# nobody has to look at the query
	server->set('live_topn.debug_refill_stops' => 'on');
	$stops->hold($stops->BEFORE_LOCK);
	run 'INSERT INTO items (id, score) SELECT g, 0
		FROM generate_series(21, 5000) g', 'ANALYZE items',
	  'UPDATE items SET score = 202 WHERE id = 20';
	saw s => 'update 20 at 1';
	run 'DELETE FROM items WHERE id > 20', 'VACUUM ANALYZE items',
	  'UPDATE items SET score = 203 WHERE id = 20';
	saw s => 'update 20 at 1';

	# together with something else they do not go unnoticed
	writer->begin_work;
	run 'ANALYZE items', 'ALTER TABLE items DROP score';
	writer->commit;
	$stops->wait_for($stops->BEFORE_LOCK);
	$stops->release_all;
	server->set('live_topn.debug_refill_stops' => undef);
	poll_until(sub { (state_of('s'))[0] eq 'error' }, 'it to be in error');
};

# ---- columns ----

change 'columns that the query does not use' => sub {
	base_table();
	run 'ALTER TABLE items ADD old int DEFAULT 3';
	subscribe s => $top;
	goes_on 's';
	for my $ddl (
		'ADD plain int',
		'ADD fixed int NOT NULL DEFAULT 7',
		'ADD stamped timestamptz DEFAULT clock_timestamp()',
		'ADD counted int GENERATED ALWAYS AS IDENTITY',
		'ADD twice int GENERATED ALWAYS AS (score * 2) STORED',
		'DROP old',
		'RENAME body TO text',
		'ALTER text TYPE varchar(100)',
		'ALTER plain TYPE text',
		"ALTER grp SET DEFAULT 'b'",
		'ALTER grp DROP NOT NULL',
		'ALTER text SET STORAGE EXTERNAL',
		'ADD CHECK (id < 1000000)',
		'DROP plain, ADD plain bigint')
	{
		run "ALTER TABLE items $ddl";
		goes_on 's';
	}
};

change 'columns of SELECT *' => sub {
	base_table();
	subscribe s => $all;
	run 'ALTER TABLE items ADD plain int';
	is_reset 's';
	run 'ALTER TABLE items ADD fixed int NOT NULL DEFAULT 7';
	is_reset 's';
	run q{ALTER TABLE items ADD made text DEFAULT md5(random()::text)};
	is_reset 's';
	run 'ALTER TABLE items DROP plain';
	is_reset 's';
	run 'ALTER TABLE items RENAME fixed TO firm';
	is_reset 's';
	run 'ALTER TABLE items ALTER firm TYPE text';
	is_reset 's';
	run q{UPDATE items SET firm = 'x' WHERE id = 20};
	saw s => 'update 20 at 1';
	right 's';
};

change 'a column that the query uses is dropped, and comes back' => sub {
	base_table();
	subscribe s => $top;
	subscribe other => 'SELECT id, grp FROM items ORDER BY id LIMIT 3';
	run 'ALTER TABLE items DROP score';
	in_error s => qr/column "score" does not exist/;
	ok(!eval { session->snapshot('s') }, 'there is no result');
	run 'DELETE FROM items WHERE id = 1';
	saw other => 'leave 1 at 1, enter 4 at 3';
	run 'ALTER TABLE items ADD score int';
	is_reset 's';
	run 'UPDATE items SET score = 5 WHERE id = 7';
	right 's';
	saw 'other';
	right 'other';
};

change 'a column that the query uses is renamed' => sub {
	base_table();
	subscribe s => $top;
	run 'ALTER TABLE items RENAME score TO points',
	  'UPDATE items SET points = 999 WHERE id = 1';
	in_error s => qr/column "score" does not exist/;
	run 'ALTER TABLE items RENAME points TO score';
	is_reset 's';
	goes_on_from(1);
};

# It is live: a change shows.
sub goes_on_from
{
	my ($id) = @_;

	run "UPDATE items SET score = score + 1 WHERE id = $id";
	saw s => "update $id at 1";
	right 's';
	return;
}

change 'a column that the query uses is retyped' => sub {
	base_table();
	subscribe s => $top;
	run 'ALTER TABLE items ALTER score TYPE bigint';
	is_reset 's';
	goes_on_from(20);
	run 'ALTER TABLE items ALTER score TYPE text';    # 90 sorts first
	is_reset 's';
	ids_are s => '9 8 7';
	run q{UPDATE items SET score = 'x' WHERE id = 3};
	saw s => 'leave 7 at 3, enter 3 at 1';
	run 'ALTER TABLE items ALTER score TYPE numeric(10, 2) USING length(score)';
	is_reset 's';
	run 'ALTER TABLE items ALTER score TYPE numeric(10, 1)';
	is_reset 's';
	run 'ALTER TABLE items ALTER score TYPE text COLLATE "C"';
	is_reset 's';
	run 'ALTER TABLE items ALTER score TYPE text COLLATE "en-x-icu"';
	is_reset 's';
};

change 'the key is retyped' => sub {
	base_table();
	subscribe s => $top;
	run 'ALTER TABLE items ALTER id TYPE bigint';
	is_reset 's';
	goes_on_from(20);
};

change 'the values of a column are rewritten, its type is not' => sub {
	base_table();
	subscribe s => $top;
	run 'ALTER TABLE items ALTER score TYPE int USING -score';
	ids_are s => '1 2 3';
	right 's';
	run 'BEGIN', 'DELETE FROM items WHERE id = 1',
	  'ALTER TABLE items ALTER score TYPE int USING -score',
	  'DELETE FROM items WHERE id = 20', 'COMMIT';
	ids_are s => '19 18 17';
	right 's';

	run 'CREATE TABLE p (id int PRIMARY KEY, score int) PARTITION BY RANGE (id)',
	  'CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)',
	  'CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)',
	  'INSERT INTO p SELECT g, g FROM generate_series(1, 19) g';
	subscribe p => 'SELECT id, score FROM p ORDER BY score DESC, id LIMIT 3';
	run 'ALTER TABLE p ALTER score TYPE int USING -score';
	ids_are p => '1 2 3';
	right 'p';
};

# ---- the table ----

change 'the table is renamed' => sub {
	base_table();
	subscribe s => $top;
	run 'ALTER TABLE items RENAME TO things';
	in_error s => qr/relation "items" does not exist/;
	run 'UPDATE things SET score = 0 WHERE id = 20',
	  'ALTER TABLE things RENAME TO items';
	is_reset 's';
	ids_are s => '19 18 17';
	run 'BEGIN', 'ALTER TABLE items RENAME TO things',
	  'UPDATE things SET score = 0 WHERE id = 19',
	  'ALTER TABLE things RENAME TO items', 'COMMIT';
	saw s => 'leave 19 at 1, enter 16 at 3';
	goes_on_from(18);
};

change 'the table moves to another schema' => sub {
	run 'CREATE SCHEMA attic';
	base_table();
	subscribe s => $top;
	session->dbh->do('SET search_path = attic, public');
	subscribe both => $top;
	session->dbh->do('RESET search_path');
	run 'ALTER TABLE items SET SCHEMA attic';
	in_error s => qr/relation "items" does not exist/;
	saw 'both';
	run 'DELETE FROM attic.items WHERE id = 20';
	saw both => 'leave 20 at 1, enter 17 at 3';
	run 'ALTER TABLE attic.items SET SCHEMA public';
	is_reset 's';
	saw 'both';
	right 'both';
	run 'DROP SCHEMA attic';
};

change 'another table takes the name' => sub {
	run 'CREATE SCHEMA mine', 'CREATE TABLE items (id int PRIMARY KEY, score int)',
	  'INSERT INTO items VALUES (1, 1)';
	session->dbh->do('SET search_path = mine, public');
	subscribe s => $top;
	run 'CREATE TABLE mine.items (id int PRIMARY KEY, score int)',
	  'INSERT INTO mine.items VALUES (2, 2)';
	ids_are s => '2';
	like(resets('s'), qr/^1$/, 'after a reset');
	right 's';
	run 'DROP TABLE mine.items';
	ids_are s => '1';
	right 's';
	session->dbh->do('RESET search_path');
	run 'DROP SCHEMA mine';
};

change 'the table is dropped, and made again' => sub {
	base_table();
	subscribe s => $top;
	run 'DROP TABLE items';
	in_error s => qr/relation "items" does not exist/;
	run 'CREATE TABLE items (id int PRIMARY KEY, score int)',
	  'INSERT INTO items VALUES (1, 7)';
	right 's';
	is(resets('s'), 1, 'by a reset');

	run 'BEGIN', 'DELETE FROM items',
	  'DROP TABLE items',
	  'CREATE TABLE items (score int, id int PRIMARY KEY)',
	  'INSERT INTO items VALUES (5, 6)', 'COMMIT';
	is_reset 's';
	ids_are s => '6';
	run 'BEGIN', 'DROP TABLE items',
	  'CREATE TABLE items (score int, id int PRIMARY KEY)',
	  'INSERT INTO items VALUES (5, 7)', 'ROLLBACK';
	saw 's';
	run 'UPDATE items SET score = 6';
	saw s => 'update 6 at 1';
};

change 'the table is made anew in another way' => sub {
	base_table();
	run 'CREATE INDEX by_score ON items (score)';
	subscribe s => $top;
	for my $command (
		'VACUUM FULL items',
		'CLUSTER items USING by_score',
		'REINDEX TABLE items',
		'REINDEX TABLE CONCURRENTLY items',
		'VACUUM ANALYZE items',
		'CREATE INDEX CONCURRENTLY more ON items (grp)',
		'DROP INDEX CONCURRENTLY more',
		'ALTER TABLE items SET (fillfactor = 50)',
		'ALTER TABLE items ALTER score SET STATISTICS 10',
		'ALTER TABLE items ALTER score SET (n_distinct = 5)',
		q{COMMENT ON TABLE items IS 'things'},
		'CREATE STATISTICS stat ON score, grp FROM items',
		'ALTER TABLE items DISABLE TRIGGER ALL',
		'CREATE RULE r AS ON INSERT TO items WHERE NEW.id < 0 DO NOTHING',
		'ALTER TABLE items CLUSTER ON by_score')
	{
		run $command;
		goes_on 's';
	}
	is(resets('s'), 0, 'never a reset');
};

change 'the table becomes unlogged' => sub {
	base_table();
	subscribe s => $top;
	run 'ALTER TABLE items SET UNLOGGED';
	in_error s => qr/unlogged/;
	run 'DELETE FROM items WHERE id = 20', 'ALTER TABLE items SET LOGGED';
	is_reset 's';
	ids_are s => '19 18 17';
	goes_on_from(19);
};

# ---- identity ----

change 'the identity is switched' => sub {
	base_table();
	run 'CREATE UNIQUE INDEX items_grp ON items (grp, id)';
	subscribe s => $top;
	for my $identity ('FULL', 'DEFAULT')
	{
		run "ALTER TABLE items REPLICA IDENTITY $identity";
		goes_on 's';
	}
	run 'ALTER TABLE items REPLICA IDENTITY NOTHING';
	in_error s => qr/identity/i;
	run 'ALTER TABLE items REPLICA IDENTITY DEFAULT';
	is_reset 's';
	run 'ALTER TABLE items REPLICA IDENTITY USING INDEX items_grp';
	is_reset 's';
	run "UPDATE items SET grp = 'c', score = 500 WHERE id = 20";
	right 's';
	run 'DROP INDEX items_grp';
	in_error s => qr/identity/i;
	run 'ALTER TABLE items REPLICA IDENTITY FULL';
	is_reset 's';
	run 'ALTER TABLE items DROP CONSTRAINT items_pkey';
	is_reset 's';
	run 'DELETE FROM items WHERE id = 19';
	right 's';
	run 'ALTER TABLE items REPLICA IDENTITY DEFAULT';
	in_error s => qr/identity/i;
	run 'ALTER TABLE items ADD PRIMARY KEY (id)';
	is_reset 's';
};

change 'the identity is switched amid changes' => sub {
	base_table();
	run 'CREATE UNIQUE INDEX items_grp ON items (grp, id)';
	for my $identity ('NOTHING', 'USING INDEX items_grp', 'FULL')
	{
		subscribe s => $top;
		run 'BEGIN', 'DELETE FROM items WHERE id = 18',
		  "ALTER TABLE items REPLICA IDENTITY $identity",
		  'DELETE FROM items WHERE id = 19',
		  'UPDATE items SET id = 119 WHERE id = 20',
		  'UPDATE items SET score = 1000 WHERE id = 1',
		  'ALTER TABLE items REPLICA IDENTITY DEFAULT',
		  'UPDATE items SET id = 120 WHERE id = 17', 'COMMIT';
		right 's';
		session->unsubscribe('s');
		run 'TRUNCATE items', 'INSERT INTO items SELECT g, g * 10
			FROM generate_series(1, 20) g';
	}
	subscribe s => $top;
	run 'ALTER TABLE items REPLICA IDENTITY NOTHING',
	  'DELETE FROM items WHERE id = 20', 'DELETE FROM items WHERE id = 1',
	  'UPDATE items SET id = 30 WHERE id = 19';
	in_error s => qr/identity/i;
	run 'ALTER TABLE items REPLICA IDENTITY DEFAULT';
	is_reset 's';
};

# ---- rights ----

# A session of another role, which has subscribed as "s".
sub owned_by
{
	my ($role) = @_;
	my $session = server->session('postgres', user => $role);

	$session->dbh->do('SET client_min_messages = warning');
	$session->subscribe('s', $top, cushion => 2);
	return $session;
}

# Another's subscription is live, its client agrees with its query, and was
# told by that many resets.
sub his_is_reset
{
	my ($session, $times, $what) = @_;

	wait_for_state s => 'live';
	is($session->difference('s'), undef, "$what: the list of the owner");
	my @resets = grep { $_->{deltas}[0]{op} eq 'reset' } changes_of($session);
	is(scalar @resets, $times, "$what: resets");
	return;
}

# What its client got but errors.
sub changes_of
{
	my ($session) = @_;

	$session->drain;
	return grep { !exists $_->{error} } $session->client('s')->take_batches;
}

change 'rights are revoked and granted' => sub {
	base_table();
	run 'CREATE ROLE reader LOGIN', 'CREATE ROLE readers',
	  'GRANT readers TO reader', 'CREATE SCHEMA hall',
	  'GRANT USAGE ON SCHEMA hall TO readers',
	  'GRANT SELECT ON items TO readers';
	my $his = owned_by('reader');
	my $other = server->connect('template1');
	my $times = 0;

	for my $pair (
		[
			'REVOKE SELECT ON items FROM readers',
			'GRANT SELECT ON items TO readers'
		],
		[ 'REVOKE readers FROM reader', 'GRANT readers TO reader' ],
		[
			'REVOKE SELECT ON items FROM readers',
			'GRANT SELECT (id, score) ON items TO reader'
		],
		[
			'REVOKE SELECT (score) ON items FROM reader',
			'GRANT SELECT (score) ON items TO reader'
		],
		[
			'REVOKE USAGE ON SCHEMA public FROM PUBLIC',
			'GRANT USAGE ON SCHEMA public TO PUBLIC'
		],
		['GRANT SELECT ON items TO readers'])
	{
		my ($revoke, $grant) = @$pair;

		run $revoke;
		next unless $grant;
		run 'UPDATE items SET score = score + 1 WHERE id = 20';
		in_error s => qr/permission denied|does not exist/;
		is_deeply([ changes_of($his) ],
			[], "$revoke: nothing was published after it");
		run $grant;
		his_is_reset($his, 1, $grant);
	}

	# roles belong to all databases
	run 'REVOKE SELECT ON items FROM reader',
	  'REVOKE SELECT (id, score) ON items FROM reader';
	$other->do('REVOKE readers FROM reader');
	poll_until(sub { (state_of('s'))[0] eq 'error' },
		'rights to be looked at again');
	in_error s => qr/permission denied/;
	$other->do('GRANT readers TO reader');
	his_is_reset($his, 1, 'a grant in another database');

	# what is published while the right is being revoked
	run 'BEGIN', 'UPDATE items SET score = 12345 WHERE id = 20',
	  'REVOKE SELECT ON items FROM readers', 'COMMIT';
	in_error s => qr/permission denied/;
	is_deeply([ changes_of($his) ], [], 'nothing of the commit that revokes');

	$his->dbh->disconnect;
	run 'GRANT SELECT ON items TO readers';
	run 'REASSIGN OWNED BY reader TO CURRENT_USER', 'DROP OWNED BY reader',
	  'DROP ROLE reader';
	poll_until(
		sub {
			!writer->selectrow_array(
				q{SELECT count(*) FROM topn_subscriptions WHERE name = 's'});
		},
		'the subscription to go with its owner');
	pass('the subscription has gone with its owner');
	run 'DROP OWNED BY readers', 'DROP ROLE readers', 'DROP SCHEMA hall';
};

change 'only roles and schemas that matter have queries looked at' => sub {
	my $stops = LiveTopn::RefillStops->new(server);
	my $gate = $stops->BEFORE_LOCK;
	my $unseen = sub {
		run $_[0];
		session->sync;
		ok(!$stops->stands($gate), "$_[0] is of no concern");
	};
	my $looked_at = sub {
		run $_[0];
		ok(eval { $stops->wait_for($gate); 1 }, "$_[0] is looked into")
		  or diag($@);
		$stops->release($gate);
		session->sync;
		$stops->hold($gate);
	};

	base_table();
	run 'CREATE ROLE reader LOGIN', 'CREATE ROLE readers', 'CREATE ROLE visitors',
	  'GRANT readers TO reader', 'GRANT visitors TO readers',
	  'GRANT SELECT ON items TO visitors', 'CREATE SCHEMA hall',
	  'GRANT USAGE ON SCHEMA hall TO PUBLIC',
	  'CREATE TABLE hall.things AS TABLE items',
	  'ALTER TABLE hall.things ADD PRIMARY KEY (id)',
	  'GRANT SELECT ON hall.things TO PUBLIC';
	my $his = owned_by('reader');
	session->sync;
	server->set('live_topn.debug_refill_stops' => 'on');
	$stops->hold($gate);

	$unseen->($_)
	  for 'CREATE ROLE stranger', 'ALTER ROLE stranger SUPERUSER',
	  'ALTER ROLE stranger RENAME TO guest',
	  'CREATE SCHEMA cellar AUTHORIZATION guest',
	  'GRANT USAGE ON SCHEMA cellar TO PUBLIC',
	  'ALTER SCHEMA cellar RENAME TO loft', 'DROP SCHEMA loft',
	  'GRANT CREATE ON SCHEMA hall TO guest', 'CREATE TEMP TABLE own (i int)';
	server->connect('template1')->do('CREATE ROLE afar');
	$unseen->('DROP ROLE afar');
	$looked_at->($_)
	  for 'GRANT pg_monitor TO guest', 'ALTER ROLE reader BYPASSRLS',
	  'ALTER ROLE visitors NOINHERIT', 'ALTER ROLE reader RENAME TO lector',
	  'CREATE SCHEMA lector', 'DROP SCHEMA lector',
	  'ALTER ROLE lector RENAME TO reader',
	  'REVOKE USAGE ON SCHEMA public FROM guest',
	  'GRANT guest TO visitors', 'ALTER ROLE guest NOINHERIT';
	wait_for_state s => 'live';

	# what a query names, and what it may name
	$stops->release($gate);
	$his->dbh->do(q{SELECT subscribe_topn('SELECT id FROM hall.things ORDER BY id LIMIT 1', 'named')});
	$his->dbh->do('SELECT topn_sync()');
	$stops->hold($gate);
	$looked_at->('REVOKE CREATE ON SCHEMA hall FROM guest');
	$unseen->('CREATE SCHEMA cellar');
	run 'CREATE TABLE cellar.room (i int)', 'GRANT USAGE ON SCHEMA cellar TO PUBLIC';
	$stops->release($gate);
	$his->dbh->do(q{SELECT subscribe_topn('SELECT id FROM items
		WHERE score::oid <> $1::regclass ORDER BY id LIMIT 1', 'hidden', args => '{cellar.room}')});
	$his->dbh->do('SELECT topn_sync()');
	$stops->hold($gate);
	run 'ALTER SCHEMA cellar RENAME TO loft';
	$stops->wait_for($gate);
	$stops->release_all;
	wait_for_state hidden => 'error';
	run 'ALTER SCHEMA loft RENAME TO cellar';
	wait_for_state hidden => 'live';

	server->set('live_topn.debug_refill_stops' => undef);
	$his->dbh->do('SELECT unsubscribe_topn(name) FROM topn_subscriptions');
	$his->dbh->disconnect;
	run 'DROP SCHEMA hall, cellar CASCADE', 'DROP OWNED BY reader, visitors',
	  'DROP ROLE reader, readers, visitors, guest';
};

change 'queries of one text are looked at together' => sub {
	my $stops = LiveTopn::RefillStops->new(server);
	my $gate = $stops->BEFORE_LOCK;
	my $of = 'SELECT id, score FROM items WHERE grp = $1 ORDER BY score DESC, id LIMIT 3';
	my @names = map { "g$_" } 1 .. 5;
	my $waiting = sub {
		writer->selectrow_array('SELECT refills FROM topn_worker');
	};

	base_table();
	run q{UPDATE items SET grp = 'g' || id % 5 + 1};
	for my $name (@names)
	{
		subscribe $name => $of,
		  args => [$name],
		  truth => 'SELECT row_to_json(q) FROM (' . $of =~ s/\$1/'$name'/r . ') q';
	}
	server->set('live_topn.debug_refill_stops' => 'on');

	for my $case (
		[ 'a column is added', 'ALTER TABLE items ADD more int' ],
		[
			'the one that leads goes away', 'GRANT SELECT ON items TO PUBLIC',
			q{SELECT unsubscribe_topn('g1')}
		],
		[
			'more changes meanwhile', 'CREATE INDEX ON items (score)',
			'ALTER TABLE items DROP more'
		])
	{
		my ($what, $ddl, @more) = @$case;

		$stops->hold($gate);
		run $ddl, 'UPDATE items SET score = score + 1';
		$stops->wait_for($gate);
		poll_until(sub { $waiting->() == 1 }, 'all to wait for one');
		is($waiting->(), 1, "$what: one is analysed");
		run @more;
		$stops->release($gate);
		if ($what =~ /goes away/)
		{
			session->forget('g1');
			shift @names;
		}
		equals_query $_ for @names;
	}
	server->set('live_topn.debug_refill_stops' => undef);
};

change 'queries of one text mean something else one by one' => sub {
	my $of = q{grp = CASE WHEN $1 = 1 THEN 'a'::name ELSE current_user END::text};

	base_table();
	run 'CREATE ROLE reader LOGIN', 'GRANT SELECT ON items TO reader',
	  q{UPDATE items SET grp = CASE id % 3 WHEN 0 THEN 'a' WHEN 1 THEN 'reader' ELSE 'lector' END};
	my $his = server->session('postgres', user => 'reader');
	$his->dbh->do("SELECT subscribe_topn('SELECT id FROM items WHERE '
		|| \$1 || ' ORDER BY id LIMIT 2', 'w' || n, args => ARRAY[n::text])
		FROM generate_series(1, 3) n", undef, $of);
	$his->dbh->do('SELECT topn_sync()');
	run 'ALTER ROLE reader RENAME TO lector';
	$his->dbh->do('SELECT topn_sync()');
	for my $n (1 .. 3)
	{
		is( writer->selectrow_array(
				"SELECT string_agg(value->'row' ->> 'id', ' ')
				 FROM topn_snapshot('w$n'), jsonb_array_elements(rows::jsonb)"),
			$n == 1 ? '3 6' : '2 5', "with $n");
	}
	$his->dbh->do('SELECT unsubscribe_topn(name) FROM topn_subscriptions');
	$his->dbh->disconnect;
	run 'DROP OWNED BY lector', 'DROP ROLE lector';
};

change 'policies change' => sub {
	base_table();
	run 'CREATE ROLE reader LOGIN', 'GRANT SELECT ON items TO reader',
	  "UPDATE items SET grp = 'b' WHERE id % 2 = 0";
	my $his = owned_by('reader');
	for my $ddl (
		'ALTER TABLE items ENABLE ROW LEVEL SECURITY',
		q{CREATE POLICY p ON items USING (grp = 'a')},
		q{ALTER POLICY p ON items USING (grp = 'b')},
		'CREATE POLICY q ON items AS RESTRICTIVE USING (id < 15)',
		'DROP POLICY q ON items',
		'ALTER ROLE reader BYPASSRLS',
		'ALTER ROLE reader NOBYPASSRLS',
		'ALTER TABLE items DISABLE ROW LEVEL SECURITY')
	{
		run $ddl;
		session->sync;
		his_is_reset($his, 1, $ddl);
	}
	$his->dbh->disconnect;
	run q{SELECT unsubscribe_topn('s')}, 'DROP POLICY p ON items',
	  'DROP OWNED BY reader', 'DROP ROLE reader';
};

# ---- functions, types, views ----

change 'a function of the query is replaced' => sub {
	base_table();
	my $sql = 'CREATE OR REPLACE FUNCTION rated(int) RETURNS int IMMUTABLE';
	for my $language (
		[ 'LANGUAGE sql AS', q{'SELECT $1'}, q{'SELECT -$1'} ],
		[
			'LANGUAGE plpgsql AS', q{'BEGIN RETURN $1; END'},
			q{'BEGIN RETURN -$1; END'}
		])
	{
		my ($head, $first, $second) = @$language;

		run "$sql $head $first";
		subscribe s => 'SELECT id, rated(score) AS score FROM items
			WHERE rated(score) <> 0 ORDER BY rated(score) DESC, id LIMIT 3';
		ids_are s => '20 19 18';
		run "$sql $head $second";
		is_reset 's';
		ids_are s => '1 2 3';
		run 'DELETE FROM items WHERE id = 1';
		saw s => 'leave 1 at 1, enter 4 at 3';
		run 'DROP FUNCTION rated';
		in_error s => qr/function rated\(integer\) does not exist/;
		run "$sql $head $first";
		is_reset 's';
		run 'CREATE FUNCTION unrelated() RETURNS int LANGUAGE sql AS $$SELECT 1$$',
		  'DROP FUNCTION unrelated', 'ALTER FUNCTION rated COST 7',
		  'GRANT EXECUTE ON FUNCTION rated TO PUBLIC';
		saw 's';
		right 's';
		if ($head =~ /plpgsql/)    # a function in SQL is inlined
		{
			run 'ALTER FUNCTION rated VOLATILE';
			in_error s => qr/rated/;
			run 'ALTER FUNCTION rated IMMUTABLE';
			is_reset 's';
		}
		session->unsubscribe('s');
		run 'DROP FUNCTION rated', 'INSERT INTO items VALUES (1, 10)';
	}
};

change 'an operator or a function fits better than that of the query' => sub {
	base_table();
	subscribe s => 'SELECT id FROM items WHERE score > 95.5
		ORDER BY score, id LIMIT 3';
	subscribe t => q{SELECT id, length('x'::varchar) FROM items
		ORDER BY id LIMIT 3};
	right qw(s t);
	run 'CREATE FUNCTION above(int, numeric) RETURNS boolean LANGUAGE plpgsql
			IMMUTABLE AS $$BEGIN RETURN $1::numeric < $2; END$$',
	  'CREATE OPERATOR > (LEFTARG = int, RIGHTARG = numeric,
			FUNCTION = above)';
	right 's';
	run 'DROP OPERATOR > (int, numeric)';
	right 's';
	run q{CREATE FUNCTION length(varchar) RETURNS int IMMUTABLE
			RETURN octet_length($1) + 7};
	right 't';
	run 'DROP FUNCTION length(varchar)', 'DROP FUNCTION above';
	right qw(s t);
};

change 'labels of an enum' => sub {
	run q{CREATE TYPE mood AS ENUM ('a', 'c')},
	  'CREATE TABLE items (id int PRIMARY KEY, m mood, many mood[])',
	  q{INSERT INTO items VALUES (1, 'a', '{a,c}'), (2, 'c', '{c}')};
	subscribe s => 'SELECT id, m FROM items ORDER BY m, id LIMIT 2';
	subscribe l => 'SELECT id, many FROM items ORDER BY id LIMIT 2';
	run q{ALTER TYPE mood ADD VALUE 'b' BEFORE 'a'};
	saw 's';
	run q{INSERT INTO items VALUES (3, 'b')};
	saw s => 'leave 2 at 2, enter 3 at 1';
	right qw(s l);

	# values that clients know look otherwise now
	run q{ALTER TYPE mood RENAME VALUE 'a' TO 'zz'};
	is_reset $_ for qw(s l);
	run q{UPDATE items SET m = 'zz' WHERE id = 2};
	right qw(s l);
	run 'DROP TABLE items', 'DROP TYPE mood';
	in_error s => qr/relation "items" does not exist/;
};

change 'attributes of a composite type' => sub {
	run 'CREATE TYPE pair AS (a int, b int)',
	  'CREATE TABLE items (id int PRIMARY KEY, p pair)',
	  'INSERT INTO items SELECT g, (g, g)::pair FROM generate_series(1, 5) g';
	subscribe s => 'SELECT id, p FROM items ORDER BY id LIMIT 2';
	run 'ALTER TYPE pair RENAME ATTRIBUTE b TO c';
	is_reset 's';
	run 'ALTER TYPE pair ADD ATTRIBUTE d int';
	is_reset 's';
	run 'UPDATE items SET p = (1, 2, 3) WHERE id = 1';
	saw s => 'update 1 at 1';
	right 's';
	run 'DROP TABLE items', 'DROP TYPE pair';
};

change 'a view is replaced' => sub {
	base_table();
	run 'CREATE VIEW v AS SELECT id, score FROM items WHERE score < 150';
	subscribe s => 'SELECT id, score FROM v ORDER BY score DESC, id LIMIT 3';
	run 'CREATE OR REPLACE VIEW v AS SELECT id, score FROM items
		WHERE score < 100';
	is_reset 's';
	ids_are s => '9 8 7';
	run 'DROP VIEW v';
	in_error s => qr/relation "v" does not exist/;
	run 'CREATE VIEW v AS SELECT id, -score AS score FROM items';
	is_reset 's';
	run 'ALTER VIEW v RENAME COLUMN score TO points';
	in_error s => qr/column "score" does not exist/;
	run 'ALTER VIEW v RENAME COLUMN points TO score';
	is_reset 's';
	run 'DROP VIEW v';
};

change 'a collation is refreshed' => sub {
	run q{CREATE COLLATION german (provider = icu, locale = 'de')},
	  'CREATE TABLE items (id int PRIMARY KEY, t text COLLATE german)',
	  q{INSERT INTO items VALUES (1, 'b'), (2, 'A'), (3, 'ä'), (4, 'a')};
	subscribe s => 'SELECT id, t FROM items ORDER BY t, id LIMIT 3';
	run q{UPDATE pg_collation SET collversion = '0' WHERE collname = 'german'};
	saw 's';
	run q{INSERT INTO items VALUES (5, 'Ä')};
	right 's';
	session->client('s')->take_batches;
	run 'ALTER COLLATION german REFRESH VERSION';
	saw 's';
	run 'DELETE FROM items WHERE id = 4';
	right 's';
	run 'DROP TABLE items', 'DROP COLLATION german';
};

# ---- transactions ----

change 'DDL and changes in one transaction' => sub {
	base_table();
	subscribe s => $top;
	subscribe all => $all;
	run 'BEGIN', 'DELETE FROM items WHERE id = 20',
	  'ALTER TABLE items ADD extra text',
	  q{INSERT INTO items VALUES (21, 210, 'a', 'r', 'x')},
	  'ALTER TABLE items DROP grp',
	  q{UPDATE items SET extra = 'y', score = 500 WHERE id = 1}, 'COMMIT';
	saw s => 'leave 18 at 3, leave 20 at 1, enter 1 at 1, enter 21 at 2';
	right 's';
	is_reset 'all';

	run 'BEGIN', 'DELETE FROM items WHERE id = 21',
	  'ALTER TABLE items ALTER score TYPE text',
	  q{UPDATE items SET score = 'zzz' WHERE id = 2},
	  'ALTER TABLE items ALTER score TYPE int USING id',
	  'UPDATE items SET score = 777 WHERE id = 3', 'COMMIT';
	right qw(s all);
	session->client($_)->take_batches for qw(s all);

	run 'BEGIN', 'ALTER TABLE items ALTER score TYPE text',
	  q{INSERT INTO items (id, score) VALUES (30, 'zzz')}, 'ROLLBACK';
	saw $_ for qw(s all);

	run 'BEGIN', 'SAVEPOINT a', 'ALTER TABLE items DROP score',
	  'ROLLBACK TO a', 'INSERT INTO items (id, score) VALUES (30, 3000)',
	  'TRUNCATE items', 'ALTER TABLE items ADD more int',
	  'INSERT INTO items (id, score, more) VALUES (31, 3000, 1)', 'COMMIT';
	right qw(s all);

	run 'BEGIN', 'DROP TABLE items', 'CREATE TABLE items
		(score text COLLATE "C", id int PRIMARY KEY)',
	  q{INSERT INTO items VALUES ('a', 1), ('b', 2)},
	  'ALTER TABLE items ALTER score TYPE int USING ascii(score)',
	  'DELETE FROM items WHERE id = 2', 'COMMIT';
	is_reset $_ for qw(s all);
};

change 'DDL in concurrent transactions' => sub {
	base_table();
	subscribe s => $top;
	subscribe all => $all;

	# rows written before and after the catalogs change under them
	my $open = server->connect;
	$open->begin_work;
	$open->do('UPDATE items SET score = 1000 WHERE id = 1');
	run 'CREATE TABLE elsewhere (id int PRIMARY KEY)',
	  'CREATE TYPE colour AS ENUM (\'red\')', 'DROP TYPE colour';
	$open->do('UPDATE items SET score = 1001 WHERE id = 2');
	$open->commit;
	right qw(s all);

	# both hold transactions open that the other does not wait for
	my $ddl = server->connect;
	$open->begin_work;
	$open->do('INSERT INTO elsewhere VALUES (1)');
	$ddl->do('ALTER TABLE items ADD extra int DEFAULT 5');
	$open->do('INSERT INTO items (id, score) VALUES (50, 5000)');
	$open->do('SAVEPOINT a');
	$open->do('UPDATE items SET extra = 6 WHERE id = 1');
	$open->commit;
	right qw(s all);
	run 'DROP TABLE elsewhere';
};

change 'DDL while writers are running' => sub {
	base_table();
	subscribe s => $top;
	subscribe id => 'SELECT id FROM items ORDER BY id LIMIT 5';
	subscribe all => $all;
	my @writers = map { fork_writer($_) } 1 .. 2;
	my @ddl = (
		'ADD a int', 'ADD b int DEFAULT 3', 'DROP a', 'DROP b',
		'ALTER score TYPE bigint', 'ALTER score TYPE int',
		'ALTER score TYPE int USING -score', 'REPLICA IDENTITY FULL',
		'REPLICA IDENTITY DEFAULT', 'REPLICA IDENTITY NOTHING',
		'REPLICA IDENTITY DEFAULT', 'RENAME score TO points',
		'RENAME points TO score', 'RENAME TO things');

	for my $round (1 .. 4)
	{
		for my $ddl (@ddl)
		{
			run "ALTER TABLE items $ddl";
			run 'ALTER TABLE things RENAME TO items' if $ddl =~ /things/;
		}
		run 'VACUUM FULL items', 'CREATE INDEX i ON items (score)',
		  'CLUSTER items USING i', 'DROP INDEX i';
	}
	for my $pid (@writers)
	{
		waitpid $pid, 0;
		is($?, 0, 'a writer has ended');
	}
	wait_for_state $_ => 'live' for qw(s id all);
	right qw(s id all);
};

# A process that writes, and does not mind errors.
sub fork_writer
{
	my ($seed) = @_;
	my $pid = fork // die "could not fork: $!";

	return $pid if $pid;
	my $dbh = server->connect;

	srand $seed;
	for (1 .. 800)
	{
		my $id = 1 + int rand 30;
		my $statement = (
			"UPDATE items SET score = score + 1 WHERE id = $id",
			"INSERT INTO items (id, score) VALUES ($id, $id)
				ON CONFLICT (id) DO UPDATE SET score = 1000 - items.score",
			"DELETE FROM items WHERE id = $id",
			"UPDATE items SET id = -id WHERE abs(id) = $id")[ rand 4 ];

		eval { $dbh->do($statement) };
	}
	require POSIX;
	POSIX::_exit(0);
}

change 'DDL of prepared transactions' => sub {
	base_table();
	subscribe s => $top;
	subscribe all => $all;

	# what is still to be read would wait for its lock
	session->sync;
	poll_until(
		sub { writer->selectrow_array('SELECT sum(refills) = 0 FROM topn_worker') },
		'refills to end');
	run 'BEGIN', 'ALTER TABLE items ADD extra int DEFAULT 1',
	  'DELETE FROM items WHERE id = 20', q{PREPARE TRANSACTION 'ddl'};
	saw $_ for qw(s all);
	run q{COMMIT PREPARED 'ddl'};
	saw s => 'leave 20 at 1, enter 17 at 3';
	is_reset 'all';
	run 'BEGIN', 'ALTER TABLE items DROP score', q{PREPARE TRANSACTION 'ddl'};
	run q{ROLLBACK PREPARED 'ddl'};
	saw $_ for qw(s all);
	right qw(s all);
};

change 'DDL just before a crash' => sub {
	base_table();
	run 'CREATE TABLE gone (id int PRIMARY KEY)',
	  'CREATE TABLE twice (id int PRIMARY KEY, score int)',
	  'INSERT INTO twice SELECT id, score FROM items';
	my %queries = (
		s => $top,
		all => $all,
		gone => 'SELECT id FROM gone ORDER BY id LIMIT 3',
		twice => 'SELECT id, score FROM twice ORDER BY score DESC, id LIMIT 3');
	subscribe $_ => $queries{$_} for keys %queries;
	session->sync;
	server->restart_worker;    # which saves its windows

	# this one does nothing more
	my $pid = server->worker_pid;
	kill 'STOP', $pid;
	run 'DELETE FROM items WHERE id = 20', 'ALTER TABLE items ADD extra int',
	  'UPDATE items SET extra = 1', 'DROP TABLE gone',
	  'ALTER TABLE twice ALTER score TYPE int USING -score',
	  'ALTER TABLE items REPLICA IDENTITY FULL', 'DELETE FROM items WHERE id = 19';
	server->node->stop('immediate', fail_ok => 1);
	kill 'KILL', $pid;
	server->node->start;
	delete $queries{gone};
	resume %queries;
	right keys %queries;
	in_error gone => qr/relation "gone" does not exist/;
	is(resets('s'), 0, 'what means the same is not reset');
	goes_on_from(18);
}, restarts => 1;

change 'a query fails for one row' => sub {
	base_table();
	subscribe s => 'SELECT id, 100 / score AS share FROM items
		ORDER BY id DESC LIMIT 3';
	subscribe t => $top;
	run 'INSERT INTO items VALUES (30, 0)';
	in_error s => qr/division by zero/;
	right 't';

	# it is tried ever more seldom, and told once
	my $log_start = -s server->node->logfile;
	run "UPDATE items SET score = score + 1 WHERE id = 1" for 1 .. 20;
	right 't';
	saw 's';
	my $log = slurp_file(server->node->logfile, $log_start);
	unlike($log, qr/subscription "s"/, 'the log is not filled with it');
	run 'DELETE FROM items WHERE id = 30';
	wait_for_state s => 'live';
	saw s => 'reset';
	right 's';
};

# ---- our own table ----

change 'the table of subscriptions is looked after' => sub {
	base_table();
	subscribe s => $top;
	for my $command (
		'ANALYZE live_topn.subscription',
		'VACUUM FULL live_topn.subscription',
		'REINDEX TABLE live_topn.subscription',
		'GRANT SELECT ON live_topn.subscription TO pg_monitor',
		'REVOKE SELECT ON live_topn.subscription FROM pg_monitor',
		'CREATE INDEX ON live_topn.subscription (owner)',
		'ALTER TABLE live_topn.subscription ADD more int DEFAULT 4')
	{
		run $command;
		goes_on 's';
	}
	subscribe t => $top;
	session->unsubscribe('s');
	right 't';
};

done_testing();
