# Every way in which rows change: statements, transactions, replication.

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

# rows of the large transaction, and savepoints of another
my $rows = $ENV{CHANGE_ROWS} || 100_000;
my $savepoints = $ENV{CHANGE_SAVEPOINTS} || 12_000;

use_server(
	LiveTopn::Server->start('changes',
		conf => "max_logical_replication_workers = 4\n"));
bystander();

my $top = 'SELECT id, score FROM items ORDER BY score DESC, id LIMIT 3';
my @all = qw(s full bare);

# The same result three times: by a table with a key as its identity, by one
# with the whole row, and without a cushion.
sub subscribe_all
{
	base_table();
	run 'CREATE TABLE items_full (LIKE items INCLUDING ALL)',
	  'ALTER TABLE items_full REPLICA IDENTITY FULL',
	  'INSERT INTO items_full SELECT * FROM items';
	subscribe s => $top;
	subscribe bare => $top, cushion => 0;
	subscribe full => $top =~ s/items/items_full/r;
	return;
}

# Statements on both tables, which are called T.
sub both
{
	for my $statement (@_)
	{
		my @tables = $statement =~ /\bT\b/ ? qw(items items_full) : '';

		run $statement =~ s/\bT\b/$_/gr for @tables;
	}
	return;
}

# What takes longer than others usually wait.
sub settle
{
	session->dbh->do(q{SELECT topn_sync('1 h')});
	return;
}

# Private memory of the database worker in MB.
sub memory
{
	my $pid = server->worker_pid;

	slurp_file("/proc/$pid/status") =~ /^RssAnon:\s+(\d+) kB/m
	  or die "no RssAnon for $pid";
	return $1 / 1024;
}

# ---- large transactions ----

change 'one large transaction' => sub {
	subscribe_all();
	session->sync;
	my $before = memory();
	my $peak = $before;
	for my $statement (
		"INSERT INTO T SELECT g, g, 'a', 'b' FROM generate_series(1001, 1000 + $rows) g",
		'UPDATE T SET score = -score WHERE id % 3 = 0',
		'DELETE FROM T WHERE id > 500 AND score > 0',
		'DELETE FROM T WHERE id > 30')
	{
		both $statement;
		settle();
		$peak = memory() if memory() > $peak;
		right @all;
		$peak = memory() if memory() > $peak;
	}
	run 'BEGIN';
	both "INSERT INTO T SELECT g, g, 'a', 'b' FROM generate_series(1001, 1000 + $rows) g",
	  'UPDATE T SET score = score + 1', 'DELETE FROM T WHERE id > 25',
	  'UPDATE T SET score = score - 1';
	run 'COMMIT';
	settle();
	saw $_ for @all;
	right @all;
	$peak = memory() if memory() > $peak;
	note sprintf('the worker took %.0f MB, at the peak %.0f MB', $before,
		$peak);
	cmp_ok($peak - $before, '<', 150, 'the worker has not grown much');
};

change 'a large transaction while a window waits for rows' => sub {
	base_table();
	my $stops = LiveTopn::RefillStops->new(server);
	subscribe s => $top, cushion => 0;
	server->set('live_topn.debug_refill_stops' => 'on',
		'live_topn.memory_limit' => '1MB');
	$stops->hold($stops->BEFORE_SNAPSHOT);
	run 'DELETE FROM items WHERE id = 20';
	$stops->wait_for($stops->BEFORE_SNAPSHOT);
	my $before = memory();
	my $less = int($rows / 5);
	run "INSERT INTO items SELECT g, g, 'a', repeat('x', 200)
		FROM generate_series(1001, 1000 + $less) g",
	  'DELETE FROM items WHERE id > 1000 AND id % 2 = 0',
	  'UPDATE items SET score = score + 1';
	$stops->release_all;
	settle();
	right 's';
	cmp_ok(memory() - $before, '<', 100, 'the log is not held in memory');
	server->set('live_topn.debug_refill_stops' => undef,
		'live_topn.memory_limit' => undef);
};

change 'very many subtransactions' => sub {
	subscribe_all();
	both "DO \$\$ BEGIN
		FOR i IN 1 .. $savepoints LOOP
			BEGIN
				INSERT INTO T VALUES (1000 + i, i % 1000);
				IF i % 3 = 0 THEN
					UPDATE T SET score = score + 1000 WHERE id = 1000 + i - 1;
					RAISE EXCEPTION 'x';
				END IF;
			EXCEPTION WHEN raise_exception THEN NULL;
			END;
		END LOOP;
	END \$\$";
	settle();
	right @all;

	# nested, some rolled back together with those in them
	run 'BEGIN';
	for my $i (1 .. 300)
	{
		run "SAVEPOINT s$i";
		both "UPDATE T SET score = score + 2000 + $i WHERE id = 1000 + $i";
		run 'ROLLBACK TO s' . ($i - 9) if $i % 10 == 0;
	}
	both 'DELETE FROM T WHERE score > 3200';
	run 'COMMIT';
	right @all;
};

change 'a transaction in several pieces of the log' => sub {
	subscribe_all();
	my $other = server->connect;
	my $third = server->connect;

	$other->begin_work;
	$other->do('UPDATE items SET score = 500 WHERE id = 1');
	run 'UPDATE items SET score = 400 WHERE id = 2';
	$third->begin_work;
	$third->do('UPDATE items SET score = 600 WHERE id = 3');
	$other->do('SAVEPOINT a');
	$other->do('DELETE FROM items WHERE id = 20');
	$other->do('RELEASE a');
	$third->rollback;
	saw s => 'leave 18 at 3, enter 2 at 1';
	$other->commit;
	right 's';
};

# ---- prepared transactions ----

change 'prepared transactions, also over a restart' => sub {
	subscribe_all();
	run 'BEGIN', 'SAVEPOINT a';
	both 'INSERT INTO T VALUES (91, 910)', 'DELETE FROM T WHERE id = 20';
	run 'RELEASE a', q{PREPARE TRANSACTION 'one'};
	run 'BEGIN';
	both 'INSERT INTO T VALUES (92, 920)';
	run q{PREPARE TRANSACTION 'two'};
	run 'BEGIN';
	both 'INSERT INTO T VALUES (93, 930)';
	run q{SELECT subscribe_topn('SELECT id FROM items ORDER BY id DESC
		LIMIT 2', 'late')}, q{PREPARE TRANSACTION 'three'};
	saw $_ for @all;
	both 'INSERT INTO T VALUES (90, 900)';
	right @all;
	is(state_of('late'), undef, 'what is prepared is not yet subscribed');

	server->restart_worker;
	right @all;
	server->node->restart;
	resume s => $top, bare => $top, full => $top =~ s/items/items_full/r;
	right @all;
	run q{COMMIT PREPARED 'one'};
	right @all;
	run q{ROLLBACK PREPARED 'two'};
	saw $_ for @all;
	run q{COMMIT PREPARED 'three'};
	right @all;
	session->listen('late', 'SELECT id FROM items ORDER BY id DESC LIMIT 2');
	session->begin('late');
	right 'late';
}, restarts => 1;

# ---- TRUNCATE ----

change 'TRUNCATE' => sub {
	subscribe_all();
	run 'CREATE TABLE parent (id int PRIMARY KEY)',
	  'INSERT INTO parent SELECT generate_series(1, 20)',
	  'ALTER TABLE items ADD FOREIGN KEY (id) REFERENCES parent',
	  'ALTER TABLE items_full ADD FOREIGN KEY (id) REFERENCES parent';
	subscribe parent => 'SELECT id FROM parent ORDER BY id LIMIT 3';
	my @these = (@all, 'parent');

	run 'BEGIN', 'TRUNCATE parent CASCADE', 'ROLLBACK';
	saw $_ for @these;
	run 'BEGIN', 'SAVEPOINT a', 'TRUNCATE parent CASCADE', 'ROLLBACK TO a',
	  'COMMIT';
	saw $_ for @these;
	run 'BEGIN', 'INSERT INTO parent VALUES (30)';
	both 'INSERT INTO T VALUES (30, 300)';
	run 'TRUNCATE parent, items, items_full', 'INSERT INTO parent VALUES (31)';
	both 'INSERT INTO T VALUES (31, 310)';
	run 'COMMIT';
	right @these;
	run 'TRUNCATE parent CASCADE';
	right @these;
	run 'BEGIN', 'INSERT INTO parent VALUES (1), (2)', 'TRUNCATE parent CASCADE',
	  'INSERT INTO parent VALUES (3)', 'TRUNCATE parent CASCADE', 'COMMIT';
	right @these;
	run 'CREATE TABLE numbered (id int PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
		t text)', q{INSERT INTO numbered (t) VALUES ('a'), ('b')};
	subscribe numbered => 'SELECT id, t FROM numbered ORDER BY id LIMIT 3';
	run 'BEGIN', 'TRUNCATE numbered RESTART IDENTITY',
	  q{INSERT INTO numbered (t) VALUES ('a'), ('c')}, 'COMMIT';
	saw numbered => 'update 2 at 2';
	run 'TRUNCATE ONLY numbered CONTINUE IDENTITY',
	  q{INSERT INTO numbered (t) VALUES ('d')};
	right 'numbered';
};

change 'TRUNCATE while rows are read' => sub {
	my $stops = LiveTopn::RefillStops->new(server);
	server->set('live_topn.debug_refill_stops' => 'on');
	for my $gate (0 .. 1)
	{
		base_table();
		subscribe s => $top, cushion => 0;
		$stops->hold($gate);
		run 'DELETE FROM items WHERE id = 20';
		$stops->wait_for($gate);

		# once the table is locked, TRUNCATE waits for the refill
		my $truncate = server->connect;
		$truncate->do('BEGIN');
		$truncate->do('TRUNCATE items; INSERT INTO items VALUES (7, 7);
			COMMIT', { pg_async => 1 });
		poll_until(
			sub {
				$truncate->pg_ready || writer->selectrow_array(
					q{SELECT wait_event_type = 'Lock' FROM pg_stat_activity
						WHERE pid = ?}, undef, $truncate->{pg_pid});
			},
			'TRUNCATE to be done, or to wait');
		$stops->release_all;
		$truncate->pg_result;
		right 's';
		session->unsubscribe('s');
		run 'DROP TABLE items';
	}
	server->set('live_topn.debug_refill_stops' => undef);
};

# ---- statements ----

change 'COPY' => sub {
	subscribe_all();
	for my $table ('items', 'items_full')
	{
		writer->do("COPY $table (id, score) FROM STDIN");
		writer->pg_putcopydata("$_\t$_\n") for 1001 .. 1500;
		writer->pg_putcopyend;
	}
	saw s => 'leave 18 at 3, leave 19 at 2, leave 20 at 1, '
	  . 'enter 1500 at 1, enter 1499 at 2, enter 1498 at 3';
	right @all;

	# heap_multi_insert into a table made in the same transaction
	run 'BEGIN';
	both 'TRUNCATE T';
	for my $table ('items', 'items_full')
	{
		writer->do("COPY $table (id, score) FROM STDIN (FREEZE)");
		writer->pg_putcopydata("$_\t$_\n") for 1 .. 100;
		writer->pg_putcopyend;
	}
	run 'COMMIT';
	right @all;
	eval {
		writer->do('COPY items (id, score) FROM STDIN');
		writer->pg_putcopydata("2000\t2000\n1\t1\n");
		writer->pg_putcopyend;
	};
	saw 's';
};

change 'MERGE, ON CONFLICT, CTEs that write, UPDATE FROM' => sub {
	subscribe_all();
	both q{MERGE INTO T USING (SELECT generate_series(15, 25) AS id) n
		ON T.id = n.id
		WHEN MATCHED AND T.id % 2 = 0 THEN DELETE
		WHEN MATCHED THEN UPDATE SET score = 1000 - T.score
		WHEN NOT MATCHED THEN INSERT (id, score) VALUES (n.id, n.id)};
	right @all;
	both q{INSERT INTO T (id, score) SELECT g, g FROM generate_series(1, 30) g
		ON CONFLICT (id) DO UPDATE SET score = excluded.score * 7
		WHERE T.id < 28};
	right @all;
	both q{INSERT INTO T (id, score) SELECT g, 9999 FROM generate_series(1, 31) g
		ON CONFLICT DO NOTHING};
	right @all;
	both q{WITH gone AS (DELETE FROM T WHERE id > 28 RETURNING id, score)
		INSERT INTO T (id, score) SELECT id + 100, score + 1 FROM gone};
	right @all;
	both q{UPDATE T SET score = n.score FROM T AS n WHERE n.id = T.id + 1};
	right @all;
	both q{UPDATE T SET id = -id}, q{UPDATE T SET id = 1 - id};
	right @all;
};

change 'triggers, rules and cascades' => sub {
	subscribe_all();
	run q{CREATE FUNCTION change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF TG_OP = 'DELETE' AND OLD.id % 2 = 0 THEN RETURN NULL; END IF;
		IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
		NEW.score := NEW.score + 3; RETURN NEW; END $$};
	both 'CREATE TRIGGER change BEFORE INSERT OR UPDATE OR DELETE ON T
		FOR EACH ROW EXECUTE FUNCTION change()',
	  'INSERT INTO T (id, score) VALUES (30, 300)',
	  'UPDATE T SET score = score + 1 WHERE id > 15', 'DELETE FROM T WHERE id > 17';
	right @all;

	# as a subscriber of logical replication does
	run 'SET session_replication_role = replica';
	both 'INSERT INTO T (id, score) VALUES (40, 400)',
	  'DELETE FROM T WHERE id = 30';
	run 'RESET session_replication_role';
	right @all;
	both 'DROP TRIGGER change ON T';
	run 'DROP FUNCTION change';

	run 'CREATE TABLE parent (id int PRIMARY KEY)',
	  'INSERT INTO parent SELECT id FROM items';
	both 'ALTER TABLE T ADD FOREIGN KEY (id) REFERENCES parent
		ON DELETE CASCADE ON UPDATE CASCADE DEFERRABLE INITIALLY DEFERRED';
	run 'DELETE FROM parent WHERE id IN (40, 18)',
	  'UPDATE parent SET id = 100 WHERE id = 20';
	right @all;
};

change 'rows are locked, frozen, updated in place' => sub {
	subscribe_all();
	run 'BEGIN';
	both 'SELECT FROM T FOR UPDATE', 'SELECT FROM T FOR KEY SHARE';
	run 'COMMIT';
	both 'VACUUM (FREEZE) T', 'UPDATE T SET score = score', 'ANALYZE T';
	saw $_ for @all;
	both 'UPDATE T SET score = score + 1', 'VACUUM T';
	right @all;
	is(server->connect->do('SELECT 1 FROM items FOR UPDATE'), 20, 'locked');
	saw $_ for @all;
};

# ---- replication ----

change 'logical replication applies into the table' => sub {
	my $dsn = server->node->connstr('origin') =~ s/'//gr;
	run 'CREATE DATABASE origin';
	my $origin = server->connect('origin');
	$origin->do('CREATE TABLE items (id int PRIMARY KEY, score int,
		grp text DEFAULT $$a$$, body text)');
	$origin->do('INSERT INTO items SELECT g, g * 100
		FROM generate_series(1, 10) g');
	$origin->do('CREATE PUBLICATION p FOR TABLE items');
	$origin->do(q{SELECT pg_create_logical_replication_slot('copied', 'pgoutput')});

	base_table();
	subscribe s => $top;

	# a slot made by hand: CREATE SUBSCRIPTION would wait for itself
	run "CREATE SUBSCRIPTION copied CONNECTION '$dsn' PUBLICATION p
		WITH (connect = false, slot_name = 'copied')",
	  'TRUNCATE items', 'ALTER SUBSCRIPTION copied ENABLE',
	  'ALTER SUBSCRIPTION copied REFRESH PUBLICATION';
	poll_until(
		sub {
			writer->selectrow_array(q{SELECT count(*) = 1 FROM
				pg_subscription_rel WHERE srsubstate = 'r'});
		},
		'the first copy');
	my $applied = sub {
		my ($id) = @_;

		poll_until(
			sub {
				writer->selectrow_array(
					'SELECT count(*) FROM items WHERE id = ?', undef, $id);
			},
			"row $id to be applied");
		right 's';
	};
	$origin->do('INSERT INTO items VALUES (11, 1100)');
	$applied->(11);
	$origin->do('BEGIN; UPDATE items SET score = 5000 WHERE id = 1;
		DELETE FROM items WHERE id = 10; INSERT INTO items VALUES (12, 1); COMMIT');
	$applied->(12);
	$origin->do('BEGIN; TRUNCATE items; INSERT INTO items VALUES (13, 1); COMMIT');
	$applied->(13);
	ids_are s => '13';
	run 'DROP SUBSCRIPTION copied';
	$origin->disconnect;
	run 'DROP DATABASE origin';
};

# ---- tables that cannot be followed ----

change 'tables without WAL are refused' => sub {
	run 'CREATE UNLOGGED TABLE u (id int PRIMARY KEY)',
	  'CREATE TEMP TABLE t (id int PRIMARY KEY)';
	like(
		refused(
			'0A000', q{SELECT subscribe_topn('SELECT id FROM u ORDER BY id
				LIMIT 1')}, 'an unlogged table is refused'),
		qr/unlogged table "u" cannot be subscribed to/, 'it says why');
	like(
		refused(
			'0A000', q{SELECT subscribe_topn('SELECT id FROM t ORDER BY id
				LIMIT 1')}, 'a temporary table is refused'),
		qr/temporary table "t" cannot be subscribed to/, 'it says why');

	# a temporary table of the same name is nobody else's business
	base_table();
	subscribe s => $top;
	run 'CREATE TEMP TABLE items (id int PRIMARY KEY, score int)',
	  'INSERT INTO items VALUES (1, 1)', 'INSERT INTO public.items VALUES (99, 999)';
	saw s => 'leave 18 at 3, enter 99 at 1';
	run 'DROP TABLE pg_temp.items, pg_temp.t';
	right 's';
};

done_testing();
