# How much memory the rows of a subscription may take, and who pays for more.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use PostgreSQL::Test::Utils;
use Test::More;

use LiveTopn::Process qw(memory_kb peak_memory_kb);
use LiveTopn::Scenario;
use LiveTopn::Server qw(poll_until);

# One refill worker, so that it is known which one reads.
my $server = LiveTopn::Server->start('memory',
	conf => "live_topn.result_memory = 8MB\n"
	  . "live_topn.max_refill_workers = 1\n"
	  . "autovacuum = off\n");
use_server($server);

my $too_large =
  qr/^result takes more memory than live_topn\.result_memory \(8MB\)$/;

# So many rows, of a body of so many bytes, which is compressed in the table.
sub rows
{
	my ($n, $bytes) = @_;

	run 'CREATE TABLE items (id int PRIMARY KEY, grp int, body text)',
	  'ALTER TABLE items ALTER body SET STORAGE main',
	  "INSERT INTO items SELECT g, g / 4, repeat('x', $bytes)
		FROM generate_series(1, $n) g";
	return;
}

# The query, with all of a body as an expression's result.
sub top
{
	my ($limit) = @_;
	return "SELECT id, body || 'y' AS body FROM items ORDER BY id LIMIT $limit";
}

# The row of topn_stats.
sub statistics
{
	my ($name) = @_;

	session->sync;
	return writer->selectrow_hashref(
		'SELECT * FROM topn_stats WHERE name = ?', undef, $name);
}

sub refill_workers
{
	return writer->selectcol_arrayref(
		q{SELECT pid FROM pg_stat_activity
		WHERE backend_type = 'live_topn refill worker'});
}

# Run the code, and see that neither the worker nor a refill worker grows by
# more than so many kilobytes.
sub grows_by
{
	my ($kb, $code) = @_;
	my $worker = $server->worker_pid;
	my %before = map { $_ => peak_memory_kb($_) } $worker, @{ refill_workers() };

	$code->();
	is($server->worker_pid, $worker, 'the worker has gone on');
	my @now = ($worker, @{ refill_workers() });
	cmp_ok(scalar @now, '>', 1, 'a refill worker is there');
	for my $pid (@now)
	{
		my $grown = peak_memory_kb($pid) -
		  ($before{$pid} // peak_memory_kb($worker) - $kb);
		cmp_ok($grown, '<', $kb,
			$pid == $worker ? 'the worker takes no more' :
			  'nor does the refill worker');
	}
	return;
}

scenario 'first load', 'a result that is too large' => sub {
	rows(100, 500_000);
	subscribe good => 'SELECT id FROM items ORDER BY id LIMIT 3';

	grows_by(
		14_000,
		sub {
			session->dbh->do('SELECT subscribe_topn(?, ?)',
				undef, top(90), 's');
			wait_for_state s => 'error';
		});
	like((state_of 's')[1], $too_large, 'the error says why');
	my $message = refused '55000', q{SELECT * FROM topn_snapshot('s')},
	  'there is no result';
	like($message,
		qr/HINT:  Let the query select fewer or smaller rows, or raise the setting\. It goes on by itself/,
		'and a hint');
	is(statistics('s')->{held_rows}, 0, 'nothing is held');
	run 'DELETE FROM items WHERE id = 1';
	saw good => 'leave 1 at 1, enter 4 at 3';
	equals_query 'good';

	# the data are others
	run 'DELETE FROM items WHERE id > 12';
	writer->do('ANALYZE items');    # looks at it again at once
	wait_for_state s => 'live';
	is( writer->selectrow_array(
			q{SELECT json_array_length(rows) FROM topn_snapshot('s')}),
		11, 'there is one once the data have shrunk');
};

scenario 'setting', 'it is raised, and lowered' => sub {
	rows(40, 500_000);
	session->dbh->do('SELECT subscribe_topn(?, ?)', undef, top(30), 's');
	wait_for_state s => 'error';

	# it would be a minute until it is tried again by itself
	poll_until(
		sub {
			my $log = slurp_file($server->node->logfile);
			return () = $log =~ /"s" is in error/g;
		},
		'the log to tell');
	$server->set('live_topn.result_memory' => '40MB');
	wait_for_state s => 'live';
	session->dbh->do(q{SELECT unsubscribe_topn('s')});
	subscribe s => top(30), cushion => 0;
	equals_query 's';
	cmp_ok(statistics('s')->{bytes}, '>', 15_000_000, 'it may hold as much');

	$server->set('live_topn.result_memory' => undef);
	wait_for_state s => 'error';
	is(statistics('s')->{bytes}, 0, 'all of it is given back');
	cmp_ok(memory_kb($server->worker_pid), '<', 30_000, 'to the system');
	saw s => 'error';
	$server->set('live_topn.result_memory' => '40MB');
	wait_for_state s => 'live';
	saw s => 'reset';
	equals_query 's';
	$server->set('live_topn.result_memory' => undef);
};

scenario 'one row', 'that is larger than all may be' => sub {
	rows(3, 9_000_000);
	grows_by(
		# some copies of that row, but no result
		45_000,
		sub {
			session->dbh->do('SELECT subscribe_topn(?, ?)',
				undef, top(1), 's');
			wait_for_state s => 'error';
		});
	like((state_of 's')[1], $too_large, 'is an error');
	is(statistics('s')->{held_rows}, 0, 'and nothing is held');
};

for my $identity ('DEFAULT', 'FULL')
{
	scenario "cushion, $identity", 'gives way to the result' => sub {
		rows(40, 1_000_000);
		run "ALTER TABLE items REPLICA IDENTITY $identity";
		subscribe s => top(7), cushion => 10;
		equals_query 's';
		is(statistics('s')->{held_rows}, 7, 'a result that fits has none');
		is(statistics('s')->{cushion}, 0, 'which is shown');

		# one after the other is read
		for my $id (1 .. 5)
		{
			run "DELETE FROM items WHERE id = $id";
			saw s => "leave $id at 1, enter ${\($id + 7)} at 7";
		}
		equals_query 's';
		is(statistics('s')->{resets}, 0, 'and never starts anew');

		# small rows come; rows grow
		run q{INSERT INTO items SELECT -g, 0, 'small' FROM generate_series(1, 20) g};
		equals_query 's';
		run q{UPDATE items SET body = repeat('z', 900000) WHERE id BETWEEN -20 AND -14};
		equals_query 's';
		is((state_of 's')[0], 'live', 'as long as they fit');
		run q{UPDATE items SET body = repeat('z', 2000000) WHERE id BETWEEN -20 AND -14};
		wait_for_state s => 'error';
		like((state_of 's')[1], $too_large, 'and no longer');
		is(statistics('s')->{bytes}, 0, 'nothing is held then');
		run q{UPDATE items SET body = 'z' WHERE id < 0};
		writer->do('ANALYZE items');
		wait_for_state s => 'live';
		equals_query 's';
	};
}

scenario 'in between', 'a transaction makes the result too large, and small' =>
  sub {
	rows(20, 1000);
	run 'ALTER TABLE items REPLICA IDENTITY FULL';
	subscribe s => top(10);
	run 'BEGIN', q{UPDATE items SET body = repeat('x', 3000000) WHERE id < 5},
	  q{UPDATE items SET body = 'small' WHERE id < 5}, 'COMMIT';
	equals_query 's';
	is((state_of 's')[0], 'live', 'what counts is what is committed');
};

scenario 'groups', 'count, too' => sub {
	rows(0, 0);
	subscribe s => 'SELECT * FROM (SELECT id, grp, row_number() OVER
		(PARTITION BY grp ORDER BY id) AS n FROM items) x
		WHERE n <= 2 ORDER BY grp, n';
	subscribe good => 'SELECT id FROM items ORDER BY id LIMIT 3';
	my $worker = $server->worker_pid;
	my $before = memory_kb($worker);

	run 'INSERT INTO items SELECT g, g, NULL FROM generate_series(1, 100000) g';
	wait_for_state s => 'error';
	like((state_of 's')[1], $too_large, 'too many are an error');
	ids_are good => '1 2 3';
	is(statistics('s')->{bytes}, 0, 'none is held then');
	cmp_ok(peak_memory_kb($worker) - $before, '<', 60_000,
		'the worker has not taken much more');

	run 'DELETE FROM items WHERE id > 100';
	writer->do('ANALYZE items');
	wait_for_state s => 'live';
	equals_query 's';
};

scenario 'groups', 'the cushions of all give way' => sub {
	rows(0, 0);
	run q{INSERT INTO items SELECT g, g % 20, repeat('x', 60000)
		FROM generate_series(1, 400) g};
	subscribe s => q{SELECT * FROM (SELECT id, grp, body || 'y' AS body,
		row_number() OVER (PARTITION BY grp ORDER BY id) AS n FROM items) x
		WHERE n <= 5 ORDER BY grp, n}, cushion => 10;
	equals_query 's';
	is(statistics('s')->{held_rows}, 100, 'a result that fits has none');
	run 'DELETE FROM items WHERE id <= 40';
	equals_query 's';
	is(statistics('s')->{held_rows}, 100, 'still');
	is(statistics('s')->{resets}, 0, 'it has never started anew');
};

scenario 'ties', 'are read as far as there is room' => sub {
	rows(0, 0);
	run q{INSERT INTO items SELECT g, g / 60, repeat('x', 60000)
		FROM generate_series(0, 400) g};
	subscribe s => q{SELECT id, grp, body || 'y' AS body FROM items ORDER BY grp
		FETCH FIRST 61 ROWS WITH TIES}, limit => 1000;
	equals_query 's';
	run 'DELETE FROM items WHERE id < 2';
	equals_query 's';
	run 'DELETE FROM items WHERE id < 60';
	equals_query 's';
	is((state_of 's')[0], 'live', 'all of them fit');
};

done_testing();
