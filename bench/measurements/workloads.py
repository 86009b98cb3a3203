"""Cushions of fixed sizes and the adaptive one, under six workloads.

Each is a function that yields one statement after the other, for a table of
ROWS rows of which the first LIMIT in order of score are the result.  They keep
the order beside the table, so that they know which rows are visible.
"""

import bisect
import itertools
import os
import random

import lockstep

ROWS = 10000
LIMIT = 100
SCORES = 1000000
COMMITS = int(os.environ.get('COMMITS', 10000))
PERCENT = [0, 5, 10, 20, 50, 100]       # fixed cushions, of LIMIT
QUERY = f'SELECT id, score, body FROM item ORDER BY score, id LIMIT {LIMIT}'


class Items:
    """The table, as the workloads see it, with the statements to change it."""

    def __init__(self, rnd, rows=ROWS):
        self.random = rnd
        self.score = {i: rnd.randrange(SCORES) for i in range(rows)}
        self.order = lockstep.Ordered((s, i) for i, s in self.score.items())
        self.bag = lockstep.Bag(self.score)
        self.new = rows

    def create(self):
        rows = ','.join(f'({i},{s})' for i, s in self.score.items())
        return f'''
            DROP TABLE IF EXISTS item;
            CREATE TABLE item (id int PRIMARY KEY, score int NOT NULL,
                body text DEFAULT repeat('x', 100));
            INSERT INTO item (id, score) VALUES {rows};'''

    def any(self):
        return self.bag.choose(self.random)

    def visible(self):
        return self.order[self.random.randrange(LIMIT)][1]

    def anywhere(self):
        return self.random.randrange(SCORES)

    def update(self, i, score):
        self.order.remove((self.score[i], i))
        self.order.add((score, i))
        self.score[i] = score
        return f'UPDATE item SET score = {score} WHERE id = {i};'

    def insert(self, score):
        i, self.new = self.new, self.new + 1
        self.score[i] = score
        self.order.add((score, i))
        self.bag.add(i)
        return f'INSERT INTO item VALUES ({i}, {score});'

    def delete(self, i):
        self.order.remove((self.score.pop(i), i))
        self.bag.remove(i)
        return f'DELETE FROM item WHERE id = {i};'


def uniform(items):
    while True:
        yield items.update(items.any(), items.anywhere())


def zipf(items):
    ranked = list(items.score)
    items.random.shuffle(ranked)
    weights = list(itertools.accumulate(
        1 / (i + 1) for i in range(len(ranked))))
    while True:
        i = bisect.bisect_left(weights, items.random.random() * weights[-1])
        yield items.update(ranked[i], items.anywhere())


def visible(items):
    """One insert, three updates, one delete; two in five of visible rows."""
    while True:
        kind = items.random.choice('iuuud')
        i = items.visible() if items.random.random() < 0.4 else items.any()
        if kind == 'i':
            yield items.insert(items.anywhere())
        elif kind == 'u':
            yield items.update(i, items.anywhere())
        else:
            yield items.delete(i)


def modified(items, i_of, first):
    """Eight updates, one insert, one delete; scores are when it was."""
    time = -SCORES if first else SCORES
    while True:
        time += -1 if first else 1
        kind = items.random.choice('uuuuuuuuid')
        if kind == 'i':
            yield items.insert(time)
        elif kind == 'u':
            yield items.update(i_of(), time)
        else:
            yield items.delete(items.any())


def newest(items):
    return modified(items, items.any, True)


def oldest(items):
    return modified(items, lambda: items.order[0][1], False)


def bursts(items):
    """Of each thousand commits a hundred are of visible rows."""
    for n in itertools.count():
        i = items.visible() if n % 1000 >= 900 else items.any()
        yield items.update(i, items.anywhere())


WORKLOADS = {
    'uniform': uniform, 'Zipf': zipf, 'visible rows change': visible,
    'newest first': newest, 'oldest first': oldest, 'bursts': bursts}


def main():
    psql = lockstep.start()
    rows = []
    for title, workload in WORKLOADS.items():
        items = Items(random.Random(1))
        psql.run(items.create() + '''
            CREATE INDEX ON item (score, id);
            VACUUM ANALYZE item;''')
        watch = lockstep.Watch(psql, {
            **{str(p): (QUERY, p * LIMIT // 100) for p in PERCENT},
            'adaptive': (QUERY, None)})
        for sql in itertools.islice(workload(items), COMMITS):
            watch.commit(sql)
        for name, cost in watch.end().items():
            rows.append([title, name, COMMITS, *cost.values()])
    lockstep.write('workloads', ['workload', 'cushion', 'commits', 'refills',
                                 'rows_read', 'held', 'bytes', 'peak', 'size',
                                 'ms'], rows)


if __name__ == '__main__':
    main()
