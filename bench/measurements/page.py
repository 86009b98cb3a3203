"""Puts the tables into doc/measurements.md and draws its plots.

From what is in bench/results/measurements; what was not measured stays.
"""

import re

import plot
from lockstep import read

PAGE = 'doc/measurements.md'
PLOTS = 'doc/plots'


def table(head, rows):
    """Markdown; all columns but the first to the right."""
    line = '| ' + ' | '.join(['{}'] * len(head)) + ' |'
    return '\n'.join(
        [line.format(*head), '|---|' + '--:|' * (len(head) - 1)] +
        [line.format(*row) for row in rows])


def count(x):
    return f'{round(float(x)):,}'


def few(x):
    """Three digits."""
    x = float(x)
    return count(x) if x >= 100 else f'{x:.1f}' if x >= 10 else f'{x:.2f}'


def pick(rows, **which):
    return [r for r in rows
            if all(r[k] == str(v) for k, v in which.items())]


# ---- one function for each part: names and texts of tables ----

def churn(rows):
    names = list(dict.fromkeys(r['cushion'] for r in rows))
    label = {n: n if n == 'adaptive' else f'fixed, {n}' for n in names}
    panels = []
    for vary, fixed, value, title in (
            ('churn', 'total', '8000', 'of 8,000 commits'),
            ('total', 'churn', '200', '200 of them at the boundary')):
        for kind, word in ('drift', 'departures'), ('walk', 'both ways'):
            cells = [r for r in rows if r[fixed] == value and
                     r['kind'] == kind]
            values = sorted({int(r[vary]) for r in cells})
            yield f'churn {kind} {vary}', table(
                ['commits at the boundary' if vary == 'churn'
                 else 'commits in all'] +
                [f'{label[n]}: refills' for n in names] +
                ['adaptive: rows beyond the result', 'a refill'],
                [[count(v)] +
                 [pick(cells, cushion=n, **{vary: v})[0]['refills']
                  for n in names] +
                 [few(float(a['held']) - 100), f"{float(a['ms']):.1f} ms"]
                 for v in values
                 for a in pick(cells, cushion='adaptive', **{vary: v})])
            if kind == 'drift':
                panels.append(dict(
                    title=title, ylabel='refills',
                    xlabel=('commits at the boundary' if vary == 'churn'
                            else 'commits in all'),
                    series=[(label[n],
                             [(v, int(pick(cells, cushion=n,
                                           **{vary: v})[0]['refills']))
                              for v in values]) for n in names]))
    plot.draw(f'{PLOTS}/churn.svg', panels)


def workloads(rows):
    names = list(dict.fromkeys(r['cushion'] for r in rows))
    titles = list(dict.fromkeys(r['workload'] for r in rows))
    head = ['workload'] + [n if n == 'adaptive' else f'{n} %' for n in names]

    def matrix(cell):
        return table(head, [[t] + [cell(pick(rows, workload=t, cushion=n)[0])
                                   for n in names] for t in titles])

    yield 'workloads refills', matrix(lambda r: count(r['refills']))
    yield 'workloads rows', matrix(lambda r: count(r['rows_read']))
    yield 'workloads held', matrix(lambda r: few(float(r['held']) - 100))
    yield 'workloads bytes', matrix(
        lambda r: f"{float(r['bytes']) / 1024:.0f} kB")
    series = []
    for t in titles:
        fixed = [(float(r['held']) - 100, int(r['refills']))
                 for r in pick(rows, workload=t) if r['cushion'] != 'adaptive']
        if sum(y > 0 for _, y in fixed) > 4:
            series.append((t, fixed))
    adaptive = [(float(r['held']) - 100, int(r['refills']))
                for r in pick(rows, cushion='adaptive')
                if r['workload'] in [s[0] for s in series]]
    plot.draw(f'{PLOTS}/workloads.svg', [dict(
        title='cushions of 5 to 100 % of the result',
        xlabel='rows held beyond the result, on average',
        ylabel='refills in 10,000 commits',
        series=series + [('adaptive', adaptive, 'star')])])


PUBLISHED = {'limit 20': [1429, 220, 62, 25],
             'limit 100': [1436, 220, 61, 25],
             'skip 20, limit 20': [1501, 219, 61, 25],
             'limit 20, uniform': [4, 0, 0, 0]}


def window_buffer(rows):
    cases = list(dict.fromkeys(r['case'] for r in rows))
    sizes = ['0', '5', '20', '50']

    def line(case, what, title):
        found = pick(rows, case=case, what=what)
        return [case, title] + [
            count(r['refills']) for n in sizes
            for r in found if r['buffer'] == n] + [''] * (
                len(sizes) - sum(r['buffer'] in sizes for r in found))

    lines = []
    for case in cases:
        if case in PUBLISHED:
            lines.append([case, 'published'] + [
                count(n) for n in PUBLISHED[case]])
        lines += [line(case, what, title) for what, title in (
            ('event-reduce-js', 'event-reduce-js'),
            ('window buffer', 'window buffer, model'),
            ('live_topn', 'live_topn')) if pick(rows, case=case, what=what)]
    yield 'window_buffer counts', table(
        ['query', 'full queries or refills', *sizes], lines)

    lines = []
    for case in cases:
        lines += [[case, r['what'], r['buffer'], count(r['refills']),
                   count(r['rows_read']), few(r['held']), r['peak']]
                  for r in pick(rows, case=case)
                  if r['buffer'] in ('3', '7') or 'adaptive' in r['buffer']]
    yield 'window_buffer adaptive', table(
        ['query', '', 'size', 'queries', 'rows read', 'held on average',
         'at most'], lines)
    series = []
    for what in 'window buffer', 'live_topn':
        series.append((what, [
            (float(r['held']) - 20, int(r['refills'])) for r in
            pick(rows, case='limit 20', what=what)
            if r['buffer'] in ('3', '5', '7', '20', '50')]))
    adaptive = [(float(r['held']) - 20, int(r['refills']))
                for r in pick(rows, case='limit 20')
                if 'adaptive' in r['buffer']]
    plot.draw(f'{PLOTS}/window_buffer.svg', [dict(
        title='limit 20, buffers of 3 to 50',
        xlabel='rows held beyond the result, on average',
        ylabel='queries in 5,000 events',
        series=series + [('adaptive', adaptive, 'star')])])


def delay(rows):
    names = list(dict.fromkeys(r['cushion'] for r in rows))
    titles = list(dict.fromkeys(r['workload'] for r in rows))

    def late(r):
        return (few(r['p99']) + ' / ' + few(r['max']) if r['batches'] != '0'
                else '')

    yield 'delay', table(
        ['workload'] +
        [n if n == 'adaptive' else f'{n} %' for n in names] + ['a refill'],
        [[t] + [late(r) for n in names
                for r in pick(rows, workload=t, cushion=n)] +
         [few(pick(rows, workload=t, cushion='0')[0]['ms']) + ' ms']
         for t in titles])


def micro(seconds):
    return few(float(seconds) * 1e6)


def break_even(r):
    """Changes a second beyond which ticks are cheaper."""
    return 10 * int(r['subscriptions']) * float(r['query']) / float(r['live'])


def rerun(rows):
    def title(r):
        if r['varied'] == 'limit':
            return f"N = {count(r['limit'])}"
        if r['varied'] in ('rows', 'no index'):
            return (f"{count(r['rows'])} rows" +
                    (', no index' if r['varied'] == 'no index' else ''))
        if r['varied'] == 'subscriptions':
            return (f"{count(r['rows'])} rows, {count(r['subscriptions'])} "
                    f"subscription{'s' * (r['subscriptions'] != '1')}")
        if r['varied'] == 'churn':
            return (f"{r['subscriptions']} subscriptions, "
                    f"{int(r['churn']) / 10:g} % near a result")
        return (f"{r['subscriptions']} subscriptions, "
                f"{count(r['rate'])} changes a second")

    def line(r):
        live, query = float(r['live']), float(r['query'])
        n = int(r['subscriptions'])
        return [title(r), micro(r['writer']), micro(r['writer_live']),
                micro(live), micro(query),
                f'{query / live:.1f}' if query < 100 * live
                else count(query / live),
                few(n * query / live), few(break_even(r))]

    yield 'rerun', table(
        ['', 'the change itself', 'with live_topn', 'live_topn', 'a query',
         'query / live_topn', 'all queries / live_topn',
         'break-even, 100 ms'], map(line, rows))

    ways = ('live_topn', 'the query concerned, each change',
            'all queries, each change', 'all queries, 100 ms')

    def per_second(r):
        """Milliseconds of CPU time in a second, in each of these ways."""
        n, rate = int(r['subscriptions']), int(r['rate'])
        live, query = float(r['live']) * 1000, float(r['query']) * 1000
        return live * rate, query * rate, query * rate * n, query * n * 10

    panels = [dict(
        title=title, xlabel=xlabel, ylabel='CPU time, ms a second',
        series=[(way, [(int(r[varied]), per_second(r)[i])
                       for r in pick(rows, varied=varied)])
                for i, way in enumerate(ways)])
        for varied, xlabel, title in (
            ('rate', 'changes a second', '10 subscriptions'),
            ('subscriptions', 'subscriptions', '1,000 changes a second'))]
    plot.draw(f'{PLOTS}/rerun.svg', panels)


def large(rows):
    kinds = list(dict.fromkeys(r['what'] for r in rows))
    limits = list(dict.fromkeys(r['limit'] for r in rows))
    base = {k: pick(rows, what=k)[0] for k in kinds}

    def cells(r):
        own = float(r['worker']) - float(r['empty'])
        first = base[r['what']]
        return [micro(r['worker']), micro(r['empty']), micro(own),
                few(float(r['worker']) / float(first['worker']))]

    yield 'large', table(
        ['N'] + [f'{k}: {c}' for k in kinds for c in
                 ('worker', 'empty callbacks', 'difference',
                  'worker, to N = 100')],
        [[count(n)] + [c for k in kinds
                       for c in cells(pick(rows, limit=n, what=k)[0])]
         for n in limits])
    plot.draw(f'{PLOTS}/large.svg', [dict(
        title='a change', xlabel='LIMIT', ylabel='CPU time of the worker, µs',
        logy=False,
        series=[(k, [(int(r['limit']), float(r['worker']) * 1e6)
                     for r in pick(rows, what=k)]) for k in kinds] +
        [('empty callbacks', [(int(r['limit']), float(r['empty']) * 1e6)
                              for r in pick(rows, what=kinds[0])])])])


def row_sizes(rows):
    yield 'row_sizes', table(
        ['text in the row', 'N', 'own size', 'held, each',
         '1.5 × own + 64'],
        [[f"{r['note']} characters", count(r['limit']), few(r['own']),
          few(r['held']), few(1.5 * float(r['own']) + 64)] for r in rows])


def main():
    with open(PAGE) as file:
        page = file.read()
    for part in (churn, workloads, window_buffer, delay, rerun, large,
                 row_sizes):
        rows = read(part.__name__)
        for name, text in part(rows) if rows else ():
            page, found = re.subn(
                f'(<!-- {name} -->\n).*?(<!-- end -->)',
                lambda match: f'{match[1]}\n{text}\n\n{match[2]}', page,
                flags=re.S)
            assert found == 1, f'no place for "{name}"'
    with open(PAGE, 'w') as file:
        file.write(page)


main()
