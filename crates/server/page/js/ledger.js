// The ledger's classes, in the order in which GPU time is lost on its way from paid to productive.

/** States of `ledger_classes`, as drawn: from what it is for to what nobody knows. */
export const BANDS = [
  { band: 'productive', color: '--c-productive', label: 'Productive' },
  { band: 'active', color: '--c-active', label: 'Busy, no steps reported' },
  { band: 'step', color: '--c-step', label: 'Lost inside jobs' },
  { band: 'held', color: '--c-held', label: 'Held and idle' },
  { band: 'free', color: '--c-free', label: 'Not held' },
  { band: 'unusable', color: '--c-unusable', label: 'Not usable' },
  { band: 'unknown', color: '--c-unknown', label: 'Not known' },
];

const leak = (name, band, label, closes) => ({ name, band, label, closes });

/**
 * Levels from paid on. Each begins with what the one above left, and loses `leaks`. A class with a
 * formula is `class/formula`, where one class has several.
 */
export const LEVELS = [
  {
    label: 'Paid',
    leaks: [
      leak(
        'not_provisioned',
        'unusable',
        'Reserved, not provided',
        'Ask the provider for the nodes, or reserve less: table sizing.',
      ),
    ],
  },
  {
    label: 'Provisioned',
    leaks: [
      leak(
        'unhealthy',
        'unusable',
        'Unhealthy',
        'Repair or replace the node: tables node_faults and xids name the fault. The autopilot drains bad nodes (drain_node).',
      ),
      leak('drained', 'unusable', 'Drained', 'Return nodes whose work is done (return_node).'),
      leak(
        'unknown/capacity',
        'unknown',
        'Not observed',
        'Run an agent or a watcher for these nodes.',
      ),
    ],
  },
  {
    label: 'Healthy',
    leaks: [
      leak(
        'no_demand',
        'free',
        'No demand',
        'Lend it (lend), or reserve less: table sizing says how much.',
      ),
      leak(
        'fragmented',
        'free',
        'Fragmented',
        'Pack small jobs together; table fragmentation shows what waiting jobs need.',
      ),
      leak(
        'quota_stranded',
        'free',
        'Behind a quota',
        'Lend idle quota to who waits (lend), or move it (adjust_reservation).',
      ),
      leak(
        'gang_wait',
        'free',
        'Gathered for a gang',
        'Let small jobs fill in until the gang fits, or make room for it (reclaim, preempt).',
      ),
      leak(
        'unallocated_busy',
        'unknown',
        'Used without a job',
        'Find the processes: nobody is charged for them.',
      ),
      leak(
        'unknown/queue',
        'unknown',
        'Idle, reason unknown',
        'Let the watcher report why jobs wait.',
      ),
    ],
  },
  {
    label: 'Allocated',
    leaks: [
      leak(
        'empty_held',
        'held',
        'Held, no process',
        'Ask the owner; a time limit on idle holds gives it back.',
      ),
      leak(
        'idle_held',
        'held',
        'Held, idle',
        'Smaller jobs or a shared GPU: tables right_size and sharing.',
      ),
      leak(
        'startup',
        'held',
        'Starting up',
        'Cache images and data; table attempt_steps shows the slowest starts.',
      ),
      leak(
        'recovery',
        'held',
        'Starting again',
        'Fewer failures: table job_ends names what ended the runs.',
      ),
      leak(
        'unknown/hold',
        'unknown',
        'Held, not observed',
        'Run an agent on these nodes, so that samples say what they did.',
      ),
    ],
  },
  {
    label: 'Busy',
    leaks: [
      leak('restore', 'step', 'Loading checkpoints', 'Faster storage, or fewer restarts.'),
      leak(
        'redone',
        'step',
        'Redone after failures',
        'Checkpoint more often: table checkpoint_advice.',
      ),
      leak(
        'checkpoint',
        'step',
        'Saving checkpoints',
        'Checkpoint less often, or in the background: table checkpoint_advice.',
      ),
      leak(
        'data_stall',
        'step',
        'Waiting for input',
        'More input workers, or a faster store: table bottleneck_1m.',
      ),
      leak(
        'communication_stall',
        'step',
        'In collectives',
        'Slow ranks and placement: tables stragglers and gang_spread.',
      ),
      leak(
        'active',
        'active',
        'Busy, no steps reported',
        'Let the jobs report steps, so that their share of useful work is known.',
      ),
    ],
  },
  { label: 'Productive', leaks: [] },
];

/** Every leak, by the name of its class. */
export const LEAKS = new Map(LEVELS.flatMap(level => level.leaks).map(one => [one.name, one]));

/** The leak that a row of the ledger belongs to; classes that are new to this page too. */
export function leakOf({ class: name, formula }) {
  return LEAKS.get(name) ?? LEAKS.get(`${name}/${formula}`);
}

/** The band that a row is drawn in. */
export function bandOf(row) {
  if (row.class === 'productive') return 'productive';
  return leakOf(row)?.band ?? 'unknown';
}

/** The condition for the rows of a leak. */
export function conditionOf(name) {
  const [of, formula] = name.split('/');
  return `class = '${of}'${formula ? ` AND formula = '${formula}'` : ''}`;
}

/**
 * The steps of the waterfall: totals and leaks with where they begin, in hours. Classes that the
 * page does not know, and the correction `imbalance`, are shown after paid, so that it adds up.
 */
export function waterfall(rows) {
  const sums = new Map();
  const other = { hours: 0, cost: 0, names: new Set() };
  for (const row of rows) {
    const one = leakOf(row);
    const to = one
      ? at(sums, one.name)
      : row.class === 'productive'
        ? at(sums, 'productive')
        : other;
    to.hours += row.hours;
    to.cost += row.cost ?? 0;
    to.names?.add(row.class);
  }
  const all = [...sums.values(), other].reduce(
    (sum, one) => ({ hours: sum.hours + one.hours, cost: sum.cost + one.cost }),
    { hours: 0, cost: 0 },
  );
  const steps = [];
  let left = { ...all };
  // What is left of a sum after its parts are taken away is 0, or a rounding of it.
  const rest = (whole, part, of) => (Math.abs(whole - part) < of * 1e-9 ? 0 : whole - part);
  const lose = (one, sum) => {
    left = {
      hours: rest(left.hours, sum.hours, all.hours),
      cost: rest(left.cost, sum.cost, all.cost),
    };
    steps.push({ kind: 'leak', ...one, hours: sum.hours, cost: sum.cost, from: left.hours });
  };
  for (const level of LEVELS) {
    steps.push({ kind: 'total', label: level.label, ...left, from: 0 });
    if (level.label === 'Paid' && other.hours) {
      lose(
        {
          name: [...other.names].join(', '),
          band: 'unknown',
          label: 'Corrections',
          closes: 'More was held than exists: sources disagree. docs/ledger.md says when.',
        },
        other,
      );
    }
    for (const one of level.leaks) {
      if (sums.has(one.name)) lose(one, sums.get(one.name));
    }
  }
  return { steps, all };
}

function at(sums, name) {
  if (!sums.has(name)) sums.set(name, { hours: 0, cost: 0 });
  return sums.get(name);
}

/** Mean GPUs by band over time, `{ times, series }`, of rows with `window_start` and `gpus`. */
export function bandsOverTime(rows) {
  const times = [...new Set(rows.map(row => Date.parse(row.window_start) / 1000))].sort(
    (a, b) => a - b,
  );
  const places = new Map(times.map((at, i) => [at, i]));
  const series = BANDS.map(({ band, color, label }) => ({
    band,
    color,
    label,
    values: times.map(() => 0),
  }));
  for (const row of rows) {
    const { values } = series.find(one => one.band === bandOf(row));
    values[places.get(Date.parse(row.window_start) / 1000)] += row.gpus;
  }
  return { times, series: series.filter(({ values }) => values.some(value => value > 0)) };
}
