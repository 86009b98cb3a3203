# From every version whose script is installed, ALTER EXTENSION UPDATE leads to
# what CREATE EXTENSION makes, and subscriptions go on.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use Test::More;

use LiveTopn::Server qw(poll_until);

my $server = LiveTopn::Server->start('upgrade', extension => 0);
my $newest = $server->connect->selectrow_array(
	"SELECT default_version FROM pg_available_extensions
	 WHERE name = 'live_topn'");
my @versions = @{ $server->connect->selectcol_arrayref(
		"SELECT version FROM pg_available_extension_versions
		 WHERE name = 'live_topn' ORDER BY version") };

# All that belongs to the extension, with all that can be said about it.
sub members
{
	my ($dbh) = @_;

	return $dbh->selectcol_arrayref(<<'EOQ');
WITH member AS (
	SELECT classid, objid FROM pg_depend
	WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e'
		AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'live_topn')
)
SELECT concat_ws(E'\n', pg_describe_object(classid, objid, 0),
		obj_description(objid, classid::regclass::name),
		pg_get_functiondef(p.oid), p.proacl,
		pg_get_viewdef(c.oid), c.reloptions, c.relacl, c.relreplident,
		(SELECT string_agg(concat_ws(' ', attname,
					format_type(atttypid, atttypmod), attnotnull, attstorage),
				', ' ORDER BY attnum)
			FROM pg_attribute
			WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped),
		(SELECT string_agg(pg_get_indexdef(indexrelid), ', ' ORDER BY 1)
			FROM pg_index WHERE indrelid = c.oid),
		(SELECT string_agg(concat_ws(' ', pg_get_triggerdef(oid), tgenabled),
				', ' ORDER BY tgname)
			FROM pg_trigger WHERE tgrelid = c.oid),
		(SELECT 'dumped' FROM pg_extension
			WHERE extname = 'live_topn' AND c.oid = ANY (extconfig)))
FROM member
	LEFT JOIN pg_proc p ON classid = 'pg_proc'::regclass AND p.oid = objid
	LEFT JOIN pg_class c ON classid = 'pg_class'::regclass AND c.oid = objid
ORDER BY 1
EOQ
}

# All columns but those that a version has not.
sub subscriptions
{
	my ($dbh) = @_;

	return $dbh->selectcol_arrayref(
		'SELECT concat_ws(E\'\n\', name, owner, query, args, deliver, ranks,
			cushion, throttle, lease, "offset", "limit")
		 FROM topn_subscriptions ORDER BY name');
}

sub create_database
{
	my ($name, $version) = @_;

	$server->connect->do("CREATE DATABASE $name");
	my $dbh = $server->connect($name);
	$dbh->do('SET client_min_messages = warning');
	$dbh->do("CREATE EXTENSION live_topn VERSION '$version'");
	return $dbh;
}

my $wanted = members(create_database('fresh', $newest));
cmp_ok(@$wanted, '>=', 20, 'the newest version has members');
cmp_ok(@versions, '>=', 1, 'there are versions');

for my $version (@versions)
{
	my $name = 'from_' . ($version =~ s/\W/_/gr);
	my $dbh = create_database($name, $version);

	$dbh->do('CREATE TABLE item (id int PRIMARY KEY, score int)');
	$dbh->do('INSERT INTO item SELECT i, i FROM generate_series(1, 10) i');
	$dbh->do(<<'EOQ');
SELECT subscribe_topn('SELECT id FROM item ORDER BY score DESC LIMIT 3', 'best'),
	subscribe_topn('SELECT id FROM item WHERE id > $1 ORDER BY id LIMIT 3',
		'some', args => '{4}', deliver => 'none', ranks => 'absolute',
		cushion => 7, throttle => '1 ms', lease => '1 day')
EOQ
	$dbh->do('INSERT INTO item VALUES (11, 11)');
	my ($seq) = $dbh->selectrow_array(q{SELECT seq FROM topn_snapshot('best')});
	my $before = subscriptions($dbh);

	$dbh->do("ALTER EXTENSION live_topn UPDATE TO '$newest'");
	is_deeply(members($dbh), $wanted,
		"from $version: the same as CREATE EXTENSION makes");
	is_deeply(subscriptions($dbh), $before, "from $version: subscriptions");

	$dbh->do('INSERT INTO item VALUES (12, 12)');
	my $batches = $dbh->selectcol_arrayref(
		q{SELECT batch->>'deltas' FROM topn_poll('best', ?) batch},
		undef, $seq);
	is_deeply(
		$batches,
		[
			'[{"op":"leave","pos":3,"key":{"id":9}},'
			  . '{"op":"enter","pos":1,"key":{"id":12},"row":{"id":12}}]'
		],
		"from $version: the next batch");
}
done_testing();
