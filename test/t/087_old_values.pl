# Old values on request: what a row was, beside what it is.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use Test::More;

use LiveTopn::Scenario;
use LiveTopn::Server;
use LiveTopn::Stream;

use_server(LiveTopn::Server->start('old_values'));

my $query = 'SELECT id, score, body FROM items ORDER BY score DESC, id LIMIT 3';

for my $identity ('DEFAULT', 'FULL')
{
	scenario "identity $identity", 'deltas tell what was before' => sub {
		base_table();
		run "ALTER TABLE items REPLICA IDENTITY $identity";
		subscribe with => $query, old => 1;
		subscribe absolute => $query, old => 1, ranks => 'absolute';
		subscribe without => $query;

		run q{UPDATE items SET body = NULL WHERE id = 19};
		deltas_are with => '[{"op":"update","pos":2,"key":{"id":19},'
		  . '"set":{"body":null},"old":{"body":"r19"}}]';
		deltas_are without => '[{"op":"update","pos":2,"key":{"id":19},'
		  . '"set":{"body":null}}]';
		run 'UPDATE items SET score = 205 WHERE id = 18';
		deltas_are with => '[{"op":"move","from":3,"to":1,"key":{"id":18},'
		  . '"set":{"score":205},"old":{"score":180}}]';

		# a row that was not held has not been anything
		run 'UPDATE items SET score = 300 WHERE id = 1';
		deltas_are with => '[{"op":"leave","pos":3,"key":{"id":19},'
		  . '"old":{"id":19,"score":190,"body":null}},'
		  . '{"op":"enter","pos":1,"key":{"id":1},'
		  . '"row":{"id":1,"score":300,"body":"r1"}}]';

		# what was in between is not told
		run 'BEGIN', q{UPDATE items SET body = 'a' WHERE id = 1},
		  q{UPDATE items SET body = 'b', score = 301 WHERE id = 1}, 'COMMIT';
		deltas_are with => '[{"op":"update","pos":1,"key":{"id":1},'
		  . '"set":{"score":301,"body":"b"},'
		  . '"old":{"score":300,"body":"r1"}}]';
		run 'UPDATE items SET id = 100 WHERE id = 1';
		deltas_are with => '[{"op":"leave","pos":1,"key":{"id":1},'
		  . '"old":{"id":1,"score":301,"body":"b"}},'
		  . '{"op":"enter","pos":1,"key":{"id":100},'
		  . '"row":{"id":100,"score":301,"body":"b"}}]';
		equals_query qw(with absolute without);
	};
}

scenario 'sums', 'a consumer keeps a sum from the stream alone' => sub {
	base_table();
	LiveTopn::Stream::create_slot(server, 'sums');
	subscribe sum => $query, old => 1, deliver => 'both';
	my $stream = LiveTopn::Stream->start(server, 'sums',
		subscriptions => 'sum');
	my $sum = 200 + 190 + 180;

	run 'UPDATE items SET score = score * 10 % 170',
	  'DELETE FROM items WHERE id IN (SELECT id FROM items
		ORDER BY score DESC, id LIMIT 2)',
	  'INSERT INTO items VALUES (50, 1000)',
	  'UPDATE items SET score = -score WHERE id = 50';
	session->sync;
	my $last = session->client('sum')->seq;
	for my $line (
		$stream->wait_for(
			sub { @_ && $_[-1] =~ /"seq":$last,/ }, 'the last batch'))
	{
		$sum += $1 while $line =~ /"(?:row|set)":\{[^}]*"score":(-?\d+)/g;
		$sum -= $1 while $line =~ /"old":\{[^}]*"score":(-?\d+)/g;
	}
	$stream->stop;
	is( $sum,
		(writer->selectrow_array("SELECT sum(score) FROM ($query) q"))[0],
		'it is the sum');
	equals_query 'sum';
};

scenario 'restart', 'an unknown past has no old values' => sub {
	base_table();
	subscribe old => $query, old => 1;
	run 'UPDATE items SET score = 1 WHERE id = 20';
	server->restart_worker('postgres');
	run 'UPDATE items SET score = 1000 WHERE id = 20';
	equals_query 'old';
	run q{SELECT topn_resync('old')};
	session->sync;
	is((session->client('old')->batches)[-1]{deltas}[0]{op},
		'reset', 'a reset tells none');
};

done_testing();
