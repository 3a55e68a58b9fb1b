// Demand over the last days and the next hours: GPUs held and waited for, capacity, what is lent,
// and the fan of the newest forecast.

import { sql, visible } from './api.js';
import { area, color, line, plot } from './charts.js';
import { h, legend } from './dom.js';

const HOUR_S = 3600;
const BACK_H = 72;
const AHEAD_H = 24;

/** The series by hour; `null` if no job ever asked, or in one hour alone. */
export async function demandSeries(signal) {
  const [{ first, last }] = await sql(
    'SELECT min(window_start) AS first, max(window_start) AS last FROM usage_1h',
    { signal },
  );
  if (!last || first === last) return null;
  const [{ seen }] = await sql('SELECT max(as_of) AS seen FROM jobs', { signal });
  const end = Date.parse(last) / 1000;
  const begin = Math.max(Date.parse(first) / 1000, end - (BACK_H - 1) * HOUR_S);
  const from = `TIMESTAMP '${new Date(begin * 1000).toISOString()}'`;
  const [usage, capacity, lent, forecast] = await Promise.all([
    sql(
      `SELECT window_start, CAST(sum(gpu_ms_held) AS DOUBLE) / 3600000.0 AS held,
        CAST(sum(gpu_ms_queued) AS DOUBLE) / 3600000.0 AS queued
      FROM usage_1h WHERE window_start >= ${from} GROUP BY window_start ORDER BY window_start`,
      { signal },
    ),
    visible(
      `SELECT from_time, to_time, CAST(gpus_milli AS DOUBLE) / 1000.0 AS gpus FROM node_capacity
      WHERE is_usable = 1 AND coalesce(to_time > ${from}, true) LIMIT 100000`,
      { signal },
    ),
    visible(
      `SELECT verified_time AS from_time,
        least(coalesce(undone_time, effect_ends_time), effect_ends_time) AS to_time,
        CAST(gpus AS DOUBLE) AS gpus FROM actions
      WHERE decision_kind = 'lend' AND state = 'VERIFIED'
      AND coalesce(effect_ends_time > ${from}, true) LIMIT 20000`,
      { signal },
    ),
    visible(
      `SELECT cluster, target_time, p05_gpus_milli / 1000.0 AS p05, p25_gpus_milli / 1000.0 AS p25,
        p50_gpus_milli / 1000.0 AS p50, p75_gpus_milli / 1000.0 AS p75,
        p95_gpus_milli / 1000.0 AS p95
      FROM forecasts WHERE kind = 'TOTAL'
      AND event_time = (SELECT max(event_time) FROM forecasts WHERE kind = 'TOTAL')
      AND horizon <= ${AHEAD_H} AND step_ms = 3600000
      ORDER BY target_time`,
      { signal },
    ),
  ]);
  // Quantiles of several clusters do not add up to those of their sum.
  const fan = new Set(forecast.map(row => row.cluster)).size === 1 ? forecast : [];
  const until = fan.length ? Math.max(end, Date.parse(fan.at(-1).target_time) / 1000) : end;
  const times = Array.from({ length: (until - begin) / HOUR_S + 1 }, (_, i) => begin + i * HOUR_S);
  const at = (rows, name, key) => {
    const known = new Map(rows.map(row => [Date.parse(row[name]) / 1000, row[key]]));
    return times.map(time => known.get(time) ?? null);
  };
  // The newest hour may not be over: its means are of what is.
  const over = seen ? Math.min(HOUR_S, Math.max(60, Date.parse(seen) / 1000 - end)) : HOUR_S;
  const mean = (value, i) => (value ?? 0) * (times[i] === end ? HOUR_S / over : 1);
  const held = at(usage, 'window_start', 'held').map((value, i) =>
    times[i] <= end ? mean(value, i) : null,
  );
  const queued = at(usage, 'window_start', 'queued').map(mean);
  const bands = Object.fromEntries(
    ['p05', 'p25', 'p50', 'p75', 'p95'].map(name => [name, at(fan, 'target_time', name)]),
  );
  return {
    times,
    end,
    held,
    demand: held.map((value, i) => (value === null ? null : value + queued[i])),
    capacity: capacity.length ? means(capacity, times, end) : null,
    lent: lent.length ? means(lent, times, end) : null,
    fan: fan.length ? bands : null,
  };
}

/** The mean of intervals in each hour. */
function means(intervals, times, end) {
  const sums = times.map(() => 0);
  for (const { from_time, to_time, gpus } of intervals) {
    const [from, to] = [
      Date.parse(from_time) / 1000,
      to_time ? Date.parse(to_time) / 1000 : Infinity,
    ];
    const first = Math.max(0, Math.floor((from - times[0]) / HOUR_S));
    for (let i = first; i < times.length && times[i] < to; i += 1) {
      sums[i] +=
        (gpus * Math.max(0, Math.min(to, times[i] + HOUR_S) - Math.max(from, times[i]))) / HOUR_S;
    }
  }
  return sums.map((sum, i) => (times[i] <= end ? sum : null));
}

export function demandPlot({ times, held, demand, capacity, lent, fan }) {
  const entries = [
    ['--c-productive', 'Held'],
    ['--c-step', 'Held and waited for'],
    capacity && ['--ink', 'Capacity'],
    lent && ['--c-unusable', 'Lent'],
    fan && ['--c-free', 'Forecast, 5 to 95 %'],
  ];
  const drawn = plot('GPUs held, waited for, there, lent and forecast, by hour', 260, () => {
    const series = [{}, line('Held and waited for', '--c-step'), area('Held', '--c-productive')];
    const data = [times, demand, held];
    const bands = [];
    const add = (one, values) => {
      series.push(one);
      data.push(values);
    };
    if (capacity) add(line('Capacity', '--ink', { width: 1, dash: [5, 4] }), capacity);
    if (lent) add(area('Lent', '--c-unusable'), lent);
    if (fan) {
      const first = series.length;
      const edge = (label, values) =>
        add({ label, stroke: color('--c-free', 0.35), width: 1, points: { show: false } }, values);
      edge('95 %', fan.p95);
      edge('5 %', fan.p05);
      edge('75 %', fan.p75);
      edge('25 %', fan.p25);
      add(line('Median', '--c-free', { width: 2 }), fan.p50);
      bands.push(
        { series: [first, first + 1], fill: color('--c-free', 0.16) },
        { series: [first + 2, first + 3], fill: color('--c-free', 0.22) },
      );
    }
    return {
      options: {
        series,
        bands,
        scales: { y: { range: (_, __, most) => [0, (most || 1) * 1.05] } },
      },
      data,
    };
  });
  const note = fan ? null : 'No forecast yet: it begins after some days of demand.';
  return [
    h(
      'div',
      { class: 'legend-row' },
      legend(entries.filter(Boolean)),
      note && h('span', { class: 'faint' }, note),
    ),
    drawn,
  ];
}
