# Oracle B: several writers at once, and the history replayed independently.
#
# Each round lets several processes run random transactions on a random table
# that is subscribed to with small cushions, while refills are delayed at every
# step.  Afterwards LiveTopn::Shadow replays the commits in their order, and the
# query runs on the copy after each of them.  The batches that were published
# must produce just these results:
#
#  * a commit that changes the result has one batch, with its xid and the end
#    of its commit record, and no other commit has one;
#  * a batch that covers several commits ("from") is right at the last one, and
#    comes only with a throttle and where the old version of a row can be
#    unknown: with a key as replica identity, or up to a TRUNCATE;
#  * nothing else comes of it if the database worker dies, again and again, at
#    any moment; only where commits may share a batch without a throttle, a
#    reset may take its place;
#  * a snapshot shows the result at its lsn, and after the batch of its seq.
#
# ORACLE_SEED, ORACLE_COMMITS, ORACLE_SECONDS as for oracle A.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use POSIX ();
use List::Util qw(max);
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

use LiveTopn::Generator;
use LiveTopn::Lsn qw(lsn_cmp);
use LiveTopn::Query;
use LiveTopn::Random;
use LiveTopn::Server qw(poll_until);
use LiveTopn::Session;
use LiveTopn::Shadow;

my $seed = $ENV{ORACLE_SEED} // 1 + int(rand(2**31));
my $commits_left = $ENV{ORACLE_COMMITS} // 10_000;
my $deadline = time() + ($ENV{ORACLE_SECONDS} // 60);

# groups that are not touched: all are dropped, many, or none
my $group_memory = $ENV{GROUP_MEMORY} // ('0', '1kB', '256MB')[$seed % 3];

use constant WRITERS => 4;
use constant TRANSACTIONS_PER_WRITER => 60;

# without autovacuum, whose ANALYZE may be the first of the commits that a batch
# covers
my $server = LiveTopn::Server->start('oracle_b',
	conf => "deadlock_timeout = 20ms
autovacuum = off
"
	  . "live_topn.group_memory = $group_memory
");
my $dbh = $server->connect;
my @trace;    # of the replay: commits, results, batches
my %unranked;    # subscriptions whose rows have no positions
my $throttle;    # of most in the round, which then may share; or undef
my %total = (
	commits => 0,
	batches => 0,
	coalesced => 0,
	resets => 0,
	snapshots => 0,
	shared => 0,
	throttled => 0,
	grouped => 0,
	deaths => 0);

$dbh->do(LiveTopn::Generator->prepare_database);

note "first round: ORACLE_SEED=$seed";
for (my $round = $seed; $commits_left > 0 && time() < $deadline; $round++)
{
	my $failure = play_round($round);

	next unless defined $failure;
	fail("round $round");
	diag "to repeat: ORACLE_SEED=$round ORACLE_COMMITS=1\n$failure";
	last;
}

pass("$total{commits} commits, $total{batches} batches,"
	  . " $total{coalesced} commits that share one, $total{snapshots}"
	  . " snapshots, $total{deaths} deaths of the worker, $total{resets} resets,"
	  . " $total{shared} subscriptions that shared rows in the end"
	  . " ($total{throttled} with a throttle, $total{grouped} grouped)"
	  . " from seed $seed");
cmp_ok($total{batches}, '>', 0, 'some commits changed some result');
done_testing();

sub play_round
{
	my ($round) = @_;
	my $random = LiveTopn::Random->new($round);
	my $generator = LiveTopn::Generator->new(
		random => $random,
		truncate => $random->chance(30));
	my $session = $server->session;
	my $deadly = $random->chance(40);
	my (@setup, %watched, $shadow);

	@trace = ();
	$throttle =
	  $random->chance(40) ? $random->pick('1 ms', '20 ms', '1 s') : undef;
	$session->dbh->do('SET client_min_messages = warning');
	$server->set(
		'live_topn.debug_refill_delay' => $random->pick(0, 5, 20, 100),
		'live_topn.checkpoint_interval' =>
		  $deadly ? $random->pick(qw(1ms 10ms 100ms 1min)) : '1min',
		'live_topn.slice_offset' => $random->pick(2, 2, 1000),
		'live_topn.group_memory' => undef,
		'live_topn.debug_abandon' => 'on',
		'live_topn.request_timeout' => '2min');
	my $played = eval {
		@setup = $generator->create_table;
		$dbh->do($_) for @setup;
		$shadow = LiveTopn::Shadow->new(
			dbh => $dbh,
			table => $generator->table,
			key => $generator->key_columns);
		watch($session, $generator, $random, \%watched, $deadly)
		  for 1 .. $random->between(1, 4);
		write_and_watch($session, $generator, $random, $round, \%watched,
			$deadly);
		$session->sync;
		count_shared();

		# what a throttle holds back comes now
		$session->snapshot($_) for keys %watched;
		$session->drain;
		verify($session, $generator, $shadow, \%watched);
		1;
	};
	my $error = $@;

	eval { $session->unsubscribe($_) } for sort keys %watched;
	eval { $shadow->drop } if $shadow;
	eval { $dbh->do($generator->drop_table) };
	return if $played;
	return "$error\n" . save_history($round, \@setup, \%watched);
}

sub count_shared
{
	my ($shared, $throttled, $grouped) = $dbh->selectrow_array(
		'SELECT count(*), count(throttle), count(*) FILTER (WHERE grouped)
		 FROM topn_stats JOIN live_topn.subscription USING (name)
		 WHERE shared > 1');

	$total{shared} += $shared;
	$total{throttled} += $throttled;
	$total{grouped} += $grouped;
	return;
}

# Keep the history as far as it was replayed; returns a text that says where.
sub save_history
{
	my ($round, $setup, $watched) = @_;
	my $file = "$PostgreSQL::Test::Utils::log_path/oracle_b_$round.txt";
	my @lines = (
		@$setup,
		map({ "$_ ($watched->{$_}{how}): " . $watched->{$_}{query}->text }
			sort keys %$watched),
		@trace);

	for my $name (sort keys %$watched)
	{
		push @lines, "not compared: $_->{json}"
		  for @{ $watched->{$name}{batches} // [] };
	}
	open my $handle, '>', $file or die "could not write $file: $!";
	print $handle map { "$_\n" } @lines;
	close $handle;
	return "the history up to there is in $file";
}

# Subscribe, perhaps while others write, and the worker dies.
sub watch
{
	my ($session, $generator, $random, $watched, $deadly) = @_;
	my $name = 'w' . (1 + keys %$watched);
	my $query = $generator->query;
	my %options = (
		ranks => $random->pick(qw(relative absolute)),
		cushion => $random->pick(0, 1, undef, $random->between(2, 12)),
		old => $random->chance(30) ? 1 : 0);

	$options{ranks} = 'relative' if $query->unranked;
	$options{args} = $query->args if $query->args;
	$options{throttle} = $throttle // $random->pick('1 ms', '20 ms', '1 s')
	  if $random->chance($throttle ? 75 : 10);
	$watched->{$name} = {
		query => $query,
		how => join(', ',
			map { "$_ $options{$_}" }
			  grep { $_ ne 'args' && defined $options{$_} }
			  sort keys %options),
		throttled => exists $options{throttle},
		snapshots => []
	};
	$unranked{$name} = $query->unranked;
	$session->subscribe(
		$name, $query->text, %options,
		limit => max($query->limit, LiveTopn::Generator::MAX_LIMIT),
		unranked => $query->unranked,
		keyless => $query->keyless,
		truth => $query->truth);
	my $client = $session->client($name);
	$client->expect_crashes if $deadly;
	push @{ $watched->{$name}{snapshots} },
	  [ $client->{start_seq}, $client->{start_lsn}, $client->start_entries ];
	return;
}

sub write_and_watch
{
	my ($session, $generator, $random, $round, $watched, $deadly) = @_;
	my %running =
	  map {
		start_writer($generator, $round * WRITERS + $_,
			grep { !$watched->{$_}{query}->grouped } sort keys %$watched) => 1
	  } 1 .. WRITERS;
	my $other = $server->session;

	while (%running)
	{
		$session->drain;
		if ($random->chance(20))
		{
			my $name = $random->pick(sort keys %$watched);
			my ($seq, $lsn, $rows) = $other->snapshot($name);

			push @{ $watched->{$name}{snapshots} },
			  [ $seq, $lsn, LiveTopn::Session::snapshot_entries($rows) ];
		}
		watch($session, $generator, $random, $watched, $deadly)
		  if $random->chance(5) && keys %$watched < 8;
		$server->set(%{ $generator->settings }) if $random->chance(3);
		kill_worker() if $deadly && $random->chance(40);
		for my $pid (keys %running)
		{
			next unless waitpid $pid, POSIX::WNOHANG;
			die "a writer failed\n" if $?;
			delete $running{$pid};
		}
		select undef, undef, undef, 0.01;
	}
	return;
}

# It leaves nothing but what it has saved and WAL; see debug_abandon.
sub kill_worker
{
	$total{deaths} += $dbh->do(
		"SELECT pg_terminate_backend(pid) FROM topn_worker
		 WHERE database = current_database() AND state = 'running'");
	return;
}

# A process with random transactions, which move some of the subscriptions now
# and then; deadlocks and the like abort some.
sub start_writer
{
	my ($generator, $writer_seed, @names) = @_;
	my $pid = fork // die "could not fork: $!";

	return $pid if $pid;
	my $done = eval {
		my $connection = $server->connect;

		$generator->{random} = LiveTopn::Random->new($writer_seed);
		for (1 .. TRANSACTIONS_PER_WRITER)
		{
			my $transaction = $generator->transaction;

			$transaction = $generator->moving($transaction, @names)
			  if $generator->{random}->chance(6) && @names;
			eval { LiveTopn::Generator::run($connection, $transaction) };
		}
		1;
	};
	# without the parent's clean-up
	POSIX::_exit($done ? 0 : 1);
}

# Replay the history and compare.
sub verify
{
	my ($session, $generator, $shadow, $watched) = @_;
	my $prepare = sub {
		return $dbh->prepare($watched->{ $_[0] }{query}->truth($shadow->copy),
			{ pg_placeholder_dollaronly => 1 });
	};
	my %query = map { $_ => $prepare->($_) } keys %$watched;
	my $truth = sub {
		return [
			map { LiveTopn::Query::entry($_->[0]) }
			  @{ $dbh->selectall_arrayref($query{ $_[0] }) }
		];
	};
	my @commits = $shadow->commits;
	my @names = sort keys %$watched;

	for my $name (@names)
	{
		my $watch = $watched->{$name};
		my $client = $session->client($name);

		$watch->{client} = $client;
		$watch->{batches} = [ $client->batches ];
		$watch->{truth} = $truth->($name);
		$watch->{snapshots} = [ sort { lsn_cmp($a->[1], $b->[1]) }
			  @{ $watch->{snapshots} } ];
	}

	my $error;
	for my $commit (@commits)
	{
		$error //= failure_of(
			sub { verify_snapshots($_, $watched->{$_}, $commit) for @names });
		push @trace, "commit of $commit->{xid} at $commit->{lsn}",
		  map { "  $_" } @{ $commit->{changes} };
		$shadow->replay($commit);
		for my $name (grep { $watched->{$_} } keys %{ $commit->{moves} })
		{
			my @page = @{ $commit->{moves}{$name} };

			push @trace, "  $name is moved to " . join ', ', map { $_ // 'ALL' } @page;
			$watched->{$name}{query} =
			  $watched->{$name}{query}->on_page(@page);
			$query{$name} = $prepare->($name);
		}
		for my $name (@names)
		{
			my $result = $truth->($name);

			push @trace,
			  "  $name: " . join ' ', map { $_->{key} } @$result;
			$error //= failure_of(
				sub {
					verify_commit($name, $watched->{$name}, $commit, $result,
						$generator->key_identity, \@commits);
				});
		}
		push @trace, $error if $error && !grep { $_ eq $error } @trace;
		$total{commits}++;
		$commits_left--;
	}
	die $error if $error;
	for my $name (@names)
	{
		verify_snapshots($name, $watched->{$name});
		my ($left) = @{ $watched->{$name}{batches} };
		die "$name: a batch at $left->{lsn}, where no commit is\n" if $left;
		my $open = $watched->{$name}{open};
		die "$name: $open->{what} without a batch: $open->{difference}"
		  if $open;
	}
	verify_shadow($generator->table, $shadow->copy);
	return;
}

sub failure_of
{
	my ($code) = @_;
	return eval { $code->(); 1 } ? undef : $@;
}

# Snapshots taken before this commit show the truth as it is now.
sub verify_snapshots
{
	my ($name, $watch, $commit) = @_;

	while (my $snapshot = $watch->{snapshots}[0])
	{
		my ($seq, $lsn, @entries) = @$snapshot;

		last if $commit && lsn_cmp($lsn, $commit->{lsn}) >= 0;
		same($name, "snapshot at $lsn", \@entries, $watch->{truth});
		my ($batch) =
		  grep { $_->{seq} == $seq } $watch->{client}->batches;
		same($name, "batch $seq", $batch->{after}, \@entries) if $batch;
		$watch->{published} //= $watch->{truth};
		shift @{ $watch->{snapshots} };
		$total{snapshots}++;
	}
	return;
}

sub verify_commit
{
	my ($name, $watch, $commit, $truth, $is_key, $commits) = @_;
	my $may_coalesce = sub {
		my ($lsn) = @_;
		return $is_key || truncates_from($commits, $lsn);
	};
	my $batch = $watch->{batches}[0];
	my $what = "commit of $commit->{xid} at $commit->{lsn}";
	my $order = $batch ? lsn_cmp($batch->{lsn}, $commit->{lsn}) : 1;

	$watch->{truth} = $truth;
	push @trace, "    $batch->{json}" if $order == 0;
	return unless $watch->{published};
	die "$name: a batch at $batch->{lsn}, where no commit is\n" if $order < 0;

	# commits after which the result is not published, so far
	my $open = $watch->{open};

	if ($order == 0)
	{
		die "$name: batch of xid $batch->{xid}: $what\n"
		  if $batch->{xid} != $commit->{xid};
		my $first = $open ? $open->{lsn} : $batch->{from} // $batch->{lsn};
		my $ops = join ' ', map { $_->{op} } @{ $batch->{deltas} };

		if ($ops eq 'reset')
		{
			# a TRUNCATE of nothing may be among the commits, too; with a
			# throttle, any since the last batch may have been waiting
			$first = $watch->{last} // '0/0' if $watch->{throttled};
			die "$name: a reset: $batch->{json}\n"
			  unless $may_coalesce->($batch->{from} // $first);
			$total{resets}++;
		}
		elsif (defined $batch->{from})
		{
			die "$name: from $batch->{from}, where no commit is: $batch->{json}\n"
			  unless grep { $_->{lsn} eq $batch->{from} } @$commits;
			die "$name: several commits in one batch, though every old row"
			  . " is known: $batch->{json}\n"
			  unless $watch->{throttled} || $may_coalesce->($first);
		}
		die "$name: $open->{what} without a batch: $open->{difference}"
		  if $open
		  && $ops ne 'reset'
		  && lsn_cmp($batch->{from} // $batch->{lsn}, $open->{lsn}) > 0;
		same($name, $what, $batch->{after}, $truth);
		$watch->{published} = $truth;
		$watch->{last} = $batch->{lsn};
		$watch->{open} = undef;
		shift @{ $watch->{batches} };
		$total{batches}++;
	}
	elsif (my $difference = difference($name, $watch->{published}, $truth))
	{
		$watch->{open} //= {
			what => $what,
			lsn => $commit->{lsn},
			difference => $difference
		};
		$total{coalesced}++;
	}
	elsif ($open)
	{
		# commits that together change nothing may share no batch at all
		die "$name: $open->{what} without a batch: $open->{difference}"
		  unless $watch->{throttled} || $may_coalesce->($open->{lsn});
		$watch->{open} = undef;
	}
	return;
}

# A read that comes after a TRUNCATE says nothing of the rows before, so that a
# window which waits for it goes on, commit by commit, to the TRUNCATE.
sub truncates_from
{
	my ($commits, $lsn) = @_;
	return grep {
		lsn_cmp($_->{lsn}, $lsn) >= 0 && LiveTopn::Shadow::truncates($_)
	} @$commits;
}

sub same
{
	my ($name, $what, $published, $truth) = @_;
	my $difference = difference($name, $published, $truth);

	die "$name: $what: $difference" if $difference;
	return;
}

sub difference
{
	my ($name, $published, $truth) = @_;

	($published, $truth) =
	  map { [ map { join ' ', $_->{group} // (), @$_{qw(key row)} } @$_ ] }
	  [ LiveTopn::Client::order_groups($published, $truth) ], $truth;
	($published, $truth) = map { [ sort @$_ ] } $published, $truth
	  if $unranked{$name};
	my $difference = LiveTopn::Session::describe_difference(
		'query', $truth, 'published', $published);

	return $difference ? "\n$difference" : undef;
}

# The history was complete: the copy has become the table.
sub verify_shadow
{
	my ($table, $copy) = @_;
	my ($expected, $got) = map {
		join "\n",
		  @{
			$dbh->selectcol_arrayref("SELECT row_to_json(t)::text
				FROM $_ t ORDER BY row_to_json(t)::text COLLATE \"C\"")
		  }
	} $table, $copy;

	die "the replayed table differs\n" if $expected ne $got;
	return;
}
