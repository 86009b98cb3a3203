# A server that is not set up: the message names the setting and its value, and
# once it is changed everything works.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use Test::More;

use LiveTopn::Server qw(sqlstate_of);

my $query = 'SELECT id FROM items ORDER BY id LIMIT 3';
my $subscribe = "SELECT subscribe_topn('$query', 's')";

# Settings that are wrong, what the message says, and what cures it.
my @cases = (
	{
		name => 'preload',
		conf => q(shared_preload_libraries = ''),
		message => qr/shared_preload_libraries/,
		cure => q(shared_preload_libraries = 'live_topn'),
		restart => 1
	},
	{
		name => 'wal_level',
		conf => 'wal_level = replica',
		message => qr/wal_level.*replica/s,
		cure => 'wal_level = logical',
		restart => 1
	},
	{
		name => 'output_plugin_libraries',
		conf => q(output_plugin_libraries = 'pgoutput, test_decoding'),
		message => qr/output_plugin_libraries/,
		cure => q(output_plugin_libraries =
			'pgoutput, test_decoding, live_topn'),
		unless => sub { !LiveTopn::Server::knows_setting($_[0]) }
	});

for my $case (@cases)
{
	my $name = $case->{name};

  SKIP:
	{
		skip "the server has no $name", 1
		  if $case->{unless} && $case->{unless}->($name);
		subtest $name => sub { play($case) };
	}
}
done_testing();

sub play
{
	my ($case) = @_;
	my $server = LiveTopn::Server->start(
		$case->{name},
		conf => $case->{conf},
		extension => 0);
	my $dbh = $server->connect;
	my ($state, $message) = sqlstate_of($dbh, 'CREATE EXTENSION live_topn');

	if ($state)
	{
		like($message, $case->{message},
			'CREATE EXTENSION says what is missing');
	}
	else
	{
		$dbh->do('CREATE TABLE items (id int PRIMARY KEY)');
		($state, $message) = sqlstate_of($dbh, $subscribe);
		is($state, '55000', 'subscribing is refused');
		like($message, $case->{message}, 'and says what is missing');
	}

	$server->node->append_conf('postgresql.conf', $case->{cure} =~ s/\s+/ /gr);
	if   ($case->{restart}) { $server->node->restart; }
	else                    { $server->set; }
	$dbh = $server->connect;
	$dbh->do('CREATE EXTENSION IF NOT EXISTS live_topn');
	$dbh->do('CREATE TABLE IF NOT EXISTS items (id int PRIMARY KEY)');
	$dbh->do('INSERT INTO items VALUES (1)');
	my $session = $server->session;
	$session->subscribe('s', $query);
	is($session->difference('s'), undef, 'it works with the setting');
	return;
}
