#!/usr/bin/python3
#
# consumer.py
#	  A consumer of the output plugin, with psycopg2.
#
# Usage: consumer.py CONNSTR SLOT SUBSCRIPTIONS FILE COUNT
#
# Appends lines to FILE, and to FILE.lsn the LSN of each; confirms some of
# them; ends, as if it crashed, after COUNT lines, or on SIGTERM, or, with
# "all", in good order when it has what was committed before.  Goes on by the
# rule of the plugin: what comes again has the LSN of the last line that it has.

import os
import select
import signal
import sys

import psycopg2
from psycopg2.extras import LogicalReplicationConnection, StopReplication

connstr, slot, subscriptions, path, count = sys.argv[1:]


def number(lsn):
    high, low = lsn.split("/")
    return (int(high, 16) << 32) + int(low, 16)


last, seen = 0, set()
if os.path.exists(path):
    with open(path) as lines, open(path + ".lsn") as lsns:
        for line, lsn in zip(lines, lsns):
            if int(lsn) != last:
                last, seen = int(lsn), set()
            seen.add(line.rstrip("\n"))

plain = psycopg2.connect(connstr)
plain.autocommit = True
with plain.cursor() as cursor:
    cursor.execute("SELECT pg_current_wal_flush_lsn()")
    end = number(cursor.fetchone()[0])

connection = psycopg2.connect(
    connstr, connection_factory=LogicalReplicationConnection
)
cursor = connection.cursor()
cursor.start_replication(
    slot_name=slot,
    decode=True,
    start_lsn=last,
    options={"subscriptions": subscriptions},
)
lines = open(path, "a")
lsns = open(path + ".lsn", "a")
taken = 0
ended = False


def end_soon(number, frame):
    global ended
    ended = True


signal.signal(signal.SIGTERM, end_soon)


def take(message):
    global taken, last, seen
    if message.data_start == last and message.payload in seen:
        return
    if message.data_start < last:
        sys.exit("repeated: " + message.payload)
    if message.data_start > last:
        last, seen = message.data_start, set()
    seen.add(message.payload)
    print(message.payload, file=lines, flush=True)
    print(message.data_start, file=lsns, flush=True)
    taken += 1
    if taken % 5 == 0:
        cursor.send_feedback(flush_lsn=last, force=True)
    if count != "all" and taken >= int(count):
        os._exit(0)


while not ended:
    message = cursor.read_message()
    if message:
        take(message)
    elif count == "all" and cursor.wal_end >= end:
        break
    else:
        cursor.send_feedback(reply=True)
        select.select([cursor], [], [], 0.1)
