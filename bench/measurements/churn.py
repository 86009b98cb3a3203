"""Refills against boundary churn and against all changes, varied separately.

Most commits update one of the rows far beyond the result.  Those at the
boundary delete the first row of the result, or, in the walk, at random as
often insert one before it.
"""

import random

import lockstep

LIMIT = 100
CHURNS = [50, 100, 200, 400, 800, 1600]   # commits at the boundary, of ...
TOTALS = [1000, 2000, 4000, 8000, 16000]
CHURN, TOTAL = 200, 8000            # while the other is varied
FIXED = [5, 20]
QUERY = f'SELECT id, score, body FROM item ORDER BY score, id LIMIT {LIMIT}'
ROWS = 20000


def prepare(psql):
    psql.run(f'''
        DROP TABLE IF EXISTS item;
        CREATE TABLE item (id int PRIMARY KEY, score int NOT NULL, body text);
        INSERT INTO item SELECT i, 1000000 + i, repeat('x', 100)
            FROM generate_series(1, {ROWS}) i;
        CREATE INDEX ON item (score, id);
        VACUUM ANALYZE item;
        CREATE OR REPLACE PROCEDURE far_away(n int) LANGUAGE plpgsql AS $$
        BEGIN
            FOR i IN 1..n LOOP
                UPDATE item SET score = score + 1 WHERE id = {ROWS} - i % 5000;
                COMMIT;
            END LOOP;
        END $$;''')


def run(psql, kind, churn, total):
    rnd = random.Random(1)
    prepare(psql)
    watch = lockstep.Watch(psql, {
        str(n): (QUERY, n) for n in FIXED} | {'adaptive': (QUERY, None)})
    new = ROWS
    for i in range(churn):
        # the commits far away, spread evenly
        far = total * (i + 1) // churn - total * i // churn - 1
        if kind == 'walk' and rnd.random() < 0.5:
            new += 1
            sql = f"INSERT INTO item VALUES ({new}, 1, repeat('x', 100));"
        else:
            sql = '''DELETE FROM item WHERE id =
                (SELECT id FROM item ORDER BY score, id LIMIT 1);'''
        watch.commit(f'CALL far_away({far});' + sql, far + 1)
    return watch.end()


def main():
    psql = lockstep.start()
    rows = []
    for kind in 'drift', 'walk':
        cells = {(churn, TOTAL) for churn in CHURNS}
        cells |= {(CHURN, total) for total in TOTALS}
        for churn, total in sorted(cells):
            for name, cost in run(psql, kind, churn, total).items():
                rows.append([kind, name, churn, total, *cost.values()])
    lockstep.write('churn', ['kind', 'cushion', 'churn', 'total', 'refills',
                             'rows_read', 'held', 'bytes', 'peak', 'size',
                             'ms'], rows)


main()
