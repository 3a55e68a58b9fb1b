// A job as a trace that Perfetto opens: the JSON of Chrome's trace events. Times are µs since 1970;
// a process is a group of lanes, a thread is a lane.

import { sql, visible } from './api.js';
import { awaited, number } from './format.js';

/** Steps in a trace; a browser holds no more of them well. */
const STEPS_MOST = 200_000;
const PAGE = 50_000;
const [JOB, GPUS, RANKS] = [1, 2, 3];

/** The trace of a job; `tell(text)` hears of progress. */
export async function trace(job, of, tell) {
  const events = [];
  const end = Date.parse(job.end_time ?? job.as_of ?? job.submit_time);
  const name = (pid, tid, label) =>
    events.push({
      ph: 'M',
      pid,
      tid,
      name: tid === undefined ? 'process_name' : 'thread_name',
      args: { name: label },
    });
  const slice = (pid, tid, label, from, to, args) => {
    const ts = Math.round(Date.parse(from) * 1000);
    events.push({
      ph: 'X',
      cat: 'tidegate',
      pid,
      tid,
      name: label,
      ts,
      dur: Math.max(0, Math.round((to ? Date.parse(to) : end) * 1000) - ts),
      args,
    });
  };
  name(JOB, undefined, `Job ${job.job_id}`);
  tell('Asking for waits and attempts');
  await states(of, slice, name);
  tell('Asking for GPUs');
  await gpus(of, slice, name);
  await steps(of, events, name, tell);
  return {
    traceEvents: events,
    displayTimeUnit: 'ms',
    otherData: { job: job.job_id, cluster: job.cluster, source: 'Tidegate' },
  };
}

async function states(of, slice, name) {
  name(JOB, 1, 'waits');
  name(JOB, 2, 'runs');
  const waits = await sql(
    `SELECT "constraint", reason, evidence, since, until FROM pending WHERE ${of}
      ORDER BY since LIMIT 5000`,
  );
  for (const row of waits)
    slice(JOB, 1, awaited(row, 'waits'), row.since, row.until, {
      evidence: row.evidence ?? '',
    });
  const attempts = await sql(
    `SELECT attempt, from_time, to_time, final_state, gpus_milli, nodes FROM attempts WHERE ${of}
      AND from_time IS NOT NULL ORDER BY attempt LIMIT 5000`,
  );
  for (const row of attempts)
    slice(JOB, 2, `attempt ${row.attempt}`, row.from_time, row.to_time, {
      state: row.final_state ?? 'running',
      gpus: row.gpus_milli / 1000,
      nodes: row.nodes ?? '',
    });
}

async function gpus(of, slice, name) {
  const holds = await visible(`SELECT node, gpu_index, quality, from_time, to_time FROM gpu_holds
    WHERE ${of} AND is_repeated = 0 AND step_id IS NULL AND from_time IS NOT NULL ORDER BY node,
    gpu_index, from_time LIMIT 20000`);
  if (holds.length) name(GPUS, undefined, 'GPUs');
  const lanes = new Map();
  for (const row of holds) {
    const label = `${row.node}/${row.gpu_index ?? '?'}`;
    if (!lanes.has(label)) {
      lanes.set(label, lanes.size + 1);
      name(GPUS, lanes.get(label), label);
    }
    slice(GPUS, lanes.get(label), 'held', row.from_time, row.to_time, { quality: row.quality });
  }
}

/** Every step of every rank, page by page in order of time, up to a bound that is told. */
async function steps(of, events, name, tell) {
  const [{ many, ranks }] = await sql(
    `SELECT count(*) AS many, max(rank) + 1 AS ranks FROM steps WHERE ${of}`,
  );
  if (!many) return;
  name(
    RANKS,
    undefined,
    many > STEPS_MOST ? `Ranks, the first ${number(STEPS_MOST)} of ${number(many)} steps` : 'Ranks',
  );
  // Perfetto has no thread 0 of its own; ranks count from 0.
  for (let rank = 0; rank < ranks; rank += 1) name(RANKS, rank + 1, `rank ${rank}`);
  for (let from = 0; from < Math.min(many, STEPS_MOST); from += PAGE) {
    tell(`Asking for steps, ${number(from)} of ${number(Math.min(many, STEPS_MOST))}`);
    const rows =
      await sql(`SELECT rank, step, event_time, duration_us, compute_us, communication_us,
        data_wait_us, checkpoint_us, tokens FROM steps
      WHERE ${of} ORDER BY event_time, rank, step LIMIT ${PAGE} OFFSET ${from}`);
    for (const { rank, step, event_time: at, duration_us: dur, ...args } of rows) {
      events.push({
        ph: 'X',
        cat: 'tidegate',
        pid: RANKS,
        tid: rank + 1,
        name: `step ${step}`,
        ts: Math.round(Date.parse(at) * 1000),
        dur,
        args: known(args),
      });
    }
  }
}

const known = args =>
  Object.fromEntries(Object.entries(args).filter(([, value]) => value !== null));
