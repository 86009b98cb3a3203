"""What a change costs, and what a row takes, when LIMIT is large.

The worker is held while pgbench updates; then the same WAL is decoded with
empty callbacks, and the worker is let go.  What it computes for a change,
less what the empty callbacks do, is live_topn's.
"""

import os
import signal
import statistics
import subprocess

import lockstep

LIMITS = [100, 1000, 10000, 100000]
CHANGES = int(os.environ.get('LARGE_CHANGES', 20000))
ROUNDS = int(os.environ.get('LARGE_ROUNDS', 3))
ROWS = 300000
NOTES = [0, 30, 100, 1000]      # lengths of the text in a row
QUERY = 'SELECT id, score, note FROM item ORDER BY score DESC, id LIMIT {}'


def subscribe(psql, limit):
    psql.run(f'''SELECT subscribe_topn('{QUERY.format(limit)}', 'large',
            deliver => 'none') \\g /dev/null
        SELECT topn_sync('5 min') \\g /dev/null
        ;''')


def unsubscribe(psql):
    psql.run("SELECT unsubscribe_topn('large') \\g /dev/null\n;")
    psql.wait('SELECT count(*) = 0 FROM pg_replication_slots;')


def used(pid):
    with open(f'/proc/{pid}/schedstat') as file:
        return int(file.read().split()[0]) / 1e9


def pgbench(statement):
    path = os.environ['workdir'] + '/large.sql'
    with open(path, 'w') as file:
        file.write(statement)
    subprocess.run(
        ['pgbench', '-n', '-M', 'prepared', '-c', '2', '-t',
         str(CHANGES // 2), '-f', path], check=True,
        env={**os.environ, 'PGOPTIONS': '-c synchronous_commit=off'},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def round(psql, statement):
    """Seconds for each change: of the worker, and of the empty callbacks."""
    psql.run("""SELECT pg_create_logical_replication_slot('null',
        'null_plugin') \\g /dev/null
        ;""")
    worker = int(psql.value('SELECT pid FROM topn_worker;'))
    os.kill(worker, signal.SIGSTOP)
    pgbench(statement)
    psql.run("""SELECT pg_logical_emit_message(true, 'bench', '') \\g /dev/null
        SET synchronous_commit = on;
        SELECT pg_logical_emit_message(true, 'bench', '') \\g /dev/null
        ;""")
    empty = statistics.median(
        float(psql.run("""SELECT * FROM null_decode('null',
            pg_current_wal_flush_lsn());""")[0][1]) for _ in range(3))
    before = used(worker)
    os.kill(worker, signal.SIGCONT)
    psql.run("SELECT topn_sync('10 min') \\g /dev/null\n;")
    cpu = used(worker) - before
    psql.run("SELECT pg_drop_replication_slot('null') \\g /dev/null\n;")
    return cpu / CHANGES, empty / CHANGES


def changes(psql):
    psql.run(f'''
        DROP TABLE IF EXISTS item;
        CREATE TABLE item (id int PRIMARY KEY, score int NOT NULL, note text);
        INSERT INTO item SELECT i, 1000000000 - i, repeat('x', 84)
            FROM generate_series(1, {ROWS}) i;
        CREATE INDEX ON item (score DESC, id);
        VACUUM ANALYZE item;''')
    for limit in LIMITS:
        subscribe(psql, limit)
        for what, first, last in (
                ('in the result', 1, limit),
                ('far from it', ROWS // 2, ROWS)):
            # anywhere in the same range, so that it stays on its side
            statement = f"""
\\set id random({first}, {last})
\\set score random(1000000000 - {last}, 1000000000 - {first})
UPDATE item SET score = :score WHERE id = :id;
"""
            measured = [round(psql, statement) for _ in range(ROUNDS)]
            yield [limit, what, statistics.median(m[0] for m in measured),
                   statistics.median(m[1] for m in measured)]
        unsubscribe(psql)


def row_sizes(psql):
    for note in NOTES:
        psql.run(f'''
            DROP TABLE IF EXISTS item;
            CREATE TABLE item (id int PRIMARY KEY, score int NOT NULL,
                note text);
            INSERT INTO item SELECT i, i, repeat('x', {note})
                FROM generate_series(1, 20000) i;
            CREATE INDEX ON item (score DESC, id);
            VACUUM ANALYZE item;''')
        for limit in 1000, 10000:
            subscribe(psql, limit)
            held, size, own = map(float, psql.run(
                'SELECT held_rows, bytes, row_bytes FROM topn_stats;')[0])
            yield [note, limit, own / held, size / held]
            unsubscribe(psql)


def main():
    psql = lockstep.start()
    with open('bench/null_plugin/null_plugin.sql') as file:
        psql.run(file.read())
    lockstep.write('large', ['limit', 'what', 'worker', 'empty'],
                   changes(psql))
    lockstep.write('row_sizes', ['note', 'limit', 'own', 'held'],
                   row_sizes(psql))


main()
