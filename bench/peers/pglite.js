// PGlite, database, writer and client in one process:
//
//   node pglite.js KIND ROWS EVENTS RATE HOT LIMIT EVENTS-FILE FILE
//
// KIND is none, query or incrementalQuery.  It stops after LIMIT seconds if it
// does not keep up.  It writes what staleness.awk wants, and prints the seconds
// of CPU time and of real time and the number of events.

const fs = require('node:fs');
const { performance } = require('node:perf_hooks');
const { setTimeout: sleep } = require('node:timers/promises');
const { PGlite } = require('@electric-sql/pglite');
const { live } = require('@electric-sql/pglite/live');

const [kind, rows, count, rate, hot, limit, eventsFile, file] = process.argv.slice(2);
const QUERY = 'SELECT id, name, score, event FROM item ORDER BY score DESC, id LIMIT 20';

const now = () => performance.now() / 1000;
const random = (from, to) => from + Math.floor(Math.random() * (to - from + 1));

async function main() {
  const db = await PGlite.create({ extensions: { live } });
  await db.exec(`
    CREATE TABLE item (id int PRIMARY KEY, name text NOT NULL, score int NOT NULL,
      event bigint NOT NULL);
    INSERT INTO item SELECT i, 'item ' || i,
      CASE WHEN i <= 20 THEN 2000000 ELSE random() * 1000000 END, -i
      FROM generate_series(1, ${rows}) i;
    CREATE INDEX ON item (score DESC, id);
    ANALYZE`);

  const lines = [];
  let seen;
  const last = new Promise((resolve) => { seen = resolve; });
  const got = (result) => {
    lines.push([now(), ...result.rows.map(({ event }) => event)].join(' '));
    if (result.rows.some(({ event }) => Number(event) === 0)) seen();
  };
  if (kind === 'query') await db.live.query(QUERY, [], got);
  if (kind === 'incrementalQuery') await db.live.incrementalQuery(QUERY, [], 'id', got);
  lines.length = 0;

  const events = [];
  const update = async (id, event) => {
    await db.query('UPDATE item SET score = $1, event = $2 WHERE id = $3',
      [id <= 20 ? random(1000001, 2000000) : random(1, 1000000), event, id]);
    if (id <= 20) events.push(`${now()} ${event}`);
  };
  const cpu = process.cpuUsage();
  const start = now();
  let i = 1;
  for (; i < count && now() - start < limit; i++) {
    const wait = start + i / rate - now();
    if (wait > 0.001) await sleep(wait * 1000);
    await update(random(1, 100) <= hot ? random(1, 20) : random(21, rows), i);
  }
  await update(1, 0);
  const duration = now() - start;
  if (kind !== 'none') await last;

  const { user, system } = process.cpuUsage(cpu);
  fs.writeFileSync(eventsFile, events.join('\n') + '\n');
  fs.writeFileSync(file, lines.join('\n') + '\n');
  console.log((user + system) / 1e6, duration, i);
  process.exit();
}

main();
