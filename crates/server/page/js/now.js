// Now: which GPU does what, what is wanted, what there is, what is lent, and what is forecast.

import { sql } from './api.js';
import { badge, figure, h, head, legend, panel, segments } from './dom.js';
import { demandPlot, demandSeries } from './demand.js';
import {
  awaited,
  capital,
  duration,
  gpus,
  many,
  number,
  percent,
  time,
  words,
} from './format.js';
import { fleet } from './fleet.js';
import { heatmap, MODES } from './heatmap.js';
import { job as jobAddress, asking } from './route.js';
import { empty, fill, loading } from './states.js';
import { table } from './table.js';

export const title = 'Now';

export async function show(root, { signal }) {
  const line = h('span', null, 'Which GPU does what at this moment');
  const figures = h('dl', { class: 'figures', 'aria-label': 'Figures' });
  let mode = 'use';
  let drawing;
  const key = h('div');
  const choose = to => {
    mode = to;
    key.replaceChildren(legend(MODES[mode].legend));
    drawing?.color(mode);
  };
  key.append(legend(MODES[mode].legend));
  const map = panel('Nodes and their GPUs', {
    tools: [
      key,
      segments(
        'Colour by',
        Object.entries(MODES).map(([name, { label }]) => [name, label]),
        mode,
        choose,
      ),
    ],
  });
  const demand = panel('Demand and capacity');
  const waits = panel('Why jobs wait', { flush: true });
  const health = panel('Nodes to look at', { flush: true });
  root.append(
    head(title, line),
    figures,
    h(
      'div',
      { class: 'stack' },
      map.element,
      demand.element,
      h('div', { class: 'grid two' }, waits.element, health.element),
    ),
  );
  for (const [place, lines] of [
    [map, 8],
    [demand, 8],
    [waits, 5],
    [health, 5],
  ])
    place.body.append(loading(lines));

  const refresh = async ({ isNews } = {}) => {
    const state = fleet(signal);
    await Promise.all([
      fill(
        map.body,
        async () => {
          const now = await state;
          if (!now.nodes.length) {
            figures.hidden = true;
            return empty(
              'No node is known',
              'Nodes come from agents (`tidegate agent`) and watchers of schedulers (`tidegate watch`). A history without nodes has jobs alone.',
            );
          }
          line.textContent = `${many(now.nodes.length, 'node')}, as of ${time(now.asOf)} UTC`;
          figures.hidden = false;
          figures.replaceChildren(...figuresOf(now));
          drawing = heatmap(now, mode);
          return drawing.element;
        },
        { signal, isNews },
      ),
      fill(
        demand.body,
        async () => {
          const series = await demandSeries(signal);
          return series
            ? demandPlot(series)
            : empty(
                'No demand over time yet',
                'It is the GPUs that jobs hold and wait for, by the hour: a line needs two hours.',
              );
        },
        { signal, isNews },
      ),
      fill(waits.body, () => waiting(signal), { signal, isNews }),
      fill(health.body, () => toLookAt(signal), { signal, isNews }),
    ]);
  };
  await refresh();
  return { refresh };
}

function figuresOf(now) {
  const { total, held, free, unusable, active, measured, sick } = now.sums;
  return [
    figure(
      'GPUs',
      number(total),
      many(now.nodes.length, 'node'),
      'sum(gpus_milli) / 1000 of the newest row of each node in node_free.',
    ),
    figure(
      'Held',
      percent(held, total),
      `${number(held)} GPUs`,
      'sum(held + assumed) / sum(gpus) of the newest rows of node_free.',
    ),
    figure(
      'Free',
      number(free),
      `${percent(free, total)} of all`,
      'sum(free_gpus_milli) / 1000: jobs can start on them.',
    ),
    figure(
      'Not usable',
      number(unusable),
      `${percent(unusable, total)} of all`,
      'GPUs of nodes with is_usable = 0: down, drained or reserved.',
    ),
    figure(
      'Active',
      measured ? percent(active, measured) : '–',
      measured ? `of ${number(measured)} measured GPUs` : 'no samples of GPUs',
      `active_us / us_sampled of gpu_1m in the newest five minutes: a kernel ran, or multiprocessors held warps.`,
    ),
    figure(
      'Nodes to look at',
      number(sick),
      sick ? 'watch, bad or failed' : 'none',
      'Rows of node_health whose state is not HEALTHY.',
    ),
  ];
}

async function waiting(signal) {
  const rows = await sql(
    `SELECT cluster, job_id, team, pool, gpus_milli, "constraint", reason, starts_when, evidence,
      waited_from, as_of,
      CAST(gpu_ms_waited AS DOUBLE) / 3600000.0 AS hours
    FROM pending WHERE until IS NULL ORDER BY gpus_milli DESC, job_id LIMIT 200`,
    { signal },
  );
  if (!rows.length) return empty('No job waits', 'Each job that asked for GPUs holds them.');
  return table(
    [
      {
        name: 'Job',
        show: row => h('a', { href: jobAddress(row.cluster, row.job_id) }, row.job_id),
      },
      { name: 'Team', text: row => row.team, sort: row => row.team },
      {
        name: 'GPUs',
        numeric: true,
        text: row => gpus(row.gpus_milli),
        sort: row => row.gpus_milli,
        formula: 'gpus_milli / 1000, as requested',
      },
      {
        name: 'Waits',
        numeric: true,
        text: row => duration(Date.parse(row.as_of) - Date.parse(row.waited_from)),
        sort: row => -Date.parse(row.waited_from),
        formula: 'as_of − waited_from of pending',
      },
      {
        name: 'For',
        show: row =>
          h(
            'span',
            { formula: row.evidence, focusable: false },
            capital(awaited(row, 'not known')),
          ),
      },
      { name: 'Starts when', text: row => row.starts_when, long: true },
    ],
    rows,
    { label: 'Jobs that wait', most: '360px' },
  );
}

async function toLookAt(signal) {
  const rows = await sql(
    `SELECT node, state, CAST(bad_ppm AS DOUBLE) / 10000.0 AS bad, since_time, evidence, is_lemon
      FROM node_health
    WHERE state <> 'HEALTHY' OR is_lemon = 1 ORDER BY bad_ppm DESC LIMIT 100`,
    { signal },
  );
  if (!rows.length) {
    return empty(
      'No node stands out',
      'Signals judge nodes by XIDs, lost devices and slow ranks.',
      h(
        'a',
        { href: asking('SELECT * FROM node_health ORDER BY bad_ppm DESC LIMIT 20') },
        'Open node_health in Ask',
      ),
    );
  }
  const tone = { WATCH: 'warn', BAD: 'bad', FAILED: 'bad' };
  return table(
    [
      {
        name: 'Node',
        show: row => h('span', { class: 'nowrap' }, row.node),
        sort: row => row.node,
      },
      {
        name: 'State',
        show: row =>
          badge(
            row.is_lemon === 1 ? `${words(row.state)}, lemon` : words(row.state),
            tone[row.state],
          ),
      },
      {
        name: 'Bad with',
        numeric: true,
        text: row => (row.bad === null ? null : `${number(row.bad)} %`),
        sort: row => row.bad,
        formula: 'bad_ppm / 10,000: probability that the node is bad, by its evidence',
      },
      {
        name: 'Since, UTC',
        show: row => h('span', { class: 'nowrap' }, time(row.since_time, Date.now())),
      },
      {
        name: 'Evidence',
        text: row => [row.evidence].flat().filter(Boolean).join('; '),
        long: true,
      },
    ],
    rows,
    { label: 'Nodes to look at', most: '360px' },
  );
}
