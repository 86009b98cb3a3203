"""Plots as SVG that can be read on light and on dark pages."""

import math

WIDTH, HEIGHT = 400, 300                # of a panel
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 34, 44
COLOURS = ['#2f7ed8', '#d9730d', '#2e9e5b', '#b04fc4', '#c8443d', '#7a8794',
           '#a08a00']
MARKS = ['circle', 'square', 'diamond', 'triangle']
STYLE = '''<style>
text { font: 12px sans-serif; fill: #1f2328 }
.title { font-weight: bold }
.axis { stroke: #59636e; fill: none }
.grid { stroke: #59636e; stroke-opacity: 0.2 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
.axis, .grid { stroke: #9198a1 }
}
</style>'''


def number(x):
    if x >= 1000000:
        return f'{x / 1000000:g}M'
    if x >= 10000:
        return f'{x / 1000:g}k'
    return f'{x:g}'


class Axis:
    """Values to coordinates, linear from zero or logarithmic."""

    def __init__(self, values, low, high, log):
        self.low, self.high, self.log = low, high, log
        if log:
            steps = [a * 10.0 ** b for b in range(-6, 10) for a in (1, 2, 5)]
            self.first = max(s for s in steps if s <= min(values) * 1.0001)
            self.last = min(s for s in steps if s >= max(values) * 0.9999 and
                            s > self.first)
            self.steps = [s for s in steps if self.first <= s <= self.last]
        else:
            step = 10 ** math.floor(math.log10(max(values) or 1))
            while max(values) / step < 4:
                step /= 2
            self.first, self.step = 0, step
            self.last = step * math.ceil(max(values) / step or 1)

    def ticks(self):
        if not self.log:
            count = round(self.last / self.step)
            return [self.step * i for i in range(count + 1)]
        tens = [s for s in self.steps if f'{s:e}'.startswith('1')]
        return tens if len(tens) > 2 else self.steps

    def __call__(self, x):
        if self.log:
            share = math.log(x / self.first) / math.log(self.last / self.first)
        else:
            share = x / self.last
        return self.low + share * (self.high - self.low)


def mark(kind, x, y, colour, size=4):
    if kind == 'circle':
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size}" fill="{colour}"/>'
    corners = {
        'square': [(-1, -1), (1, -1), (1, 1), (-1, 1)],
        'diamond': [(0, -1.4), (1.4, 0), (0, 1.4), (-1.4, 0)],
        'triangle': [(0, -1.2), (1.2, 1), (-1.2, 1)],
        'star': [(math.sin(i * math.pi / 5) * (2.2 if i % 2 == 0 else 0.9),
                  -math.cos(i * math.pi / 5) * (2.2 if i % 2 == 0 else 0.9))
                 for i in range(10)]}[kind]
    points = ' '.join(f'{x + size * a:.1f},{y + size * b:.1f}'
                      for a, b in corners)
    return f'<polygon points="{points}" fill="{colour}"/>'


def panel(left, title, xlabel, ylabel, series, logx=True, logy=True):
    """series: (label, points, kind); a star is alone, others have lines.

    The label is that of the legend; colours go by it.
    """
    points = [p for s in series for p in s[1]
              if (p[0] > 0 or not logx) and (p[1] > 0 or not logy)]
    x = Axis([p[0] for p in points], left + LEFT, left + WIDTH - RIGHT, logx)
    y = Axis([p[1] for p in points], HEIGHT - BOTTOM, TOP, logy)
    out = [f'<text class="title" x="{left + LEFT}" y="20">{title}</text>']
    for tick in x.ticks():
        out.append(f'<path class="grid" d="M{x(tick):.1f} {TOP}V{y.low}"/>'
                   f'<text x="{x(tick):.1f}" y="{y.low + 16}" '
                   f'text-anchor="middle">{number(tick)}</text>')
    for tick in y.ticks():
        out.append(f'<path class="grid" d="M{x.low} {y(tick):.1f}H{x.high}"/>'
                   f'<text x="{x.low - 6}" y="{y(tick) + 4:.1f}" '
                   f'text-anchor="end">{number(tick)}</text>')
    middle = (TOP + y.low) / 2
    out.append(
        f'<path class="axis" d="M{x.low} {TOP}V{y.low}H{x.high}"/>'
        f'<text x="{(x.low + x.high) / 2}" y="{HEIGHT - 8}" '
        f'text-anchor="middle">{xlabel}</text>'
        f'<text transform="translate({left + 14} {middle}) rotate(-90)" '
        f'text-anchor="middle">{ylabel}</text>')
    for i, (_, data, kind, colour) in enumerate(series):
        data = [(x(a), y(b)) for a, b in data
                if (a > 0 or not logx) and (b > 0 or not logy)]
        if kind != 'star' and len(data) > 1:
            line = ' '.join(f'{a:.1f},{b:.1f}' for a, b in data)
            out.append(f'<polyline points="{line}" fill="none" '
                       f'stroke="{colour}" stroke-width="1.5"/>')
        out += [mark(kind, a, b, colour) for a, b in data]
    return '\n'.join(out)


def draw(path, panels):
    """panels: keyword arguments of panel(), series as (label, points[, kind]).

    One legend below; what has the same label has the same colour.
    """
    labels = []
    body = []
    for i, arguments in enumerate(panels):
        series = []
        for label, points, *kind in arguments['series']:
            if label not in [name for name, _ in labels]:
                labels.append((label, kind[0] if kind else
                               MARKS[len(labels) % len(MARKS)]))
            n = [name for name, _ in labels].index(label)
            series.append((label, points, kind[0] if kind else labels[n][1],
                           COLOURS[n % len(COLOURS)]))
        body.append(panel(i * WIDTH, **{**arguments, 'series': series}))
    width = WIDTH * len(panels)
    x, y = LEFT, HEIGHT + 12
    for n, (label, kind) in enumerate(labels):
        length = 28 + 7 * len(label)
        if x + length > width:
            x, y = LEFT, y + 20
        body.append(mark(kind, x, y - 4, COLOURS[n % len(COLOURS)]) +
                    f'<text x="{x + 10}" y="{y}">{label}</text>')
        x += length
    height = y + 12
    with open(path, 'w') as file:
        file.write(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" '
                   f'height="{height}" viewBox="0 0 {width} {height}">\n'
                   f'{STYLE}\n' + '\n'.join(body) + '\n</svg>\n')
