"""Follows a subscription through NOTIFY, with psycopg (version 3).

    with psycopg.connect("dbname=shop", autocommit=True) as conn:
        for batch, topn in follow(conn, "feed"):
            print(topn.rows)            # batch is None after a (re)start

The list is right after every batch.  If the connection is lost, an exception
of psycopg ends the loop: connect and follow again.
"""
import collections
import json
import select

import psycopg.sql

from topn_list import Mismatch, TopnList


def _payloads(conn, channel):
    """Payloads as they come in, also while other statements run."""
    pending = collections.deque()
    conn.add_notify_handler(lambda n: pending.append((n.channel, n.payload)))
    while True:
        conn.pgconn.consume_input()
        while notify := conn.pgconn.notifies():
            pending.append((notify.relname.decode(), notify.extra.decode()))
        while pending:
            name, payload = pending.popleft()
            if name == channel:
                yield json.loads(payload)
        select.select([conn.fileno()], [], [])


def follow(conn, name):
    """Yield (batch, list) after each change, and (None, list) at a start."""
    row = conn.execute(
        "SELECT ranks = 'absolute' FROM topn_subscriptions WHERE name = %s", [name]
    ).fetchone()
    topn = TopnList(row == (True,))     # text is bytes if encoded as SQL_ASCII
    payloads, parts = _payloads(conn, name), []
    # LISTEN first: no batch is lost between the snapshot and it
    conn.execute(psycopg.sql.SQL("LISTEN {}").format(psycopg.sql.Identifier(name)))
    while True:
        topn.start(*conn.execute(
            "SELECT seq, rows FROM topn_snapshot(%s)", [name]).fetchone())
        yield None, topn
        try:
            for batch in payloads:
                if "part" in batch:
                    parts = [*(parts if batch["part"] > 1 else []), batch["data"]]
                    if batch["part"] < batch["parts"]:
                        continue
                    batch = json.loads("".join(parts))
                if topn.take(batch):
                    yield batch, topn
        except Mismatch:
            pass
