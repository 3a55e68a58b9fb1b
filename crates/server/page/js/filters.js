// What part of the ledger a page is about: a time range, and a cluster, pool or team. It stands in
// the address, so that a link shows the same.

import { sql } from './api.js';
import { select, segments } from './dom.js';
import { quoted } from './format.js';
import { go } from './route.js';

const HOUR = 3_600_000;
const DAY = 24 * HOUR;
export const RANGES = [
  ['24h', '24 h'],
  ['7d', '7 d'],
  ['30d', '30 d'],
  ['all', 'All'],
];
const LENGTH = { '24h': DAY, '7d': 7 * DAY, '30d': 30 * DAY, all: Infinity };
export const DIMENSIONS = ['cluster', 'pool', 'team'];

let known;

/** From when to when the ledger has rows, ms; `null` if it has none. Asked once a minute at most. */
export async function bounds(signal) {
  if (known && performance.now() - known.at < 60_000) return known.of;
  const [days] = await sql(
    'SELECT min(window_start) AS first, max(window_start) AS last FROM ledger_1d',
    { signal },
  );
  let of = null;
  if (days?.last) {
    const [hours] = await sql(
      `SELECT max(window_start) AS last FROM ledger_1h
        WHERE window_start >= TIMESTAMP '${days.last}'`,
      { signal },
    );
    of = {
      first: Date.parse(days.first),
      last: hours?.last ? Date.parse(hours.last) + HOUR : Date.parse(days.last) + DAY,
    };
  }
  known = { at: performance.now(), of };
  return of;
}

/** The scope that an address names, within what there is. */
export function scopeOf(params, within) {
  const range = LENGTH[params.get('range')] ? params.get('range') : '7d';
  const to = within.last;
  const from = Math.max(within.first, range === 'all' ? within.first : to - LENGTH[range]);
  const chosen = Object.fromEntries(
    DIMENSIONS.map(name => [name, params.get(name)]).filter(([, value]) => value !== null),
  );
  // Hours where they are few: a day is the least that days tell of.
  const hourly = to - from <= 3 * DAY;
  return {
    range,
    from,
    to,
    chosen,
    hourly,
    table: hourly ? 'ledger_1h' : 'ledger_1d',
    step: hourly ? HOUR : DAY,
  };
}

/** The condition for rows of a scope. `(none)` stands for rows without a value. */
export function where(scope, { column = 'window_start' } = {}) {
  // A day that began before the range is only partly in it: the first whole day counts.
  const begin = scope.hourly ? scope.from : Math.ceil(scope.from / DAY) * DAY;
  const parts = [
    `${column} >= TIMESTAMP '${new Date(begin).toISOString()}'`,
    `${column} < TIMESTAMP '${new Date(scope.to).toISOString()}'`,
    ...Object.entries(scope.chosen).map(([name, value]) =>
      value === '(none)' ? `${name} IS NULL` : `${name} = ${quoted(value)}`,
    ),
  ];
  return parts.join(' AND ');
}

/** Controls for a scope. The values to choose from are those of the range. */
export async function controls(params, scope, signal) {
  const rows = await sql(
    `SELECT DISTINCT cluster, pool, team FROM ${scope.table}
      WHERE ${where({ ...scope, chosen: {} })} LIMIT 2000`,
    { signal },
  );
  const change = (name, value) => {
    const next = new URLSearchParams(params);
    if (value) next.set(name, value);
    else next.delete(name);
    go('money', next);
  };
  const choices = name => {
    const values = [...new Set(rows.map(row => row[name] ?? '(none)'))].sort();
    return values.length > 1 || scope.chosen[name]
      ? [['', `Every ${name}`], ...values.map(value => [value, value])]
      : null;
  };
  const selects = DIMENSIONS.map(name => [name, choices(name)])
    .filter(([, values]) => values)
    .map(([name, values]) =>
      select(`Of one ${name}`, values, scope.chosen[name] ?? '', value => change(name, value)),
    );
  return [...selects, segments('Time range', RANGES, scope.range, value => change('range', value))];
}
