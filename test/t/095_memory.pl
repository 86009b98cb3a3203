# The memory that rows take which are held, and that it is given back.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use Test::More;

use LiveTopn::Process qw(memory_kb);
use LiveTopn::Scenario;
use LiveTopn::Server qw(poll_until);

use_server(LiveTopn::Server->start('memory'));

my $rows = 5_000;

# The bound that doc/operations.md gives.
sub within_bound
{
	my ($name, $what) = @_;

	session->sync;
	my ($held, $bytes, $own) = writer->selectrow_array(
		'SELECT held_rows, bytes, row_bytes FROM topn_stats WHERE name = ?',
		undef, $name);
	cmp_ok($held, '>=', $rows, "$what: all are held");
	cmp_ok($bytes, '<=', 1.5 * $own + 64 * $held, "$what: they are small");
	cmp_ok($bytes, '>=', $own + 40 * $held, '... but not smaller than rows are');
	return;
}

# "id" and columns as given, of $rows rows.
sub table_of
{
	my ($columns, $values, $key) = @_;

	run "CREATE TABLE items (id int $key $columns)",
	  "INSERT INTO items SELECT g $values FROM generate_series(1, $rows) g";
	return;
}

my %tables = (
	'one column' => [ '', '' ],
	'a short text' => [ ', score int, name text', q{, g % 100, 'player ' || g} ],
	'texts of many lengths' =>
	  [ ', name text', q{, repeat(chr(97 + g % 26), g % 1500)} ]);

foreach my $what (sort keys %tables)
{
	scenario 'bound', $what => sub {
		table_of(@{ $tables{$what} }, 'PRIMARY KEY');
		subscribe s => "SELECT * FROM items ORDER BY id LIMIT $rows";
		within_bound s => $what;
		my ($own) = writer->selectrow_array(
			q{SELECT row_bytes FROM topn_stats WHERE name = 's'});
		my ($in_table) = writer->selectrow_array(
			'SELECT sum(pg_column_size(i.*)) FROM items i');
		cmp_ok(abs($own - $in_table), '<', $in_table / 1000,
			'their own size is what they take in the table');

		# Half of them leave, and as many others come; not faster than the
		# memory of those that have gone can be used again.
		for (0 .. 49)
		{
			run "UPDATE items SET id = -id WHERE id % 100 = $_";
			session->sync;
		}
		within_bound s => "$what, changed";
		equals_query 's';
	};
}

scenario 'bound', 'no key' => sub {
	table_of(', score int', ', g % 10', '');
	run 'ALTER TABLE items REPLICA IDENTITY FULL';
	session->subscribe('s', "SELECT * FROM items ORDER BY id LIMIT $rows",
		keyless => 1);
	within_bound s => 'no key';
};

scenario 'returned', 'what a subscription took' => sub {
	table_of(', score int', ', hashint4(g)', 'PRIMARY KEY');
	run "INSERT INTO items SELECT g, 1
		FROM generate_series($rows + 1, 60000) g";
	subscribe few => 'SELECT id FROM items ORDER BY id LIMIT 5';
	my ($worker) = writer->selectrow_array('SELECT pid FROM topn_worker
		WHERE database = current_database()');
	my $before = memory_kb($worker);

	writer->do('SELECT subscribe_topn(?, ?, deliver => ?)',
		undef, 'SELECT id FROM items ORDER BY id LIMIT 55000', 'many', 'none');
	subscribe late => 'SELECT id FROM items ORDER BY id LIMIT 6';
	session->sync;
	my ($bytes) = writer->selectrow_array(
		q{SELECT bytes FROM topn_stats WHERE name = 'many'});
	cmp_ok($bytes, '>', 5_000_000, 'it takes much');
	# of which the C library may have had some from the scenarios before
	cmp_ok(memory_kb($worker), '>', $bytes / 1024, '... really');
	writer->do(q{SELECT unsubscribe_topn('many')});
	session->sync;
	ok(poll_until(sub { memory_kb($worker) < $before + $bytes / 1024 / 2 }),
		'the operating system has it again');
	ids_are late => '1 2 3 4 5 6';
};

done_testing();
