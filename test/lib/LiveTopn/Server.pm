
=head1 NAME

LiveTopn::Server - a throw-away server with live_topn

=head1 SYNOPSIS

  my $server = LiveTopn::Server->start('oracle', conf => 'work_mem = 1MB');
  my $dbh = $server->connect;
  my $session = $server->session;

=head1 DESCRIPTION

The server has the settings that the extension needs, an ICU locale as its
default (so that the order of text is not that of its bytes), and the extension
in the database "postgres".  Connections speak bytes in UTF-8, raise errors
and print nothing.

=cut

package LiveTopn::Server;

use strict;
use warnings;

use DBD::Pg qw(:async);
use DBI;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Time::HiRes qw(time);

use LiveTopn::Session;

use Exporter qw(import);
our @EXPORT_OK = qw(poll_until sqlstate_of write_file);

my $base_conf = <<'EOC';
shared_preload_libraries = 'live_topn'
wal_level = logical
max_wal_senders = 10
max_replication_slots = 20
max_worker_processes = 16
max_connections = 100
max_prepared_transactions = 10
shared_buffers = 32MB
autovacuum_naptime = 5s
log_statement = none
timezone = 'UTC'
# with "k IS NOT NULL AND (k < 6 OR k > 19)" PostgreSQL 15 leaves out the
# default partition, so that the query itself is wrong
enable_partition_pruning = off
EOC

# Arguments: conf, further settings; extension => 0 to leave it out.
sub start
{
	my ($class, $name, %args) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);
	my $self = bless { node => $node }, $class;

	$node->init(
		extra => [
			'--encoding=UTF8', '--locale=C',
			'--locale-provider=icu', '--icu-locale=en-US'
		]);
	$node->append_conf('postgresql.conf', $base_conf);
	$node->append_conf('postgresql.conf',
		"output_plugin_libraries = 'pgoutput, test_decoding, live_topn'")
	  if knows_setting('output_plugin_libraries');
	$node->append_conf('postgresql.conf', $args{conf} // '');
	$node->start;
	$self->connect->do('CREATE EXTENSION live_topn')
	  unless exists $args{extension} && !$args{extension};
	return $self;
}

sub node { return $_[0]{node}; }

sub connect    ## no critic (ProhibitBuiltinHomonyms)
{
	my ($self, $database, %args) = @_;
	my $dsn = $self->{node}->connstr($database // 'postgres');

	$dsn =~ s/ /;/g;
	$dsn =~ s/'//g;
	return DBI->connect(
		"dbi:Pg:$dsn",
		$args{user},
		undef,
		{
			RaiseError => 1,
			PrintError => 0,
			PrintWarn => 0,
			AutoCommit => 1,
			AutoInactiveDestroy => 1,
			pg_enable_utf8 => 0,
			pg_server_prepare => 1
		});
}

# A connection that listens; see LiveTopn::Session.
sub session
{
	my ($self, $database, %args) = @_;
	return LiveTopn::Session->new($self->connect($database, %args));
}

# ALTER SYSTEM and reload; undef resets.  Returns when the value is in force in
# new connections.
sub set
{
	my ($self, %settings) = @_;
	my $dbh = $self->connect('template1');

	for my $name (sort keys %settings)
	{
		my $value = $settings{$name};
		$dbh->do(
			defined $value
			? "ALTER SYSTEM SET $name = " . $dbh->quote($value)
			: "ALTER SYSTEM RESET $name");
	}
	my $loaded = $dbh->selectrow_array('SELECT pg_conf_load_time()');
	$dbh->do('SELECT pg_reload_conf()');
	poll_until(
		sub {
			$self->connect('template1')->selectrow_array(
				'SELECT pg_conf_load_time() > ?::timestamptz',
				undef, $loaded);
		},
		'the new settings to be loaded');
	return;
}

# Process id of the database worker, undef if none is running.
sub worker_pid
{
	my ($self, $database) = @_;
	return scalar $self->connect($database)->selectrow_array(
		"SELECT pid FROM topn_worker
		 WHERE database = current_database() AND state = 'running'");
}

# How many DSM segments of ours there are, which have queues of 64 kB; the server
# has a smaller one for the list of them, and larger ones for its statistics.
# Needs dynamic_shared_memory_type = mmap, which tells our server's from others.
sub dsm_segments
{
	my ($self) = @_;
	return scalar grep { $_ > 2**16 && $_ < 2**20 }
	  map { -s $_ // 0 } glob $self->{node}->data_dir . '/pg_dynshmem/*';
}

# A commit whose record is in WAL, and is decoded, but which no snapshot sees:
# it waits for a standby that does not exist.  Commits with synchronous_commit
# = local do not wait.  Returns the connection; end with let_go.
sub hanging_commit
{
	my ($self, $sql) = @_;
	my $dbh = $self->connect;
	my $other = $self->connect;

	$self->set(synchronous_standby_names => 'ghost');

	# commits wait from when the checkpointer has seen that, which it looks at
	# before it does what it is asked
	$other->do('CHECKPOINT');
	$dbh->do($sql, { pg_async => PG_ASYNC });
	poll_until(
		sub {
			$other->selectrow_array(
				"SELECT wait_event = 'SyncRep' FROM pg_stat_activity
				 WHERE pid = ?", undef, $dbh->{pg_pid});
		},
		'a commit to wait for its standby');
	return $dbh;
}

sub let_go
{
	my ($self, $dbh) = @_;

	$self->set(synchronous_standby_names => undef);
	$dbh->pg_result;
	return;
}

# End the database worker and wait until another one has taken over.
sub restart_worker
{
	my ($self, $database) = @_;
	my $dbh = $self->connect($database);
	my $old = $self->worker_pid($database);

	$dbh->do('SELECT pg_terminate_backend(?)', undef, $old);
	poll_until(
		sub {
			my $new = $self->worker_pid($database);
			return defined $new && $new != $old;
		},
		'another database worker');
	return;
}

# End the worker of database "postgres", run the code, and let another one come.
sub without_worker
{
	my ($self, $code) = @_;
	my $dbh = $self->connect('template1');

	$dbh->do('ALTER DATABASE postgres ALLOW_CONNECTIONS false');
	$dbh->do("SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE datname = 'postgres' AND backend_type = 'live_topn worker'");
	poll_until(
		sub {
			!$dbh->selectrow_array("SELECT count(*) FROM pg_stat_activity
				WHERE datname = 'postgres'
				AND backend_type = 'live_topn worker'");
		},
		'the worker to end');
	$code->();
	$dbh->do('ALTER DATABASE postgres ALLOW_CONNECTIONS true');
	poll_until(sub { $self->worker_pid }, 'another worker');
	return;
}

# Does this version of the server have the setting?
sub knows_setting
{
	my ($name) = @_;
	my ($stdout, $stderr) =
	  run_command([ 'postgres', '--describe-config' ]);

	return $stdout =~ /^\Q$name\E\t/m;
}

# Bytes that a file is to have, and no others.
sub write_file
{
	my ($path, $bytes) = @_;

	open my $file, '>', $path or die "could not write $path: $!";
	binmode $file;
	print $file $bytes;
	close $file;
	return;
}

# Wait until the condition returns true; die after the usual time-out.
sub poll_until
{
	my ($condition, $what) = @_;
	my $deadline = time() + $PostgreSQL::Test::Utils::timeout_default;

	while (1)
	{
		my $result = $condition->();
		return $result if $result;
		die "timed out waiting for $what\n" if time() > $deadline;
		select undef, undef, undef, 0.02;
	}
}

# The SQLSTATE and the text of the error that the code raises, undef if none.
sub sqlstate_of
{
	my ($dbh, $sql, @values) = @_;

	return if eval { $dbh->do($sql, undef, @values); 1 };
	return wantarray ? ($dbh->state, $dbh->errstr) : $dbh->state;
}

1;
