# The first rows of each group: groups come, go and are left for others, under
# both kinds of identity.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use Test::More;

use LiveTopn::Scenario;
use LiveTopn::Server;
use LiveTopn::Stream;

use_server(LiveTopn::Server->start('groups'));

# Bids on three things and on none, ten each; higher numbers are higher bids.
sub bids
{
	my ($identity) = @_;

	run 'CREATE TABLE bid (id int PRIMARY KEY, thing text, price int)',
	  "ALTER TABLE bid REPLICA IDENTITY $identity",
	  q{INSERT INTO bid SELECT g, nullif('t' || g % 4, 't3'), g
		FROM generate_series(1, 40) g};
	return;
}

my $numbered = 'SELECT id, price, n FROM (SELECT *, row_number()
	OVER (PARTITION BY thing ORDER BY price DESC) AS n FROM bid) x
	WHERE n <= 2 ORDER BY thing, n';

# What came since, each delta as "group: what".
sub deltas
{
	session->sync;
	return map {
		my ($group) = $_->{group} =~ /^\{"thing":"?(.*?)"?\}$/;
		my ($id) = $_->{key} =~ /(\d+)/;
		"$group: $_->{op} $id at "
		  . ($_->{pos} // $_->{to})
		  . ($_->{set} ? " $_->{set}" : '')
	} map { @{ $_->{deltas} } } session->client('s')->take_batches;
}

for my $identity (qw(DEFAULT FULL))
{
	scenario 'groups', "identity $identity: a row goes to another group" => sub {
		bids($identity);
		session->subscribe('s', $numbered, limit => 2);
		run q(UPDATE bid SET thing = 't1' WHERE id = 40);
		is_deeply(
			[ deltas() ],
			[
				't0: leave 40 at 1',
				't0: enter 32 at 2',
				't0: update 36 at 1 {"n":1}',
				't1: leave 33 at 2',
				't1: enter 40 at 1',
				't1: update 37 at 2 {"n":2}'
			],
			'both groups in one batch, and the ranks that shift');
		equals_query 's';
	};

	scenario 'groups', "identity $identity: groups appear and vanish" => sub {
		bids($identity);
		session->subscribe('s', $numbered, limit => 2);
		run q(INSERT INTO bid VALUES (41, 'new', 1)),
		  q(DELETE FROM bid WHERE thing = 'new'),
		  q(INSERT INTO bid VALUES (41, 'new', 1)),
		  q(UPDATE bid SET thing = NULL WHERE thing = 'new'),
		  q(DELETE FROM bid WHERE thing IS NULL);
		is_deeply(
			[ deltas() ],
			[
				'new: enter 41 at 1', 'new: leave 41 at 1',
				'new: enter 41 at 1', 'new: leave 41 at 1',
				'null: leave 35 at 2', 'null: leave 39 at 1'
			],
			'what clients see');
		is( writer->selectrow_array(
				q(SELECT groups FROM topn_stats WHERE name = 's')),
			3, 'an empty group is not held');
		equals_query 's';
	};

	scenario 'groups', "identity $identity: many groups run short at once" =>
	  sub {
		run 'CREATE TABLE bid (id int PRIMARY KEY, thing text, price int)',
		  "ALTER TABLE bid REPLICA IDENTITY $identity",
		  q{INSERT INTO bid SELECT g, 't' || g % 200, g
			FROM generate_series(1, 2000) g};
		session->subscribe('s', $numbered, limit => 2, cushion => 0);
		run 'DELETE FROM bid WHERE id > 1400', 'TRUNCATE bid',
		  q{INSERT INTO bid VALUES (1, 'a', 1), (2, NULL, 2)};
		equals_query 's';
	  };

	scenario 'groups', "identity $identity: a worker that starts again" => sub {
		bids($identity);
		session->subscribe('s', $numbered, limit => 2);
		run q(DELETE FROM bid WHERE id = 40);
		server->restart_worker('postgres');
		run q(UPDATE bid SET price = 100 WHERE id = 1);
		equals_query 's';
		is(scalar(grep { $_->{deltas}[0]{op} eq 'reset' }
				session->client('s')->take_batches),
			0, 'without a reset');
	};
}

scenario 'groups', 'all on request: snapshot, resync, absolute ranks' => sub {
	bids('DEFAULT');
	session->subscribe('s', $numbered, limit => 2, ranks => 'absolute');
	run q(UPDATE bid SET price = 1000 WHERE id = 4),
	  q{SELECT topn_resync('s')}, q(DELETE FROM bid WHERE id = 4);
	equals_query 's';
};

scenario 'groups', 'a group by DISTINCT ON' => sub {
	bids('DEFAULT');
	session->subscribe(
		's',
		'SELECT DISTINCT ON (thing) thing, id FROM bid
		 ORDER BY thing DESC, price DESC, id',
		limit => 1);
	run q(DELETE FROM bid WHERE id = 38);
	is_deeply([ deltas() ], [ 't2: leave 38 at 1', 't2: enter 34 at 1' ],
		'the next one takes its place');
	equals_query 's';
};

scenario 'groups', 'a bound from the partition key' => sub {
	run 'CREATE TABLE bid (id int PRIMARY KEY, thing int, price int)',
	  q{INSERT INTO bid SELECT g, g % 5, g FROM generate_series(1, 50) g};
	session->subscribe('s',
		'SELECT id FROM (SELECT *, row_number() OVER
		 (PARTITION BY thing ORDER BY price DESC) AS n FROM bid) x
		 WHERE n <= thing % 3 ORDER BY thing, n');
	run q(DELETE FROM bid WHERE id IN (49, 48, 47, 46, 45)),
	  q(INSERT INTO bid VALUES (51, 3, 51), (52, 2, 52));
	equals_query 's';
};

scenario 'groups', 'what belongs to all groups cannot be moved' => sub {
	bids('DEFAULT');
	session->subscribe('s', $numbered, limit => 2);
	refused '0A000', q{SELECT topn_move('s', 1, 1)}, 'topn_move is refused';
};

for my $identity (qw(DEFAULT FULL))
{
	scenario 'groups', "identity $identity: what was before is told" => sub {
		bids($identity);
		session->subscribe('s', $numbered, limit => 2, old => 1);
		run q(UPDATE bid SET thing = 't1' WHERE id = 40);
		session->sync;
		is_deeply(
			[
				map { $_->{json} =~ /("op":.*)\}$/ }
				  map { @{ $_->{deltas} } }
				  session->client('s')->take_batches
			],
			[
				'"op":"leave","pos":1,"group":{"thing":"t0"},"key":{"id":40},'
				  . '"old":{"id":40,"price":40,"n":1}',
				'"op":"enter","pos":2,"group":{"thing":"t0"},"key":{"id":32},'
				  . '"row":{"id":32,"price":32,"n":2}',
				'"op":"update","pos":1,"group":{"thing":"t0"},"key":{"id":36},'
				  . '"set":{"n":1},"old":{"n":2}',
				'"op":"leave","pos":2,"group":{"thing":"t1"},"key":{"id":33},'
				  . '"old":{"id":33,"price":33,"n":2}',
				'"op":"enter","pos":1,"group":{"thing":"t1"},"key":{"id":40},'
				  . '"row":{"id":40,"price":40,"n":1}',
				'"op":"update","pos":2,"group":{"thing":"t1"},"key":{"id":37},'
				  . '"set":{"n":2},"old":{"n":1}'
			],
			'ranks too');
		equals_query 's';
	};

	scenario 'groups', "identity $identity: a throttle" => sub {
		bids($identity);
		session->subscribe('s', $numbered, limit => 2, throttle => '1 hour');
		run q(UPDATE bid SET price = 50 WHERE id = 40);
		is_deeply([ deltas() ], ['t0: update 40 at 1 {"price":50}'],
			'the first batch is not held back');
		run q(INSERT INTO bid VALUES (41, 'new', 1)),
		  q(DELETE FROM bid WHERE thing = 'new'),
		  q(UPDATE bid SET thing = 't1' WHERE id = 40),
		  q(UPDATE bid SET thing = 't0', price = 51 WHERE id = 40),
		  q(INSERT INTO bid VALUES (42, 'newer', 1)),
		  q(DELETE FROM bid WHERE thing IS NULL);
		is_deeply([ deltas() ], [], 'others are');
		server->restart_worker('postgres');
		session->snapshot('s');
		is_deeply(
			[ deltas() ],
			[
				'newer: enter 42 at 1',
				't0: update 40 at 1 {"price":51}',
				'null: leave 35 at 2',
				'null: leave 39 at 1'
			],
			'one batch with what is different in the end');
		equals_query 's';
	};

	scenario 'groups', "identity $identity: DDL" => sub {
		bids($identity);
		session->subscribe('s', $numbered, limit => 2);
		my $ops = sub {
			equals_query 's';
			return join ' ',
			  map { exists $_->{error} ? 'error' : $_->{deltas}[0]{op} }
			  session->client('s')->take_batches;
		};

		run 'ALTER TABLE bid ADD more int DEFAULT 3',
		  'CREATE INDEX ON bid (thing, price DESC, id)', 'VACUUM FULL bid';
		is($ops->(), '', 'what does not concern it publishes nothing');
		run q(ALTER TABLE bid ALTER thing TYPE varchar);
		is($ops->(), 'reset', 'another type of the key is a reset');
		run q(DELETE FROM bid WHERE id = 40);
		is($ops->(), 'leave', 'and then it goes on');
		run q(ALTER TABLE bid ALTER price TYPE int USING -price);
		like($ops->(), qr/^\w+$/, 'other values are one batch');
		run 'ALTER TABLE bid REPLICA IDENTITY '
		  . ($identity eq 'FULL' ? 'DEFAULT' : 'FULL'),
		  q(DELETE FROM bid WHERE id = 1),
		  q(UPDATE bid SET thing = 'moved' WHERE id = 2);
		unlike($ops->(), qr/reset|error/, 'the other identity goes on');
		run 'ALTER TABLE bid RENAME thing TO item';
		wait_for_state s => 'error';
		run 'ALTER TABLE bid RENAME item TO thing';
		wait_for_state s => 'live';
		is($ops->(), 'error reset', 'without its key it is in error');
		run 'TRUNCATE bid', q{INSERT INTO bid VALUES (1, 'a', 1)};
		is($ops->(), 'leave enter', 'all groups are left at once');
	};
}

scenario 'groups', 'a stream has what is notified' => sub {
	bids('DEFAULT');
	LiveTopn::Stream::create_slot(server, 'groups');
	session->subscribe('s', $numbered, limit => 2, deliver => 'both');
	my $stream =
	  LiveTopn::Stream->start(server, 'groups', subscriptions => 's');

	run q(UPDATE bid SET thing = 't1' WHERE id = 40),
	  q(INSERT INTO bid VALUES (41, 'new', 1)),
	  q(DELETE FROM bid WHERE thing IS NULL), 'TRUNCATE bid';
	session->sync;
	my @batches = session->client('s')->batches;
	my @lines = $stream->wait_for(sub { @_ >= @batches }, 'all batches');
	is_deeply(\@lines, [ map { $_->{json} } @batches ],
		'line by line');
	$stream->stop;
	equals_query 's';
};

done_testing();
