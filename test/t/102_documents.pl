# The SQL in README.md and doc/ works, from top to bottom, on a fresh server,
# and shows what they say it shows.
#
# Blocks that start with ```sql run in order, in one session of psql for each
# document.  A block ```text right after one is what psql prints then; white
# space does not count, nor do the numbers of rows, and … stands for anything.
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

	$text =~ s/^\(\d+ rows?\)$//mg;
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
cmp_ok($blocks, '>=', 15, 'blocks were found');
cmp_ok($compared, '>=', 2, 'some of them with what they print');
done_testing();
