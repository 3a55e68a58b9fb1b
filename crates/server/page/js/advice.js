// Why a job waits or waited, what slows it or ended it, and what would help: a finding a row, with
// its evidence, from the tables that judge jobs.

import { sql } from './api.js';
import { badge, h } from './dom.js';
import { awaited, capital, duration, number, time, words } from './format.js';
import { empty, loading } from './states.js';

/** Of so many minutes the bottlenecks are asked: they are computed from the samples of the whole fleet. */
const BOTTLENECK_MINUTES = 10;

const FINDERS = [waits, ends, stragglers, bottleneck, checkpoints, rightSize, memory];

/** Findings, each as soon as its table answers: some of them are computed when they are asked. */
export function advice(job, of, signal) {
  const list = h('ul', { class: 'findings' });
  const rest = h('div', null, loading(2));
  const asked = FINDERS.map(async find => {
    const found = await find(of, signal, job).catch(unasked);
    list.append(...found.map(shown));
  });
  Promise.all(asked).then(() => {
    rest.replaceChildren(list.hasChildNodes() ? '' : nothing(job));
  });
  return [list, rest];
}

/** What this principal does not see says nothing; another error stands in the list. */
function unasked(error) {
  if (error.code === 'unknown_table' || error.name === 'AbortError') return [];
  const text = 'One question about it was not answered';
  return [{ tone: 'warn', kind: 'not asked', text, evidence: error.message }];
}

const shown = ({ tone, kind, text, evidence, helps }) =>
  h(
    'li',
    null,
    h('div', null, badge(kind, tone), h('strong', null, text)),
    evidence && h('p', { class: 'dim wrap' }, evidence),
    helps && h('p', { class: 'wrap' }, helps),
  );

const nothing = job =>
  empty(
    'Nothing stands out',
    job.end_time
      ? 'It waited for nothing in particular, and nothing slowed it that was observed.'
      : 'Nothing slows it that was observed.',
  );

async function waits(of, signal) {
  const rows = await sql(
    `SELECT "constraint", reason, evidence, starts_when, since, until, as_of,
      CAST(gpu_ms_waited AS DOUBLE) AS waited, gpus_milli FROM pending
    WHERE ${of} ORDER BY until IS NULL DESC, gpu_ms_waited DESC LIMIT 4`,
    { signal },
  );
  return rows
    .map(row => {
      const lasted = Date.parse(row.until ?? row.as_of) - Date.parse(row.since);
      const why = awaited(row, 'a reason that nobody reports');
      return {
        tone: row.until ? '' : 'warn',
        kind: row.until ? 'waited' : 'waits',
        text: `${duration(lasted)} for ${why}`,
        evidence: row.evidence,
        helps: row.until ? null : row.starts_when && `It starts when ${row.starts_when}.`,
      };
    })
    .filter(({ kind, text }) => kind === 'waits' || !/^\d+(\.\d+)? (ms|s) /.test(text));
}

async function ends(of, signal) {
  const rows = await sql(
    `SELECT attempt, final_state, cause, node, gpu_index, xid, end_time,
      CAST(probability_ppm AS DOUBLE) / 10000.0 AS sure,
    CAST(lost_gpu_ms AS DOUBLE) / 3600000.0 AS lost, evidence FROM job_ends WHERE ${of}
    AND cause IS NOT NULL ORDER BY end_time DESC LIMIT 4`,
    { signal },
  );
  return rows.map(row => ({
    tone: 'bad',
    kind: 'ended',
    text: `Attempt ${row.attempt}: ${words(row.cause)}${row.node ? ` on ${row.node}` : ''}${row.gpu_index === null ? '' : `, GPU ${row.gpu_index}`}${row.xid ? `, XID ${row.xid}` : ''}`,
    evidence: `${time(row.end_time)} UTC${row.sure ? `, with ${number(row.sure)} %` : ''}: ${[row.evidence].flat().filter(Boolean).join('; ')}`,
    helps: row.lost ? `${number(row.lost)} GPU-hours since its last checkpoint were lost.` : null,
  }));
}

async function stragglers(of, signal) {
  const rows = await sql(
    `SELECT state, blame, node, rank, class, cause, onset_time, cleared_time,
      CAST(slowdown_ppm AS DOUBLE) / 10000.0 AS slower,
    CAST(lost_gpu_ms AS DOUBLE) / 3600000.0 AS lost, evidence FROM stragglers WHERE ${of}
    AND state <> 'CORRECTED' ORDER BY onset_time DESC LIMIT 6`,
    { signal },
  );
  return rows.map(row => {
    const what =
      {
        RANK: `rank ${row.rank}${row.node ? ` on ${row.node}` : ''}`,
        NODE: row.node,
        FABRIC: 'the network',
        NOBODY: 'the shape of the job',
        ROLE: 'one role',
      }[row.blame] ?? words(row.blame);
    return {
      tone: row.cleared_time ? '' : row.state === 'CONFIRMED' ? 'bad' : 'warn',
      kind: row.cleared_time ? 'was slow' : 'slow',
      text: `${capital(what ?? 'a part')}: ${words(row.cause ?? row.class)}, ${number(row.slower)} % slower`,
      evidence: `Since ${time(row.onset_time)} UTC. ${[row.evidence].flat().filter(Boolean).join('; ')}`,
      helps: row.lost ? `It has cost ${number(row.lost)} GPU-hours.` : null,
    };
  });
}

async function bottleneck(of, signal, job) {
  const to = Date.parse(job.end_time ?? job.as_of ?? job.start_time);
  if (Number.isNaN(to)) return [];
  const from = new Date(to - BOTTLENECK_MINUTES * 60_000).toISOString();
  // A condition on the label would keep those on job and time from reaching the tables.
  const rows = await sql(
    `SELECT label, count(*) AS minutes FROM bottleneck_1m WHERE ${of}
      AND window_start >= TIMESTAMP '${from}' AND window_start <= TIMESTAMP '${new Date(to).toISOString()}'
    GROUP BY label ORDER BY minutes DESC`,
    { signal },
  );
  const named = rows.filter(({ label }) => label !== 'none' && label !== 'unknown');
  return named.slice(0, 1).map(({ label, minutes }) => ({
    kind: 'limited by',
    tone: 'tide',
    text: `${capital(words(label))} in ${number(minutes)} of its last ${BOTTLENECK_MINUTES} minutes`,
    evidence:
      'The bottleneck with the highest share of its threshold in each minute. Earlier minutes: table bottleneck_1m.',
  }));
}

async function checkpoints(of, signal) {
  const rows = await sql(
    `SELECT interval_ms, best_interval_ms, CAST(waste_ppm AS DOUBLE) / 10000.0 AS now,
      CAST(best_waste_ppm AS DOUBLE) / 10000.0 AS best
    FROM checkpoint_advice WHERE ${of} AND waste_ppm - best_waste_ppm > 5000 LIMIT 1`,
    { signal },
  );
  return rows.map(row => ({
    kind: 'advice',
    tone: 'tide',
    text: `Save every ${duration(row.best_interval_ms)} rather than every ${duration(row.interval_ms)}`,
    evidence: `It loses ${number(row.now)} % of its time to saves and redone work; ${number(row.best)} % would be the least.`,
  }));
}

async function rightSize(of, signal) {
  const rows = await sql(
    `SELECT fits, held, devices, saved_gpu_milli, CAST(sm_p95_ppm AS DOUBLE) / 10000.0 AS sm
      FROM right_size
    WHERE ${of} AND saved_gpu_milli > 0 LIMIT 1`,
    { signal },
  );
  return rows.map(row => ({
    kind: 'advice',
    tone: 'tide',
    text: `A slice ${row.fits} would be enough`,
    evidence: `Of each of ${number(row.devices)} devices it would leave ${number(row.saved_gpu_milli / 1000)} GPU to others; SM activity reaches ${number(row.sm)} % in 95 of 100 minutes.`,
  }));
}

async function memory(of, signal) {
  const rows = await sql(
    `SELECT node, gpu_index, as_of, time_to_oom_ms,
      CAST(bytes_per_hour AS DOUBLE) / 1073741824.0 AS gib FROM memory_growth
    WHERE ${of} AND time_to_oom_ms IS NOT NULL AND to_time IS NULL ORDER BY time_to_oom_ms LIMIT 1`,
    { signal },
  );
  return rows.map(row => ({
    kind: 'grows',
    tone: 'warn',
    text: `Device memory is full in ${duration(row.time_to_oom_ms)}`,
    evidence: `GPU ${row.gpu_index ?? ''} of ${row.node} takes ${number(row.gib)} GiB more an hour, as of ${time(row.as_of)} UTC.`,
  }));
}
