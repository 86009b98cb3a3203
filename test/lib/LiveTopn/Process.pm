
=head1 NAME

LiveTopn::Process - what a process of the server takes

=cut

package LiveTopn::Process;

use strict;
use warnings;

use POSIX ();
use PostgreSQL::Test::Utils;

use Exporter qw(import);
our @EXPORT_OK = qw(cpu_seconds memory_kb peak_memory_kb);

sub cpu_seconds
{
	my ($pid) = @_;
	my $stat = slurp_file("/proc/$pid/stat");
	my @fields = split ' ', $stat =~ s/^.*\) //sr;

	# utime and stime
	return ($fields[11] + $fields[12]) / POSIX::sysconf(POSIX::_SC_CLK_TCK());
}

sub _status
{
	my ($pid, $field) = @_;

	slurp_file("/proc/$pid/status") =~ /^$field:\s+(\d+) kB/m
	  or die "no $field for $pid";
	return $1;
}

# Private memory.
sub memory_kb { return _status($_[0], 'RssAnon'); }

# About the most that it ever was: shared memory and files only grow.
sub peak_memory_kb
{
	my ($pid) = @_;
	return _status($pid, 'VmHWM') - _status($pid, 'RssFile') -
	  _status($pid, 'RssShmem');
}

1;
