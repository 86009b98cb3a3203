# Results without a LIMIT.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use Test::More;

use LiveTopn::Scenario;
use LiveTopn::Server;

use_server(LiveTopn::Server->start('unlimited'));

# Of one subscription.
sub statistics
{
	my ($name, @columns) = @_;

	session->sync;
	return writer->selectrow_array('SELECT '
		  . join(', ', @columns)
		  . ' FROM topn_stats WHERE name = ?', undef, $name);
}

scenario 'ordered', 'all rows have positions' => sub {
	base_table();
	subscribe all => 'SELECT id, score FROM items ORDER BY score DESC, id';
	subscribe rest => 'SELECT id FROM items ORDER BY score DESC, id
		LIMIT ALL OFFSET 18';
	is(session->client('all')->entries, 20, 'the snapshot has all rows');
	ids_are rest => '2 1';
	run 'INSERT INTO items VALUES (21, 105)';
	saw all => 'enter 21 at 11';
	saw rest => 'enter 3 at 1';
	run 'UPDATE items SET score = 1000 WHERE id = 1';
	saw all => 'move 1 from 21 to 1';
	saw rest => 'leave 1 at 3, enter 4 at 1';
	run 'DELETE FROM items WHERE id IN (4, 20)';
	saw all => 'leave 4 at 19, leave 20 at 2';
	saw rest => 'leave 3 at 2, leave 4 at 1';
	run q{UPDATE items SET body = 'not selected'};
	saw all => ();
	equals_query qw(all rest);
	is_deeply([ statistics(all => 'held_rows, result_rows, cushion, refills') ],
		[ 19, 19, 0, 1 ], 'they are all held, and read once');
	run 'TRUNCATE items', 'INSERT INTO items VALUES (1, 1)';
	equals_query qw(all rest);
};

scenario 'null', 'the limit is an argument that is null' => sub {
	base_table();
	my ($name) = writer->selectrow_array(
		q{SELECT subscribe_topn('SELECT id FROM items ORDER BY id LIMIT $1',
			'null', ARRAY[NULL])});
	my (undef, undef, $rows) = session->snapshot($name);
	is(LiveTopn::Session::snapshot_entries($rows), 20, 'it has all rows');
};

scenario 'too large', 'no more is held than live_topn.memory_limit' => sub {
	my $too_large =
	  'result without LIMIT is larger than live_topn.memory_limit';
	my $fill = 'INSERT INTO items SELECT g, g, repeat(chr(97), 100)
		FROM generate_series(1000, 1999) g';

	base_table();
	server->set('live_topn.memory_limit' => '64kB');
	subscribe all => 'SELECT * FROM items ORDER BY score, id';
	subscribe few => 'SELECT * FROM items ORDER BY score, id LIMIT 3';

	# in between only
	run 'BEGIN', $fill, 'DELETE FROM items WHERE id >= 1000',
	  'UPDATE items SET score = 0 WHERE id = 20', 'COMMIT';
	saw all => 'move 20 from 20 to 1';

	run $fill;
	wait_for_state all => 'error';
	is((state_of 'all')[1], $too_large, 'the reason is told');
	saw all => 'error';
	is((state_of 'few')[0], 'live', 'a result with a limit goes on');
	equals_query 'few';

	run 'DELETE FROM items WHERE id >= 1500';
	server->set('live_topn.memory_limit' => '1MB');
	wait_for_state all => 'live';
	saw all => 'reset';
	equals_query 'all';
	server->set('live_topn.memory_limit' => undef);
};

done_testing();
