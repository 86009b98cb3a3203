#!/usr/bin/env node
// Usage: follow.js HOST PORT DATABASE NAME — prints the rows after each
// change, one JSON array a line; the test of the client compares them with
// the query.
const { TopnClient } = require('../javascript/topn_client.js');

const [host, port, database, name] = process.argv.slice(2);
const client = new TopnClient(name, { host, port, database });

client.on('change', (batch, list) =>
  console.log(JSON.stringify([list.seq, list.rows.map((entry) => entry.row)])));
client.on('offline', (error) => console.error(error.message));
client.start().catch((error) => {
  console.error(error.message);
  process.exit(1);
});
