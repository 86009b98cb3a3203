# How old was what the client had?  The first file has the events in the order
# of their commits: time, event.  The second has what the client got: time,
# events.  An event is seen when the client has it or a later one.  Prints the
# seconds from each commit until then.

FNR == NR {
	time[++n] = $1
	number[$2] = n
	next
}

{
	for (i = 2; i <= NF; i++)
		if (number[$i] > newest)
			newest = number[$i]
	while (seen < newest)
		print $1 - time[++seen]
}

END {
	if (seen < n)
	{
		print n - seen " events were never seen" >"/dev/stderr"
		exit 1
	}
}
