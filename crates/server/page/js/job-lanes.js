// What a job's lanes show: waits and runs, steps, GPUs; and its ranks against each other.

import { sql, visible } from './api.js';
import { color, repaint } from './charts.js';
import { h } from './dom.js';
import { awaited, capital, duration, number, percent, time, words } from './format.js';
import { lanes, ticks } from './lanes.js';
import { empty } from './states.js';
import { hide, showAt } from './tips.js';

/** Lanes of single GPUs; more are too many to read. */
const GPUS_MOST = 64;
/** Cells of ranks and times; beyond, cells get longer. */
const CELLS_MOST = 40_000;
const ACROSS = 240;

export async function timeline(job, of, span, signal) {
  const end = value => (value ? Date.parse(value) : span.to);
  const [waits, attempts, steps, holds] = await Promise.all([
    visible(
      `SELECT "constraint", reason, evidence, since, until FROM pending WHERE ${of}
        ORDER BY since LIMIT 500`,
      { signal },
    ),
    sql(
      `SELECT attempt, run, gpus_milli, nodes, queued_from, queued_to, from_time, to_time,
        final_state, exit_code FROM attempts WHERE ${of} ORDER BY attempt LIMIT 500`,
      { signal },
    ),
    visible(
      `SELECT step_id, step_name, from_time, to_time, final_state FROM job_steps WHERE ${of}
        ORDER BY from_time LIMIT 200`,
      { signal },
    ),
    visible(
      `SELECT node, gpu_index, mig_uuid, quality, from_time, to_time FROM gpu_holds WHERE ${of}
        AND is_repeated = 0 AND step_id IS NULL AND from_time IS NOT NULL
      ORDER BY node, gpu_index, from_time LIMIT 4000`,
      { signal },
    ),
  ]);
  const waited = waits.length
    ? waits.map(row => ({
        from: Date.parse(row.since),
        to: end(row.until),
        color: '--c-step',
        text: `waits for ${awaited(row, 'a reason not known')}`,
        more: row.evidence,
      }))
    : attempts
        .filter(row => row.queued_from)
        .map(row => ({
          from: Date.parse(row.queued_from),
          to: end(row.queued_to),
          color: '--c-step',
          text: 'waits',
        }));
  const ran = attempts
    .filter(row => row.from_time)
    .map(row => ({
      from: Date.parse(row.from_time),
      to: end(row.to_time),
      color: toneOf(row.final_state),
      text: `attempt ${row.attempt}, ${row.final_state ? words(row.final_state) : 'runs'}`,
      more: [`${number(row.gpus_milli / 1000)} GPUs`, row.nodes].filter(Boolean).join(' on '),
    }));
  const groups = [
    {
      label: 'Job',
      rows: [
        { label: 'waits', spans: waited },
        { label: 'runs', spans: ran },
      ].filter(row => row.spans.length),
    },
  ];
  if (steps.length) {
    groups.push({
      label: 'Steps',
      rows: grouped(steps, row => row.step_name || row.step_id).map(([label, rows]) => ({
        label,
        spans: rows.map(row => ({
          from: Date.parse(row.from_time),
          to: end(row.to_time),
          color: '--c-active',
          text: row.final_state ? words(row.final_state) : 'runs',
        })),
      })),
    });
  }
  if (holds.length) groups.push({ label: 'GPUs', rows: gpuRows(holds, end) });
  if (!groups[0].rows.length)
    return empty('No time is known', 'No source said when it waited or ran.');
  return lanes(`Timeline of job ${job.job_id}`, groups, span);
}

function toneOf(state) {
  if (!state) return '--c-productive';
  return (
    {
      COMPLETED: '--c-productive',
      RESIZED: '--c-productive',
      CANCELLED: '--c-free',
      PREEMPTED: '--c-free',
      REQUEUED: '--c-held',
    }[state] ?? '--c-held'
  );
}

/** GPUs a lane each, or where they are many a lane a node. */
function gpuRows(holds, end) {
  const name = row => `${row.node}/${row.gpu_index ?? '?'}${row.mig_uuid ? ' slice' : ''}`;
  const single = grouped(holds, name);
  const chosen = single.length <= GPUS_MOST ? single : grouped(holds, row => row.node);
  return chosen.slice(0, GPUS_MOST).map(([label, rows]) => ({
    label,
    spans: rows.map(row => ({
      from: Date.parse(row.from_time),
      to: end(row.to_time),
      color: '--c-active',
      text: `held, ${words(row.quality)}`,
    })),
  }));
}

const grouped = (rows, by) => [...Map.groupBy(rows, by)];

/**
 * Ranks against each other: for each stretch of time, how much longer a rank took before its
 * collectives than the median rank. The others wait for it there, so a slow rank shows in its own
 * lane only.
 */
export async function rankLanes(of, span, signal) {
  const [{ ranks, first, last }] = await sql(
    `SELECT max(rank) + 1 AS ranks, min(event_time) AS first, max(event_time) AS last FROM steps
      WHERE ${of}`,
    { signal },
  );
  if (!ranks)
    return empty(
      'It reports no steps',
      'Ranks that report their steps show here which one the others wait for: docs/guide/agents.md says how.',
    );
  const [from, to] = [Date.parse(first), Math.max(Date.parse(last), Date.parse(first) + 1000)];
  const bins = Math.max(20, Math.min(ACROSS, Math.floor(CELLS_MOST / ranks)));
  const bin = Math.max(1, Math.ceil((to - from) / 1000 / bins));
  const rows = await sql(
    `SELECT rank, date_bin(INTERVAL '${bin} seconds', event_time) AS at, count(*) AS steps,
      CAST(sum(duration_us) AS DOUBLE) AS all_us,
      CAST(sum(communication_us) AS DOUBLE) AS shared_us,
      CAST(sum(data_wait_us) AS DOUBLE) AS data_us, CAST(sum(checkpoint_us) AS DOUBLE) AS saving_us
    FROM steps WHERE ${of} GROUP BY rank, at`,
    { signal },
  );
  return drawn(cells(rows), { ranks, from, to, bin: bin * 1000 });
}

function cells(rows) {
  const own = row => (row.all_us - (row.shared_us ?? 0)) / row.steps;
  return grouped(rows, row => row.at).flatMap(([at, beside]) => {
    const sorted = beside.map(own).sort((a, b) => a - b);
    const median = sorted[Math.floor((sorted.length - 1) / 2)];
    return beside.map(row => ({
      ...row,
      at: Date.parse(at),
      own: own(row),
      slower: median > 0 ? own(row) / median - 1 : 0,
    }));
  });
}

const SHADES = ['--rank-0', '--rank-1', '--rank-2', '--rank-3', '--rank-4'];
const shade = slower =>
  SHADES[slower < 0.04 ? 0 : slower < 0.1 ? 1 : slower < 0.2 ? 2 : slower < 0.3 ? 3 : 4];

function drawn(list, { ranks, from, to, bin }) {
  const row = Math.max(3, Math.min(14, Math.floor(420 / ranks)));
  const [left, axis] = [64, 20];
  const height = ranks * row + axis;
  const worst = list.reduce((most, one) => (one.slower > most.slower ? one : most), list[0]);
  const canvas = h('canvas', {
    role: 'img',
    'aria-label': `Lanes of ${number(ranks)} ranks. The slowest: rank ${worst.rank} at ${time(worst.at)} UTC, ${percent(worst.slower, 1)} slower than the median rank.`,
  });
  const element = h('div', null, canvas);
  let width = 0;
  const x = at => left + ((at - from) / (to + bin - from)) * (width - left - 4);
  function paint() {
    const scale = devicePixelRatio || 1;
    canvas.width = width * scale;
    canvas.height = height * scale;
    Object.assign(canvas.style, { height: `${height}px`, width: '100%', display: 'block' });
    const pen = canvas.getContext('2d');
    pen.scale(scale, scale);
    pen.font = '11px system-ui, sans-serif';
    const colors = Object.fromEntries(SHADES.map(name => [name, color(name)]));
    for (const one of list) {
      pen.fillStyle = colors[shade(one.slower)];
      pen.fillRect(
        x(one.at),
        one.rank * row,
        Math.max(1, x(one.at + bin) - x(one.at) + 0.5),
        row > 5 ? row - 1 : row,
      );
    }
    pen.fillStyle = color('--dim');
    const every = Math.max(1, Math.ceil(14 / row));
    for (let rank = 0; rank < ranks; rank += every)
      pen.fillText(`rank ${rank}`, 0, rank * row + Math.min(row, 10));
    for (const at of ticks(from, to, width))
      pen.fillText(
        to - from > 2 * 86_400_000 ? time(at).slice(5) : time(at).slice(11),
        x(at),
        height - 6,
      );
  }
  canvas.addEventListener('mousemove', event => {
    const box = canvas.getBoundingClientRect();
    const [px, rank] = [event.clientX - box.left, Math.floor((event.clientY - box.top) / row)];
    const one = list.find(cell => cell.rank === rank && px >= x(cell.at) && px < x(cell.at + bin));
    if (!one) return hide();
    const part = (label, value) =>
      value === null ? null : `${label} ${duration(value / one.steps / 1000)}`;
    showAt(
      [
        `Rank ${rank}, ${time(one.at)} UTC: ${number(one.steps)} steps`,
        `${duration(one.own / 1000)} a step before its collectives, ${one.slower > 0.005 ? `${percent(one.slower, 1)} longer than` : 'as'} the median rank`,
        [
          part('in collectives', one.shared_us),
          part('input', one.data_us),
          part('checkpoint', one.saving_us),
        ]
          .filter(Boolean)
          .join(', '),
      ]
        .filter(Boolean)
        .join('\n'),
      event.clientX,
      event.clientY - 8,
    );
  });
  canvas.addEventListener('mouseleave', hide);
  repaint(element, canvas, now => {
    width = now;
    paint();
  });
  return element;
}
