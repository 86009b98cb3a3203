# What the worker reads may be damaged or forged: messages in WAL, the file of
# windows, the file with the secret.  It never crashes, and results stay right.
#
# ORACLE_SEED repeats a run, DAMAGES is the number of damages of each kind.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use PostgreSQL::Test::Utils;
use Test::More;

use LiveTopn::Random;
use LiveTopn::Scenario;
use LiveTopn::Server qw(poll_until write_file);

my $seed = $ENV{ORACLE_SEED} // 1 + int(rand(2**31));
my $damages = $ENV{DAMAGES} // 30;
my $random = LiveTopn::Random->new($seed);
note "ORACLE_SEED=$seed";

my $server = LiveTopn::Server->start('damage');
use_server($server);

my $top = 'SELECT id, score FROM items ORDER BY score DESC, id LIMIT 3';
my $folder = $server->node->data_dir . '/live_topn';

# ---- messages ----

my @numbers = (
	0, 1, 2, 3, 99, -1, 2147483648, 9223372036854775807,
	'-9223372036854775808', '99999999999999999999999', '', 'x', '1x', '0x1',
	'1.5', "\t1", "1\n");

# A message that may be like ours.
sub message
{
	my ($secret) = @_;
	my $ids = writer->selectcol_arrayref('SELECT id FROM live_topn.subscription');
	my $text = join ' ', $random->pick(qw(R P B X r), '', 'RR'),
	  $secret,
	  map { $random->pick(@numbers, @$ids, @$ids, @$ids) }
	  1 .. $random->pick(0 .. 7, 500);

	$text .= $random->pick('', ' ', ' s{"sub":"s"}', ' s', " s{\"sub\":\n}",
		'x' x 100_000);
	$text = substr $text, 0, $random->below(1 + length $text)
	  if $random->chance(20);
	$text =~ s/ /\0/ if $random->chance(10);
	return $text;
}

sub emit
{
	my ($dbh, $text) = @_;
	my $sth = $dbh->prepare_cached(
		'SELECT pg_logical_emit_message(?, ?, ?::bytea)');

	$sth->bind_param(1, $random->chance(80) ? 't' : 'f');
	$sth->bind_param(2,
		$random->pick(('live_topn') x 6, 'live_top', 'live_topn2', ''));
	$sth->bind_param(3, $text, { pg_type => DBD::Pg::PG_BYTEA() });
	$sth->execute;
	$sth->finish;
	return;
}

for my $who ('mallory', 'one who knows the secret')
{
	scenario 'messages', "of $who" => sub {
		my $forged = $who ne 'mallory';
		my $secret = $forged ? int slurp_file("$folder/secret") : 4711;

		base_table();
		run 'CREATE ROLE mallory LOGIN';
		subscribe $_ => $top for qw(s t);
		run q{SELECT unsubscribe_topn('s')};
		session->forget('s');
		subscribe s => $top, deliver => 'both';
		run q{SELECT pg_create_logical_replication_slot('out', 'live_topn')};
		my $worker = $server->worker_pid;
		my $dbh =
		  $server->connect('postgres', user => $forged ? undef : 'mallory');

		for my $i (1 .. 10 * $damages)
		{
			emit($dbh, message($secret));
			run "UPDATE items SET score = $i WHERE id = 1 + $i % 20"
			  if $i % 10 == 0;
		}
		$dbh->disconnect;
		is(scalar writer->selectrow_array(q{SELECT count(*) >= 0
				FROM pg_logical_slot_get_changes('out', NULL, NULL,
					'subscriptions', 's')}), 1, 'a consumer survives');
		is($server->worker_pid, $worker, 'the worker survives');
		equals_query 's', 't' unless $forged;

		# which reads them again
		$server->node->stop('immediate');
		$server->node->start;
		LiveTopn::Scenario::reconnect();
		for my $name (qw(s t))
		{
			session->listen($name, $top);
			session->begin($name);
			equals_query $name;
		}
		run q{SELECT pg_drop_replication_slot('out')}, 'DROP ROLE mallory';
	};
}

# ---- the file of windows ----

# One of many ways to damage bytes.
sub damage
{
	my ($bytes) = @_;
	my $length = length $bytes;
	my $at = $random->below($length);
	my $some = $random->pick(1, 2, 4, 8, 100);

	return $random->pick(
		sub { substr $bytes, 0, $at },
		sub { substr($bytes, $at, $some) = "\xff" x $some; $bytes },
		sub { substr($bytes, $at, $some) = "\0" x $some; $bytes },
		sub { substr($bytes, $at, 1) ^= chr(1 << $random->below(8)); $bytes },
		sub { substr($bytes, $at, 8) = pack 'q', $random->pick(-1, 2**30, 2**31,
				2**40, 2**62); $bytes },
		sub { substr($bytes, $at, $some) = ''; $bytes },
		sub { substr($bytes, $at, 0) = substr $bytes, $at, $some; $bytes },
		sub { $bytes . $bytes },
		sub { $bytes . substr $bytes, 512 },
		sub { join '', map { chr $random->below(256) } 1 .. $length },
		sub { "\0" x $length }
	)->();
}

scenario 'file', 'damaged anywhere' => sub {
	my ($dboid) = writer->selectrow_array(
		'SELECT oid FROM pg_database WHERE datname = current_database()');
	my $path = "$folder/$dboid";

	run 'CREATE TABLE items (id int PRIMARY KEY, score int, body text)',
	  q{INSERT INTO items SELECT g, g, repeat('x', g) FROM generate_series(1, 99) g};
	subscribe best => 'SELECT id, body FROM items ORDER BY score DESC LIMIT 5';
	subscribe odd => 'SELECT id FROM items WHERE score % 2 = 1
		ORDER BY body LIMIT 9', cushion => 20;
	subscribe held => $top, throttle => '1 hour';
	session->sync;
	for my $i (1 .. $damages)
	{
		run "UPDATE items SET score = 1000 + $i WHERE id = 1 + $i * 7 % 99";
		session->sync;
		$server->without_worker(
			sub {
				my $bytes = slurp_file($path);

				# kept, should the worker not survive
				write_file("$path.damaged", damage($bytes));
				rename "$path.damaged", $path or die "$path: $!";
			});
		run "UPDATE items SET score = 2000 + $i WHERE id = 1 + $i * 5 % 99";
		session->sync;
		for my $name (qw(best odd held))
		{
			# publishes what is held back
			session->snapshot($name);
			my $difference = session->difference($name) // next;

			fail("$name after damage $i");
			diag $difference;
		}
	}
	pass("$damages damages");
	unlike(slurp_file($server->node->logfile),
		qr/PANIC|TRAP|terminated by signal|XX000/, 'nothing worse');
};

# ---- the secret ----

my %secrets = (
	'empty' => '',
	'no number' => "secret\n",
	'too large' => "99999999999999999999999999\n",
	'negative' => "-000000000000000005\n",
	'cut off' => "1234567890\n",
	'binary' => "\0\1\2\xff" x 100,
	'another' => "1234567890123456789\n",
	'missing' => undef);

for my $how (sort keys %secrets)
{
	scenario 'secret', "it is $how" => sub {
		base_table();
		subscribe s => $top, deliver => 'both';
		run q{SELECT pg_create_logical_replication_slot('out', 'live_topn')};
		$server->node->stop;
		if (defined $secrets{$how})
		{
			write_file("$folder/secret", $secrets{$how});
		}
		else
		{
			unlink "$folder/secret";
		}
		$server->node->start;
		LiveTopn::Scenario::reconnect();
		session->listen('s', $top);
		session->begin('s');
		run 'UPDATE items SET score = 1000 WHERE id = 1';
		saw s => 'leave 18 at 3, enter 1 at 1';
		run q{SELECT topn_resync('s')};
		saw s => 'reset';
		equals_query 's';
		is( scalar writer->selectrow_array(
				q{SELECT count(*) FROM pg_logical_slot_get_changes('out', NULL,
					NULL, 'subscriptions', 's')}),
			2, 'a consumer sees all');
		like(slurp_file("$folder/secret"), qr/^[0-9]{19}\n\z/,
			'there is a secret');
		run q{SELECT pg_drop_replication_slot('out')};
	};
}

done_testing();
