# The reference client itself: it follows a list by the rules of the interface
# and refuses whatever breaks one.  No server takes part.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use Test::More;

use LiveTopn::Client;
use LiveTopn::Json qw(json_object json_array json_string json_quote);
use LiveTopn::Script qw(longest_increasing shortest_script absolute_script);

# A client of the three best: 20, 19, 18, at batch 4.
sub client
{
	my $client = LiveTopn::Client->new(name => 's', limit => 3, @_);
	my @rows = map { entry($_, $_ * 10) } 20, 19, 18;

	$client->start(4, '0/100', '[' . join(',', @rows) . ']');
	return $client;
}

sub entry
{
	my ($id, $score) = @_;
	return qq({"key":{"id":$id},"row":{"id":$id,"score":$score}});
}

sub batch
{
	my ($deltas, %fields) = @_;
	%fields = (sub => '"s"', seq => 5, lsn => '"0/200"', xid => 757, %fields);
	my $from = $fields{from} ? qq("from":$fields{from},) : '';

	return
	    qq({"sub":$fields{sub},"seq":$fields{seq},"lsn":$fields{lsn},)
	  . qq("xid":$fields{xid},"at":"2026-11-29T21:26:00.123456+00:00",)
	  . qq($from"deltas":[$deltas]});
}

sub leave { return qq({"op":"leave","pos":$_[0],"key":{"id":$_[1]}}); }

sub enter
{
	my ($pos, $id, $score) = @_;
	return
	    qq({"op":"enter","pos":$pos,"key":{"id":$id},)
	  . qq("row":{"id":$id,"score":$score}});
}

sub update
{
	my ($pos, $id, $set) = @_;
	return qq({"op":"update","pos":$pos,"key":{"id":$id},"set":{$set}});
}

sub move
{
	my ($from, $to, $id, $set) = @_;
	$set = defined $set ? qq(,"set":{$set}) : '';
	return qq({"op":"move","from":$from,"to":$to,"key":{"id":$id}$set});
}

sub with_old
{
	my ($delta, $old) = @_;
	return $delta =~ s/\}$/,"old":{$old}}/r;
}

sub ids
{
	my ($client) = @_;
	return join ' ', map { /(\d+)/ } $client->keys;
}

sub follows
{
	my ($what, $options, $payloads, $ids) = @_;
	my $client = client(@$options);

	$client->receive($_) for @$payloads;
	is(ids($client), $ids, $what);
	return;
}

sub refuses
{
	my ($what, $options, $payloads, $message) = @_;
	my $client = client(@$options);

	eval { $client->receive($_) for @$payloads };
	like($@, $message, "refused: $what");
	return;
}

# ---- what is right ----

follows('a leave and an enter at the end',
	[], [ batch(leave(1, 20) . ',' . enter(3, 17, 170)) ], '19 18 17');
follows('a move', [], [ batch(move(3, 1, 18, '"score":999')) ], '18 20 19');
follows('an update', [], [ batch(update(2, 19, '"score":195')) ], '20 19 18');
follows('a reset', [],
	[ batch('{"op":"reset","rows":[' . entry(1, 10) . ']}') ], '1');
follows('absolute ranks',
	[ ranks => 'absolute' ],
	[
		batch(
			join ',', leave(2, 19), enter(1, 30, 300), move(1, 2, 20)),
	],
	'30 20 18');
follows(
	'old values',
	[ old => 1 ],
	[
		batch(
			join ',',
			with_old(leave(1, 20), '"id":20,"score":200'),
			move(1, 2, 19),
			with_old(update(1, 18, '"score":1'), '"score":180'))
	],
	'18 19');
follows(
	'batches that the snapshot has are dropped',
	[],
	[
		batch(leave(1, 77), seq => 4, lsn => '"0/F0"'),
		batch(leave(1, 20)),
	],
	'19 18');
{
	my $client = client();
	my $json = batch(
		update(1, 20, '"score":' . json_quote('x' x 9000)));
	my @data = unpack '(a3000)*', $json;

	$client->receive(
		    qq({"sub":"s","seq":5,"part":)
		  . ($_ + 1)
		  . qq(,"parts":)
		  . @data
		  . ',"data":'
		  . json_quote($data[$_])
		  . '}') for 0 .. $#data;
	like(($client->rows)[0], qr/"score":"x{9000}"/, 'parts are joined');
}

# ---- what is wrong ----

my %rank = (ranks => 'absolute');
for my $case (
	[ 'a gap', [], [ batch(leave(1, 20), seq => 6) ], qr/batch 6 after/ ],
	[
		'an LSN that goes back',
		[], [ batch(leave(1, 20), lsn => '"0/80"') ], qr{lsn 0/80 after}
	],
	[
		'another subscription', [],
		[ batch(leave(1, 20), sub => '"t"') ], qr/names subscription/
	],
	[
		'a range that ends before it begins',
		[], [ batch(leave(1, 20), from => '"0/300"') ], qr/from/
	],
	[ 'no xid', [], [ batch(leave(1, 20), xid => 'null') ], qr/without xid/ ],
	[ 'no deltas',         [], [ batch('') ],          qr/without deltas/ ],
	[ 'an unknown op',     [], [ batch('{"op":"x"}') ], qr/unknown op/ ],
	[ 'invalid JSON',      [], ['{"sub":"s",}'],       qr/invalid JSON/ ],
	[ 'position 0',        [], [ batch(leave(0, 20)) ], qr/pos is 0/ ],
	[ 'a position beyond', [], [ batch(leave(4, 20)) ], qr/beyond 3/ ],
	[ 'the wrong row', [], [ batch(leave(2, 20)) ], qr/row with key/ ],
	[
		'a list that grows beyond N in between',
		[],
		[ batch(enter(1, 30, 300) . ',' . leave(4, 18)) ],
		qr/4 rows in between/
	],
	[
		'a row that is there already', [],
		[ batch(leave(3, 18) . ',' . enter(3, 20, 1)) ], qr/two rows with key/
	],
	[
		'a row that leaves and enters',
		[],
		[ batch(leave(1, 20) . ',' . enter(2, 20, 185)) ],
		qr/leave and enter/
	],
	[
		'a set that changes nothing', [],
		[ batch(update(1, 20, '"score":200')) ], qr/to the value it has/
	],
	[
		'an empty set', [], [ batch(update(1, 20, '')) ], qr/empty set/
	],
	[
		'an attribute that is not selected',
		[], [ batch(update(1, 20, '"x":1')) ], qr/does not have/
	],
	[
		'old values that nobody asked for', [],
		[ batch(with_old(update(1, 20, '"score":1'), '"score":200')) ],
		qr/unknown field old/
	],
	[
		'no old values', [ old => 1 ],
		[ batch(leave(1, 20)) ], qr/old values, or none/
	],
	[
		'old values that were others', [ old => 1 ],
		[ batch(with_old(update(1, 20, '"score":1'), '"score":199')) ],
		qr/old values of/
	],
	[
		'a leave of a row that was another', [ old => 1 ],
		[ batch(with_old(leave(1, 20), '"id":20,"score":199')) ],
		qr/concerns row/
	],
	[
		'a move to where it is', [],
		[ batch(move(1, 1, 20)) ], qr/without effect/
	],
	[
		'a batch without effect', [],
		[ batch(move(1, 2, 20) . ',' . move(1, 2, 19)) ],
		qr/batch without effect/
	],
	[
		'a row with other attributes',
		[],
		[
			batch(
				leave(1, 20)
				  . ',{"op":"enter","pos":1,"key":{"id":1},"row":{"id":1}}')
		],
		qr/attributes/
	],
	[
		'a reset among other deltas',
		[], [ batch(leave(1, 20) . ',{"op":"reset","rows":[]}') ], qr/reset/
	],
	[
		'a payload of 8,000 bytes', [],
		[ batch(update(1, 20, '"score":"' . 'x' x 8000 . '"')) ], qr/bytes/
	],
	[
		'parts out of order', [],
		['{"sub":"s","seq":5,"part":2,"parts":2,"data":"x"}'], qr/part 2/
	],
	[
		'absolute: a rank without a row',
		[%rank], [ batch(leave(1, 20)) ], qr/nobody has rank 1/
	],
	[
		'absolute: two rows with a rank',
		[%rank],
		[ batch(leave(1, 20) . ',' . move(2, 1, 19) . ',' . move(3, 1, 18)) ],
		qr/rank 1 after is used twice/
	],
	[
		'absolute: a rank that somebody has',
		[%rank],
		[ batch(leave(3, 18) . ',' . enter(1, 30, 300)) ],
		qr/is taken from/
	])
{
	refuses(@$case);
}

# ---- the parts it is made of ----

is_deeply(
	json_object(' {"a" : 1.00, "b\u00e9":[1, {"x":"}"}],"c":null} '),
	[ [ 'a', '1.00' ], [ "b\xc3\xa9", '[1, {"x":"}"}]' ], [ 'c', 'null' ] ],
	'values keep their text');
is_deeply(json_array('[]'), [], 'an empty array');
is(json_string('"\ud83d\ude00\n\"\u0001"'),
	"\xf0\x9f\x98\x80\n\"\x01", 'a string with escapes');
for my $invalid ('{"a":01}', '{"a":NaN}', '{"a":1}x', '{a:1}', "{\"a\":\"\n\"}")
{
	ok(!eval { json_object($invalid) }, "not JSON: " . json_quote($invalid));
}
is(longest_increasing(3, 1, 4, 1, 5, 9, 2, 6), 4, 'longest increasing');

sub list { return [ map { { key => $_, row => $_ } } @_ ]; }
is_deeply(
	shortest_script(list(qw(a b c d)), list(qw(d a b x))),
	{ leave => 1, enter => 1, move => 1 },
	'a shortest script');
is_deeply(
	absolute_script(list(qw(a b c d)), list(qw(d a b x))),
	{ leave => 1, enter => 1, move => 3 },
	'with absolute ranks');

done_testing();
