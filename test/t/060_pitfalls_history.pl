# How others failed: snapshots, commits and transactions put together wrongly.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use POSIX ();
use Test::More;

use LiveTopn::Scenario;
use LiveTopn::Server;

use_server(
	LiveTopn::Server->start(
		'history', conf => 'logical_decoding_work_mem = 64kB'));

my $top = 'SELECT id, score FROM items ORDER BY score DESC, id LIMIT 3';

scenario 'B01', 'a commit in WAL but not yet visible is lost' => sub {
	base_table();
	my $hanging =
	  server->hanging_commit('INSERT INTO items VALUES (100, 999)');
	subscribe s => $top;
	server->let_go($hanging);
	ids_are s => '100 20 19';
	equals_query 's';
};

scenario 'B03', 'a transaction in the snapshot is applied again' => sub {
	base_table();
	my $slow = server->connect;
	$slow->begin_work;
	$slow->do('INSERT INTO items VALUES (101, 500)');
	$slow->do('SAVEPOINT a');
	$slow->do('INSERT INTO items VALUES (103, 400)');
	$slow->do('RELEASE a');
	run 'INSERT INTO items VALUES (102, 600)';
	subscribe s => $top;
	saw 's';
	$slow->commit;
	saw s => 'leave 19 at 3, leave 20 at 2, enter 101 at 2, enter 103 at 3';
	equals_query 's';
};

scenario 'B04', 'updates arrive before the result that they change' => sub {
	base_table();
	my @writers = map { fork_writer($_) } 1 .. 2;
	my @names = map { "s$_" } 1 .. 20;
	for my $name (@names)
	{
		# the client dies if the first batch does not follow its snapshot
		subscribe $name => $top;
	}
	for my $pid (@writers)
	{
		waitpid $pid, 0;
		is($?, 0, 'a writer has ended');
	}
	equals_query @names;
};

# A process that changes random scores.
sub fork_writer
{
	my ($seed) = @_;
	my $pid = fork // die "could not fork: $!";

	return $pid if $pid;
	my $done = eval {
		my $dbh = server->connect;

		srand $seed;
		$dbh->do('UPDATE items SET score = ? WHERE id = ?',
			undef, int(rand 1000), 1 + int(rand 20))
		  for 1 .. 1500;
		1;
	};
	POSIX::_exit($done ? 0 : 1);
}

scenario 'B05', 'a late commit with an early number is stepped over' => sub {
	run 'CREATE TABLE events (id bigserial PRIMARY KEY, score int)';
	subscribe s => 'SELECT id, score FROM events ORDER BY id DESC LIMIT 3';
	my $slow = server->connect;
	$slow->begin_work;
	$slow->do('INSERT INTO events (score) VALUES (1)');
	run 'INSERT INTO events (score) VALUES (2)';
	saw s => 'enter 2 at 1';
	$slow->commit;
	saw s => 'enter 1 at 2';
	equals_query 's';
};

scenario 'B07', 'a row joins the cushion though unseen rows come first' => sub {
	base_table();
	subscribe s => $top;
	subscribe one => $top =~ s/LIMIT 3/LIMIT 1/r;
	subscribe bare => $top, cushion => 0;
	subscribe big => $top =~ s/LIMIT 3/LIMIT 100/r;
	run 'DELETE FROM items WHERE id IN (17, 16)';
	run 'INSERT INTO items VALUES (50, 25)';
	run 'DELETE FROM items WHERE id IN (20, 19, 18)';
	ids_are s => '15 14 13';
	equals_query qw(s one bare big);
	run 'DELETE FROM items WHERE id <> 50';
	run 'INSERT INTO items VALUES (51, 26)';
	ids_are s => '51 50';
	equals_query qw(s one bare big);
};

scenario 'B08', 'a window larger than the table is read again and again' =>
  sub {
	base_table();
	subscribe s => $top =~ s/LIMIT 3/LIMIT 50/r;
	run "UPDATE items SET score = $_ WHERE id = 1 + $_ % 20" for 1 .. 500;
	equals_query 's';
	cmp_ok(refills('s'), '<', 5, 'a handful of refills');
	run "INSERT INTO items SELECT g, g FROM generate_series(1000, 21000) g";
	equals_query 's';
	run 'DELETE FROM items WHERE score > 50';
	equals_query 's';
	run 'TRUNCATE items';
	run 'INSERT INTO items VALUES (1, 1)';
	equals_query 's';
	cmp_ok(refills('s'), '<', 10, 'a handful of refills after mass deletes');
  };

sub refills
{
	return scalar writer->selectrow_array(
		'SELECT refills FROM topn_stats WHERE name = ?', undef, $_[0]);
}

scenario 'B10', 'a move without a visible change sends nothing' => sub {
	base_table();
	subscribe s => 'SELECT id FROM items ORDER BY score DESC, id LIMIT 3';
	subscribe t => 'SELECT id, body FROM items ORDER BY score DESC, id LIMIT 3';
	run 'UPDATE items SET score = 9999 WHERE id = 18';
	saw s => 'move 18 from 3 to 1';
	saw t => 'move 18 from 3 to 1';
	run "UPDATE items SET body = 'z' WHERE id = 20";
	saw 's';
	saw t => 'update 20 at 2';
	run 'UPDATE items SET score = score WHERE id = 18';
	saw $_ for qw(s t);
	equals_query qw(s t);
};

scenario 'B11', 'one row changed several times in a transaction' => sub {
	base_table();
	run q{CREATE FUNCTION bump() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF pg_trigger_depth() = 1 THEN
				UPDATE items SET score = NEW.score + 1 WHERE id = NEW.id;
			END IF;
			RETURN NULL;
		END $$},
	  'CREATE TRIGGER bump AFTER INSERT ON items
		FOR EACH ROW EXECUTE FUNCTION bump()';
	subscribe s => $top;
	run 'BEGIN',
	  'INSERT INTO items VALUES (60, 600)',
	  'DELETE FROM items WHERE id = 60',
	  'INSERT INTO items VALUES (60, 7)',
	  'UPDATE items SET id = 61 WHERE id = 20',
	  'UPDATE items SET id = 20 WHERE id = 61',
	  'INSERT INTO items VALUES (62, 620)',
	  'COMMIT';
	saw s => 'leave 18 at 3, enter 62 at 1';
	equals_query 's';
	run "INSERT INTO items VALUES (63, $_) ON CONFLICT (id)
		DO UPDATE SET score = excluded.score" for 1, 700;
	saw s => 'leave 19 at 3, enter 63 at 1';
	equals_query 's';
	run 'DROP FUNCTION bump CASCADE';
};

scenario 'B12', 'a row that stops to match stays with the client' => sub {
	base_table();
	subscribe s => "SELECT id, score FROM items WHERE grp = 'a'
		ORDER BY score DESC, id LIMIT 3";
	run "UPDATE items SET grp = 'b' WHERE id = 20";
	saw s => 'leave 20 at 1, enter 17 at 3';
	run "UPDATE items SET grp = 'a' WHERE id = 20";
	saw s => 'leave 17 at 3, enter 20 at 1';
	run 'ALTER TABLE items ALTER grp DROP NOT NULL';
	run 'UPDATE items SET grp = NULL WHERE id = 19';
	equals_query 's';
	ids_are s => '20 18 17';
};

scenario 'B27', 'TRUNCATE is ignored, or stops everything' => sub {
	run 'CREATE TABLE par (id int PRIMARY KEY)',
	  'CREATE TABLE chi (id int PRIMARY KEY, p int REFERENCES par, score int)',
	  'INSERT INTO par VALUES (1), (2)',
	  'INSERT INTO chi VALUES (1, 1, 10), (2, 2, 20)';
	subscribe s => 'SELECT id, score FROM chi ORDER BY score DESC, id LIMIT 3';
	run 'BEGIN', 'TRUNCATE par CASCADE', 'INSERT INTO par VALUES (3)',
	  'INSERT INTO chi VALUES (9, 3, 5)', 'COMMIT';
	saw s => 'leave 1 at 2, leave 2 at 1, enter 9 at 1';
	run 'BEGIN', 'TRUNCATE par CASCADE', 'ROLLBACK';
	saw 's';
	run 'TRUNCATE chi RESTART IDENTITY';
	saw s => 'leave 9 at 1';
	equals_query 's';

	# the subscription ends with its table, and says so; a new table of that name
	# is a new result, not a change of the old one
	run 'DROP TABLE chi';
	wait_for_state s => 'error';
	ok(!eval { session->snapshot('s') }, 'no result without the table');
	run 'CREATE TABLE chi (id int PRIMARY KEY, p int, score int)',
	  'INSERT INTO chi VALUES (1, 1, 1)';
	wait_for_state s => 'live';
	saw s => 'error', 'reset';
	equals_query 's';
};

scenario 'B29', 'rolled-back subtransactions are published' => sub {
	base_table();
	subscribe s => $top;
	run 'BEGIN',
	  'INSERT INTO items SELECT g, g FROM generate_series(1000, 1500) g',
	  'SAVEPOINT a',
	  'INSERT INTO items SELECT g, 100000 + g
		FROM generate_series(2000, 4000) g',
	  'ROLLBACK TO a',
	  'INSERT INTO items VALUES (5000, 50000)', 'COMMIT';
	equals_query 's';
	run q{DO $$ BEGIN
		INSERT INTO items VALUES (6000, 60000);
		BEGIN
			INSERT INTO items VALUES (6001, 60001);
			RAISE EXCEPTION 'x';
		EXCEPTION WHEN OTHERS THEN NULL;
		END;
	END $$};
	run q{DO $$ BEGIN
		FOR i IN 1 .. 200 LOOP
			BEGIN
				INSERT INTO items VALUES (7000 + i, i);
				IF i % 2 = 0 THEN RAISE EXCEPTION 'x'; END IF;
			EXCEPTION WHEN OTHERS THEN NULL;
			END;
		END LOOP;
	END $$};
	ids_are s => '6000 5000 1500';
	equals_query 's';
};

scenario 'B49', 'PREPARE is taken for the commit' => sub {
	base_table();
	subscribe s => $top;
	run 'BEGIN', 'INSERT INTO items VALUES (91, 910)',
	  'DELETE FROM items WHERE id = 20', "PREPARE TRANSACTION 'g1'";
	run 'INSERT INTO items VALUES (92, 905)';
	ids_are s => '92 20 19';
	equals_query 's';
	run "COMMIT PREPARED 'g1'";
	ids_are s => '91 92 19';
	equals_query 's';

	run 'BEGIN', 'INSERT INTO items VALUES (93, 930)',
	  "PREPARE TRANSACTION 'g2'";
	server->node->restart;
	LiveTopn::Scenario::reconnect();
	session->listen('s', $top);
	session->begin('s');
	run "ROLLBACK PREPARED 'g2'";
	ids_are s => '91 92 19';
	equals_query 's';
};

done_testing();
