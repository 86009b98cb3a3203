# Checkpoint and replay: what clients see when workers and servers go down.
#
# Writers write and move the pages, the worker or the server is ended at random moments, and
# LiveTopn::Shadow replays the history afterwards: each commit that changed
# the result has its batch, with its xid and the end of its commit record, and
# each batch was published once.
#
# ORACLE_SEED repeats a run, as far as time allows.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use POSIX ();
use PostgreSQL::Test::Utils;
use Test::More;

use LiveTopn::Client;
use LiveTopn::Lsn qw(lsn_cmp);
use LiveTopn::Random;
use LiveTopn::Scenario;
use LiveTopn::Server qw(poll_until);
use LiveTopn::Shadow;
use LiveTopn::Stream;
use PostgreSQL::Test::Cluster;

my $seed = $ENV{ORACLE_SEED} // 1 + int(rand(2**31));
my $random = LiveTopn::Random->new($seed);
note "ORACLE_SEED=$seed";

my $server = LiveTopn::Server->start('checkpoint',
	conf => "live_topn.checkpoint_interval = 1s\n"
	  . "restart_after_crash = on\n");
use_server($server);

my $items = 60;
my $rows = 5;    # of a result, at most
my %query = (
	best => 'SELECT id, score FROM items ORDER BY score DESC, id LIMIT 4',
	odd => 'SELECT id, score, body FROM items WHERE score % 2 = 1
		ORDER BY score, id LIMIT 3');

# Unlike base_table, with ties and values of some size.
sub create_items
{
	my ($identity) = @_;

	run "CREATE TABLE items (id int PRIMARY KEY, score int, body text)",
	  "INSERT INTO items SELECT g, g * 7 % 50, repeat('b', g)
		FROM generate_series(1, $items) g",
	  "ALTER TABLE items REPLICA IDENTITY $identity";
	return;
}

# A process that writes until the file is removed, whatever happens to the
# server.
sub start_writer
{
	my ($file, $number) = @_;
	my $pid = fork // die "could not fork: $!";

	return $pid if $pid;
	my $own = LiveTopn::Random->new($seed * 10 + $number);
	my $dbh;

	while (-e $file)
	{
		eval {
			$dbh //= $server->connect;
			my $id = $own->between(1, $items);
			my $score = $own->between(1, 50);

			if ($own->chance(2))
			{
				$dbh->do('SELECT topn_move(?, ?, ?)', undef,
					$own->pick(sort keys %query),
					$own->between(0, 8), $own->between(0, $rows));
			}
			elsif ($own->chance(20))
			{
				$dbh->do('DELETE FROM items WHERE id = ?', undef, $id);
			}
			elsif ($own->chance(40))
			{
				$dbh->do('INSERT INTO items VALUES (?, ?, ?)
					ON CONFLICT (id) DO UPDATE SET score = excluded.score',
					undef, $id, $score, "b$id");
			}
			else
			{
				$dbh->do('UPDATE items SET score = ? WHERE id BETWEEN ? AND ?',
					undef, $score, $id, $id + 1);
			}
			1;
		} or undef $dbh;
		select undef, undef, undef, 0.005;
	}
	POSIX::_exit(0);
}

# Run the code while others write.
sub while_writing
{
	my ($code) = @_;
	my $file = "$PostgreSQL::Test::Utils::tmp_check/writing_$$";

	append_to_file($file, '');
	my @pids = map { start_writer($file, $_) } 1 .. 3;
	my $done = eval { $code->(); 1 };
	my $error = $@;

	unlink $file;
	waitpid $_, 0 for @pids;
	die $error unless $done;
	return;
}

# Wait for some commits.
sub some_commits
{
	my ($n) = @_;
	my $dbh = $server->connect;
	my $start = $dbh->selectrow_array('SELECT txid_current()');

	poll_until(
		sub { $dbh->selectrow_array('SELECT txid_current()') > $start + $n },
		'commits');
	return;
}

sub crash_worker
{
	my $pid = $server->worker_pid // return;
	my $dbh = $server->connect;

	kill 'KILL', $pid;
	poll_until(sub { !eval { $dbh->do('SELECT 1') } }, 'the crash');
	poll_until(sub { eval { $server->connect } }, 'the end of crash recovery');
	return;
}

# ---- what must be seen ----

# Compare batches of a subscription, as [ lsn, xid, from, rows after ], with
# the history since the start rows.
sub compare_with_history
{
	my ($name, $shadow, $commits, $batches, $start, %options) = @_;
	my @batches = @$batches;
	my $text = $query{$name} =~ s/\bitems\b/$shadow->{copy}/r;
	my $query;
	my $prepare = sub {
		$query =
		  writer->prepare("SELECT row_to_json(q)::text FROM ($text) q");
	};
	my $truth =
	  sub { return join "\n", @{ writer->selectcol_arrayref($query) }; };
	my $shown = $start;
	my $before = $start;
	my $compared = 0;

	$prepare->();
	for my $commit (@$commits)
	{
		$shadow->replay($commit);
		if (my $page = $commit->{moves}{$name})
		{
			$text =~ s/LIMIT .*/LIMIT $page->[1] OFFSET $page->[0]/s;
			$prepare->();
		}
		my $after = $truth->();

		# a reset can be at any position; it shows what the last commit made
		while ($batches[0]
			&& $batches[0]{deltas}[0]{op} eq 'reset'
			&& lsn_cmp($batches[0]{lsn}, $commit->{lsn}) < 0)
		{
			$shown = rows_after(shift @batches);
			die "$name: a reset shows\n$shown\nquery:\n$before\n"
			  if $shown ne $before;
		}

		my $batch = $batches[0];
		if ($batch && $batch->{lsn} eq $commit->{lsn})
		{
			die "$name: batch $batch->{seq} of xid $batch->{xid},"
			  . " commit of $commit->{xid}\n"
			  if $batch->{xid} ne $commit->{xid};
			die "$name: before $batch->{json} is a change without a batch\n"
			  if $shown ne $before
			  && !defined $batch->{from}
			  && $batch->{deltas}[0]{op} ne 'reset';
			$shown = rows_after(shift @batches);
			die "$name: batch $batch->{seq}:\n$shown\nquery:\n$after\n"
			  if $shown ne $after;
			$compared++;
		}

		# commits may share a batch, or none if the last takes them back
		die "$name: the commit of $commit->{xid} at $commit->{lsn}"
		  . " has no batch\n"
		  if $after ne $shown && !$options{coalesced};
		$before = $after;
	}
	die "$name: the last changes have no batch\n" if $before ne $shown;
	die "$name: more batches than commits: $batches[0]{json}\n" if @batches;
	return $compared;
}

sub rows_after { return join "\n", map { $_->{row} } @{ $_[0]{after} }; }

# One after the other, since each replays the history.
sub verify
{
	my ($identity, %clients) = @_;
	my @commits = $clients{shadow}->commits;

	for my $name (sort keys %query)
	{
		my $client = $clients{$name};
		my $copy = "copy_$name";
		my $shadow = bless { %{ $clients{shadow} }, copy => $copy },
		  'LiveTopn::Shadow';

		run "CREATE TABLE $copy (LIKE $clients{shadow}{copy})",
		  "INSERT INTO $copy SELECT * FROM $clients{shadow}{copy}";
		my $compared = eval {
			compare_with_history(
				$name, $shadow, \@commits,
				[ $client->batches ],
				join("\n", map { $_->{row} } $client->start_entries),
				coalesced => $identity eq 'DEFAULT');
		};
		is($@, '', "$name: " . ($compared // 'not all') . ' batches are right');
		my ($resets) = writer->selectrow_array(
			'SELECT resets FROM topn_stats WHERE name = ?', undef, $name);
		my $seen =
		  grep { $_->{deltas}[0]{op} eq 'reset' } $client->batches;
		if ($identity eq 'FULL') { is($seen, 0, "$name was never reset"); }
		else                     { note "$name was reset $seen times"; }
		run "DROP TABLE $copy";
	}
	return;
}

for my $identity (qw(FULL DEFAULT))
{
	scenario 'replay', "a client stays connected, identity $identity" => sub {
		create_items($identity);
		subscribe $_ => $query{$_}, limit => $rows for sort keys %query;
		my $shadow = LiveTopn::Shadow->new(
			dbh => writer,
			table => 'items',
			key => ['id']);

		# take up the history with the snapshot
		session->begin_again($_) for sort keys %query;
		while_writing(
			sub {
				for (1 .. 6)
				{
					some_commits($random->between(1, 600));
					session->drain;
					$server->set('live_topn.debug_abandon' =>
						  $random->pick(qw(on on off)));
					$server->restart_worker;
				}
			});
		$server->set('live_topn.debug_abandon' => undef);
		session->sync;
		verify($identity, shadow => $shadow,
			map { $_ => session->client($_) } keys %query);
		$shadow->drop;
	};

	scenario 'replay', "a stream through crashes, identity $identity" => sub {
		create_items($identity);
		for my $name (sort keys %query)
		{
			run 'SELECT subscribe_topn($q$' . $query{$name}
			  . "\$q\$, '$name', deliver => 'stream', cushion => 2)";
			run "SELECT seq FROM topn_snapshot('$name')";
		}

		# the subscriptions are saved
		$server->node->restart;
		LiveTopn::Scenario::reconnect();
		LiveTopn::Stream::create_slot($server, 'out');
		my $shadow = LiveTopn::Shadow->new(
			dbh => writer,
			table => 'items',
			key => ['id']);
		my %client = (shadow => $shadow);
		for my $name (sort keys %query)
		{
			$client{$name} =
			  LiveTopn::Client->new(name => $name, limit => $rows);
			$client{$name}->start(
				writer->selectrow_array(
					'SELECT seq, lsn, rows FROM topn_snapshot(?)',
					undef, $name));
		}
		while_writing(
			sub {
				for my $round (1 .. 6)
				{
					some_commits($random->between(1, 800));
					if ($round % 2)
					{
						crash_worker();
					}
					else
					{
						$server->node->stop(
							$random->pick(qw(immediate immediate fast)));
						$server->node->start;
					}
				}
			});
		LiveTopn::Scenario::reconnect();
		writer->do(q{SELECT topn_sync('60 s')});
		for my $line (
			@{
				writer->selectcol_arrayref(
					"SELECT data FROM pg_logical_slot_get_changes('out', NULL,
						NULL, 'subscriptions', 'best,odd')")
			})
		{
			my ($name) = $line =~ /^\{"sub":"(\w+)"/;
			$client{$name}->receive_batch($line);
		}
		$shadow->{dbh} = writer;
		verify($identity, %client);
		$shadow->drop;
		run "SELECT pg_drop_replication_slot('out')";
	};
}

# ---- the file ----

my $dboid =
  $server->connect->selectrow_array(
	'SELECT oid FROM pg_database WHERE datname = current_database()');
my $path = $server->node->data_dir . "/live_topn/$dboid";

sub read_file { return slurp_file($path); }

sub write_file
{
	my ($bytes) = @_;
	open my $file, '>', $path or die "could not write $path: $!";
	binmode $file;
	print $file $bytes;
	close $file;
	return;
}

my %damage = (
	'cut off' => sub { substr $_[0], 0, length($_[0]) - 7 },
	'cut off after its header' => sub { substr $_[0], 0, 512 },
	'empty' => sub { '' },
	'a bit of it wrong' => sub {
		my ($bytes) = @_;
		vec($bytes, 8 * 600 + 3, 1) ^= 1;
		return $bytes;
	},
	'a bit of its header wrong' => sub {
		my ($bytes) = @_;
		vec($bytes, 8 * 20, 1) ^= 1;
		return $bytes;
	},
	'of another version' => sub {
		my ($bytes) = @_;
		substr($bytes, 4, 4) = pack 'L', 99;
		return $bytes;
	});

for my $how (sort keys %damage)
{
	scenario 'file', "it is $how" => sub {
		base_table();
		subscribe s => $query{best} =~ s/, body//r;
		run 'UPDATE items SET score = 1000 WHERE id = 1';
		session->sync;
		my $log_start = -s $server->node->logfile;
		my $pid = $server->worker_pid;

		damage_and_restart($damage{$how});
		run 'UPDATE items SET score = 1001 WHERE id = 2';
		wait_for_state s => 'live';
		session->sync;
		my @ops = map { $_->{deltas}[0]{op} } session->client('s')->batches;
		is_deeply([ grep { $_ eq 'reset' } @ops ], ['reset'], 'one reset');
		equals_query 's';
		like(
			slurp_file($server->node->logfile, $log_start),
			qr/WARNING:  file "live_topn\/$dboid" is damaged/,
			'a warning');
	};
}

# The worker saves its windows as it ends.
sub damage_and_restart
{
	my ($damage) = @_;

	$server->without_worker(sub { write_file($damage->(read_file())) });
	return;
}

scenario 'file', 'its end is torn' => sub {
	base_table();
	subscribe s => $query{best} =~ s/, body//r;
	run 'UPDATE items SET score = 1000 WHERE id = 1';
	saw s => 'leave 17 at 4, enter 1 at 1';

	# the worker dies while it appends a window that nobody knows yet
	damage_and_restart(sub { $_[0] . substr $_[0], 512, 100 });
	subscribe t => 'SELECT id FROM items ORDER BY id LIMIT 1';
	$server->set('live_topn.debug_abandon' => 'on');
	$server->restart_worker;
	run 'UPDATE items SET score = 1001 WHERE id = 2',
	  'DELETE FROM items WHERE id = 1';
	saw s => 'leave 18 at 4, enter 2 at 1',
	  'leave 1 at 2, enter 18 at 4';
	saw t => 'leave 1 at 1, enter 2 at 1';
	$server->set('live_topn.debug_abandon' => undef);
};

scenario 'file', 'another slot' => sub {
	base_table();
	subscribe s => $query{best} =~ s/, body//r;
	run 'UPDATE items SET score = 1000 WHERE id = 1';
	session->sync;
	damage_and_restart(
		sub {
			$server->connect('template1')
			  ->do("SELECT pg_drop_replication_slot('live_topn_$dboid')");
			return $_[0];
		});
	run 'UPDATE items SET score = 1001 WHERE id = 2';
	wait_for_state s => 'live';
	session->sync;
	my @resets =
	  grep { $_->{deltas}[0]{op} eq 'reset' } session->client('s')->batches;
	is(scalar @resets, 1, 'one reset');
	cmp_ok($resets[0]{seq}, '>', 1000,
		'whose number is beyond all that were lost');
	equals_query 's';
};

scenario 'file', 'it cannot be written' => sub {
	base_table();
	subscribe s => $query{best} =~ s/, body//r;
	run 'UPDATE items SET score = 1000 WHERE id = 1';
	session->sync;
	my $pid = $server->worker_pid;
	my $log_start = -s $server->node->logfile;
	my $saved = "$path.saved";
	my $flushed = 'SELECT confirmed_flush_lsn FROM pg_replication_slots
		WHERE slot_name = ?';

	# a directory in its place: the new file cannot be renamed
	rename $path, $saved or die "could not rename $path: $!";
	mkdir $path or die "could not create $path: $!";
	run 'UPDATE items SET score = 1001 WHERE id = 2';
	poll_until(
		sub {
			slurp_file($server->node->logfile, $log_start) =~
			  /WARNING:  could not \w+ file "live_topn/;
		},
		'a warning');
	run 'UPDATE items SET score = 1002 WHERE id = 3';
	equals_query 's';
	is($server->worker_pid, $pid, 'the worker goes on');
	my ($lsn) = writer->selectrow_array($flushed, undef, "live_topn_$dboid");

	rmdir $path or die "could not remove $path: $!";
	poll_until(
		sub {
			my ($now) =
			  writer->selectrow_array($flushed, undef, "live_topn_$dboid");
			return -f $path && lsn_cmp($now, $lsn) > 0;
		},
		'the file to be written again');
	pass('and saves when it can');
	unlink $saved;
	crash_worker();
	LiveTopn::Scenario::reconnect();
	session->listen('s', $query{best} =~ s/, body//r);
	session->begin('s');
	saw 's';
	equals_query 's';
};

# ---- failover ----

scenario 'B40', 'a standby is promoted' => sub {
	my $primary = LiveTopn::Server->start('primary',
		conf => "live_topn.checkpoint_interval = 1s\n");
	my $dbh = $primary->connect;
	my $top = $query{best} =~ s/\s+/ /gr;
	my $client = LiveTopn::Client->new(name => 's', limit => 4);
	my $oid = $dbh->selectrow_array('SELECT oid FROM pg_database
		WHERE datname = current_database()');
	my $file = "live_topn/$oid";
	my $poll = sub {
		my ($connection) = @_;
		my @batches = @{
			$connection->selectcol_arrayref(q{SELECT topn_poll('s', ?)},
				undef, $client->seq)
		};

		$client->receive_batch($_) for @batches;
		return scalar @batches;
	};

	$dbh->do('CREATE TABLE items (id int PRIMARY KEY, score int)');
	$dbh->do('INSERT INTO items SELECT g, g FROM generate_series(1, 20) g');
	$dbh->do('SELECT subscribe_topn(?, ?)', undef, $top, 's');
	$client->start(
		$dbh->selectrow_array(q{SELECT seq, lsn, rows FROM topn_snapshot('s')}));
	$dbh->do("UPDATE items SET score = 100 + $_ WHERE id = $_") for 1 .. 3;
	$poll->($dbh);
	poll_until(sub { -s $primary->node->data_dir . "/$file" > 700 },
		'a checkpoint');

	my $standby = PostgreSQL::Test::Cluster->new('standby');
	$primary->node->backup('backup');
	$standby->init_from_backup($primary->node, 'backup', has_streaming => 1);
	ok(-e $standby->data_dir . "/$file", 'the file of the primary is there');
	$standby->start;
	$dbh->do("UPDATE items SET score = 200 + $_ WHERE id = $_") for 1 .. 3;
	$poll->($dbh);
	my $seq = $client->seq;
	$primary->node->wait_for_catchup($standby, 'replay');
	is(slurp_file($standby->logfile) =~ /ERROR|FATAL|PANIC|WARNING/ ? 1 : 0,
		0, 'nothing is wrong on the standby');

	$primary->node->stop('immediate');
	$standby->promote;
	my $new = bless { node => $standby }, 'LiveTopn::Server';
	poll_until(sub { $new->worker_pid }, 'a worker on the new primary');
	$dbh = $new->connect;
	$dbh->do('UPDATE items SET score = 300 WHERE id = 4');
	is($poll->($dbh), 1, 'a client that goes on there');
	my ($batch) = ($client->batches)[-1];
	is($batch->{deltas}[0]{op}, 'reset', 'is reset');
	cmp_ok($batch->{seq}, '>', $seq + 1000, 'with a number beyond all others');
	$dbh->do('UPDATE items SET score = 400 WHERE id = 5');
	is($poll->($dbh), 1, 'and continues');
	is( join("\n", $client->rows),
		join(
			"\n",
			@{
				$dbh->selectcol_arrayref(
					"SELECT row_to_json(q)::text FROM ($top) q")
			}),
		'with the right result');
	$dbh->disconnect;
	$standby->stop;
};

done_testing();
