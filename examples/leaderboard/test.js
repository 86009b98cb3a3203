// The page in headless Chromium: rows enter, leave and move as the database
// changes, and the page survives restarts of both servers behind it.
//
// scripts/example_test.sh runs it; PGHOST is that of a throwaway server, and
// RESTART_SERVER a command that restarts it.

const assert = require('node:assert');
const { spawn, execSync } = require('node:child_process');
const path = require('node:path');
const test = require('node:test');
const pg = require('../../clients/javascript/node_modules/pg');
const { chromium } = require('playwright-core');

const top = 'SELECT id, name, score FROM player ORDER BY score DESC, id LIMIT 10';
const restart = process.env.RESTART_SERVER;

async function query(sql) {
  const db = new pg.Client();
  await db.connect();
  try {
    return (await db.query(sql)).rows;
  } finally {
    await db.end();
  }
}

async function eventually(condition, what) {
  for (let i = 0; i < 600; i++) {
    if (await condition()) return;
    await new Promise((resolve) => { setTimeout(resolve, 50); });
  }
  assert.fail(`timed out waiting for ${what}`);
}

// Start the relay; resolves with the process when it serves.
function relay(port) {
  const child = spawn('node', [path.join(__dirname, 'server.js'), 'leaders', String(port)],
    { stdio: ['ignore', 'pipe', 'inherit'] });
  return new Promise((resolve, reject) => {
    child.stdout.once('data', (line) => resolve([child, String(line).trim()]));
    child.once('exit', (code) => reject(new Error(`server.js ended: ${code}`)));
  });
}

test('the leaderboard page', { timeout: 120000 }, async (t) => {
  const [first, url] = await relay(0);
  let server = first;
  const browser = await chromium.launch({
    executablePath: '/usr/bin/chromium',
    args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run',
      '--disable-background-networking', '--disable-component-update', '--disable-sync'],
  });
  t.after(async () => {
    await browser.close();
    server.kill();
  });
  const page = await browser.newPage();
  const errors = [];
  page.on('pageerror', (error) => errors.push(error.message));
  await page.goto(url);

  const shown = () => page.$$eval('#list li', (items) => items.map((li) =>
    [...li.children].map((span) => span.textContent).join(' ')));
  const agrees = async (what) => {
    let expected;
    await eventually(async () => {
      expected = (await query(top)).map((row, at) => `${at + 1} ${row.name} ${row.score}`);
      return JSON.stringify(await shown()) === JSON.stringify(expected);
    }, what);
    assert.deepStrictEqual(await shown(), expected, what);
  };

  await agrees('the list at the start');

  const id = (await query('SELECT id FROM player ORDER BY score, id LIMIT 1'))[0].id;
  await query(`UPDATE player SET score = 100000 WHERE id = ${id}`);
  await agrees('a row has entered at the top');
  assert.match((await shown())[0], new RegExp(`^1 player ${id} 100000$`));

  // the element of a row moves, it is not made anew
  await page.$eval('#list li:first-child', (li) => { li.dataset.seen = 'yes'; });
  await query(`UPDATE player SET score = (SELECT score - 1 FROM player
    WHERE id <> ${id} ORDER BY score DESC LIMIT 1) WHERE id = ${id}`);
  await agrees('it has moved');
  assert.strictEqual(await page.$eval('#list li[data-seen] .name', (name) => name.textContent),
    `player ${id}`, 'it is the same element in another place');
  assert.strictEqual(await page.$$eval('#list li:first-child[data-seen]', (li) => li.length), 0);

  await query(`DELETE FROM player WHERE id = ${id}`);
  await agrees('it has left');
  assert.ok(!(await shown()).some((row) => row.includes(`player ${id} `)));

  for (let i = 0; i < 50; i++)
    await query(`UPDATE player SET score = random() * 2000 WHERE id = ${1 + (i * 37) % 200}`);
  await agrees('after many changes');

  await t.test('the relay restarts', async () => {
    const { port } = new URL(url);
    const ended = new Promise((resolve) => { server.once('exit', resolve); });
    server.kill();
    await ended;
    await query('UPDATE player SET score = score + 5 WHERE id % 2 = 0');
    [server] = await relay(port);
    await agrees('after a restart of the relay');
  });

  await t.test('the database restarts', async () => {
    execSync(restart, { stdio: 'inherit' });
    await query('UPDATE player SET score = score + 7 WHERE id % 3 = 0');
    await agrees('after a restart of the database');
  });

  if (process.env.SCREENSHOT) await page.screenshot({ path: process.env.SCREENSHOT });
  assert.deepStrictEqual(errors, [], 'no errors in the page');
});
