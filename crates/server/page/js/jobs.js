// Jobs: those that run, wait or have ended, to choose one from; with one in the address, that job.

import { sql } from './api.js';
import { badge, h, head, panel, segments } from './dom.js';
import { duration, gpus, number, quoted, time, words } from './format.js';
import * as one from './job.js';
import { job as address, read } from './route.js';
import { empty, fill } from './states.js';
import { table } from './table.js';

export const title = 'Jobs';

const KINDS = {
  all: ['All', 'true'],
  running: ['Running', 'start_time IS NOT NULL AND end_time IS NULL AND attempts > 0'],
  waiting: ['Waiting', 'end_time IS NULL AND start_time IS NULL'],
  failed: ['Failed', "final_state IN ('FAILED', 'NODE_FAIL', 'OUT_OF_MEMORY', 'TIMEOUT')"],
};
const ORDERS = {
  newest: ['Newest', 'submit_time DESC'],
  largest: ['Largest', 'gpu_ms_held DESC'],
  longest: ['Longest wait', 'queue_ms DESC NULLS LAST'],
};
const MOST = 200;

export async function show(root, context) {
  if (context.parts.length >= 2) return one.show(root, context);
  const { params, signal } = context;
  const state = {
    kind: params.get('kind') ?? 'all',
    order: params.get('order') ?? 'newest',
    search: params.get('find') ?? '',
  };
  const list = panel('Jobs', { flush: true });
  const refresh = ({ isNews } = {}) =>
    fill(list.body, () => jobs(state, signal), { lines: 12, signal, isNews });
  const change = part => {
    Object.assign(state, part);
    const query = new URLSearchParams({
      kind: state.kind,
      order: state.order,
      ...(state.search && { find: state.search }),
    });
    history.replaceState(null, '', `#/${read().page}?${query}`);
    return refresh();
  };
  let typing;
  const search = h('input', {
    type: 'search',
    placeholder: 'Job, name, team, user or node',
    'aria-label': 'Find a job',
    value: state.search,
    size: '30',
    oninput: event => {
      clearTimeout(typing);
      typing = setTimeout(() => change({ search: event.target.value.trim() }), 300);
    },
  });
  const chosen = (choices, of) =>
    Object.entries(choices).map(([name, [label]]) => [name, label, of]);
  root.append(
    head(
      'Jobs',
      'Choose one to see when it waited, what its GPUs did, and what it cost',
      search,
      segments('Which jobs', chosen(KINDS), state.kind, kind => change({ kind })),
      segments('Order', chosen(ORDERS), state.order, order => change({ order })),
    ),
    list.element,
  );
  await refresh();
  return { refresh };
}

async function jobs({ kind, order, search }, signal) {
  const like = `'%' || ${quoted(search.replaceAll('%', ''))} || '%'`;
  const find = search
    ? `AND (${['job_id', 'job_name', 'team', 'user_name', 'nodes'].map(name => `${name} ILIKE ${like}`).join(' OR ')})`
    : '';
  const rows = await sql(
    `SELECT cluster, job_id, job_name, team, user_name, pool, gpus_milli, submit_time, start_time,
      end_time, final_state, attempts, queue_ms, run_ms,
      CAST(gpu_ms_held AS DOUBLE) / 3600000.0 AS hours,
      CAST(gpu_ms_lost AS DOUBLE) / 3600000.0 AS lost, as_of
    FROM jobs WHERE ${(KINDS[kind] ?? KINDS.all)[1]} ${find}
    ORDER BY ${(ORDERS[order] ?? ORDERS.newest)[1]}, job_id LIMIT ${MOST}`,
    { signal },
  );
  if (!rows.length) {
    return search || kind !== 'all'
      ? empty('No such job', 'None fits what is chosen above.')
      : empty(
          'No job yet',
          'Jobs come from a watcher (`tidegate watch slurm`), an import, or `tidegate up --demo`.',
        );
  }
  const note =
    rows.length === MOST
      ? h('p', { class: 'pad faint' }, `The first ${MOST}; a search finds others.`)
      : null;
  return [
    table(
      [
        {
          name: 'Job',
          show: row => h('a', { href: address(row.cluster, row.job_id) }, row.job_id),
          sort: row => row.job_id,
        },
        { name: 'Name', text: row => row.job_name },
        { name: 'Team', text: row => row.team, sort: row => row.team },
        { name: 'User', text: row => row.user_name, sort: row => row.user_name },
        { name: 'Pool', text: row => row.pool, sort: row => row.pool },
        { name: 'State', show: stateBadge },
        {
          name: 'GPUs',
          numeric: true,
          text: row => gpus(row.gpus_milli),
          sort: row => row.gpus_milli,
          formula: 'gpus_milli / 1000: held by the last attempt, or requested',
        },
        {
          name: 'Submitted, UTC',
          show: row =>
            h('span', { class: 'nowrap' }, time(row.submit_time, row.as_of ?? row.submit_time)),
          sort: row => row.submit_time,
        },
        {
          name: 'Waited',
          numeric: true,
          text: row =>
            duration(
              row.queue_ms ??
                (row.as_of ? Date.parse(row.as_of) - Date.parse(row.submit_time) : null),
            ),
          sort: row => row.queue_ms,
          formula: 'First start − submission; up to as_of while it waits',
        },
        {
          name: 'Ran',
          numeric: true,
          text: row => duration(row.run_ms),
          sort: row => row.run_ms,
          formula: 'run_ms: time in which GPUs were held, over all attempts',
        },
        {
          name: 'GPU-h',
          numeric: true,
          text: row => number(row.hours),
          sort: row => row.hours,
          formula: 'gpu_ms_held / 3,600,000',
        },
        {
          name: 'Lost',
          numeric: true,
          text: row => (row.lost ? number(row.lost) : null),
          sort: row => row.lost,
          formula: 'gpu_ms_lost / 3,600,000: held by runs that another run followed',
        },
      ],
      rows,
      {
        label: 'Jobs',
        pick: row => {
          location.hash = address(row.cluster, row.job_id);
        },
      },
    ),
    note,
  ];
}

/** The state of a job in a word. */
export function stateBadge({ final_state: state, start_time: started, end_time: ended }) {
  if (!ended) return started ? badge('running', 'tide') : badge('waiting', 'warn');
  const tone = { COMPLETED: 'good', CANCELLED: '', PREEMPTED: 'warn' }[state] ?? 'bad';
  return badge(words(state ?? 'ended'), tone);
}
