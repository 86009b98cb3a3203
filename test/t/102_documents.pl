# The SQL in README.md and doc/ works, from top to bottom, on a fresh server,
# and shows what they say it shows.
#
# Blocks that start with ```sql run in order, in one session of psql for each
# document.  A block ```text right after one is what psql prints then; white
# space does not count, nor do lines and numbers of rows, and … stands for anything.
# doc/reference.md has all functions, views and settings that there are.  Links
# among documents lead somewhere.
# Invisible comments before a block say
#
#   <!-- setup: CREATE TABLE ... -->    what is needed and not shown
#   <!-- needs: output_plugin_libraries -->
#           that the next block is for servers that know a setting

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use PostgreSQL::Test::Utils;
use Test::More;

use LiveTopn::Server;

my $root = "$FindBin::Bin/../..";
my @documents = ("$root/README.md", sort glob "$root/doc/*.md");
my $sql_word =
  qr/^\s+(?:SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|DROP|LISTEN|CALL|BEGIN)\s/;

sub read_lines
{
	my ($path) = @_;
	open my $file, '<', $path or die "could not open $path: $!\n";
	my @lines = <$file>;
	close $file;
	return @lines;
}

# What a document runs, each with its line, SQL, and what it is to print.
sub blocks_of
{
	my ($document) = @_;
	my (@found, $block, $text, $skip);
	my @lines = read_lines($document);

	for my $line (1 .. @lines)
	{
		local $_ = $lines[ $line - 1 ];

		if (defined $text)
		{
			if (/^```\s*$/) { $text = undef; }
			else { $$text .= $_; }
		}
		elsif (/^```sql\s*$/)
		{
			$block = { line => $line, sql => '' };
			push @found, $block if !$skip;
			$skip = 0;
			$text = \$block->{sql};
		}
		elsif (/^```text\s*$/ && $block)
		{
			$block->{prints} = '';
			$text = \$block->{prints};
		}
		elsif (/^```\w*\s*$/)
		{
			$block = undef;
			$text = \my $unused;
		}
		elsif (/^<!-- setup: (.*) -->\s*$/)
		{
			push @found, { line => $line, sql => "$1\n" };
		}
		elsif (/^<!-- needs: (.*) -->\s*$/)
		{
			$skip = !LiveTopn::Server::knows_setting($1);
		}
		elsif (/\S/)
		{
			$block = undef;
			fail("$document, line $line: SQL that is not run")
			  if /^ {4}/ && /$sql_word/;
		}
	}
	die "$document: a block has no end\n" if defined $text;
	return @found;
}

sub without_space
{
	my ($text) = @_;

	$text =~ s/^(?:\(\d+ rows?\)|[-+]+)$//mg;
	$text =~ s/\s//g;
	return $text;
}

# Run the blocks in one session; what each prints, as far as they got.
sub run_blocks
{
	my ($server, @blocks) = @_;
	my ($script, $stdout, $stderr) = ('', '', '');

	for my $i (0 .. $#blocks)
	{
		$script .= "\\echo :: $i\n$blocks[$i]{sql}\n";

		# notifications come with the answer to a statement
		$script .= "SELECT topn_sync() \\g /dev/null\n"
		  if ($blocks[$i]{prints} // '') =~ /^Asynchronous/m;
	}
	IPC::Run::run(
		[
			'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-d',
			$server->node->connstr('postgres'), '-f', '-'
		],
		'<' => \$script,
		'>' => \$stdout,
		'2>' => \$stderr);
	diag($stderr) if $stderr =~ /ERROR|FATAL/;
	my (undef, @printed) = split /^:: \d+\n/m, $stdout;
	pop @printed if $stderr =~ /ERROR|FATAL/;
	return @printed;
}

my ($blocks, $compared) = (0, 0);

for my $document (@documents)
{
	my ($name) = $document =~ m{([^/]+)\.md$};
	my @blocks = blocks_of($document) or next;
	my $server = LiveTopn::Server->start($name, extension => 0);
	my @printed = run_blocks($server, @blocks);

	for my $block (@blocks)
	{
		my $printed = shift @printed;
		my $where = "$name.md, line $block->{line}";

		$blocks++;
		ok(defined $printed, "$where works");
		next if !defined $block->{prints} || !defined $printed;

		my $expected = join '.*?', map { quotemeta }
		  split /\xe2\x80\xa6/, without_space($block->{prints}), -1;
		$compared++;
		like(without_space($printed), qr/^$expected$/s,
			"$where prints what it says")
		  or diag($printed);
	}
	$server->node->stop('immediate');
}
cmp_ok($blocks, '>=', 25, 'blocks were found');
cmp_ok($compared, '>=', 8, 'some of them with what they print');

# ---- links ----

# As anchors are made of headings: of `topn_watch`, topn_watch.
sub anchors_of
{
	my ($path) = @_;
	my %anchors;

	for (read_lines($path))
	{
		/^#+ (.*?)\s*$/ or next;
		my $anchor = lc $1;
		$anchor =~ s/[^\w\- ]//g;
		$anchor =~ tr/ /-/;
		$anchors{$anchor} = 1;
	}
	return %anchors;
}

my $links = 0;
for my $document (@documents)
{
	my ($folder, $name) = $document =~ m{^(.*)/([^/]+)$};
	my $text = join '', read_lines($document);

	while ($text =~ /\]\(([^)#:\s]*)(?:#([^)\s]*))?\)/g)
	{
		my ($file, $anchor) = ($1, $2);
		my $path = $file eq '' ? $document : "$folder/$file";

		# others are not here
		next if $path !~ /\.(?:md|svg)$/ || $path =~ m{/CONTRIBUTING\.md$};
		my %anchors = -e $path ? anchors_of($path) : ();
		$links++;
		ok(-e $path && (!defined $anchor || $anchors{$anchor}),
			"$name: $file" . (defined $anchor ? "#$anchor" : ''));
	}
}
cmp_ok($links, '>=', 20, 'links were found');

# ---- the reference ----

my $server = LiveTopn::Server->start('catalogs');
my $dbh = $server->connect;
my %sections;    # name of a function or view => text
my $settings;

for (split /^(?=##)/m, join '', read_lines("$root/doc/reference.md"))
{
	$sections{$1} = $_ if /\A### (\S+)\n/;
	$settings = $_ if /\A## Settings\n/;
}

my $members = <<'EOQ';
SELECT objid FROM pg_depend
WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e'
	AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'live_topn')
EOQ

# Those of the schema live_topn are internal, if they have no comment.
my $functions = $dbh->selectall_arrayref(<<"EOQ");
SELECT CASE pronamespace WHEN 'public'::regnamespace THEN '' ELSE 'live_topn.' END
		|| proname, proargnames
FROM pg_proc WHERE oid IN ($members)
	AND (pronamespace = 'public'::regnamespace
		OR obj_description(oid, 'pg_proc') IS NOT NULL)
EOQ
cmp_ok(@$functions, '>=', 12, 'functions');
for (@$functions)
{
	my ($function, $arguments) = @$_;
	my $section = delete $sections{$function};

	ok($section, "$function has a section") or next;
	like($section, qr/\b\Q$_\E\b/, "$function: $_") for @{ $arguments // [] };
}

my $columns = $dbh->selectall_arrayref(<<"EOQ");
SELECT relname, attname, format_type(atttypid, atttypmod)
FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid
WHERE relkind = 'v' AND attnum > 0 AND pg_class.oid IN ($members)
EOQ
cmp_ok(@$columns, '>=', 60, 'columns');
for (@$columns)
{
	my ($view, $column, $type) = @$_;

	$type =~ s/timestamp with time zone/timestamptz/;
	like($sections{$view} // '', qr/^\| `$column` \| `\Q$type\E` \|/m,
		"$view.$column");
}
delete @sections{ map { $_->[0] } @$columns };
is(join(' ', sort keys %sections), '', 'no other sections');

my $rows = $dbh->selectall_arrayref(<<'EOQ');
SELECT name, current_setting(name) FROM pg_settings
WHERE name LIKE 'live\_topn.%' AND name NOT LIKE 'live\_topn.debug%'
EOQ
cmp_ok(@$rows, '>=', 11, 'settings');
for (@$rows)
{
	my ($name, $default) = @$_;

	like($settings, qr/^\| `\Q$name\E` \| `\Q$default\E` \|/m, $name);
	$settings =~ s/^\| `\Q$name\E` .*\n//m;
}
unlike($settings, qr/^\| `/m, 'no other settings');

done_testing();
