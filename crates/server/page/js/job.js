// A job: when it waited and ran, what its GPUs and ranks did, what it cost, and what would help.

import { save, sql } from './api.js';
import { plot, stacked } from './charts.js';
import { badge, figure, h, head, legend, panel } from './dom.js';
import { duration, gpus, many, money, number, percent, quoted, time, words } from './format.js';
import { advice } from './advice.js';
import { stateBadge } from './jobs.js';
import { rankLanes, timeline } from './job-lanes.js';
import { BANDS, bandsOverTime } from './ledger.js';
import { asking } from './route.js';
import { empty, failed, fill, loading } from './states.js';
import { trace } from './trace.js';

export const title = 'A job';

export async function show(root, { parts: [cluster, id], signal }) {
  const of = `job_id = ${quoted(id)}${cluster ? ` AND cluster = ${quoted(cluster)}` : ''}`;
  root.append(loading(14));
  let job;
  try {
    [job] = await sql(
      `SELECT *, CAST(gpu_ms_held AS DOUBLE) / 3600000.0 AS hours FROM jobs WHERE ${of} LIMIT 1`,
      { signal },
    );
  } catch (error) {
    return root.replaceChildren(failed(error));
  }
  if (!job) {
    return root.replaceChildren(
      head(`Job ${id}`, 'There is no such job'),
      empty(
        'No job of this name is in the tables',
        'It may not be committed yet, or be of a team that your token does not show.',
        h('a', { href: '#/job' }, 'All jobs'),
      ),
    );
  }
  document.title = `Job ${id} · Tidegate`;
  const figures = h('dl', { class: 'figures' });
  const lanes = panel('When it waited and ran');
  const ranks = panel('Ranks', {
    tools: legend([
      ['--rank-0', 'As the others'],
      ['--rank-2', '15 % slower'],
      ['--rank-4', '30 % and more'],
    ]),
  });
  const did = panel('What its GPUs did', {
    tools: legend(
      BANDS.slice(0, 4)
        .concat(BANDS.at(-1))
        .map(({ color, label }) => [color, label]),
    ),
  });
  const helps = panel('Why, and what would help', { flush: true });
  const costs = panel('What it cost');
  const said = h('span', { class: 'dim', 'aria-live': 'polite' });
  const exporting = h(
    'button',
    {
      type: 'button',
      id: 'trace',
      onclick: async event => {
        event.target.disabled = true;
        try {
          const made = await trace(job, of, text => {
            said.textContent = text;
          });
          save(
            new Blob([JSON.stringify(made)], { type: 'application/json' }),
            `job-${id}.trace.json`,
          );
          said.textContent = `${number(made.traceEvents.length)} events; open the file in Perfetto`;
        } catch (error) {
          said.textContent = error.message;
        }
        event.target.disabled = false;
      },
    },
    'Export trace',
  );
  root.replaceChildren(
    head(
      [`Job ${job.job_id} `, stateBadge(job)],
      lineOf(job),
      said,
      exporting,
      h('a', { class: 'button', href: '#/job' }, 'All jobs'),
    ),
    figures,
    h(
      'div',
      { class: 'stack' },
      lanes.element,
      h(
        'div',
        { class: 'grid wide-left' },
        h('div', { class: 'stack' }, ranks.element, did.element),
        h('div', { class: 'stack' }, helps.element, costs.element),
      ),
    ),
  );

  const refresh = async ({ isNews } = {}) => {
    const cost = sql(
      `SELECT contract, currency, CAST(gpu_ms AS DOUBLE) / 3600000.0 AS hours,
        CAST(cost_micros AS DOUBLE) / 1000000.0 AS cost FROM job_costs WHERE ${of}`,
      { signal },
    );
    const goodput = sql(
      `SELECT CAST(productive_gpu_ms AS DOUBLE) AS productive, CAST(held_gpu_ms AS DOUBLE) AS held
        FROM goodput WHERE ${of} LIMIT 1`,
      { signal },
    );
    const span = spanOf(job);
    await Promise.all([
      fill(lanes.body, () => timeline(job, of, span, signal), { lines: 8, signal, isNews }),
      fill(ranks.body, () => rankLanes(of, span, signal), { lines: 6, signal, isNews }),
      fill(did.body, () => minutes(of, span, signal), { lines: 6, signal, isNews }),
      fill(helps.body, () => advice(job, of, signal), { signal, isNews }),
      fill(costs.body, async () => priced(await cost, of), { lines: 3, signal, isNews }),
      Promise.all([cost.catch(() => []), goodput.catch(() => [])]).then(([paid, [good]]) =>
        figures.replaceChildren(...figuresOf(job, paid, good)),
      ),
    ]);
  };
  await refresh();
  return { refresh, title: job.job_id };
}

const lineOf = job =>
  [
    job.job_name,
    job.team && `team ${job.team}`,
    job.user_name && `of ${job.user_name}`,
    job.pool && `in ${job.pool}`,
    job.nodes &&
      `on ${job.nodes.split(',').length > 4 ? `${job.node_count} nodes` : job.nodes.replaceAll(',', ', ')}`,
  ]
    .filter(Boolean)
    .join(', ');

/** From submission to the end, or to what was observed last, ms. */
function spanOf(job) {
  const from = Date.parse(job.submit_time ?? job.start_time);
  const to = Date.parse(job.end_time ?? job.as_of ?? job.start_time);
  return { from, to: Math.max(to, from + 1000) };
}

function figuresOf(job, paid, good) {
  const priced = paid.filter(row => row.cost !== null);
  const sums = Object.entries(Object.groupBy(priced, row => row.currency)).map(([currency, rows]) =>
    money(
      rows.reduce((sum, row) => sum + row.cost, 0),
      currency,
    ),
  );
  const unpriced = paid.filter(row => row.cost === null).reduce((sum, row) => sum + row.hours, 0);
  const waited =
    job.queue_ms ?? (job.as_of ? Date.parse(job.as_of) - Date.parse(job.submit_time) : null);
  return [
    figure(
      'GPUs',
      gpus(job.gpus_milli),
      job.gpu_model ?? many(job.node_count ?? 1, 'node'),
      'gpus_milli / 1000: held by the last attempt, or requested.',
    ),
    figure(
      'Waited',
      duration(waited),
      `submitted ${time(job.submit_time, job.submit_time)}`,
      'queue_ms: first start − submission; up to as_of while it waits.',
    ),
    figure(
      'Ran',
      duration(job.run_ms),
      many(job.attempts, 'run'),
      'run_ms: time in which GPUs were held, over all attempts.',
    ),
    figure(
      'GPU-hours',
      number(job.hours),
      job.gpu_ms_lost
        ? `${percent(job.gpu_ms_lost, job.gpu_ms_held)} lost to retries`
        : 'none lost to retries',
      'gpu_ms_held / 3,600,000. Lost: held by runs that another run followed.',
    ),
    figure(
      'Cost',
      sums.join(' + ') || '–',
      unpriced ? `${number(unpriced)} GPU-h without a price` : 'by the price book',
      'sum(cost_micros) / 1,000,000 of job_costs: GPU time × price, split where the price changes.',
    ),
    figure(
      'Productive',
      good ? percent(good.productive, good.held) : '–',
      good ? 'of its GPU time' : 'it reports no steps',
      'productive_gpu_ms / held_gpu_ms of goodput: in steps, without stalls, checkpoints and redone work.',
    ),
  ];
}

async function minutes(of, { from, to }, signal) {
  // Minutes for a day, hours beyond: a screen has no more columns.
  const hourly = to - from > 24 * 3_600_000;
  const [source, step] = hourly ? ['ledger_1h', 3_600_000] : ['ledger_1m', 60_000];
  const rows = await sql(
    `SELECT window_start, class, formula, CAST(sum(gpu_ms) AS DOUBLE) / ${step}.0 AS gpus
      FROM ${source}
    WHERE ${of} AND window_start >= TIMESTAMP '${new Date(from - step).toISOString()}'
    AND window_start <= TIMESTAMP '${new Date(to).toISOString()}'
    GROUP BY window_start, class, formula`,
    { signal },
  );
  if (!rows.length)
    return empty(
      'Nothing was observed',
      'The ledger has no time of this job: no agent sampled its GPUs, or it has not started.',
    );
  const { times, series } = bandsOverTime(rows);
  return plot(`Mean GPUs of the job by what they did, per ${hourly ? 'hour' : 'minute'}`, 190, () =>
    stacked(times, series, step / 1000),
  );
}

function priced(rows, of) {
  if (!rows.length) return empty('No cost yet', 'It has held no GPUs.');
  const lines = rows.map(row => [
    h('dt', null, row.contract ? words(row.contract) : 'No price known'),
    h(
      'dd',
      null,
      `${number(row.hours)} GPU-h`,
      row.cost === null ? [' ', badge('no price', 'warn')] : `, ${money(row.cost, row.currency)}`,
    ),
  ]);
  return [
    h('dl', { class: 'facts' }, lines),
    h('a', { href: asking(`SELECT * FROM attempt_costs WHERE ${of}`) }, 'Open in Ask'),
  ];
}
