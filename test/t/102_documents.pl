# The SQL in README.md and doc/ works, from top to bottom, on a fresh server.
#
# Blocks that start with ```sql run in order, with psql and as its user would
# enter them; a document says what it needs, where it does not show it, in an
# invisible comment before a block:
#
#   <!-- setup: CREATE TABLE ... -->

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use PostgreSQL::Test::Utils;
use Test::More;

use LiveTopn::Server;

my $root = "$FindBin::Bin/../..";
my @documents = ("$root/README.md", sort glob "$root/doc/*.md");
my $blocks = 0;

# What a document runs: [line, SQL] each.
sub statements_of
{
	my ($document) = @_;
	my (@found, $block);

	open my $file, '<', $document or die "could not open $document: $!\n";
	while (my $line = <$file>)
	{
		if (defined $block)
		{
			if ($line =~ /^```\s*$/)
			{
				push @found, $block;
				$block = undef;
			}
			else { $block->[1] .= $line; }
		}
		elsif ($line =~ /^```sql\s*$/) { $block = [ $., '' ]; }
		elsif ($line =~ /^<!-- setup: (.*) -->\s*$/)
		{
			push @found, [ $., $1 ];
		}
	}
	close $file;
	die "$document: a block has no end\n" if defined $block;
	return @found;
}

for my $document (@documents)
{
	my ($name) = $document =~ m{([^/]+)\.md$};
	my @statements = statements_of($document) or next;
	my $server = LiveTopn::Server->start($name, extension => 0);

	for my $statement (@statements)
	{
		my ($line, $sql) = @$statement;
		my ($status, $stdout, $stderr) =
		  $server->node->psql('postgres', $sql, on_error_stop => 1);

		$blocks++;
		is($status, 0, "$name.md, line $line") or diag($stderr);
	}
	$server->node->stop('immediate');
}
cmp_ok($blocks, '>=', 5, 'blocks were found');
done_testing();
