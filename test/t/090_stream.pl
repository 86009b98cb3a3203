# Batches in WAL: what consumers of the output plugin see.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use POSIX ();
use PostgreSQL::Test::Utils;
use Test::More;

use LiveTopn::Client;
use LiveTopn::Lsn qw(lsn_cmp);
use LiveTopn::Scenario;
use LiveTopn::Server qw(poll_until sqlstate_of);
use LiveTopn::Stream;

use_server(LiveTopn::Server->start('stream'));

my $top = 'SELECT id, score FROM items ORDER BY score DESC, id LIMIT 3';
my $get = 'SELECT lsn, data FROM pg_logical_slot_get_changes';
my $peek = 'SELECT lsn, data FROM pg_logical_slot_peek_changes';

# A list of [ lsn, line ].
sub changes
{
	my ($function, $slot, %options) = @_;
	my @options = map { ($_, $options{$_}) } sort keys %options;

	return @{
		writer->selectall_arrayref("$function(?, NULL, NULL, VARIADIC ?)",
			undef, $slot, \@options)
	};
}

sub drop_slot
{
	my ($slot) = @_;

	poll_until(
		sub {
			eval { writer->do('SELECT pg_drop_replication_slot(?)', undef, $slot); };
			!$@;
		},
		"slot $slot to be free");
	return;
}

# A subscription without NOTIFY.
sub subscribe_to
{
	my ($name, $query, $deliver) = @_;

	writer->do('SELECT subscribe_topn(?, ?, deliver => ?, cushion => 2)',
		undef, $query, $name, $deliver);
	writer->do('SELECT seq FROM topn_snapshot(?)', undef, $name);
	return;
}

sub sync { writer->do('SELECT topn_sync()'); return; }

scenario 'stream', 'what is printed' => sub {
	base_table();
	LiveTopn::Stream::create_slot(server, 'out');
	subscribe b => $top, deliver => 'both';
	subscribe s => $top, deliver => 'stream';
	subscribe n => $top;
	run 'UPDATE items SET score = 500 WHERE id = 1',
	  "INSERT INTO items VALUES (30, 600, 'a', repeat('x', 10000))",
	  'DELETE FROM items WHERE id = 20', 'UPDATE items SET score = 700';
	sync();
	session->sync;

	my @notified = map { $_->{json} } session->client('b')->batches;
	is(scalar @notified, 4, 'a client of NOTIFY has four batches');
	is_deeply([ map { $_->[1] } changes($peek, 'out', subscriptions => 'b') ],
		\@notified, 'a consumer the very same');
	is_deeply(
		[ map { s/"sub":"s"/"sub":"b"/r } map { $_->[1] }
			  changes($peek, 'out', subscriptions => 's') ],
		\@notified,
		'and of a streamed subscription');
	is(scalar session->client('s')->batches, 0, 'which does not notify');
	is_deeply([ changes($peek, 'out', subscriptions => 'n') ],
		[], 'nothing of one that only notifies');

	my @both = changes($get, 'out', subscriptions => 's, b');
	is(scalar @both, 8, 'two at once');
	is_deeply([ changes($get, 'out', subscriptions => 's,b') ],
		[], 'what was read is confirmed');
	drop_slot('out');
};

scenario 'stream', 'names and options' => sub {
	base_table();
	LiveTopn::Stream::create_slot(server, 'out');
	subscribe_to($_, $top, 'stream')
	  for 'plain', 'Upper', 'a,b', 'say "hi"', ' blank ';
	run 'DELETE FROM items WHERE id = 20';
	sync();
	for (
		[ 'plain', 'plain' ],
		[ 'Upper', 'Upper' ],
		[ '"a,b"', 'a,b' ],
		[ '"say ""hi"""', 'say "hi"' ],
		[ '" blank "', ' blank ' ],
		[ '"a,b" , plain', 'a,b', 'plain' ],
		[ 'plain,plain', 'plain' ])
	{
		my ($list, @names) = @$_;
		my @seen = map { $_->[1] } changes($peek, 'out',
			subscriptions => $list);

		is_deeply(
			[ sort map { /^\{"sub":"((?:[^"\\]|\\.)*)"/ && $1 =~ s/\\//gr } @seen ],
			[ sort @names ],
			"subscriptions=$list");
	}

	for (
		[ '42704', 'subscriptions', 'nobody' ],
		[ '42704', 'subscriptions', 'plain,nobody' ],
		[ '42704', 'subscriptions', 'upper' ],
		[ '22023', 'subscriptions', '' ],
		[ '22023', 'subscriptions', 'plain,' ],
		[ '22023', 'subscriptions', '"plain' ],
		[ '22023', 'subscriptions', 'plain', 'snapshot', 'perhaps' ],
		[ '22023', 'subscriptions', 'plain', 'include-xids', 'on' ],
		[ '22023', 'snapshot', 'on' ],
		['22023'])
	{
		my ($sqlstate, @options) = @$_;
		my ($state, $message) =
		  sqlstate_of(writer, "$peek('out', NULL, NULL, VARIADIC ?)",
			\@options);

		is($state, $sqlstate, "refused: @options") or diag($message);
	}

	for my $deliver (qw(notify none both))
	{
		my $warning;

		subscribe_to($deliver, $top, $deliver);
		server->node->psql('postgres',
			"SELECT pg_logical_slot_peek_changes('out', NULL, NULL, 'subscriptions', '$deliver')",
			stderr => \$warning);
		is($warning =~ /^.*WARNING:  (.*)$/m ? $1 : '',
			$deliver eq 'both' ? ''
			: qq{subscription "$deliver" does not deliver to replication slots},
			"what is said of one with deliver => $deliver");
	}
	drop_slot('out');
};

scenario 'stream', 'rights' => sub {
	base_table();
	run 'CREATE ROLE owner LOGIN', 'CREATE ROLE member LOGIN REPLICATION',
	  'CREATE ROLE stranger LOGIN REPLICATION', 'GRANT owner TO member',
	  'GRANT SELECT ON items TO owner';
	my $owner = server->connect('postgres', user => 'owner');
	$owner->do(q{SELECT subscribe_topn(?, 's', deliver => 'stream')},
		undef, $top);
	$owner->do(q{SELECT seq FROM topn_snapshot('s')});
	LiveTopn::Stream::create_slot(server, 'out');
	run 'DELETE FROM items WHERE id = 20';
	sync();

	for my $snapshot (qw(off on))
	{
		my $stream = LiveTopn::Stream->start(
			server, 'out',
			user => 'stranger',
			subscriptions => 's',
			snapshot => $snapshot);
		like($stream->finish, qr/must be|permission denied/,
			"a stranger who may replicate is refused, snapshot $snapshot");
	}
	my $stream = LiveTopn::Stream->start(
		server, 'out',
		user => 'member',
		subscriptions => 's');
	my @lines = $stream->wait_for(sub { @_ >= 1 }, 'a batch for the member');
	like($lines[0], qr/"sub":"s","seq":1,/, 'a member is not');

	run 'REVOKE owner FROM member', 'DELETE FROM items WHERE id = 19';
	sync();
	run 'GRANT owner TO member', 'DELETE FROM items WHERE id = 18';
	@lines = $stream->wait_for(sub { @_ >= 1 }, 'a batch after the grant');
	like($lines[0], qr/"sub":"s","seq":3,/,
		'nothing while he is no member any more');
	$stream->stop;
	drop_slot('out');
	$owner->do(q{SELECT unsubscribe_topn('s')});
	$owner->disconnect;
	run 'DROP OWNED BY owner', 'DROP ROLE owner, member, stranger';
};

scenario 'stream', 'a consumer goes on from where it stopped' => sub {
	base_table();
	LiveTopn::Stream::create_slot(server, 'out');
	subscribe_to($_, $top, 'stream') for 'a' .. 'd';
	run "UPDATE items SET score = score + $_ * 7 % 100 WHERE id % 5 = $_ % 5"
	  for 1 .. 30;
	sync();
	my @all = changes($peek, 'out', subscriptions => 'a,b,c,d');
	cmp_ok(scalar @all, '>', 40, 'there are lines');
	is( scalar(
			grep { lsn_cmp($all[$_][0], $all[ $_ - 1 ][0]) < 0 } 1 .. $#all),
		0,
		'their LSNs are in order');

	my ($missing, $repeated) = (0, 0);
	for my $i (grep { $_ % 7 == 0 || $_ == $#all } 0 .. $#all)
	{
		my $lsn = $all[$i][0];

		run "SELECT pg_copy_logical_replication_slot('out', 'copy')",
		  "SELECT pg_replication_slot_advance('copy', '$lsn')";
		my %rest = map { $_->[1] => $_->[0] }
		  changes($peek, 'copy', subscriptions => 'a,b,c,d');
		$missing += grep { !exists $rest{ $_->[1] } } @all[ $i + 1 .. $#all ];
		$repeated += grep { exists $rest{ $_->[1] } && $_->[0] ne $lsn }
		  @all[ 0 .. $i ];
		is(scalar keys %rest, 0, 'nothing after the last line') if $i == $#all;
		run "SELECT pg_drop_replication_slot('copy')";
	}
	is($missing, 0, 'nothing is missing');
	is($repeated, 0,
		'nothing is repeated but what has the LSN that was confirmed');
	drop_slot('out');
};

# Processes that write until the file is removed.
sub start_writers
{
	my ($n) = @_;
	my $file = "$PostgreSQL::Test::Utils::tmp_check/writing_$$";
	my @pids;

	append_to_file($file, '');
	for my $writer (1 .. $n)
	{
		my $pid = fork // die "could not fork: $!";

		if ($pid == 0)
		{
			my $done = eval {
				my $dbh = server->connect;

				for (my $i = $writer; -e $file; $i += 3)
				{
					$dbh->do('UPDATE items SET score = ? WHERE id = ?',
						undef, ($i * 7919) % 1000, 1 + $i % 20);
				}
				1;
			};
			POSIX::_exit($done ? 0 : 1);
		}
		push @pids, $pid;
	}
	return sub {
		unlink $file;
		my $failed = grep { waitpid($_, 0); $? } @pids;
		is($failed, 0, 'the writers are done');
	};
}

# The result of the query, as rows of a client.
sub truth
{
	return join "\n",
	  @{ writer->selectcol_arrayref("SELECT row_to_json(q)::text FROM ($top) q")
	  };
}

scenario 'stream', 'it begins with a snapshot while others write' => sub {
	base_table();
	LiveTopn::Stream::create_slot(server, 'out');
	subscribe_to('s', $top, 'stream');
	subscribe_to('t', $top, 'both');
	my $stop = start_writers(3);

	for my $round (1 .. 4)
	{
		my %client =
		  map { $_ => LiveTopn::Client->new(name => $_, limit => 3) } qw(s t);
		my $stream = LiveTopn::Stream->start(
			server, 'out',
			subscriptions => 's,t',
			snapshot => 'on');
		my ($lines, $error) = (0, undef);
		my $take = sub {
			my ($line) = @_;
			my ($name) = $line =~ /^\{"sub":"(.)"/;

			# dies if there is a gap
			eval { $client{$name}->receive_batch($line); 1 } or $error //= $@;
			$lines++;
		};

		poll_until(
			sub {
				$take->($_) for $stream->lines;
				$lines > 100 || $error;
			},
			'lines');
		if ($round == 4)
		{
			$stop->();
			sync();
			my $seq = writer->selectrow_array(
				q{SELECT min(last_seq) FROM topn_stats WHERE name IN ('s', 't')});
			poll_until(
				sub {
					$take->($_) for $stream->lines;
					$error || !grep { ($_->seq // 0) < $seq } values %client;
				},
				'the last batches');
		}
		$stream->stop;
		poll_until(
			sub {
				writer->selectrow_array(
					q{SELECT NOT active FROM pg_replication_slots
						WHERE slot_name = 'out'});
			},
			'the slot to be free');
		is($error, undef, 'a reset, then no gap and no repetition');
		is(join("\n", $client{$_}->rows), truth(), "$_ equals its query")
		  for $round == 4 ? qw(s t) : ();
	}

	# the functions give it as soon as there is anything to decode
	run 'UPDATE items SET score = 2000 WHERE id = 1';
	sync();
	my @lines = changes($get, 'out', subscriptions => 's', snapshot => 'on');
	is(scalar @lines, 1, 'the snapshot has the batches before it');
	like($lines[0][1], qr/"op":"reset"/, 'a reset');
	drop_slot('out');
};

scenario 'stream', 'a subscription is made again under its name' => sub {
	base_table();
	LiveTopn::Stream::create_slot(server, 'out');
	subscribe_to('s', $top, 'stream');
	run "UPDATE items SET score = 1000 + $_ WHERE id = $_" for 1 .. 5;
	my $stream = LiveTopn::Stream->start(
		server, 'out',
		subscriptions => 's',
		snapshot => 'on');
	my @lines = $stream->wait_for(sub { @_ == 1 }, 'the snapshot');
	like($lines[0], qr/"seq":5,.*"op":"reset"/, 'the snapshot');
	run q{SELECT unsubscribe_topn('s')};
	subscribe_to('s', $top, 'stream');
	run "UPDATE items SET score = 2000 + $_ WHERE id = $_" for 1 .. 2;
	@lines = $stream->wait_for(sub { @_ == 2 }, 'batches of the new one');
	like($lines[0], qr/"seq":1,/, 'the new one begins with batch 1');
	$stream->stop;
	drop_slot('out');
};

scenario 'stream', 'a stock client that dies again and again' => sub {
	my $python = '/usr/bin/python3';
	plan skip_all => 'needs psycopg2'
	  if system("$python -c 'import psycopg2' 2>/dev/null") != 0;
	base_table();
	LiveTopn::Stream::create_slot(server, $_) for qw(out record);
	subscribe_to($_, $top, 'stream') for 'a' .. 'c';
	my $stop = start_writers(2);
	my $file = "$PostgreSQL::Test::Utils::tmp_check/consumer";

	for my $round (1 .. 6)
	{
		my $last = $round == 6;

		if ($last)
		{
			$stop->();
			sync();
		}
		system_or_bail(
			$python, "$FindBin::Bin/../consumer.py",
			server->node->connstr('postgres'), 'out', 'a,b,c', $file,
			$last ? 'all' : 37 * $round);
	}
	is( slurp_file($file),
		join('', map { "$_->[1]\n" }
			  changes($get, 'record', subscriptions => 'a,b,c')),
		'it has every line once');
	drop_slot($_) for qw(out record);
};

# The consumer answers when it is asked to, and not otherwise.  While changes are
# written to disk the server looks at no connection: do it often.
scenario 'B32', 'large transactions that print nothing' => sub {
	base_table();
	LiveTopn::Stream::create_slot(server, 'out');
	subscribe_to('s', $top, 'stream');
	run 'CREATE TABLE unsub (i int, t text)';
	server->set(
		wal_sender_timeout => '2s',
		logical_decoding_work_mem => '1MB');
	my $log_start = -s server->node->logfile;
	my $stream = LiveTopn::Stream->start(
		server, 'out',
		subscriptions => 's',
		arguments => [ '-s', 3600 ]);
	run q{INSERT INTO unsub SELECT g, repeat('z', 100)
		FROM generate_series(1, 1000000) g}, 'DELETE FROM unsub',
	  q{SELECT count(pg_logical_emit_message(true, 'other', i::text))
		FROM generate_series(1, 3000000) i},
	  'DELETE FROM items WHERE id = 20';
	my @lines = $stream->wait_for(sub { @_ == 1 }, 'the batch after them');
	like($lines[0], qr/"seq":1,/, 'the batch after them');
	unlike(slurp_file(server->node->logfile, $log_start),
		qr/terminating walsender process due to replication timeout/,
		'the connection was kept');
	$stream->stop;
	server->set(
		wal_sender_timeout => undef,
		logical_decoding_work_mem => undef);
	drop_slot('out');
};

done_testing();
