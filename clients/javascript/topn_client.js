// Follows a subscription through NOTIFY, with the package "pg".
//
//   const client = new TopnClient('feed', { connectionString: '…' });
//   client.on('change', (batch, list) => …);    // batch: null after a start
//   client.on('offline', (error) => …);         // it tries again by itself
//   await client.start();
//   …
//   await client.end();

const { EventEmitter } = require('node:events');
const { setTimeout: sleep } = require('node:timers/promises');
const pg = require('pg');
const { TopnList } = require('./topn_list.js');

const MAX_DELAY_MS = 5000;

class TopnClient extends EventEmitter {
  #name;
  #config;
  #db;
  #parts = [];
  #waiting = [];       // payloads that came while a snapshot was read
  #reading = false;
  #ended = false;

  constructor(name, config) {
    super();
    this.#name = name;
    this.#config = config;
    this.list = new TopnList();
  }

  // Connect, listen, and read the result; resolves when the list is there.
  async start() {
    const db = new pg.Client(this.#config);
    let lost = false;
    const lose = (error) => {
      if (lost || this.#ended || db !== this.#db) return;
      lost = true;
      this.emit('offline', error ?? new Error('connection ended'));
      this.#restart();
    };

    db.on('error', lose);
    db.on('end', lose);
    db.on('notification', ({ channel, payload }) => {
      if (channel === this.#name && db === this.#db) this.#receive(payload);
    });
    await db.connect();
    try {
      const { rows } = await db.query(
        'SELECT ranks FROM topn_subscriptions WHERE name = $1', [this.#name]);
      this.list = new TopnList({ absolute: rows[0]?.ranks === 'absolute' });
      this.#db = db;
      this.#parts = [];
      this.#waiting = [];
      // LISTEN first: no batch is lost between the snapshot and it
      await db.query(`LISTEN ${db.escapeIdentifier(this.#name)}`);
      await this.#snapshot();
    } catch (error) {
      this.#db = undefined;
      db.end().catch(() => {});
      throw error;
    }
  }

  async end() {
    this.#ended = true;
    await this.#db?.end();
  }

  async #restart() {
    for (let delay = 100; !this.#ended; delay = Math.min(2 * delay, MAX_DELAY_MS)) {
      try {
        return await this.start();
      } catch (error) {
        this.emit('offline', error);
        await sleep(delay);
      }
    }
  }

  async #snapshot() {
    this.#reading = true;
    const { rows: [snapshot] } = await this.#db.query(
      'SELECT seq, rows FROM topn_snapshot($1)', [this.#name]);
    this.list.start(Number(snapshot.seq), snapshot.rows);
    this.#reading = false;
    this.emit('change', null, this.list);
    for (const payload of this.#waiting.splice(0)) this.#receive(payload);
  }

  // A payload is a batch, or part of one.
  #receive(payload) {
    if (this.#reading) {
      this.#waiting.push(payload);
      return;
    }
    let batch = JSON.parse(payload);
    if (batch.part !== undefined) {
      if (batch.part === 1) this.#parts = [];
      this.#parts.push(batch.data);
      if (batch.part < batch.parts) return;
      batch = JSON.parse(this.#parts.join(''));
    }
    const result = this.list.take(batch);
    if (result === 'applied') this.emit('change', batch, this.list);
    else if (result === 'gap') this.#snapshot().catch(() => {});
  }
}

module.exports = { TopnClient };
