# Oracle A: one writer, and after every commit the query itself.
#
# Each round makes a random table and random subscriptions to it, and runs
# random transactions.  After each of them, every client's list, topn_rows and
# topn_snapshot must equal what the query returns, and every batch must be as
# short as it can be.  Now and then settings are others, or the worker is down
# while a transaction commits.
#
# ORACLE_SEED picks the first round (printed; each round is one more),
# ORACLE_COMMITS the number of transactions, ORACLE_SECONDS the time at most.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use PostgreSQL::Test::Utils;
use List::Util qw(max);
use Test::More;
use Time::HiRes qw(time);

use LiveTopn::Generator;
use LiveTopn::Json qw(json_object);
use LiveTopn::Query;
use LiveTopn::Random;
use LiveTopn::Script
  qw(pair_up shortest_script absolute_script unranked_script);
use LiveTopn::Server;
use LiveTopn::Session;

my $seed = $ENV{ORACLE_SEED} // 1 + int(rand(2**31));
my $commits_left = $ENV{ORACLE_COMMITS} // 10_000;
my $deadline = time() + ($ENV{ORACLE_SECONDS} // 90);

use constant COMMITS_PER_ROUND => 60;

# without autovacuum, whose commits would make rounds hard to repeat
my $server =
  LiveTopn::Server->start('oracle_a',
	conf => "autovacuum = off\n"
	  . "live_topn.slice_offset = 2");
my $writer = $server->connect;
my $session = $server->session;
my %total = (commits => 0, batches => 0, deltas => 0, aborts => 0);

$writer->do(LiveTopn::Generator->prepare_database);
$session->dbh->do('SET client_min_messages = warning');

note "first round: ORACLE_SEED=$seed";
for (my $round = $seed; $commits_left > 0 && time() < $deadline; $round++)
{
	my @events = plan_round($round);
	my $failure = play(@events);

	next unless defined $failure;
	fail("round $round");
	diag "to repeat: ORACLE_SEED=$round ORACLE_COMMITS=1\n$failure";
	diag save_history($round, shrink(@events));
	last;
}

pass("$total{commits} commits ($total{aborts} aborted), $total{batches}"
	  . " batches, $total{deltas} deltas from seed $seed");
cmp_ok($total{batches}, '>', 0, 'some commits changed some result');
done_testing();

# The events of a round.  They depend on nothing but the seed.
sub plan_round
{
	my ($round) = @_;
	my $random = LiveTopn::Random->new($round);
	my $generator = LiveTopn::Generator->new(random => $random);

	# groups that are not touched: all are dropped, many, or none
	my $group_memory = ('0', '1kB', '256MB')[$round % 3];
	my @events = (
		{ settings => { 'live_topn.group_memory' => $group_memory } },
		map { { setup => $_ } } $generator->create_table);
	my (@names, %fixed, $last, $truncated);

	my $subscribe = sub {
		push @names, 's' . ++$last;
		push @events, plan_subscription($generator, $random, $names[-1]);
		$fixed{ $names[-1] } = 1 if $events[-1]{query}->grouped;
	};
	$subscribe->() for 1 .. $random->between(1, 4);
	for (1 .. COMMITS_PER_ROUND)
	{
		my $transaction = $generator->transaction;

		my @movable = grep { !$fixed{$_} } @names;

		$transaction = $generator->moving($transaction, @movable)
		  if $random->chance(12) && @movable;
		$truncated ||= LiveTopn::Generator::truncates($transaction);
		push @events,
		  {
			transaction => $transaction,
			$random->chance(2)
			? plan_restart($generator, $random, $truncated)
			: ()
		  };

		# come and go while the history goes on
		if ($random->chance(4))
		{
			$subscribe->();
		}
		elsif ($random->chance(3) && @names > 1)
		{
			@names = $random->shuffle(@names);
			push @events, { unsubscribe => shift @names };
		}
		elsif ($random->chance(4))
		{
			push @events, { settings => $generator->settings };
		}
	}
	return @events;
}

# The worker is down while a transaction commits.  After one that has saved
# nothing, the next one may miss results that have been published: where old
# rows are not known, or up to a TRUNCATE.
sub plan_restart
{
	my ($generator, $random, $truncated) = @_;
	my $abandons = $random->chance(50);

	return (
		restart => $abandons ? 'abandon' : 'end',
		lax => $abandons && ($truncated || $generator->key_identity),
		settings => $generator->settings);
}

sub plan_subscription
{
	my ($generator, $random, $name) = @_;
	my $query = $generator->query;
	my %options = (
		ranks => $random->pick(qw(relative relative absolute)),
		cushion => $random->pick(0, 1, undef, $random->between(2, 12)),
		old => $random->chance(30) ? 1 : 0);

	$options{ranks} = 'relative' if $query->unranked;
	$options{args} = $query->args if $query->args;
	return { subscribe => $name, query => $query, options => \%options };
}

# Returns undef, or what went wrong.
sub play
{
	my (@events) = @_;
	my %followed;

	my $played = eval {
		for my $event (@events)
		{
			if    ($event->{setup})       { $writer->do($event->{setup}); }
			elsif ($event->{transaction}) { transact($event, \%followed); }
			elsif ($event->{subscribe})   { subscribe($event, \%followed); }
			elsif ($event->{settings})
			{
				$server->set(%{ $event->{settings} });
			}
			elsif (delete $followed{ $event->{unsubscribe} })
			{
				$session->unsubscribe($event->{unsubscribe});
			}
		}
		1;
	};
	my $error = $@;

	eval { $session->unsubscribe($_) } for sort keys %followed;
	eval { $writer->do('DROP TABLE feed') };
	my @settings = map { keys %{ $_->{settings} // {} } } @events;
	$server->set(map { $_ => undef } @settings) if @settings;
	return $played ? undef : $error;
}

# Leave out events, then steps of transactions, as long as it still goes wrong;
# for a minute or so.
sub shrink
{
	my (@events) = @_;
	my $end = time() + 60;
	my $goes_wrong = sub { return time() < $end && defined play(@events); };

	for (my $chunk = 16; $chunk >= 1; $chunk >>= 1)
	{
		for (my $i = @events - $chunk; $i > 0; $i -= $chunk)
		{
			my @part = splice @events, $i, $chunk;

			splice @events, $i, 0, @part
			  if grep({ $_->{setup} } @part) || !$goes_wrong->();
		}
	}
	for my $transaction (grep { $_ } map { $_->{transaction} } @events)
	{
		my $steps = $transaction->{steps};

		for (my $i = $#$steps; $i >= 0 && @$steps > 1; $i--)
		{
			my ($step) = splice @$steps, $i, 1;

			splice @$steps, $i, 0, $step unless $goes_wrong->();
		}
	}
	return @events;
}

# Keep a history that failed; returns a text with it.
sub save_history
{
	my ($round, @events) = @_;
	my $file = "$PostgreSQL::Test::Utils::log_path/oracle_a_$round.sql";
	my $sql = join '', map { as_sql($_) } @events;

	open my $handle, '>', $file or die "could not write $file: $!";
	print $handle $sql;
	close $handle;
	return "what is needed for it is in $file:\n" . substr $sql, 0, 8000;
}

sub as_sql
{
	my ($event) = @_;
	my $options = $event->{options};

	return "$event->{setup};\n" if $event->{setup};
	return "SELECT unsubscribe_topn('$event->{unsubscribe}');\n"
	  if $event->{unsubscribe};
	return settings_as_sql(%{ $event->{settings} // {} })
	  . LiveTopn::Generator::as_sql($event->{transaction})
	  . ($event->{restart}
		? "-- with no worker, which did $event->{restart}\n"
		: '')
	  if $event->{transaction};
	return settings_as_sql(%{ $event->{settings} }) if $event->{settings};
	return
	    'SELECT subscribe_topn('
	  . $writer->quote($event->{query}->text)
	  . ", '$event->{subscribe}'"
	  . join('', map { ", $_ => " . $writer->quote($options->{$_}) }
		  sort keys %$options)
	  . ");\n";
}

sub settings_as_sql
{
	my (%settings) = @_;

	return '' unless %settings;
	return join '',
	  map({ "ALTER SYSTEM SET $_ = '$settings{$_}';\n" } sort keys %settings),
	  "SELECT pg_reload_conf();\n";
}

sub transact
{
	my ($event, $followed) = @_;
	my $transaction = $event->{transaction};
	my (@changed, $aborted);
	my $run = sub {
		@changed = eval { LiveTopn::Generator::run($writer, $transaction) };
		$aborted = $@ || !$transaction->{commit};
	};

	# without subscriptions there is no worker
	if ($event->{restart} && %$followed)
	{
		run_without_worker($event, $run);
	}
	else { $run->(); }

	$total{ $aborted ? 'aborts' : 'commits' }++;
	$commits_left--;
	turn_pages($followed) if $transaction->{moves};
	check($_, $followed->{$_}, $event, \@changed, $aborted)
	  for sort keys %$followed;
	$session->client($_)->set_limit($followed->{$_}->limit)
	  for sort keys %$followed;
	return;
}

# It has saved its windows, or leaves that to the next one.
sub run_without_worker
{
	my ($event, $run) = @_;

	$server->set(
		'live_topn.debug_abandon' =>
		  ($event->{restart} eq 'abandon' ? 'on' : 'off'));
	$server->without_worker(
		sub {
			$server->set(%{ $event->{settings} });
			$run->();
		});
	return;
}

# What do the subscriptions show now?  No list grows beyond the larger one of
# the page before and the page after.
sub turn_pages
{
	my ($followed) = @_;
	my $pages = $writer->selectall_arrayref(
		'SELECT name, "offset", "limit" FROM topn_subscriptions');

	for my $page (@$pages)
	{
		my ($name, $offset, $limit) = @$page;
		my $query = $followed->{$name};

		next unless $query;
		$followed->{$name} = $query->on_page($offset, $limit);
		$session->turn_to($name, $followed->{$name}->truth);
		$session->client($name)
		  ->set_limit(max($query->limit, $followed->{$name}->limit));
	}
	return;
}

sub subscribe
{
	my ($event, $followed) = @_;
	my ($name, $query) = @$event{qw(subscribe query)};

	$session->subscribe(
		$name, $query->text,
		%{ $event->{options} },
		limit => $query->limit,
		unranked => $query->unranked,
		keyless => $query->keyless,
		truth => $query->truth);
	$followed->{$name} = $query;
	check($name, $query);
	return;
}

# After a transaction: is the result right, and did it come by the right batch?
sub check
{
	my ($name, $query, $event, $changed, $aborted) = @_;
	my $client = $session->client($name);
	my $transaction = $event->{transaction};

	$session->sync;
	my @truth = map { LiveTopn::Query::entry($_) } $session->truth($name);
	my (undef, undef, $snapshot) = $session->snapshot($name);
	compare($name, 'client', \@truth,
		[ LiveTopn::Client::order_groups([ $client->entries ], \@truth) ]);
	compare($name, 'topn_snapshot', \@truth,
		[ LiveTopn::Session::snapshot_entries($snapshot) ]);
	my @rows = $session->topn_rows($name);
	my $difference = LiveTopn::Session::describe_difference('query',
		[ map { $_->{row} } @truth ], 'topn_rows', \@rows);
	die "subscription $name: $difference" if $difference;

	my @batches = $client->take_batches;
	die "subscription $name: several batches for one transaction:\n"
	  . join('', map { "$_->{json}\n" } @batches)
	  if @batches > 1 && !$event->{lax};
	for my $batch (@batches)
	{
		die "subscription $name: a batch for an aborted transaction:"
		  . " $batch->{json}\n"
		  if ($aborted || !$transaction) && !$event->{lax};
		die "subscription $name: a batch for several commits: $batch->{json}\n"
		  if defined $batch->{from} && !$event->{lax};
		$total{batches}++;
		$total{deltas} += @{ $batch->{deltas} };
		if (is_reset($batch))
		{
			# a set that is passed on without being held, or groups that
			# are dropped
			die "subscription $name: a reset: $batch->{json}\n"
			  unless $event->{lax}
			  || ($client->{unranked} || $query->grouped)
			  && LiveTopn::Generator::truncates($transaction);
			next;
		}
		check_shortest($client, $batch);
		check_one_row($batch, @$changed)
		  if $transaction->{single}
		  && $client->{ranks} eq 'relative'
		  && !$query->ties;
	}
	return;
}

sub compare
{
	my ($name, $what, $truth, $got) = @_;
	my @lists = (
		'query', [ map { describe($_) } @$truth ],
		$what, [ map { describe($_) } @$got ]);
	my $difference =
	  $what eq 'client'
	  ? $session->unordered_difference($name, @lists)
	  : LiveTopn::Session::describe_difference(@lists);

	die "subscription $name: $difference" if $difference;
	return;
}

sub describe
{
	my ($entry) = @_;
	return join ' ', $entry->{group} // (), @$entry{qw(key row)};
}

sub is_reset
{
	my ($batch) = @_;
	return $batch->{deltas}[0]{op} eq 'reset';
}

# No script with fewer departures, arrivals and moves gives this result, and
# rows that neither moved nor changed are not mentioned.
sub check_shortest
{
	my ($client, $batch) = @_;
	my ($before, $after) = @$batch{qw(before after)};
	my $least =
	  $client->{unranked}
	  ? unranked_script($before, $after)
	  : least_script($client->{ranks}, $before, $after);
	my %count = (leave => 0, enter => 0, move => 0, update => 0);

	$count{ $_->{op} }++ for @{ $batch->{deltas} };
	for my $op (sort keys %$least)
	{
		# which of two equal rows has moved is a matter of taste
		next if $client->{keyless} && $op eq 'move' && $count{move} <= $least->{move};
		die "$count{$op} deltas of kind $op where $least->{$op} do:"
		  . " $batch->{json}\n"
		  if $count{$op} != $least->{$op};
	}
	return;
}

# Each group has a script of its own.
sub least_script
{
	my ($ranks, $before, $after) = @_;
	my %least = (leave => 0, enter => 0, move => 0);
	my %groups = map { ($_->{group} // '') => 1 } @$before, @$after;

	for my $group (keys %groups)
	{
		my @lists = map {
			[ grep { ($_->{group} // '') eq $group } @$_ ]
		} $before, $after;
		my $script =
		  $ranks eq 'absolute'
		  ? absolute_script(@lists)
		  : shortest_script(@lists);

		$least{$_} += $script->{$_} for keys %least;
	}
	return \%least;
}

# A commit that changed one row: only that row moves or is updated, and
# positions are ranks in the results before and after.  (WITH TIES, any number of
# others may leave or enter with it.)
sub check_one_row
{
	my ($batch, @changed) = @_;
	my %before = ranks(@{ $batch->{before} });
	my %after = ranks(@{ $batch->{after} });

	for my $delta (@{ $batch->{deltas} })
	{
		my ($op, $key) = @$delta{qw(op key)};

		die "$op of a row that the commit did not change: $batch->{json}\n"
		  if ($op eq 'move' || $op eq 'update')
		  && !grep { $_ eq $key } @changed;
		for my $field (qw(pos from to))
		{
			next unless exists $delta->{$field};
			my $ranks =
			  $op eq 'leave' || $field eq 'from' ? \%before : \%after;
			die "$field is not the rank of the row: $batch->{json}\n"
			  unless grep { $_ == $delta->{$field} }
			  @{ $ranks->{ ($delta->{group} // '') . $key } };
		}
	}
	return;
}

# group and key => its ranks in the group (several if there are equal rows)
sub ranks
{
	my (%ranks, %size);

	for my $entry (@_)
	{
		my $group = $entry->{group} // '';

		push @{ $ranks{ $group . $entry->{key} } }, ++$size{$group};
	}
	return %ranks;
}
