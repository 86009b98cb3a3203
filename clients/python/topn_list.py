"""The result of a subscription as a client keeps it.

    topn = TopnList(absolute=False)
    topn.start(seq, rows)               # what topn_snapshot() returned
    topn.take(batch)                    # True if applied, False if known

A Mismatch says that something was lost: start again from a snapshot.
"""


class Mismatch(Exception):
    """The list is not what the batch was made for: something was lost."""


class TopnList:
    """The result: a list of {"key": …, "row": …} and, if grouped, "group"."""

    def __init__(self, absolute=False):
        self.absolute = absolute
        self.seq = -1
        self.rows = []

    def start(self, seq, rows):
        """Take what topn_snapshot() has returned."""
        self.seq, self.rows = seq, list(rows)

    def take(self, batch):
        """Apply a batch; True if it was news.  Mismatch: start again."""
        seq, deltas = batch["seq"], batch["deltas"]
        if seq <= self.seq:
            return False
        if seq != self.seq + 1 and (not deltas or deltas[0]["op"] != "reset"):
            raise Mismatch(f"batch {seq} after {self.seq}")
        rows = list(self.rows)
        for run in _by_group(deltas):
            if run[0]["op"] == "reset":
                rows = list(run[0]["rows"])
            elif self.absolute:
                _apply_absolute(rows, run)
            else:
                for delta in run:
                    _apply(rows, delta)
        self.seq, self.rows = seq, rows
        return True


def _by_group(deltas):
    """Runs of deltas of the same group; positions are within the group."""
    runs = []
    for delta in deltas:
        last = runs[-1][-1] if runs else {"op": "reset"}
        if last["op"] != "reset" and last.get("group") == delta.get("group"):
            runs[-1].append(delta)
        else:
            runs.append([delta])
    return runs


def _extent(rows, group):
    """Where the rows of a group are; a new group is put at the end."""
    if group is None:
        return 0, len(rows)
    at = [i for i, entry in enumerate(rows) if entry.get("group") == group]
    return (at[0], at[-1] + 1) if at else (len(rows), len(rows))


def _find(rows, delta, pos):
    """The index of the row; a result without order has no positions."""
    if pos is None:
        at = next((i for i, e in enumerate(rows) if e["key"] == delta["key"]), -1)
    else:
        at = _extent(rows, delta.get("group"))[0] + pos - 1
    if not 0 <= at < len(rows) or rows[at]["key"] != delta["key"]:
        raise Mismatch(f"no such row: {delta}")
    return at


def _changed(entry, delta):
    return {**entry, "row": {**entry["row"], **delta.get("set", {})}}


def _entry(delta):
    return {name: delta[name] for name in ("key", "row", "group") if name in delta}


def _apply(rows, delta):
    """One delta after the other."""
    op, pos = delta["op"], delta.get("pos")
    start = _extent(rows, delta.get("group"))[0]
    if op == "leave":
        del rows[_find(rows, delta, pos)]
    elif op == "move":
        entry = rows.pop(_find(rows, delta, delta["from"]))
        rows.insert(start + delta["to"] - 1, _changed(entry, delta))
    elif op == "enter":
        rows.insert(len(rows) if pos is None else start + pos - 1, _entry(delta))
    elif op == "update":
        at = _find(rows, delta, pos)
        rows[at] = _changed(rows[at], delta)
    else:
        raise ValueError(f"unknown delta {op!r}")


def _apply_absolute(rows, deltas):
    """All at once: take out by old ranks, put in at new ones; the others keep
    their order in the places between."""
    start, end = _extent(rows, deltas[0].get("group"))
    old, placed = dict(enumerate(rows[start:end], 1)), {}
    for delta in deltas:
        if delta["op"] in ("leave", "move"):
            entry = old.pop(delta.get("from", delta.get("pos")), None)
            if entry is None or entry["key"] != delta["key"]:
                raise Mismatch(f"no such row: {delta}")
            if delta["op"] == "move":
                placed[delta["to"]] = _changed(entry, delta)
        elif delta["op"] == "enter":
            placed[delta["pos"]] = _entry(delta)
    rest = iter(old.values())
    ranks = range(1, len(old) + len(placed) + 1)
    result = [placed[rank] if rank in placed else next(rest) for rank in ranks]
    for delta in deltas:
        if delta["op"] == "update":
            at = _find(result, {"key": delta["key"]}, delta["pos"])
            result[at] = _changed(result[at], delta)
    rows[start:end] = result
