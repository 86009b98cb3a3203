# Names and arguments that mean something to SQL, JSON, C or a shell, in every
# place where they can stand: they are names, and nothing else.

use strict;
use warnings;
use utf8;

use FindBin;
use lib "$FindBin::Bin/../lib";

use Test::More;

use LiveTopn::Client;
use LiveTopn::Scenario;
use LiveTopn::Server qw(sqlstate_of);
use LiveTopn::Session;
use LiveTopn::Stream;

my $server = LiveTopn::Server->start('names');
use_server($server);

my @names = (
	'a"b', '""', "a'b", "''", 'a\\b', '\\', "E'\\x", "a\nb", "\r\n", "\t",
	"\x01\x1f", "\x7f", '%s%n%d%%', '%', 'a$b', '$$', '{"x":1}', '[]', ',',
	'a,b', '"a","b"', ' ', ' a ', 'select', 'SELECT', 'null', '*', '.',
	'a.b', ':x', '?', '--', '/*', ';',
	'x"; DROP TABLE victims; --', q{x'; DROP TABLE victims; --},
	'x"); DROP TABLE victims; --', '$$; DROP TABLE victims; --',
	'`touch victims`', '$(touch victims)', '</script>', "\x{2028}", 'ſ', 'İ',
	'é' x 31 . 'x', "\x{1F600}" x 15 . 'xxx', 'x' x 63, "e\x{301}");

utf8::encode($_) for @names;
writer->do('CREATE TABLE victims (id int)');
LiveTopn::Scenario::keep('victims');

sub quoted
{
	my (@quoted) = map { '"' . s/"/""/gr . '"' } @_;
	return wantarray ? @quoted : $quoted[0];
}

sub printable { return $_[0] =~ s/([^ -~])/sprintf '\\x%02x', ord $1/egr; }

# Another name that begins like it.
sub other
{
	my ($name, $i) = @_;
	my $short = substr $name, 0, 62 - ($name =~ /[\x80-\xff]/ ? 3 : 0);

	# not amid a character
	$short =~ s/[\x80-\xff]+\z// if length($name) > length $short;
	return "$short$i";
}

for my $name (@names)
{
	scenario 'names', printable($name) => sub {
		my ($n, $key, $text, $output, $label, $new) =
		  quoted($name, map { other($name, $_) } 1 .. 5);
		my $literal = writer->quote($name);

		run "CREATE SCHEMA $n",
		  "CREATE TABLE $n.$n ($key int, $n text, $text text,
			CONSTRAINT $key PRIMARY KEY ($key))",
		  "CREATE TYPE $n.$text AS ENUM ($literal, 'b')",
		  "CREATE FUNCTION $n.$n(text) RETURNS text IMMUTABLE LANGUAGE sql
			AS 'SELECT \$1'",
		  "INSERT INTO $n.$n SELECT g, $literal || g, $literal
			FROM generate_series(1, 9) g",
		  "INSERT INTO $n.$n VALUES (10, $literal, $literal)";
		my $query = "SELECT $n.*, $n.$n($text) AS $output,
			$literal\::$n.$text AS $label FROM $n.$n
			WHERE $n <> '' AND $text = \$1 OR $n.$n.$n = $literal
			ORDER BY $n.$n($n.$n) DESC, $key LIMIT 4";
		my $same = $query =~ s/\$1/$literal/r;

		my $right = sub {
			is(session->difference($name), undef, 'the result is right');
			is( scalar writer->selectrow_array(
					"SELECT count(*) FROM topn_rows(?) AS $n ($key int, $n text,
						$text text, $output text, $label $n.$text)",
					undef, $name),
				scalar session->client($name)->rows,
				'in rows, too');
		};

		subscribe $name => $query,
		  args => [$name],
		  deliver => 'both',
		  truth => "SELECT row_to_json(q)::text FROM ($same) q",
		  cushion => 1;
		$right->();
		my $slot = LiveTopn::Stream::create_slot($server, 'out');
		my $client = LiveTopn::Client->new(name => $name, limit => 4);
		$client->start(session->snapshot($name));

		run "UPDATE $n.$n SET $n = 'zz' || $n WHERE $key = 3",
		  "UPDATE $n.$n SET $text = $text || repeat($n, 3000) WHERE $key = 10",
		  "UPDATE $n.$n SET $n = repeat($literal, 3000) WHERE $key = 9",
		  "DELETE FROM $n.$n WHERE $key = 4";
		$right->();
		is( scalar writer->selectrow_array(
				'SELECT count(*) > 0 FROM live_topn.keyset_queries(?, ?, ?)',
				undef, $query, [$name], [ $name, 1 ]),
			1, 'its queries can be printed');
		is( scalar writer->selectrow_array(
				"SELECT format('%s %s %s', name, args[1], query)
				 FROM topn_subscriptions WHERE name = ?", undef, $name),
			"$name $name $query", 'the view shows it');

		for my $line (
			@{
				writer->selectcol_arrayref(
					"SELECT data FROM pg_logical_slot_get_changes('out', NULL,
						NULL, 'subscriptions', ?)", undef, $n)
			})
		{
			unlike($line, qr/\n/, 'one line') if $line =~ /\n/;
			$client->receive_batch($line);
		}
		is_deeply([ $client->rows ], [ session->client($name)->rows ],
			'the stream has the same');
		my $polled = writer->selectcol_arrayref('SELECT topn_poll(?, 0)',
			undef, $name);
		is(scalar @$polled, $client->seq, 'and so has topn_poll');

		# messages have names, too
		my (undef, $error) = sqlstate_of(writer,
			'SELECT subscribe_topn(?, ?, args => ?)', $query, $name, [$name]);
		like($error // '', qr/\Q$name\E/, 'a message says it');
		run "ALTER TABLE $n.$n RENAME TO $new";
		wait_for_state $name => 'error';
		run "ALTER TABLE $n.$new RENAME TO $n";
		wait_for_state $name => 'live';
		$right->();
		session->unsubscribe($name);
		writer->do('SELECT pg_drop_replication_slot(?)', undef, $slot);
		run "DROP SCHEMA $n CASCADE";
	};
}

# Owners and databases have names as well; a few of all will do, without those
# that DBD::Pg cannot connect to.
for my $name (grep { /['\\\n%]/ && !/[";]/ && length > 2 } @names)
{
	scenario 'names', 'role and database ' . printable($name) => sub {
		my $n = quoted($name);

		base_table();
		run "CREATE ROLE $n LOGIN", "GRANT SELECT ON items TO $n",
		  "SET ROLE $n";
		my $done = eval {
			writer->do(
				q{SELECT subscribe_topn('SELECT id FROM items ORDER BY id
					LIMIT 3', 'theirs')});
			1;
		};
		is($done ? '' : $@, '', 'they subscribe');
		run 'RESET ROLE';
		is( scalar writer->selectrow_array(
				q{SELECT rows #>> '{0,row,id}' FROM topn_snapshot('theirs')}),
			'1', 'the rows are there');
		is( scalar writer->selectrow_array(
				"SELECT owner = ?::regrole FROM topn_subscriptions
				 WHERE name = 'theirs'", undef, $n),
			1, 'owned by them');
		run q{SELECT unsubscribe_topn('theirs')}, "DROP OWNED BY $n",
		  "DROP ROLE $n", "CREATE DATABASE $n";
		my $dbh = DBI->connect(
			join(';',
				'dbi:Pg:host=' . $server->node->host,
				'port=' . $server->node->port,
				"dbname='" . $name =~ s/([\\'])/\\$1/gr . "'"),
			undef, undef, { RaiseError => 1, PrintError => 0 });
		$dbh->do($_)
		  for 'SET client_min_messages = error', 'CREATE EXTENSION live_topn',
		  'CREATE TABLE t (id int PRIMARY KEY)',
		  q{SELECT subscribe_topn('SELECT id FROM t ORDER BY id LIMIT 3', 's')},
		  'INSERT INTO t VALUES (7)';
		is( scalar $dbh->selectrow_array(
				q{SELECT rows #>> '{0,row,id}' FROM topn_snapshot('s')}),
			'7', 'a database of that name');
		is( scalar writer->selectrow_array(
				'SELECT state FROM topn_worker WHERE database = ?',
				undef, $name),
			'running', 'its worker is shown');
		$dbh->disconnect;
		run "DROP DATABASE $n";
	};
}

# Texts of other encodings, in one payload and in parts; bytes that mean nothing
# where the server does not look.
my %texts = (
	LATIN1 => [ "\xe9", "\xff\xa0" ],
	EUC_JP => [ "\xb4\xc1\xbb\xfa", "\x8f\xb0\xa1", "\x8e\xb1" ],
	SQL_ASCII => [ "\xff\xfe", "\xc3", "\x80\"\\" ]);

for my $encoding (sort keys %texts)
{
	scenario 'encodings', $encoding => sub {
		run "CREATE DATABASE encoded ENCODING $encoding LOCALE 'C'
			LOCALE_PROVIDER libc TEMPLATE template0";
		my $dbh = $server->connect('encoded');
		my $session = LiveTopn::Session->new($dbh);

		$dbh->do($_)
		  for 'SET client_min_messages = error',
		  "SET client_encoding = $encoding", 'CREATE EXTENSION live_topn',
		  'CREATE TABLE t (id int PRIMARY KEY, v text)';
		for my $text (@{ $texts{$encoding} })
		{
			my $name = "n$text";

			$dbh->do('INSERT INTO t VALUES (1, ?), (2, ?)',
				undef, $text, $text x 7);
			$session->subscribe(
				$name, 'SELECT id, v AS ' . quoted($text)
				  . ' FROM t ORDER BY v, id LIMIT 3');
			for my $change (
				'INSERT INTO t SELECT 3, repeat(v, 5000) FROM t WHERE id = 1',
				q{UPDATE t SET v = repeat('x', 7800) || v WHERE id = 2},
				'UPDATE t SET v = repeat(v, 700) WHERE id = 1')
			{
				$dbh->do($change);
				is($session->difference($name), undef, 'the result is right');
			}
			$session->unsubscribe($name);
			$dbh->do('DELETE FROM t');
		}
		$dbh->disconnect;
		run 'DROP DATABASE encoded';
	};
}

is(scalar writer->selectrow_array('SELECT count(*) FROM victims'),
	0, 'the victims live');
ok(!-e $server->node->data_dir . '/victims', 'and nothing was touched');
unlike(slurp_log(), qr/PANIC|TRAP|terminated by signal|XX000/,
	'nothing worse in the log');
done_testing();

sub slurp_log
{
	return PostgreSQL::Test::Utils::slurp_file($server->node->logfile);
}
