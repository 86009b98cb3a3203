// A live leaderboard: relays the batches of a subscription to browsers.
//
// Usage: node server.js NAME [PORT]; the database comes from PGHOST etc.
//
// Browsers get server-sent events, whose id is the number of the batch.  One
// that comes back says which it had last (Last-Event-ID) and gets those after
// it; if they are no longer kept, the whole list.

const fs = require('node:fs');
const http = require('node:http');
const path = require('node:path');
const { TopnClient } = require('../../clients/javascript/topn_client.js');

const KEPT = 1000;      // batches, for browsers that come back
const [name, port = '8080'] = process.argv.slice(2);

const files = {
  '/': ['text/html', path.join(__dirname, 'index.html')],
  '/page.js': ['text/javascript', path.join(__dirname, 'page.js')],
  '/topn_list.js': ['text/javascript', require.resolve('../../clients/javascript/topn_list.js')],
};

const client = new TopnClient(name, { application_name: 'leaderboard' });
const browsers = new Set();
let kept = [];

const event = (batch) => `id: ${batch.seq}\ndata: ${JSON.stringify(batch)}\n\n`;

const wholeList = () =>
  ({ seq: client.list.seq, deltas: [{ op: 'reset', rows: client.list.rows }] });

client.on('change', (batch) => {
  if (batch === null) kept = [];        // a new start: the numbers may jump
  else kept = [...kept.slice(1 - KEPT), batch];
  for (const browser of browsers) browser.write(event(batch ?? wholeList()));
});
client.on('offline', (error) => console.error(`database: ${error.message}`));

function stream(request, response) {
  const last = Number(request.headers['last-event-id'] ?? -1);
  const missed = kept.filter((batch) => batch.seq > last);
  const complete = last === client.list.seq || missed[0]?.seq === last + 1;

  response.writeHead(200, {
    'Content-Type': 'text/event-stream',
    'Cache-Control': 'no-store',
  });
  response.write('retry: 500\n\n');
  for (const batch of complete ? missed : [wholeList()]) response.write(event(batch));
  browsers.add(response);
  request.on('close', () => browsers.delete(response));
}

const server = http.createServer((request, response) => {
  if (request.url === '/batches') return stream(request, response);
  const [type, file] = files[request.url] ?? [];
  if (!file) return response.writeHead(404).end();
  response.writeHead(200, { 'Content-Type': type });
  return fs.createReadStream(file).pipe(response);
});

client.start().then(() =>
  server.listen(Number(port), '127.0.0.1', () =>
    console.log(`http://127.0.0.1:${server.address().port}/`)),
(error) => {
  console.error(error.message);
  process.exit(1);
});
