"""live_topn against running the queries again: CPU time of the server.

Each subscription is the first LIMIT rows of its own group, so that there is
one query for each.  The first rows of a group, twice as many as LIMIT, get
scores of the same range: one of them that is updated enters, leaves, moves,
or stays out.  All other updates are far from any result.

pgbench updates at a fixed rate, first with the subscriptions and a client
that listens, then without, beside a client that runs the queries, prepared,
as fast as it can.  From the CPU time of the processes follow two prices: of a
change with live_topn, and of a query.
"""

import os
import socket
import struct
import subprocess
import threading

import lockstep
from cpu import Cpu

SECONDS = int(os.environ.get('RERUN_SECONDS', 4))
LARGEST = int(os.environ.get('RERUN_ROWS', 1000000))

# What is varied; the others are as in BASE.
BASE = dict(limit=100, rows=100000, subscriptions=1, churn=100, rate=1000,
            index=True)                 # churn: of a thousand changes
SIZES = [n for n in (10**4, 10**5, 10**6, 10**7) if n <= LARGEST]
CELLS = {
    'limit': [dict(limit=n) for n in (10, 100, 1000, 10000)],
    'rows': [dict(rows=n) for n in SIZES],
    'no index': [dict(rows=n, index=False, rate=200) for n in (10**4, 10**5)],
    'subscriptions': [dict(rows=10**6, subscriptions=n)
                      for n in (1, 10, 100, 1000)],
    'churn': [dict(churn=n, subscriptions=10) for n in (1, 10, 100, 1000)],
    'rate': [dict(rate=n, subscriptions=10) for n in (10, 100, 1000, 5000)]}

QUERY = '''SELECT id, score, note FROM item WHERE grp = {}
    ORDER BY score DESC, id LIMIT {}'''


class Listener(threading.Thread):
    """A session that gets the notifications and does nothing else."""

    def __init__(self, channels):
        super().__init__(daemon=True)
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(os.environ['PGHOST'] + '/.s.PGSQL.5432')
        # the protocol's number, then names and values
        self.send(b'', struct.pack('!i', 3 << 16) +
                  b'user\0listener\0database\0postgres\0\0')
        self.send(b'Q', ''.join(f'LISTEN {c};' for c in channels).encode() +
                  b'\0')
        self.start()

    def send(self, kind, body):
        self.socket.sendall(kind + struct.pack('!i', len(body) + 4) + body)

    def run(self):
        while self.socket.recv(65536):
            pass

    def stop(self):
        self.send(b'X', b'')
        self.join()
        self.socket.close()


def script(name, text):
    path = os.path.join(os.environ['workdir'], name + '.sql')
    with open(path, 'w') as file:
        file.write(text)
    return path


def pgbench(role, path, *options):
    return subprocess.Popen(
        ['pgbench', '-n', '-M', 'prepared', '-U', role, '-T', str(SECONDS),
         '-f', path, *map(str, options)],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def transactions(process):
    for line in process.communicate()[0].splitlines():
        if line.startswith('number of transactions actually processed'):
            return int(line.split(':')[1].split('/')[0])
    raise RuntimeError('pgbench failed')


def prepare(psql, cell):
    groups, rows, limit = cell['subscriptions'], cell['rows'], cell['limit']
    group = rows // groups
    assert group > 2 * limit
    psql.run(f'''
        DROP TABLE IF EXISTS item;
        CREATE TABLE item (id int PRIMARY KEY, grp int NOT NULL,
            score int NOT NULL, note text);
        INSERT INTO item SELECT i, i / {group},
            CASE WHEN i % {group} < {2 * limit} THEN 2000000 ELSE 0 END +
                random() * 1000000, repeat('x', 84)
            FROM generate_series(0, {rows} - 1) i;
        {'CREATE INDEX ON item (grp, score DESC, id);' if cell['index']
            else ''}
        VACUUM ANALYZE item;
        CHECKPOINT;''')
    write = script('write', f'''
\\set k random(0, {2 * limit} - 1)
\\set score random(2000000, 3000000)
\\if random(1, 1000) > {cell['churn']}
\\set k random({2 * limit}, {group} - 1)
\\set score random(0, 1000000)
\\endif
\\set id random(0, {groups} - 1) * {group} + :k
UPDATE item SET score = :score WHERE id = :id;
''')
    read = script('read', f'''
\\set g random(0, {groups} - 1)
{QUERY.format(':g', limit).replace(chr(10), ' ')};
''')
    return write, read


def measure(psql, cell):
    write, read = prepare(psql, cell)
    psql.run(f'''SELECT count(subscribe_topn('{QUERY.format('$1::int',
        cell['limit'])}', 's' || i, ARRAY[i::text]))
        FROM generate_series(0, {cell['subscriptions']} - 1) i
        \\g /dev/null
        SELECT topn_sync('5 min') \\g /dev/null
        ;''')
    listener = Listener(f's{i}' for i in range(cell['subscriptions']))
    writers = ('-c', 2, '-j', 1, '-R', cell['rate'])
    with Cpu() as cpu:
        changes = transactions(pgbench('writer', write, *writers))
        psql.run("SELECT topn_sync('5 min') \\g /dev/null\n;")
    live = cpu.seconds('live_topn', 'listener') / changes
    with_live = cpu.seconds('writer') / changes
    refills = psql.value('SELECT sum(refills) - count(*) FROM topn_stats;')
    batches = psql.value('SELECT sum(batches) FROM topn_stats;')
    held = psql.value('SELECT sum(bytes) FROM topn_stats;')
    listener.stop()
    psql.run('''SELECT count(unsubscribe_topn(name)) FROM topn_subscriptions
        \\g /dev/null
        ;''')
    psql.wait('SELECT count(*) = 0 FROM pg_replication_slots;')

    with Cpu() as cpu:
        writer = pgbench('writer', write, *writers)
        queries = transactions(pgbench('reader', read, '-c', 1))
        without = transactions(writer)
    return [changes, live, with_live, cpu.seconds('writer') / without,
            cpu.seconds('reader') / queries, batches, refills, held]


def main():
    psql = lockstep.start()
    psql.run('''DO $$
        DECLARE name text;
        BEGIN
            FOREACH name IN ARRAY '{writer,reader,listener}'::text[] LOOP
                EXECUTE format('CREATE ROLE %I SUPERUSER LOGIN', name);
            END LOOP;
        END $$;''')
    rows = []
    measured = {}
    for varied, cells in CELLS.items():
        for change in cells:
            cell = {**BASE, **change}
            key = tuple(cell.values())
            if key not in measured:
                measured[key] = measure(psql, cell)
            rows.append([varied, *key, *measured[key]])
    lockstep.write('rerun', [
        'varied', *BASE, 'changes', 'live', 'writer_live', 'writer', 'query',
        'batches', 'refills', 'held'], rows)


main()
