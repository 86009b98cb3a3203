# Catalogs change while a query is being looked at: what it depends on is not
# known yet, or is about to be found out.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use Test::More;

use LiveTopn::RefillStops;
use LiveTopn::Scenario;
use LiveTopn::Server qw(poll_until);

use_server(
	LiveTopn::Server->start(
		'meanwhile',
		conf => "live_topn.slice_offset = 5
live_topn.debug_refill_stops = on
"));

# Return once the worker has seen all that is committed.
sub decoded
{
	my ($here) =
	  writer->selectrow_array('SELECT pg_current_wal_flush_lsn()');

	poll_until(
		sub {
			writer->selectrow_array(
				'SELECT applied_lsn >= ?::pg_lsn FROM topn_worker
				 WHERE database = current_database()', undef, $here);
		},
		'the worker to decode all');
	return;
}

# Run statements while refills stand before a gate, the first of them by itself.
sub run_meanwhile
{
	my ($gate, $first, @statements) = @_;
	my $stops = LiveTopn::RefillStops->new(server);

	$stops->hold($gate);
	run $first;
	$stops->wait_for($gate);
	run @statements;
	decoded();
	$stops->release_all;
	return;
}

sub snapshot_is_right
{
	my ($query, $what) = @_;

	session->sync;
	my ($rows) = writer->selectrow_array(
		"SELECT string_agg((entry->'row')::text, ' ')
		 FROM topn_snapshot('s'), json_array_elements(rows) entry");
	my ($truth) = writer->selectrow_array(
		"SELECT string_agg(row_to_json(q)::text, ' ') FROM ($query) q");
	is($rows, $truth, $what);
	return;
}

# A statement that makes it.
sub function
{
	my ($expression) = @_;

	return "CREATE OR REPLACE FUNCTION f(int) RETURNS int LANGUAGE plpgsql
		IMMUTABLE AS 'BEGIN RETURN $expression; END'";
}

for my $page (
	[ 'the first rows' => 'LIMIT 5', LiveTopn::RefillStops::BEFORE_ANSWER ],
	[ 'no rows' => 'LIMIT 5 OFFSET 6', LiveTopn::RefillStops::BEFORE_QUERY ])
{
	my ($read, $limit, $gate) = @$page;
	my $query = "SELECT id, f(score) FROM items ORDER BY f(score), id $limit";

	scenario "function, $read",
	  "it is replaced while a new query is analysed and $read are read" =>
	  sub {
		base_table();
		run function('$1 % 7');
		run_meanwhile $gate,
		  "SELECT subscribe_topn('$query', 's', deliver => 'none')",
		  function('-($1 % 11)');
		snapshot_is_right $query, 'the first result';
		run 'UPDATE items SET score = score + 1 WHERE id < 10';
		snapshot_is_right $query, 'and the next one';
	  };
}

scenario 'role', 'a new query is not allowed any more when it is read' => sub {
	base_table();
	run 'CREATE ROLE ann LOGIN', 'CREATE ROLE staff',
	  'GRANT staff TO ann', 'GRANT SELECT ON items TO staff';
	my $ann = server->connect('postgres', user => 'ann');
	my $stops = LiveTopn::RefillStops->new(server);

	$stops->hold(LiveTopn::RefillStops::BEFORE_ANSWER);
	$ann->do("SELECT subscribe_topn('SELECT id FROM items ORDER BY id
		LIMIT 3', 's', deliver => 'none')");
	$stops->wait_for(LiveTopn::RefillStops::BEFORE_ANSWER);
	run 'REVOKE staff FROM ann';
	decoded();
	$stops->release_all;
	wait_for_state s => 'error';
	run 'GRANT staff TO ann';
	wait_for_state s => 'live';
};

scenario 'result_memory', 'cushions are given up while a query is checked' =>
  sub {
	my $query = 'SELECT id, body FROM v ORDER BY score LIMIT 5';

	run 'CREATE TABLE items (id int PRIMARY KEY, score int, body text)',
	  "INSERT INTO items SELECT g, g, repeat('x', 100)
		FROM generate_series(1, 5000) g",
	  'CREATE VIEW v AS SELECT * FROM items WHERE id % 2 = 0';
	subscribe s => $query, cushion => 1500;
	equals_query 's';
	my $stops = LiveTopn::RefillStops->new(server);

	$stops->hold(LiveTopn::RefillStops::BEFORE_LOCK);
	run 'CREATE OR REPLACE VIEW v AS SELECT * FROM items WHERE id % 2 = 1';
	$stops->wait_for(LiveTopn::RefillStops::BEFORE_LOCK);
	server->set('live_topn.result_memory' => '100kB');
	run q{INSERT INTO items VALUES (-1, -1, 'y')};
	decoded();
	$stops->release_all;
	equals_query 's';
	server->set('live_topn.result_memory' => undef);
  };

done_testing();
