// The result of a subscription as a client keeps it; for browsers and Node.
//
//   const list = new TopnList({ absolute: false });
//   list.start(seq, rows);              // what topn_snapshot() returned
//   list.take(batch);                   // 'applied', 'ignored' or 'gap'
//
// list.rows is an array of { key, row } and, if the result is grouped, group.
// After a gap, start again from a snapshot.  A batch that is a reset is a
// start by itself.  Integers beyond 2^53 need a JSON parser that keeps them.

class TopnList {
  constructor({ absolute = false } = {}) {
    this.absolute = absolute;
    this.seq = -1;
    this.rows = [];
  }

  start(seq, rows) {
    this.seq = seq;
    this.rows = rows.map((entry) => ({ ...entry }));
  }

  take(batch) {
    const { seq, deltas } = batch;
    if (seq <= this.seq) return 'ignored';
    if (seq !== this.seq + 1 && deltas[0]?.op !== 'reset') return 'gap';

    const rows = this.rows.slice();
    try {
      for (const group of byGroup(deltas)) {
        if (group[0].op === 'reset') rows.splice(0, Infinity, ...group[0].rows);
        else if (this.absolute) applyAbsolute(rows, group);
        else for (const delta of group) apply(rows, delta);
      }
    } catch (error) {
      if (error instanceof Mismatch) return 'gap';
      throw error;
    }
    this.rows = rows;
    this.seq = seq;
    return 'applied';
  }
}

// The list is not what the batch was made for: something was lost.
class Mismatch extends Error {}

const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

// Runs of deltas of the same group; positions are within the group.
function byGroup(deltas) {
  const runs = [];
  for (const delta of deltas) {
    const last = runs.at(-1);
    if (last && last[0].op !== 'reset' && same(last[0].group, delta.group)) last.push(delta);
    else runs.push([delta]);
  }
  return runs;
}

// Where the rows of a group begin; a new group is put at the end.
function groupStart(rows, group) {
  if (group === undefined) return 0;
  const start = rows.findIndex((entry) => same(entry.group, group));
  return start < 0 ? rows.length : start;
}

// The index of the row at a position, which must be the one with the key; or,
// of a result without order, of the row with the key.
function find(rows, delta, pos) {
  const at = pos === undefined
    ? rows.findIndex((entry) => same(entry.key, delta.key))
    : groupStart(rows, delta.group) + pos - 1;
  if (at < 0 || at >= rows.length || !same(rows[at].key, delta.key)) throw new Mismatch();
  return at;
}

function changed(entry, set) {
  return { ...entry, row: { ...entry.row, ...set } };
}

function entryOf({ key, row, group }) {
  return group === undefined ? { key, row } : { key, row, group };
}

// One delta after the other.
function apply(rows, delta) {
  const place = (pos) =>
    pos === undefined ? rows.length : groupStart(rows, delta.group) + pos - 1;

  switch (delta.op) {
    case 'leave':
      rows.splice(find(rows, delta, delta.pos), 1);
      break;
    case 'move': {
      // a group of one row is gone for a moment, so remember where it was
      const at = find(rows, delta, delta.from);
      const start = groupStart(rows, delta.group);
      const [entry] = rows.splice(at, 1);
      rows.splice(start + delta.to - 1, 0, changed(entry, delta.set));
      break;
    }
    case 'enter':
      rows.splice(place(delta.pos), 0, entryOf(delta));
      break;
    case 'update': {
      const at = find(rows, delta, delta.pos);
      rows[at] = changed(rows[at], delta.set);
      break;
    }
    default:
      throw new Error(`unknown delta "${delta.op}"`);
  }
}

// Absolute ranks, all at once: take out by old ranks, put in at new ones; the
// others keep their order in the places between.
function applyAbsolute(rows, deltas) {
  const { group } = deltas[0];
  const start = groupStart(rows, group);
  const end = rows.findIndex((entry, at) => at >= start && !same(entry.group, group));
  const size = (end < 0 ? rows.length : end) - start;
  const old = rows.slice(start, start + size);
  const taken = new Set();
  const placed = new Map();

  for (const delta of deltas) {
    if (delta.op === 'leave' || delta.op === 'move') {
      const at = (delta.from ?? delta.pos) - 1;
      if (!same(old[at]?.key, delta.key)) throw new Mismatch();
      taken.add(at);
      if (delta.op === 'move') placed.set(delta.to - 1, changed(old[at], delta.set));
    } else if (delta.op === 'enter') placed.set(delta.pos - 1, entryOf(delta));
  }
  const rest = old.filter((entry, at) => !taken.has(at));
  const length = rest.length + placed.size;
  const result = Array.from({ length }, (_, at) => placed.get(at) ?? rest.shift());
  for (const delta of deltas) {
    if (delta.op !== 'update') continue;
    const at = delta.pos - 1;
    if (!same(result[at]?.key, delta.key)) throw new Mismatch();
    result[at] = changed(result[at], delta.set);
  }
  rows.splice(start, size, ...result);
}

if (typeof module !== 'undefined') module.exports = { TopnList };
