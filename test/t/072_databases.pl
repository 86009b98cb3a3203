# DDL on the extension and on whole databases, copies of them, other servers.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils qw(slurp_file command_ok run_log);
use Test::More;

use LiveTopn::Changes;
use LiveTopn::Scenario;
use LiveTopn::Server qw(poll_until sqlstate_of);

use_server(
	LiveTopn::Server->start('databases',
		conf => "max_worker_processes = 32\n"));
bystander();

my $top = 'SELECT id, score FROM items ORDER BY score DESC, id LIMIT 3';

# A database with a subscription "s"; returns a session of it.  With load => 0
# nobody waits for the result.
sub make_database
{
	my ($name, %options) = @_;

	run "CREATE DATABASE $name";
	my $session = server->session($name);
	my $dbh = $session->dbh;
	$dbh->do('SET client_min_messages = warning');
	$dbh->do($_)
	  for 'CREATE EXTENSION live_topn',
	  'CREATE TABLE items (id int PRIMARY KEY, score int)',
	  'INSERT INTO items SELECT g, g * 10 FROM generate_series(1, 20) g';
	if ($options{load} // 1)
	{
		$session->subscribe('s', $top, cushion => 2);
	}
	else
	{
		$dbh->do('SELECT subscribe_topn(?, ?)', undef, $top, 's');
	}
	return $session;
}

sub slots
{
	return scalar writer->selectrow_array(
		'SELECT count(*) FROM pg_replication_slots
		 WHERE database = ?', undef, $_[0]);
}

sub workers
{
	return scalar writer->selectrow_array(
		q{SELECT count(*) FROM pg_stat_activity WHERE datname = ?
			AND backend_type LIKE 'live_topn%'}, undef, $_[0]);
}

# A new session of a database whose subscription is as the query says.
sub works
{
	my ($name, $what) = @_;
	my $session = server->session($name);

	$session->dbh->do('SET client_min_messages = warning');
	$session->listen('s', $top);
	$session->begin('s');
	is($session->difference('s'), undef, "$what: it works");
	$session->dbh->do('UPDATE items SET score = score + 1
		WHERE id = (SELECT min(id) FROM items)');
	$session->dbh->do('DELETE FROM items WHERE id = (SELECT max(id) FROM items)');
	is($session->difference('s'), undef, "$what: it follows changes");
	$session->dbh->disconnect;
	return;
}

# ---- the extension ----

change 'DROP EXTENSION' => sub {
	my $session = make_database('d');
	my $dbh = $session->dbh;

	$dbh->do('BEGIN; DROP EXTENSION live_topn; ROLLBACK');
	is($session->difference('s'), undef, 'rolled back');
	$dbh->do('DROP EXTENSION live_topn');
	poll_until(sub { !slots('d') && !workers('d') },
		'the slot and the workers to go');
	pass('the slot and the workers have gone');
	is(scalar $dbh->selectrow_array(q{SELECT count(*) FROM pg_namespace
		WHERE nspname = 'live_topn'}), 0, 'nothing is left');
	my $file = server->node->data_dir . '/live_topn/'
	  . $dbh->selectrow_array('SELECT oid FROM pg_database
		WHERE datname = current_database()');
	ok(!-e $file, 'nor a file');
	poll_until(
		sub {
			!writer->selectrow_array(
				q{SELECT count(*) FROM topn_worker WHERE database = 'd'});
		},
		'the worker to go from the view');
	pass('nor a worker in the view');

	# and anew, also at once
	$dbh->do($_) for 'CREATE EXTENSION live_topn';
	$session->subscribe('s', $top, cushion => 2);
	is($session->difference('s'), undef, 'made again');
	for (1 .. 3)
	{
		$dbh->do($_)
		  for 'DROP EXTENSION live_topn', 'CREATE EXTENSION live_topn';
		$session->subscribe('s', $top, cushion => 2);
		is($session->difference('s'), undef, 'made again at once');
	}
	$dbh->do('BEGIN; DROP EXTENSION live_topn; CREATE EXTENSION live_topn;
		COMMIT');
	$session->subscribe('s', $top, cushion => 2);
	$dbh->do('DELETE FROM items WHERE id = 20');
	is($session->difference('s'), undef, 'made again in one transaction');

	# its tables are members, and nobody drops or replaces them alone
	like((sqlstate_of($dbh, 'DROP TABLE live_topn.subscription'))[1],
		qr/extension live_topn requires it/, 'the table cannot be dropped');
	$dbh->disconnect;
	run 'DROP DATABASE d';
	is(slots('d'), 0, 'no slot is left of a dropped database');
};

change 'ALTER EXTENSION' => sub {
	my $session = make_database('d');
	my $dbh = $session->dbh;
	my $pid = server->worker_pid('d');

	$dbh->do($_)
	  for q{ALTER EXTENSION live_topn UPDATE TO '1.0'},
	  'CREATE SCHEMA elsewhere';
	is($session->difference('s'), undef, 'UPDATE TO the same');
	$dbh->do('ALTER EXTENSION live_topn ADD TABLE items');
	$dbh->do('ALTER EXTENSION live_topn DROP TABLE items');
	is($session->difference('s'), undef, 'a member is added and dropped');
	my ($state, $message) =
	  sqlstate_of($dbh, 'ALTER EXTENSION live_topn SET SCHEMA elsewhere');
	diag($message) if $state;
	if (!$state)
	{
		$dbh->do('SET search_path = public, elsewhere');
		is($session->difference('s'), undef, 'SET SCHEMA');
		$dbh->do('ALTER EXTENSION live_topn SET SCHEMA public');
	}
	is(server->worker_pid('d'), $pid, 'the worker has stayed');

	# by hand: all subscriptions at once
	$session->subscribe('t', $top);
	$dbh->do('TRUNCATE live_topn.subscription');
	poll_until(sub { !slots('d') && !workers('d') }, 'the workers to go');
	$session->subscribe('s', $top, cushion => 2);
	$dbh->do('DELETE FROM items WHERE id = 20');
	is($session->difference('s'), undef, 'after a TRUNCATE of our table');
	$dbh->disconnect;
	run 'DROP DATABASE d';
};

# ---- databases ----

change 'DROP DATABASE' => sub {
	my $session = make_database('plain');
	my ($state, $message) = sqlstate_of(writer, 'DROP DATABASE plain');
	is($state, '55006', 'it is in use');
	like($message, qr/There is 1 other session/, 'by a client alone');
	is($session->difference('s'), undef, 'the subscription goes on');
	$session->dbh->disconnect;
	run 'DROP DATABASE plain';

	$session = make_database('forced');
	run 'DROP DATABASE forced WITH (FORCE)';
	ok(!eval { $session->dbh->do('SELECT 1') }, 'clients are thrown out');
	for my $name (qw(plain forced))
	{
		is(slots($name), 0, "no slot of $name");
		is(workers($name), 0, "no worker of $name");
	}

	# while rows are being read
	server->set('live_topn.debug_refill_delay' => '1min');
	$session = make_database('reading', load => 0);
	$session->dbh->disconnect;
	poll_until(
		sub {
			writer->selectrow_array(q{SELECT count(*) FROM pg_stat_activity
				WHERE datname = 'reading'
				AND backend_type = 'live_topn refill worker'});
		},
		'a refill');
	run 'DROP DATABASE reading';
	server->set('live_topn.debug_refill_delay' => undef);

	# while the worker waits for its slot
	my $open = server->connect;
	$open->begin_work;
	$open->do('CREATE TABLE pending ()');
	$session = make_database('waiting', load => 0);
	poll_until(
		sub {
			writer->selectrow_array(q{SELECT count(*) FROM topn_worker
				WHERE database = 'waiting' AND state = 'creating slot'});
		},
		'a worker to wait for its slot');
	run 'DROP DATABASE waiting WITH (FORCE)';
	$open->rollback;
	is(slots($_), 0, "no slot of $_") for qw(reading waiting);

	# refused to somebody else, who does not disturb either
	$session = make_database('theirs');
	my $pid = server->worker_pid('theirs');
	run 'CREATE ROLE nobody LOGIN';
	my $nobody = server->connect('postgres', user => 'nobody');
	for my $command (
		'DROP DATABASE theirs',
		'ALTER DATABASE theirs RENAME TO ours',
		'CREATE DATABASE copy TEMPLATE theirs')
	{
		is(sqlstate_of($nobody, $command), '42501', "$command is refused");
	}
	is(server->worker_pid('theirs'), $pid, 'the worker was not stopped');
	$nobody->disconnect;
	$session->dbh->disconnect;
	run 'DROP ROLE nobody', 'DROP DATABASE theirs';
	my $directory = server->node->data_dir . '/live_topn';
	poll_until(sub { 1 == grep { -e } glob "$directory/[0-9]*" },
		'the files of dropped databases to go');
	pass('files of dropped databases are gone');
};

change 'ALTER DATABASE, CREATE DATABASE ... TEMPLATE' => sub {
	my $session = make_database('one');
	$session->dbh->disconnect;
	run 'ALTER DATABASE one RENAME TO two';
	works 'two', 'renamed';
	run 'CREATE DATABASE three TEMPLATE two';
	works 'two', 'copied';
	works 'three', 'a copy';
	is(slots('two') + slots('three'), 2, 'each has a slot');

	run 'ALTER DATABASE three IS_TEMPLATE true';
	poll_until(sub { !workers('three') && !slots('three') },
		'the worker of a template to go');
	my $dbh = server->connect('three');
	my ($state, $message) =
	  sqlstate_of($dbh, q{SELECT * FROM topn_snapshot('s')});
	is($state, '55000', 'no results in a template');
	like($message, qr/template/, 'it says why');
	$dbh->disconnect;
	run 'CREATE DATABASE four TEMPLATE three';
	works 'four', 'a copy of a template';
	run 'ALTER DATABASE three IS_TEMPLATE false';
	works 'three', 'no longer a template';

	run 'ALTER DATABASE two ALLOW_CONNECTIONS false',
	  'ALTER DATABASE two ALLOW_CONNECTIONS true',
	  'ALTER DATABASE two CONNECTION LIMIT 50',
	  q{ALTER DATABASE two SET timezone = 'Asia/Tokyo'},
	  'ALTER DATABASE two OWNER TO CURRENT_USER',
	  'ALTER DATABASE two REFRESH COLLATION VERSION';
	works 'two', 'altered';
	my $space = PostgreSQL::Test::Utils::tempdir();
	run "CREATE TABLESPACE space LOCATION '$space'",
	  'ALTER DATABASE two SET TABLESPACE space';
	works 'two', 'moved to a tablespace';
	run 'DROP DATABASE two', 'DROP DATABASE three', 'DROP DATABASE four',
	  'DROP TABLESPACE space';
	is(slots($_), 0, "no slot of $_") for qw(two three four);
};

change 'pg_dump and pg_restore' => sub {
	my $session = make_database('dumped');
	my $dbh = $session->dbh;
	my $node = server->node;
	my $file = PostgreSQL::Test::Utils::tempdir() . '/dump';
	$dbh->do(q{SELECT subscribe_topn(
		'SELECT id FROM items WHERE score > $1 ORDER BY id LIMIT 2', 'arg',
		ARRAY['50'], cushion => 7)});
	$node->command_ok([ 'pg_dump', '-Fc', '-f', $file, 'dumped' ], 'pg_dump');
	run 'CREATE DATABASE restored';
	$node->command_ok([ 'pg_restore', '-d', 'restored', '--exit-on-error', $file ],
		'pg_restore');
	works 'restored', 'restored';
	my $restored = server->connect('restored');
	is_deeply(
		[
			map { $_->[0] } @{
				$restored->selectall_arrayref(
					q{SELECT id FROM topn_rows('arg') AS (id int)})
			}
		],
		[ 6, 7 ],
		'arguments are restored');
	$restored->do(q{SELECT subscribe_topn('SELECT id FROM items ORDER BY id
		LIMIT 1')});
	is(server->worker_pid('dumped') ? 1 : 0, 1, 'the dumped one goes on');
	is($session->difference('s'), undef, 'the dumped one is right');

	# only the schema: no subscriptions, and no error
	run 'CREATE DATABASE bare';
	$node->command_ok([ 'pg_restore', '-s', '-d', 'bare', '--exit-on-error', $file ],
		'pg_restore of the schema');
	my $bare = server->connect('bare');
	is( $bare->selectrow_array('SELECT count(*) FROM topn_subscriptions'),
		0, 'no subscriptions without data');

	# rows of a subscription whose table is not there yet
	$bare->do('DROP TABLE items');
	$bare->do('DROP EXTENSION live_topn');
	run 'DROP DATABASE IF EXISTS nothing';
	$_->disconnect for $dbh, $restored, $bare;
	run map { "DROP DATABASE $_" } qw(dumped restored bare);
};

change 'pg_upgrade' => sub {
	my $old = LiveTopn::Server->start('old');
	my $new = LiveTopn::Server->start('new', extension => 0);
	my $dbh = $old->connect;
	chomp(my $bindir = `pg_config --bindir`);

	$dbh->do($_)
	  for 'CREATE TABLE items (id int PRIMARY KEY, score int)',
	  'INSERT INTO items SELECT g, g * 10 FROM generate_series(1, 20) g';
	my $session = $old->session;
	$session->subscribe('s', $top, cushion => 2);
	$dbh->do('DELETE FROM items WHERE id = 20');
	is($session->difference('s'), undef, 'before');
	$_->disconnect for $dbh, $session->dbh;
	$_->node->stop for $old, $new;

	chdir PostgreSQL::Test::Utils::tempdir();
	$new->node->command_ok(
		[
			'pg_upgrade', '--no-sync',
			'-b', $bindir, '-B', $bindir,
			'-d', $old->node->data_dir, '-D', $new->node->data_dir,
			'-s', $new->node->host,
			'-p', $old->node->port, '-P', $new->node->port
		],
		'pg_upgrade');
	$new->node->start;
	$session = $new->session;
	$session->listen('s', $top);
	$session->begin('s');
	is($session->difference('s'), undef, 'after pg_upgrade it is there');
	$new->connect->do('DELETE FROM items WHERE id = 19');
	is($session->difference('s'), undef, 'and follows changes');
	$new->node->stop;
};

# ---- settings ----

change 'settings are reloaded' => sub {
	base_table();
	subscribe s => $top;
	my $pid = server->worker_pid;
	my %hostile = (
		'live_topn.max_refill_workers' => 4,
		'live_topn.memory_limit' => '1MB',
		'live_topn.refill_timeout' => '10s',
		'log_min_messages' => 'info',
		'timezone' => 'Asia/Tokyo',
		'datestyle' => 'German',
		'search_path' => 'pg_catalog',
		'default_transaction_isolation' => 'serializable',
		'default_transaction_read_only' => 'on',
		'statement_timeout' => '1ms',
		'lock_timeout' => '1ms',
		'idle_in_transaction_session_timeout' => '1ms',
		'session_replication_role' => 'replica',
		'row_security' => 'off',
		'enable_indexscan' => 'off');

	# our own sessions keep theirs
	for my $dbh (writer, session->dbh)
	{
		$dbh->do('SELECT set_config($1, current_setting($1), false)',
			undef, $_)
		  for grep { !/^live_topn/ } keys %hostile;
	}
	run map { "ALTER SYSTEM SET $_ = '$hostile{$_}'" } keys %hostile;
	reload();
	run 'DELETE FROM items WHERE id IN (20, 19, 18, 17, 16)';
	ids_are s => '15 14 13';
	run 'ALTER SYSTEM RESET ALL';
	reload();
	server->set('live_topn.max_refill_workers' => 3);
	run 'DELETE FROM items WHERE id IN (15, 14, 13, 12, 11)';
	ids_are s => '10 9 8';
	right 's';
	is(server->worker_pid, $pid, 'the worker is the same');
	server->set('live_topn.max_refill_workers' => undef);
};

sub reload
{
	my $loaded = writer->selectrow_array(
		'SELECT extract(epoch FROM pg_conf_load_time())');

	writer->do('SELECT pg_reload_conf()');
	poll_until(
		sub {
			writer->selectrow_array(
				'SELECT extract(epoch FROM pg_conf_load_time()) > ?',
				undef, $loaded);
		},
		'the settings to be loaded');
	return;
}

# ---- standby ----

change 'a standby, and its promotion' => sub {
	base_table();
	subscribe s => $top;
	run 'DELETE FROM items WHERE id = 20';
	right 's';
	my $node = server->node;
	$node->backup('base');
	my $standby = PostgreSQL::Test::Cluster->new('standby');
	$standby->init_from_backup($node, 'base', has_streaming => 1);
	$standby->start;
	run 'DELETE FROM items WHERE id = 19';
	$node->wait_for_catchup($standby);

	my $other = bless { node => $standby }, 'LiveTopn::Server';
	my $dbh = $other->connect;
	for my $call (
		q{subscribe_topn('SELECT id FROM items ORDER BY id LIMIT 1')},
		q{topn_snapshot('s')}, q{topn_resync('s')}, 'topn_sync()')
	{
		my ($state, $message) = sqlstate_of($dbh, "SELECT $call");
		is($state, '55000', "$call on a standby is an error");
		like($message, qr/recovery/, '... which says why');
	}
	my ($state, $message) =
	  sqlstate_of($dbh, q{SELECT unsubscribe_topn('s')});
	like($message, qr/recovery|read-only/, 'unsubscribe_topn as well');
	is_deeply(
		$dbh->selectall_arrayref('SELECT name, state, error
			FROM topn_subscriptions ORDER BY name'),
		[ map { [ $_, 'no worker', 'the server is in recovery' ] } qw(bystander idle s) ],
		'the views show what there is');
	$dbh->selectall_arrayref("SELECT * FROM $_")
	  for qw(topn_stats topn_worker);
	is( $dbh->selectrow_array(
			q{SELECT count(*) FROM pg_stat_activity
				WHERE backend_type LIKE 'live_topn%'}),
		0, 'no process of ours on a standby');
	my $log = slurp_file($standby->logfile);
	unlike($log, qr/(ERROR|WARNING|FATAL):.*live_topn(?! cannot run)/,
		'nor a complaint in the log');

	# the primary goes away amid changes
	run 'DELETE FROM items WHERE id = 18';
	$node->wait_for_catchup($standby);
	$node->stop('immediate');
	my $session = LiveTopn::Session->new($dbh);
	$standby->promote;
	poll_until(
		sub { !$dbh->selectrow_array('SELECT pg_is_in_recovery()') },
		'the end of recovery');
	$session->listen('s', $top);
	$session->begin('s');
	is($session->difference('s'), undef, 'after promotion it works');
	is(join(' ', map { /(\d+)/ } $session->client('s')->keys),
		'17 16 15', 'the result is that of now');
	$dbh->do('DELETE FROM items WHERE id = 17');
	is($session->difference('s'), undef, 'and follows changes');
	cmp_ok(
		$dbh->selectrow_array(
			q{SELECT resets FROM topn_stats WHERE name = 's'}),
		'>=', 1, 'clients of before were told to begin anew');
	$dbh->disconnect;
	$standby->stop;
	$node->start;
	resume s => $top;
	right 's';
}, restarts => 1;

done_testing();
