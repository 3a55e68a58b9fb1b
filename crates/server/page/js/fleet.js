// The state of the fleet at the newest moment: nodes, their GPUs, who holds them, what they do.

import { sql, visible } from './api.js';

/** Minutes of samples that count as now. */
const MINUTES = 5;

/**
 * Nodes with `{ node, pool, model, state, usable, health, gpus: [...] }`; a GPU is `{ index, held,
 * job, team, active, memory }`, where `active` is a share, or null without samples. What a
 * scheduler reports of a node without saying which GPU is spread over its first ones.
 */
export async function fleet(signal) {
  const [nodes, healths, samples, holds] = await Promise.all([
    sql(
      `SELECT cluster, node, pool, gpu_model, state, is_usable, gpus_milli,
        held_gpus_milli + assumed_gpus_milli AS held_milli, free_gpus_milli, from_time
      FROM node_free WHERE to_time IS NULL ORDER BY pool, node LIMIT 5000`,
      { signal },
    ),
    visible(
      "SELECT cluster, node, state, bad_ppm, gpu_index FROM node_health WHERE state <> 'HEALTHY'",
      { signal },
    ),
    recent(signal),
    visible(
      `SELECT cluster, node, gpu_index, job_id, team, share_milli FROM gpu_holds
      WHERE to_time IS NULL AND is_repeated = 0 AND step_id IS NULL
      AND gpu_index IS NOT NULL LIMIT 50000`,
      { signal },
    ),
  ]);
  const key = row => `${row.cluster} ${row.node}`;
  const health = new Map(healths.map(row => [key(row), row]));
  const known = new Map();
  for (const row of samples) known.set(`${key(row)} ${row.gpu_index}`, row);
  const held = new Map();
  for (const row of holds) held.set(`${key(row)} ${row.gpu_index}`, row);
  // Shortly after midnight the last row of the day before may not have its end yet.
  const latest = new Map();
  for (const row of nodes)
    if (!(latest.get(key(row))?.from_time > row.from_time)) latest.set(key(row), row);
  const counted = [...latest.values()]
    .filter(row => row.gpus_milli > 0)
    .map(row => node(row, key(row), health, known, held));
  return { nodes: counted, sums: sums(counted, healths), asOf: newest(nodes, samples) };
}

async function recent(signal) {
  const [newest] = await visible('SELECT max(window_start) AS last FROM gpu_1m', { signal });
  const last = newest?.last;
  if (!last) return [];
  const from = new Date(Date.parse(last) - (MINUTES - 1) * 60_000).toISOString();
  return sql(
    `SELECT cluster, node, gpu_index, max(window_start) AS at,
      CAST(sum(active_us) AS DOUBLE) / sum(us_sampled) AS active,
      CAST(max(framebuffer_used_max_bytes) AS DOUBLE) / max(framebuffer_total_max_bytes) AS memory, max(gpu_temp_max_celsius) AS celsius
    FROM gpu_1m WHERE window_start >= TIMESTAMP '${from}' GROUP BY cluster, node,
    gpu_index LIMIT 50000`,
    { signal },
  );
}

function node(row, key, health, known, held) {
  const sick = health.get(key);
  const many = Math.round(row.gpus_milli / 1000);
  const anonymous = !Array.from({ length: many }, (_, i) => held.get(`${key} ${i}`)).some(Boolean);
  const gpus = Array.from({ length: many }, (_, index) => {
    const hold = held.get(`${key} ${index}`);
    const sample = known.get(`${key} ${index}`);
    return {
      index,
      job: hold?.job_id ?? null,
      team: hold?.team ?? null,
      held: Boolean(hold) || (anonymous && index * 1000 < row.held_milli),
      active: sample?.active ?? null,
      memory: sample?.memory ?? null,
      celsius: sample?.celsius ?? null,
      sick: Boolean(sick) && (sick.gpu_index === null || sick.gpu_index === index),
    };
  });
  return {
    cluster: row.cluster,
    name: row.node,
    pool: row.pool ?? '(no pool)',
    model: row.gpu_model,
    state: row.state,
    usable: row.is_usable !== 0,
    health: sick?.state ?? 'HEALTHY',
    gpus,
    heldMilli: row.held_milli,
    freeMilli: row.free_gpus_milli,
    milli: row.gpus_milli,
  };
}

function sums(nodes, healths) {
  const total = key => nodes.reduce((sum, one) => sum + one[key], 0) / 1000;
  const all = nodes.flatMap(one => one.gpus);
  const measured = all.filter(gpu => gpu.active !== null);
  return {
    total: total('milli'),
    held: total('heldMilli'),
    free: total('freeMilli'),
    unusable: nodes.filter(one => !one.usable).reduce((sum, one) => sum + one.milli, 0) / 1000,
    measured: measured.length,
    active: measured.reduce((sum, gpu) => sum + gpu.active, 0),
    sick: healths.length,
  };
}

function newest(nodes, samples) {
  const times = [...nodes.map(row => row.from_time), ...samples.map(row => row.at)].filter(Boolean);
  return times.reduce((most, at) => (at > most ? at : most), times[0] ?? null);
}
