# Kills: whatever process dies, at whatever moment, everybody ends with the
# right result and nothing is left behind.
#
# Each round makes two random tables, one with a key as its identity and one
# with REPLICA IDENTITY FULL, subscriptions of all kinds of delivery to them,
# and lets processes write, and call the functions, all the time.  One process
# after the other is killed.  Between kills, when nobody writes:
#
#  * the worker runs, all subscriptions are live, and topn_sync returns;
#  * the client of each has the result of its query: from notifications, from
#    topn_poll, or from a slot, whose consumer dies with the server;
#  * no replication slot, background worker or DSM segment is left over;
#  * the server log has no failed assertion and no internal error.
#
# At the end of a round LiveTopn::Shadow replays the history, and each batch of
# the streamed subscriptions is compared with the query at its commit, and each
# commit that changed the result must be in a batch.
#
# ORACLE_SEED picks the first round (each round is one more), KILLS the number
# of kills.  What failed can be repeated as far as time allows.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

use LiveTopn::Client;
use LiveTopn::Consumer;
use LiveTopn::Generator;
use LiveTopn::Load;
use LiveTopn::Query;
use LiveTopn::Random;
use LiveTopn::Server qw(poll_until);
use LiveTopn::Session;
use LiveTopn::Shadow;
use LiveTopn::Witness;

my $seed = $ENV{ORACLE_SEED} // 1 + int(rand(2**31));
my $kills_left = $ENV{KILLS} // 15;

use constant KILLS_PER_ROUND => 15;
use constant WRITERS_PER_TABLE => 2;
use constant CALLERS => 3;

# What is killed, and how often.
my %victims = (
	worker => 20,
	refill => 12,
	launcher => 8,
	call => 30,
	walsender => 5,
	server => 10,
	postmaster => 3,
	terminate => 8,
	cancel => 6);

my @calls = qw(subscribe_topn unsubscribe_topn topn_snapshot topn_rows
  topn_poll topn_resync topn_sync topn_renew topn_stats);

my $server = LiveTopn::Server->start('kills',
	conf => "dynamic_shared_memory_type = mmap\n"
	  . "restart_after_crash = on\n"
	  . "log_line_prefix = '%m [%p] %e %b '\n"
	  . "deadlock_timeout = 20ms\n"
	  . "live_topn.checkpoint_interval = 1s\n"
	  . "live_topn.request_timeout = 60s\n");
my $data = $server->node->data_dir;
my ($random, $dbh, $session, $load, $consumer);
my %feeds;                  # name => what is known of a subscription
my %given;                  # number of lines that clients of a kind were given
my @tables;                 # of the round: generator, shadow
my %total = map { $_ => 0 } keys %victims, qw(missed commits batches resets);
my $log_read = 0;
my @trace;                  # what was done in the round

note "first round: ORACLE_SEED=$seed";
for (my $round = $seed; $kills_left > 0; $round++)
{
	my $failure = play_round($round);

	next unless defined $failure;
	fail("round $round");
	diag "to repeat: ORACLE_SEED=$round KILLS="
	  . KILLS_PER_ROUND
	  . "\n$failure\n"
	  . join '', map { "  $_\n" } @trace;
	last;
}

pass(join ', ', map { "$total{$_} $_" } sort keys %total);
cmp_ok($total{batches}, '>', 0, 'some commits changed some result');
done_testing();

# Returns undef, or what went wrong.
sub play_round
{
	my ($round) = @_;

	$random = LiveTopn::Random->new($round);
	@trace = ();
	my $played = eval {
		set_up($round);
		for (1 .. KILLS_PER_ROUND)
		{
			last if $kills_left-- <= 0;
			$load->run;
			usleep($random->between(0, 400_000));
			kill_something();

			# the next one may come while the worker still recovers
			next if $random->chance(35);
			$load->pause;
			check();
		}
		$load->pause;
		check();
		verify($_) for @tables;
		1;
	};
	my $error = $@;

	eval { clean_up(); 1 } or $error .= "clean-up: $@";
	if ($played && !$error)
	{
		$played = eval { check_empty(); 1 };
		$error = $@;
	}
	return $played && !$error ? undef : $error;
}

# ---- the round ----

sub set_up
{
	my ($round) = @_;

	connect_anew();
	$dbh->do(LiveTopn::Generator->prepare_database);
	$server->set('live_topn.debug_refill_delay' =>
		  $random->pick(0, 0, 2, 10));
	$load = LiveTopn::Load->new($server);
	@tables = map { set_up_table($_) }
	  [ 'keyed', $random->pick(qw(pk index)) ],
	  [ 'whole', $random->pick(qw(full keyless)) ];
	my $n = 0;
	for my $table (@tables)
	{
		for (1 .. WRITERS_PER_TABLE)
		{
			start_writer($table, $round * 100 + $n++);
		}
	}
	start_caller($round * 100 + $n++) for 1 .. CALLERS;
	$consumer = LiveTopn::Consumer->new($server, 'consumer', streamed());
	$consumer->follow;
	return;
}

sub set_up_table
{
	my ($choice) = @_;
	my ($name, $identity) = @$choice;
	my $generator = LiveTopn::Generator->new(
		random => $random,
		table => $name,
		identity => $identity,
		truncate => $random->chance(50));
	my %table = (name => $name, generator => $generator);

	$dbh->do($_) for $generator->create_table;
	my $n = 1;
	subscribe("${name}_" . $n++, \%table, @$_)
	  for [ deliver => 'notify' ],
	  [ deliver => 'stream' ],
	  [ deliver => 'both' ],
	  [ deliver => 'none' ],
	  [ deliver => $random->pick(qw(notify both none)), throttle => '50 ms' ];

	# a slot before the snapshots, of which the batches after them are asked
	unless ($dbh->selectrow_array(
			"SELECT count(*) FROM pg_replication_slots
			 WHERE slot_name = 'record'"))
	{
		$dbh->do("SELECT pg_create_logical_replication_slot('$_',
			'live_topn')") for qw(record consumer);
	}
	$table{shadow} = LiveTopn::Shadow->new(
		dbh => $dbh,
		table => $name,
		slot => "shadow_$name",
		key => $generator->key_columns);
	begin($_) for grep { $_->{table} == \%table } values %feeds;
	return \%table;
}

sub subscribe
{
	my ($name, $table, %options) = @_;
	my $query = $table->{generator}->query;

	$options{ranks} =
	  $query->unranked
	  ? 'relative'
	  : $random->pick(qw(relative relative absolute));
	$options{cushion} = $random->pick(0, 1, undef, $random->between(2, 12));
	$options{args} = $query->args;
	push @trace,
	  "$name ("
	  . join(', ',
		map { "$_ $options{$_}" } grep { defined $options{$_} }
		  sort keys %options)
	  . '): ' . $query->text;
	$dbh->do(
		'SELECT subscribe_topn(?, ?'
		  . join('', map { ", $_ => ?" } sort keys %options) . ')',
		undef, $query->text, $name, map { $options{$_} } sort keys %options);
	$feeds{$name} = {
		name => $name,
		row_type => $session->row_type($query->text, $query->args),
		table => $table,
		query => $query,
		%options
	};
	return;
}

sub new_client
{
	my ($feed) = @_;
	my $client = LiveTopn::Client->new(
		name => $feed->{name},
		limit => $feed->{query}->limit,
		ranks => $feed->{ranks},
		unranked => $feed->{query}->unranked,
		keyless => $feed->{query}->keyless);

	$client->expect_crashes;
	$client->start(
		$dbh->selectrow_array(
			'SELECT seq, lsn, rows FROM topn_snapshot(?)', undef,
			$feed->{name}));
	return $client;
}

# Nobody writes yet: all clients of a subscription start alike.
sub begin
{
	my ($feed) = @_;

	if ($feed->{deliver} =~ /notify|both/)
	{
		$session->listen(
			$feed->{name}, $feed->{query}->text,
			ranks => $feed->{ranks},
			limit => $feed->{query}->limit,
			unranked => $feed->{query}->unranked,
			keyless => $feed->{query}->keyless,
			truth => $feed->{query}->truth);
		$session->client($feed->{name})->expect_crashes;
		$session->begin($feed->{name});
	}
	$feed->{stream} = new_client($feed), $feed->{record} = new_client($feed)
	  if $feed->{deliver} =~ /stream|both/;
	$feed->{poll} = new_client($feed);
	return;
}

sub connect_anew
{
	$dbh = $server->connect;
	$session = $server->session;
	$_->do('SET client_min_messages = warning') for $dbh, $session->dbh;
	return;
}

# ---- the load ----

sub start_writer
{
	my ($table, $own_seed) = @_;
	my $generator = $table->{generator};
	my $name = $table->{name};

	$load->start(
		sub {
			my ($own, $turn) = @_;
			my $choice = $generator->{random} =
			  LiveTopn::Random->new($own_seed * 10_000 + $turn);

			$own->do('SET synchronous_commit = '
				  . $choice->pick(qw(on on off local)));
			if ($choice->chance(4))
			{
				change_catalog($own, $choice, $generator);
				return;
			}
			my $transaction = $generator->transaction;
			unless (eval { LiveTopn::Generator::run($own, $transaction); 1 })
			{
				my $error = $@;

				# others may have been in the way
				die $error unless $own->ping;
			}
		},
		pause => 8000);
	return;
}

# DDL that takes nothing from anybody.
sub change_catalog
{
	my ($own, $choice, $generator) = @_;
	my $name = $generator->table;
	my ($storage) = $choice->pick($generator->_storage_tables);

	$own->do('SET lock_timeout = 500');
	eval { $own->do($_); } for $choice->pick(
		[ "CREATE INDEX ON $storage ((1))" ],
		[ "REINDEX TABLE $storage" ],
		[ "VACUUM FULL $storage" ],
		[ "ANALYZE $name" ],
		[ "COMMENT ON TABLE $name IS 'x'" ],
		[ "ALTER TABLE $storage SET (fillfactor = "
			  . $choice->between(50, 100) . ')' ],
		[ "DO \$\$BEGIN ALTER TABLE $name ADD more int;
			ALTER TABLE $name DROP more; END\$\$" ]
	)->@*;
	$own->do('RESET lock_timeout');
	return;
}

# A process that calls functions, for whose names killers look.
sub start_caller
{
	my ($own_seed) = @_;
	my @names = sort keys %feeds;

	$load->start(
		sub {
			my ($own, $turn) = @_;
			my $choice = LiveTopn::Random->new($own_seed * 10_000 + $turn);
			my $name = $choice->pick(@names);
			my $mine = "mine_${own_seed}_$turn";

			$own->do('SET client_min_messages = warning');
			my $code = {
				subscribe_topn => sub {
					$own->do('SELECT subscribe_topn(?, ?, args => ?,
							lease => ?)', undef,
						$feeds{$name}{query}->text, $mine,
						$feeds{$name}{args}, '1 hour');
					$own->do('SELECT * FROM topn_snapshot(?)', undef, $mine)
					  if $choice->chance(50);
				},
				unsubscribe_topn => sub {
					$own->do("SELECT unsubscribe_topn(name)
						FROM topn_subscriptions WHERE name ~ '^mine'");
				},
				topn_snapshot => sub {
					$own->do('SELECT * FROM topn_snapshot(?)', undef, $name);
				},
				topn_rows => sub {
					$own->do("SELECT * FROM topn_rows(?)
						AS t ($feeds{$name}{row_type})", undef, $name);
				},
				topn_poll => sub {
					$own->do(
						'SELECT topn_poll(?, ?, ?::interval)', undef,
						$name, $choice->pick(0, 1_000_000_000),
						$choice->between(0, 300) . ' ms');
				},
				topn_resync => sub {
					$own->do('SELECT topn_resync(?)', undef, $name);
				},
				topn_sync => sub {
					$own->do(q{SELECT topn_sync('60 s')});
				},
				topn_renew => sub {
					$own->do("SELECT topn_renew(name)
						FROM topn_subscriptions WHERE name ~ '^mine'");
				},
				topn_stats => sub {
					$own->do('SELECT * FROM topn_stats');
				}
			}->{ $choice->pick(@calls) };
			unless (eval { $code->(); 1 })
			{
				my $error = $@;

				die $error unless $own->ping;
				print STDERR "# $error"
				  if $error =~ /XX000|time-out/;
			}
		},
		pause => 3000);
	return;
}

# ---- kills ----

sub kill_something
{
	my $what = $random->weighted(map { $_ => $victims{$_} } sort keys %victims);

	push @trace, "kill $what";
	$dbh = eval { $server->connect } // wait_for_server();
	return stop_server($what) if $what =~ /server$|postmaster/;
	if ($what eq 'terminate' || $what eq 'cancel')
	{
		my $pid = victim($random->pick(qw(worker refill launcher call call)))
		  // return missed();
		$dbh->do("SELECT pg_${what}_backend(?)", undef, $pid);
		$total{$what}++;
		return;
	}

	my $pid = victim($what) // return missed();
	kill 'KILL', $pid or return missed();
	$total{$what}++;
	my $deadline = time() + 10;
	usleep(2000) while time() < $deadline && eval { $dbh->do('SELECT 1') };
	wait_for_server();
	return;
}

sub missed
{
	$total{missed}++;
	$kills_left++;
	$trace[-1] .= ' (missed)';
	return;
}

# Process id of one, undef if there is none right now.
sub victim
{
	my ($what) = @_;
	my $call = $random->pick(@calls);
	my %condition = (
		worker => "backend_type = 'live_topn worker'",
		refill => "backend_type = 'live_topn refill worker'",
		launcher => "backend_type = 'live_topn launcher'",
		walsender => "backend_type = 'walsender'",
		call => "state = 'active' AND query ~ '^SELECT.*$call'
			AND pid <> pg_backend_pid()");
	my $deadline = time() + 1;
	my $pid;

	until ($pid || time() > $deadline)
	{
		($pid) = $dbh->selectrow_array(
			"SELECT pid FROM pg_stat_activity WHERE $condition{$what}
			 ORDER BY random() LIMIT 1");
	}
	$trace[-1] .= " $call" if $what eq 'call';
	return $pid;
}

sub stop_server
{
	my ($what) = @_;
	my $node = $server->node;

	if ($what eq 'postmaster')
	{
		my ($pid) = split /\n/, slurp_file("$data/postmaster.pid");

		kill 'KILL', $pid;
		# its children end by themselves
		poll_until(
			sub { !eval { $dbh->do('SELECT 1') } }, 'the end of a backend');
		poll_until(sub { !kill 0, $pid and start_again() },
			'the server to start again');
	}
	else
	{
		$node->stop('immediate');
		$node->start;
	}
	$total{$what}++;
	wait_for_server();
	return;
}

# A postmaster does not start while children of the last one are left.
sub start_again
{
	my $node = $server->node;

	run_command(
		[
			'pg_ctl', '-D', $data, '-l', $node->logfile, '-w',
			'-o', '--cluster-name=kills', 'start'
		]);
	return 0 if $? != 0;
	$node->_update_pid(1);
	return 1;
}

sub wait_for_server
{
	poll_until(sub { $dbh = eval { $server->connect } },
		'the server to be back');
	$consumer->follow if $consumer;
	return $dbh;
}

# ---- streams ----

sub streamed
{
	return sort map { $_->{name} } grep { $_->{stream} } values %feeds;
}

# Lines, from the first one on, go to a kind of clients of their subscriptions.
sub give_lines
{
	my ($kind, @lines) = @_;

	for my $line (@lines[ ($given{$kind} // 0) .. $#lines ])
	{
		my ($name) = $line =~ /^\{"sub":"(\w+)"/
		  or die "not a batch: $line\n";
		my $client = $feeds{$name}{$kind};
		my $seq = $client->seq;

		$client->receive_batch($line);
		# it began with the snapshot, so that nothing comes twice
		die "$kind: a line came twice: $line\n"
		  if $client->seq == $seq && $seq != $client->{start_seq};
	}
	$given{$kind} = @lines;
	return;
}

# ---- what must be seen ----

sub feeds { return map { $feeds{$_} } sort keys %feeds; }

sub check
{
	push @trace, 'check';
	$dbh = eval { $server->connect } // wait_for_server();
	poll_until(
		sub { eval { $dbh->do(q{SELECT topn_sync('60 s')}) } },
		'topn_sync (' . ($@ // '') . ')');
	$dbh->do("SELECT unsubscribe_topn(name) FROM topn_subscriptions
		WHERE name ~ '^mine'");
	eval { poll_until(sub { describe_states() eq '' }, ''); 1 }
	  or die 'not live: ' . describe_states() . "\n";
	give_lines('stream', $consumer->all);
	follow_notifications();
	$_->{truth} = [ map { LiveTopn::Query::entry($_) }
		  @{ $dbh->selectcol_arrayref($_->{query}->truth) } ]
	  for feeds();
	check_feed($_) for feeds();
	check_leftovers();
	check_log();
	return;
}

sub describe_states
{
	return join '; ', map { join ' ', map { $_ // '' } @$_ } @{
		$dbh->selectall_arrayref(
			"SELECT name, state, error FROM topn_subscriptions
			 WHERE state IS DISTINCT FROM 'live'")
	};
}

# The session lives as long as the server does; a new one starts anew.
sub follow_notifications
{
	return if eval { $session->sync; 1 };
	die $@ if $session->dbh->ping;

	my $old = $session;
	$session = $server->session;
	for my $name (sort keys %{ $old->{clients} })
	{
		my $client = $old->{clients}{$name};

		$session->listen($name, $old->{text}{$name},
			map({ $_ => $client->{$_} } qw(limit ranks keyless unranked)),
			truth => $old->{queries}{$name});
		$session->client($name)->expect_crashes;
		$session->begin($name);
	}
	return;
}

sub check_feed
{
	my ($feed) = @_;
	my $name = $feed->{name};

	$feed->{snapshot} = [ new_client($feed)->entries ];
	compare($feed, 'snapshot', @{ $feed->{snapshot} });
	compare($feed, 'notifications', $session->client($name)->entries)
	  if $session->client($name);
	compare($feed, 'stream', $feed->{stream}->entries)
	  if $feed->{stream};
	for my $json (
		@{
			$dbh->selectcol_arrayref('SELECT topn_poll(?, ?)', undef, $name,
				$feed->{poll}->seq)
		})
	{
		$feed->{poll}->receive_batch($json);
	}
	compare($feed, 'poll', $feed->{poll}->entries);
	return;
}

sub compare
{
	my ($feed, $what, @entries) = @_;

	# only a snapshot tells where a new group stands among the others
	@entries = LiveTopn::Client::order_groups(\@entries, $feed->{snapshot});
	my @lists = map { [ map { "$_->{key} $_->{row}" } @$_ ] }
	  $feed->{truth}, \@entries;

	@lists = map { [ sort @$_ ] } @lists if $feed->{query}->unranked;
	my $difference = LiveTopn::Session::describe_difference(
		'query', $lists[0], $what, $lists[1]);

	die "$feed->{name}: $difference" if $difference;
	return;
}

# One worker with its slot, and a DSM segment for each refill worker.
sub check_leftovers
{
	my ($oid) = $dbh->selectrow_array('SELECT oid FROM pg_database
		WHERE datname = current_database()');
	my @expected = sort "live_topn_$oid", qw(record consumer),
	  map { "shadow_$_->{name}" } @tables;
	my @slots = @{
		$dbh->selectcol_arrayref('SELECT slot_name
			FROM pg_replication_slots ORDER BY slot_name')
	};

	die "slots: @slots\n" if "@slots" ne "@expected";
	my @states = @{
		$dbh->selectcol_arrayref('SELECT state FROM topn_worker')
	};
	die "workers: @states\n" if "@states" ne 'running';
	wait_for_leftovers(1);
	return;
}

# Processes that end take a moment for it.
sub wait_for_leftovers
{
	my ($workers) = @_;
	my %count;

	eval {
		poll_until(
			sub {
				%count = (
					segments => $server->dsm_segments,
					@{
						$dbh->selectcol_arrayref(
							"SELECT substr(backend_type, 11), count(*)
							 FROM pg_stat_activity
							 WHERE backend_type ~ '^live_topn' GROUP BY 1",
							{ Columns => [ 1, 2 ] })
					});
				return ($count{launcher} // 0) == 1
				  && ($count{worker} // 0) == $workers
				  && $count{segments} == ($count{'refill worker'} // 0)
				  && ($workers || !$count{'refill worker'});
			},
			'the end of leftovers');
		1;
	} or die "left over: " . join(', ', map { "$count{$_} $_" }
		  sort keys %count) . "\n";
	return;
}

sub check_log
{
	my $log = slurp_file($server->node->logfile, $log_read);

	$log_read += length $log;
	my @bad = grep {
		/TRAP:|PANIC|XX000|XX001|terminated by signal (?!9)|AddressSanitizer|runtime error/
		  # of the postmaster that was killed
		  && !/could not (?:send|receive)/
	} split /\n/, $log;
	die "in the server log:\n" . join '', map { "$_\n" } @bad if @bad;
	return;
}

# ---- the history ----

sub verify
{
	my ($table) = @_;
	my $shadow = $table->{shadow};
	my $lines = $dbh->selectcol_arrayref(
		"SELECT data FROM pg_logical_slot_peek_changes('record', NULL, NULL,
			'subscriptions', ?)", undef, join ',', streamed());

	give_lines('record', @$lines);
	$shadow->{dbh} = $dbh;
	my @witnesses =
	  map { witness($_) } grep { $_->{table} == $table && $_->{record} } feeds();
	for my $commit ($shadow->commits)
	{
		$_->before($commit) for @witnesses;
		$shadow->replay($commit);
		$_->after($commit) for @witnesses;
		$total{commits}++;
	}
	for my $witness (@witnesses)
	{
		$witness->finish;
		$total{batches} += $witness->batches;
		$total{resets} += $witness->resets;
	}
	return;
}

sub witness
{
	my ($feed) = @_;
	my $query = $feed->{query}->truth($feed->{table}{shadow}->copy);

	return LiveTopn::Witness->new(
		name => $feed->{name},
		client => $feed->{record},
		unranked => $feed->{query}->unranked,
		truth => sub {
			return map { LiveTopn::Query::entry($_) }
			  @{ $dbh->selectcol_arrayref($query) };
		});
}

# ---- the end of a round ----

sub clean_up
{
	$load->stop if $load;
	$load = undef;
	$consumer->stop if $consumer;
	$consumer = undef;
	eval { $session->dbh->disconnect };
	wait_for_server();
	$dbh->do('SET client_min_messages = warning');
	$dbh->do('SELECT unsubscribe_topn(name) FROM topn_subscriptions');
	poll_until(
		sub {
			eval {
				$dbh->do("SELECT pg_drop_replication_slot(slot_name)
					FROM pg_replication_slots
					WHERE slot_name !~ '^live_topn_'");
			};
		},
		'slots to be free');
	$dbh->do("DROP TABLE IF EXISTS $_, ${_}_shadow") for qw(keyed whole);
	%feeds = %given = ();
	@tables = ();
	return;
}

# Without subscriptions nothing is left at all.
sub check_empty
{
	poll_until(
		sub {
			$dbh->selectrow_array(
				'SELECT NOT EXISTS (SELECT FROM pg_replication_slots)
					AND NOT EXISTS (SELECT FROM topn_worker)');
		},
		'the worker to retire');
	wait_for_leftovers(0);
	check_log();
	return;
}
