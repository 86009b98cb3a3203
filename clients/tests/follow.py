#!/usr/bin/python3
# Usage: follow.py CONNINFO NAME — prints the rows after each change, one JSON
# array a line; the test of the client compares them with the query.
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "python"))

import psycopg

from topn import follow

with psycopg.connect(sys.argv[1], autocommit=True) as conn:
    for batch, topn in follow(conn, sys.argv[2]):
        rows = [entry["row"] for entry in topn.rows]
        print(json.dumps([topn.seq, rows]), flush=True)
