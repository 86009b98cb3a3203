// Shows the list, and moves rows to their new places.

const list = new TopnList();
const ol = document.getElementById('list');
const state = document.getElementById('state');
const elements = new Map();     // key of a row to its element

function element(entry) {
  const id = JSON.stringify(entry.key);
  let li = elements.get(id);
  if (!li) {
    li = document.createElement('li');
    for (const part of ['rank', 'name', 'score']) {
      const span = document.createElement('span');
      span.className = part;
      li.append(span);
    }
    li.classList.add('entered');
    setTimeout(() => li.classList.remove('entered'), 800);
    elements.set(id, li);
  }
  return li;
}

// Put the rows in order; each slides from where it was (first, last, invert,
// play: the browser animates the way back from a shift to none).
function show() {
  const before = new Map([...elements].map(([id, li]) => [id, li.offsetTop]));
  const present = new Set(list.rows.map((entry) => JSON.stringify(entry.key)));

  for (const [id, li] of elements) {
    if (present.has(id)) continue;
    li.remove();
    elements.delete(id);
  }
  list.rows.forEach((entry, at) => {
    const li = element(entry);
    const score = li.querySelector('.score');
    if (score.textContent !== '' && score.textContent !== String(entry.row.score)) {
      li.classList.add('changed');
      setTimeout(() => li.classList.remove('changed'), 800);
    }
    li.querySelector('.rank').textContent = at + 1;
    li.querySelector('.name').textContent = entry.row.name;
    score.textContent = entry.row.score;
    if (ol.children[at] !== li) ol.insertBefore(li, ol.children[at] ?? null);
  });
  for (const [id, li] of elements) {
    const shift = (before.get(id) ?? li.offsetTop) - li.offsetTop;
    if (shift === 0) continue;
    li.style.transition = 'none';
    li.style.transform = `translateY(${shift}px)`;
    li.getBoundingClientRect();         // so that it starts from there
    li.style.transition = '';
    li.style.transform = '';
  }
}

// The browser reconnects by itself, and says which batch it had last.
const source = new EventSource('batches');
source.onmessage = ({ data }) => {
  const batch = JSON.parse(data);
  if (batch.deltas[0]?.op === 'reset') list.seq = batch.seq - 1;
  if (list.take(batch) === 'gap') location.reload();
  state.textContent = `live, batch ${list.seq}`;
  show();
};
source.onerror = () => { state.textContent = 'connection lost, trying again …'; };
