// One leak: what it means, what would close it, and where it is.

import { sql, visible } from './api.js';
import { plot, stacked } from './charts.js';
import { h, segments } from './dom.js';
import { where } from './filters.js';
import { money, number, percent, short } from './format.js';
import { BANDS, conditionOf } from './ledger.js';
import { asking, job } from './route.js';
import { empty, fill } from './states.js';
import { table } from './table.js';

const PLACES = ['team', 'pool', 'node', 'job'];

/** The meaning of a class from the catalogue; its text is the tables' own. */
async function meaningOf(name, signal) {
  const rows = await visible(
    `SELECT meaning, formula FROM ledger_classes WHERE ${conditionOf(name)}`,
    {
      signal,
    },
  );
  return rows[0];
}

export async function detail(place, step, { scope, currency, all, signal }) {
  place.element.querySelector('h2').textContent = step.label;
  const meaning = await meaningOf(step.name, signal);
  const [rows, course] = [h('div'), h('div')];
  const show = by =>
    fill(rows, () => biggest(by, step, { scope, currency, signal }), { lines: 6, signal });
  // A leak of what nobody holds is of no job and no team.
  const places = step.band === 'free' || step.band === 'unusable' ? ['pool', 'node'] : PLACES;
  show(places[0]);
  fill(course, () => overTime(step, scope, signal), { lines: 3, signal });
  return [
    h(
      'div',
      { class: 'leak-size' },
      h(
        'span',
        { class: 'big', formula: `sum(gpu_ms) / 3,600,000 of class ${step.name}` },
        `${short(step.hours)} GPU-h`,
      ),
      currency.one &&
        h(
          'span',
          { class: 'big', formula: `sum(cost_micros) / 1,000,000 of class ${step.name}` },
          money(step.cost, currency.one),
        ),
      h(
        'span',
        { class: 'dim', formula: 'GPU time of the class / GPU time of all classes' },
        `${percent(step.hours, all.hours)} of paid`,
      ),
    ),
    h(
      'dl',
      { class: 'facts' },
      meaning && [h('dt', null, 'What it is'), h('dd', null, `${meaning.meaning}.`)],
      meaning && [
        h('dt', null, 'Evidence'),
        h('dd', null, EVIDENCE[meaning.formula] ?? meaning.formula),
      ],
      step.closes && [h('dt', null, 'What closes it'), h('dd', null, step.closes)],
    ),
    h(
      'div',
      { class: 'row' },
      segments(
        'Where it is',
        places.map(name => [name, `By ${name}`]),
        places[0],
        show,
      ),
      h(
        'a',
        { class: 'button', href: asking(question(places.at(-1), step, scope)) },
        'Open in Ask',
      ),
    ),
    rows,
    h('h3', { class: 'above' }, `Mean GPUs lost to it, per ${scope.hourly ? 'hour' : 'day'}`),
    course,
  ];
}

async function overTime(step, scope, signal) {
  const rows = await sql(
    `SELECT window_start, CAST(sum(gpu_ms) AS DOUBLE) / ${scope.step}.0 AS gpus FROM ${scope.table}
    WHERE ${conditionOf(step.name)} AND ${where(scope)} GROUP BY window_start
    ORDER BY window_start`,
    { signal },
  );
  const { color } = BANDS.find(({ band }) => band === step.band);
  return plot(`${step.label} over time, mean GPUs`, 130, () =>
    stacked(
      rows.map(row => Date.parse(row.window_start) / 1000),
      [{ label: step.label, color, values: rows.map(row => row.gpus) }],
      scope.step / 1000,
    ),
  );
}

const EVIDENCE = {
  capacity: 'Capacity: nodes and reservations',
  queue: 'Queue: waiting jobs against free GPUs',
  hold: 'Holds: the scheduler and the agent',
  samples: 'Samples: activity of the GPU',
  steps: 'Steps: reports of the job',
};

/** The rows behind a leak, as SQL that a person can go on with. */
function question(by, step, scope) {
  const columns = by === 'job' ? ['cluster', 'job_id', 'team', 'pool'] : ['cluster', by];
  const list = columns.join(', ');
  return `SELECT ${list}, sum(gpu_ms) / 3600000.0 AS gpu_hours, sum(cost_micros) / 1000000.0 AS cost
FROM ${scope.table}
WHERE ${conditionOf(step.name)}
  AND ${where(scope).replaceAll(' AND ', '\n  AND ')}
GROUP BY ${list}
ORDER BY gpu_hours DESC LIMIT 50`;
}

async function biggest(by, step, { scope, currency, signal }) {
  const rows = await sql(question(by, step, scope).replace('LIMIT 50', 'LIMIT 12'), { signal });
  if (!rows.length) return empty('No rows', 'The ledger has none of this class in the range.');
  const column = by === 'job' ? 'job_id' : by;
  const name = row =>
    by === 'job' && row.job_id
      ? h('a', { href: job(row.cluster, row.job_id) }, row.job_id)
      : (row[column] ?? '(none)');
  const columns = [
    { name: by, show: name },
    by === 'job' && { name: 'team', text: row => row.team },
    {
      name: 'GPU-h',
      numeric: true,
      text: row => number(row.gpu_hours),
      sort: row => row.gpu_hours,
      formula: 'sum(gpu_ms) / 3,600,000',
    },
    currency.one && {
      name: 'Cost',
      numeric: true,
      text: row => money(row.cost, currency.one),
      sort: row => row.cost,
      formula: 'sum(cost_micros) / 1,000,000, by the price book',
    },
    {
      name: 'Of it',
      numeric: true,
      text: row => percent(row.gpu_hours, step.hours),
      formula: 'GPU time of the row / GPU time of the leak',
    },
  ].filter(Boolean);
  return table(columns, rows, { label: `${step.label} by ${by}` });
}
