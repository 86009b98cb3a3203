// The clients of bench/peers.sh: node clients.js KIND FILE
//
// Each keeps the first 20 rows of a table in its own way.  The column "event"
// says which update a row has from.  With every state the client has got, a
// line of FILE says when, and which events its rows have.  It prints "ready" when it
// has the first state, ends when it sees event 0, and prints the seconds of CPU
// time and the bytes received since it was ready.

const fs = require('node:fs');
const http = require('node:http');
const net = require('node:net');
const { performance } = require('node:perf_hooks');
const { pathToFileURL } = require('node:url');

const QUERY = 'SELECT id, name, score, event FROM item ORDER BY score DESC, id LIMIT 20';

const lines = [];
const sockets = [];
let ready;

const received = () => sockets.reduce((sum, socket) => sum + socket.bytesRead, 0);

// The client has these rows.
function got(rows) {
  lines.push([(performance.timeOrigin + performance.now()) / 1000,
    ...rows.map(({ event }) => event)].join(' '));
  if (rows.some(({ event }) => Number(event) === 0)) finish();
}

function start() {
  ready = { cpu: process.cpuUsage(), bytes: received() };
  console.log('ready');
}

function finish() {
  const { user, system } = process.cpuUsage(ready.cpu);
  console.log((user + system) / 1e6, received() - ready.bytes);
  fs.writeFileSync(process.argv[3], lines.join('\n') + '\n');
  process.exit();
}

// For the package "pg": it connects through a socket whose bytes are counted.
const config = { stream: () => (sockets.push(new net.Socket()), sockets.at(-1)) };

async function connect() {
  const db = new (require('pg').Client)(config);
  await db.connect();
  return db;
}

const kinds = {
  // The rows that change, whether or not they are among the first.
  async notify() {
    const db = await connect();
    db.on('notification', ({ payload }) => got([JSON.parse(payload)]));
    await db.query('LISTEN item');
    start();
  },

  // The query again after a notification; once for all that come meanwhile.
  async requery() {
    const db = await connect();
    let wanted = false;
    let running = false;
    const query = async () => {
      wanted = true;
      if (running) return;
      running = true;
      while (wanted) {
        wanted = false;
        got((await db.query({ name: 'item', text: QUERY })).rows);
      }
      running = false;
    };
    db.on('notification', query);
    await db.query('LISTEN item');
    await query();
    start();
  },

  async poll() {
    const db = await connect();
    const query = async () => got((await db.query({ name: 'item', text: QUERY })).rows);
    await query();
    start();
    setInterval(query, 1000);
  },

  async live_topn() {
    const { TopnClient } = require('../../clients/javascript/topn_client.js');
    const client = new TopnClient('item', config);
    client.on('change', (batch, list) => got(list.rows.map(({ row }) => row)));
    await client.start();
    start();
  },

  // zero-cache asks this process what the query with the name "first" is.
  async zero() {
    require('node:diagnostics_channel').subscribe('net.client.socket',
      ({ socket }) => sockets.push(socket));
    const load = (name) => import(pathToFileURL(require.resolve(name)));
    const zero = await load('@rocicorp/zero');
    const { handleQueryRequest } = await load('@rocicorp/zero/server');
    const schema = zero.createSchema({
      tables: [zero.table('item').columns({
        id: zero.number(), name: zero.string(), score: zero.number(), event: zero.number(),
      }).primaryKey('id')],
    });
    const zql = zero.createBuilder(schema);
    const queries = zero.defineQueries({
      first: zero.defineQuery(() => zql.item.orderBy('score', 'desc').orderBy('id', 'asc').limit(20)),
    });
    http.createServer(async (request, response) => {
      let body = '';
      for await (const chunk of request) body += chunk;
      response.end(JSON.stringify(await handleQueryRequest({
        handler: (name, args) => zero.mustGetQuery(queries, name).fn({ args }),
        schema,
        userID: null,
        query: new URL(request.url, 'http://localhost').searchParams,
        body: JSON.parse(body),
      })));
    }).listen(process.env.QUERY_PORT, '127.0.0.1');

    const client = new zero.Zero({
      cacheURL: `http://127.0.0.1:${process.env.ZERO_PORT}`, schema, kvStore: 'mem',
    });
    client.materialize(queries.first()).addListener((rows, type) => {
      if (rows.length) got(rows);
      if (type === 'complete' && !ready) start();
    });
  },
};

kinds[process.argv[2]]();
