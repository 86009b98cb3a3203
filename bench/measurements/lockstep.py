"""Drives a server in lockstep: a commit, then all that follows from it.

Counts that are made so (refills, rows) do not depend on how fast the machine
is, or on what else it does.
"""

import bisect
import os
import subprocess
import time

RESULTS = 'bench/results/measurements'


class Psql:
    """A session.  Statements end with a semicolon."""

    def __init__(self):
        self.process = subprocess.Popen(
            ['psql', '-X', '-q', '-A', '-t', '-v', 'ON_ERROR_STOP=1'],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.run('SET client_min_messages = warning;')

    def run(self, sql):
        """Rows, as lists of text."""
        self.process.stdin.write(sql + '\n\\echo <end>\n')
        self.process.stdin.flush()
        rows = []
        for line in self.process.stdout:
            line = line.rstrip('\n')
            if line == '<end>':
                return rows
            rows.append(line.split('|'))
        raise RuntimeError('psql ended')

    def value(self, sql):
        return self.run(sql)[0][0]

    def wait(self, sql):
        """Until it is true."""
        while self.value(sql) != 't':
            time.sleep(0.05)


class Ordered:
    """The rows of a relation in order, kept beside the table."""

    def __init__(self, keys):
        self.keys = sorted(keys)

    def __len__(self):
        return len(self.keys)

    def __getitem__(self, i):
        return self.keys[i]

    def add(self, key):
        bisect.insort(self.keys, key)

    def remove(self, key):
        i = bisect.bisect_left(self.keys, key)
        assert self.keys[i] == key
        del self.keys[i]


class Bag:
    """Of which random members are taken."""

    def __init__(self, members):
        self.members = list(members)
        self.place = {m: i for i, m in enumerate(self.members)}

    def __len__(self):
        return len(self.members)

    def add(self, member):
        self.place[member] = len(self.members)
        self.members.append(member)

    def remove(self, member):
        i, last = self.place.pop(member), self.members.pop()
        if last != member:
            self.members[i] = last
            self.place[last] = i

    def choose(self, random):
        return self.members[int(random.random() * len(self.members))]


class Watch:
    """What subscriptions cost while commits are made."""

    def __init__(self, psql, subscriptions):
        """subscriptions: name -> (query, cushion or None)"""
        self.psql = psql
        self.names = list(subscriptions)
        self.commits = 0
        self.sums = {name: [0, 0] for name in self.names}
        self.peaks = {name: 0 for name in self.names}
        for i, (name, (query, cushion)) in enumerate(subscriptions.items()):
            # with equal settings, equal queries would share their rows
            psql.run(f"""SET TimeZone = {i};
                SELECT subscribe_topn('{query.replace("'", "''")}',
                '{name}', deliver => 'none',
                cushion => {'NULL' if cushion is None else cushion}) \\g /dev/null
                ;""")
        self.last = self.first = self._stats()

    def _stats(self):
        rows = self.psql.run('SELECT * FROM settled_stats();')
        return {row[0]: [float(x) for x in row[1:]] for row in rows}

    def commit(self, sql, commits=1):
        """The last one of these commits concerns the subscriptions."""
        self.psql.run(sql)
        self.commits += commits
        stats = self._stats()
        for name in self.names:
            held, size = stats[name][:2]
            before = self.last[name]
            sums = self.sums[name]
            sums[0] += before[0] * (commits - 1) + held
            sums[1] += before[1] * (commits - 1) + size
            self.peaks[name] = max(self.peaks[name], held)
        self.last = stats

    def end(self):
        """name -> {refills, rows_read, held, bytes, peak, cushion, ms}"""
        result = {}
        for name in self.names:
            first, last = self.first[name], self.last[name]
            refills = last[2] - first[2]
            result[name] = {
                'refills': int(refills),
                'rows_read': int(last[3] - first[3]),
                'held': self.sums[name][0] / self.commits,
                'bytes': self.sums[name][1] / self.commits,
                'peak': int(self.peaks[name]),
                'cushion': int(last[4]),
                'ms': (last[5] - first[5]) / refills if refills else 0}
            self.psql.run(f"SELECT unsubscribe_topn('{name}') \\g /dev/null")
        self.psql.wait('SELECT count(*) = 0 FROM pg_replication_slots;')
        return result


def start():
    psql = Psql()
    psql.run('''
        SET synchronous_commit = off;
        CREATE EXTENSION IF NOT EXISTS live_topn;
        CREATE OR REPLACE FUNCTION settled_stats(OUT name name,
            OUT held bigint, OUT bytes bigint, OUT refills bigint,
            OUT refilled_rows bigint, OUT cushion bigint, OUT refill_ms float)
            RETURNS SETOF record LANGUAGE plpgsql AS $$
        BEGIN
            LOOP
                PERFORM topn_sync('1 min');
                EXIT WHEN (SELECT sum(w.refills) = 0 FROM topn_worker w);
                PERFORM pg_sleep(0.0002);
            END LOOP;
            RETURN QUERY SELECT s.name::name, s.held_rows, s.bytes, s.refills,
                s.refilled_rows, s.cushion, s.refill_ms FROM topn_stats s;
        END $$;''')
    return psql


def write(name, columns, rows):
    """Keep a result, from which page.py makes tables and plots."""
    os.makedirs(RESULTS, exist_ok=True)
    with open(f'{RESULTS}/{name}.tsv', 'w') as file:
        print(*columns, sep='\t', file=file)
        for row in rows:
            print(*row, sep='\t', file=file)


def read(name):
    """Its rows, as dictionaries; None if it was never measured."""
    try:
        with open(f'{RESULTS}/{name}.tsv') as file:
            columns, *rows = [line.rstrip('\n').split('\t') for line in file]
    except FileNotFoundError:
        return None
    return [dict(zip(columns, row)) for row in rows]
