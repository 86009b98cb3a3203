// The events of window_buffer.py through event-reduce-js: how often it asks
// for the full query.  Usage: node event_reduce.js EVENTS, with the package
// in a node_modules that node finds from the working directory.
import fs from 'node:fs';
import { createRequire } from 'node:module';

const require = createRequire(process.cwd() + '/');
const { calculateActionName, runAction } = require('event-reduce-js');

const { skip, limit, rows, events } =
	JSON.parse(fs.readFileSync(process.argv[2], 'utf8'));

const matches = doc => doc.gender === 'f';
const compare = (a, b) => a.age - b.age || a.id - b.id;
const queryParams = {
	primaryKey: 'id',
	sortFields: ['age', 'id'],
	skip,
	limit: limit ?? undefined,
	queryMatcher: matches,
	sortComparator: compare,
};

const table = new Map(rows.map(doc => [doc.id, doc]));
const query = () => [...table.values()].filter(matches).sort(compare)
	.slice(skip, limit === null ? undefined : skip + limit);

let results = query();
let fullQueries = 0;
let rowsRead = 0;
for (const { operation, id, doc } of events) {
	const previous = table.get(id) ?? null;

	if (doc === null)
		table.delete(id);
	else
		table.set(id, doc);
	const changeEvent = { operation, id, doc, previous };
	const keyDocumentMap = new Map(results.map(d => [d.id, d]));
	const action = calculateActionName({
		queryParams, changeEvent, previousResults: results, keyDocumentMap,
	});
	if (action === 'runFullQueryAgain') {
		results = query();
		fullQueries++;
		rowsRead += results.length;
	} else {
		results = results.slice();
		runAction(action, queryParams, changeEvent, results, keyDocumentMap);
	}
}

const same = JSON.stringify(results) === JSON.stringify(query());
console.log(JSON.stringify({ fullQueries, rowsRead, same }));
