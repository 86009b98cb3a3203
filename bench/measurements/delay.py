"""How late the slowest batch is, for each cushion and workload.

The workloads are those of workloads.py, over more rows and without an index
on the order, so that a refill takes a while, and with REPLICA IDENTITY FULL, so
that each commit has its own batch.  bench/latency times each,
from its commit to its notification, while pgbench commits at a fixed rate.
"""

import itertools
import os
import random
import subprocess

import lockstep
import workloads

ROWS = int(os.environ.get('DELAY_ROWS', 50000))
COMMITS = int(os.environ.get('DELAY_COMMITS', 2000))
RATE = int(os.environ.get('DELAY_RATE', 1000))
CASES = ['visible rows change', 'oldest first', 'bursts']


def run(psql, cushion):
    """(batches, median, 99th percentile, maximum), milliseconds"""
    psql.run(f'''
        DROP TABLE IF EXISTS item;
        CREATE TABLE item (LIKE original INCLUDING ALL);
        ALTER TABLE item REPLICA IDENTITY FULL;
        INSERT INTO item SELECT * FROM original;
        ANALYZE item;
        SELECT subscribe_topn('{workloads.QUERY}', 'slow',
            cushion => {cushion}) \\g /dev/null
        SELECT topn_sync('1 min') \\g /dev/null
        ;''')
    out = subprocess.run(
        ['bench/latency', 'slow', "SELECT topn_sync('10 min')", 'sh', '-c',
         'exec "$@" >"$workdir/pgbench.log" 2>&1', 'sh', 'pgbench', '-n',
         '-M', 'prepared', '-t', str(COMMITS), '-R', str(RATE), '-D', 'i=0',
         '-f', os.environ['workdir'] + '/delay.sql'],
        check=True, text=True, stdout=subprocess.PIPE).stdout
    ms = psql.value("SELECT refill_ms / refills FROM topn_stats;")
    psql.run("SELECT unsubscribe_topn('slow') \\g /dev/null\n;")
    psql.wait('SELECT count(*) = 0 FROM pg_replication_slots;')
    return out.split() + [ms]


def main():
    psql = lockstep.start()
    with open(os.environ['workdir'] + '/delay.sql', 'w') as file:
        file.write('\\set i :i + 1\nSELECT make_change(:i);\n')
    rows = []
    for title in CASES:
        items = workloads.Items(random.Random(1), ROWS)
        psql.run('DROP TABLE IF EXISTS item, original, change;' +
                 items.create() + '''
            ALTER TABLE item RENAME TO original;
            CREATE TABLE change (n int PRIMARY KEY, sql text);
            CREATE OR REPLACE FUNCTION make_change(i int) RETURNS void
                LANGUAGE plpgsql AS $$
            BEGIN
                EXECUTE (SELECT sql FROM change WHERE n = i);
            END $$;''')
        changes = itertools.islice(workloads.WORKLOADS[title](items), COMMITS)
        psql.run('INSERT INTO change VALUES ' + ','.join(
            f'({n + 1}, $${sql}$$)' for n, sql in enumerate(changes)) + ';')
        for percent in [*workloads.PERCENT, 'adaptive']:
            cushion = ('NULL' if percent == 'adaptive'
                       else percent * workloads.LIMIT // 100)
            rows.append([title, percent, *run(psql, cushion)])
    lockstep.write('delay', ['workload', 'cushion', 'batches', 'median',
                             'p99', 'max', 'ms'], rows)


main()
