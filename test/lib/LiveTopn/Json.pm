
=head1 NAME

LiveTopn::Json - a strict JSON reader that keeps the text of every value

=head1 DESCRIPTION

Values must round-trip exactly, so they are compared as text: 1.0 is not 1.00
and 2^53 + 1 is not 2^53.  Objects are read as an ordered list of names and
values, arrays as a list of values; a value is the bytes as they were written.

=cut

package LiveTopn::Json;

use strict;
use warnings;

use Exporter qw(import);
our @EXPORT_OK = qw(json_object json_array json_string json_quote);

my %escapes = (
	'"' => '"',
	'\\' => '\\',
	'/' => '/',
	b => "\b",
	f => "\f",
	n => "\n",
	r => "\r",
	t => "\t");

# The members of an object: a reference to a list of [name, text of value].
sub json_object
{
	my ($json) = @_;
	my @members;

	pos($json) = 0;
	_expect(\$json, qr/\G\s*\{\s*/, 'an object');
	unless ($json =~ /\G\}\s*\z/gc)
	{
		do
		{
			my $name = _value(\$json);
			_expect(\$json, qr/\G\s*:\s*/, 'a colon');
			push @members, [ json_string($name), _value(\$json) ];
		} while ($json =~ /\G\s*,\s*/gc);
		_expect(\$json, qr/\G\s*\}\s*\z/, 'the end of the object');
	}
	return \@members;
}

# The elements of an array: a reference to a list of texts.
sub json_array
{
	my ($json) = @_;
	my @elements;

	pos($json) = 0;
	_expect(\$json, qr/\G\s*\[\s*/, 'an array');
	unless ($json =~ /\G\]\s*\z/gc)
	{
		do
		{
			push @elements, _value(\$json);
		} while ($json =~ /\G\s*,\s*/gc);
		_expect(\$json, qr/\G\s*\]\s*\z/, 'the end of the array');
	}
	return \@elements;
}

# The bytes (UTF-8) that a JSON string stands for.
sub json_string
{
	my ($json) = @_;

	die "not a JSON string: $json\n" unless $json =~ s/\A"(.*)"\z/$1/s;
	$json =~ s{\\(?:u(d[89ab]..)\\u(d[c-f]..)|u(....)|(.))}
	{
		defined $1 ? _utf8(0x10000 + ((hex($1) & 0x3ff) << 10)
			+ (hex($2) & 0x3ff))
		: defined $3 ? _utf8(hex $3)
		: $escapes{$4}
	}gexsi;
	return $json;
}

# Bytes as a JSON string, the way PostgreSQL writes it.
sub json_quote
{
	my ($bytes) = @_;
	my %short = reverse %escapes;

	delete $short{'/'};
	$bytes =~ s{(["\\\x00-\x1f])}
		{ $short{$1} ? "\\$short{$1}" : sprintf('\\u%04x', ord $1) }gex;
	return qq("$bytes");
}

sub _utf8
{
	my $text = chr $_[0];
	utf8::encode($text);
	return $text;
}

# Step over one value and return its text.
sub _value
{
	my ($json) = @_;
	my $start = pos $$json;

	if ($$json =~ /\G"(?:[^"\\\x00-\x1f]++|\\(?:["\\\/bfnrt]|u[0-9a-fA-F]{4}))*+"/gc
		|| $$json =~ /\G-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?/gc
		|| $$json =~ /\G(?:true|false|null)/gc)
	{
		# a scalar
	}
	elsif ($$json =~ /\G\{\s*/gc)
	{
		unless ($$json =~ /\G\}/gc)
		{
			do
			{
				_fail($json, 'a name') unless $$json =~ /\G(?=")/gc;
				_value($json);
				_expect($json, qr/\G\s*:\s*/, 'a colon');
				_value($json);
			} while ($$json =~ /\G\s*,\s*/gc);
			_expect($json, qr/\G\s*\}/, 'the end of an object');
		}
	}
	elsif ($$json =~ /\G\[\s*/gc)
	{
		unless ($$json =~ /\G\]/gc)
		{
			do { _value($json); } while ($$json =~ /\G\s*,\s*/gc);
			_expect($json, qr/\G\s*\]/, 'the end of an array');
		}
	}
	else
	{
		_fail($json, 'a value');
	}
	return substr($$json, $start, pos($$json) - $start);
}

sub _expect
{
	my ($json, $pattern, $what) = @_;
	_fail($json, $what) unless $$json =~ /$pattern/gc;
	return;
}

sub _fail
{
	my ($json, $what) = @_;
	my $at = pos($$json) // 0;
	die "invalid JSON: $what expected at byte $at, found \""
	  . substr($$json, $at, 40)
	  . "\"\n";
}

1;
