// The last rehearsal: for each owner, how its waits, work and preemptions would have changed under a
// policy, with intervals.

import { request } from './api.js';
import { badge, h, legend, svg } from './dom.js';
import { number, time, words } from './format.js';
import { empty } from './states.js';
import { table } from './table.js';

const WIDTH = 200;
const HEIGHT = 18;
const PAD = 6;

/** What is compared: a key of an owner, its name, its unit, and whether more of it is better. */
const CHANGES = [
  {
    key: 'longer_hours',
    name: '95 % wait',
    unit: 'h',
    moreIsBetter: false,
    formula: 'Rehearsed 95th percentile of the time in the queue − the one simulated as today, h',
  },
  {
    key: 'more_gpu_hours',
    name: 'Work',
    unit: 'GPU-h',
    moreIsBetter: true,
    formula: 'Useful work in the rehearsed time − the work simulated as today, GPU-hours',
  },
  {
    key: 'more_preemptions',
    name: 'Preemptions',
    unit: '',
    moreIsBetter: false,
    formula: 'Preemptions in the rehearsal − those simulated as today',
  },
];

export async function rehearsal(signal) {
  const response = await request('/v1/autopilot/rehearsal', { signal });
  const { rehearsal: last } = await response.json();
  if (!last)
    return empty(
      'Nothing was rehearsed yet',
      '`tidegate autopilot rehearse --policy site.toml` replays the last month under a policy, and shows here who would have waited longer, and who would have got more work done.',
    );
  if (!last.owners.length)
    return [said(last), empty('No owner of yours had a job', 'It was rehearsed without one.')];
  const columns = CHANGES.map(change => {
    const [low, high] = ends(last.owners, change.key);
    return {
      name: change.name,
      formula: `${change.formula}: the mean over ${last.seeds} seeds, with its 95 % interval`,
      show: row => interval(row[change.key], { ...change, low, high, owner: row.owner }),
      sort: row => row[change.key]?.value ?? -Infinity,
    };
  });
  return [
    said(last),
    legend([
      ['--good', 'better'],
      ['--bad', 'worse'],
      ['--dim', 'the interval reaches 0: no difference is shown'],
    ]),
    table(
      [
        { name: 'Owner', show: named, sort: row => row.owner },
        {
          name: 'Jobs',
          numeric: true,
          formula: `Jobs the owner submitted during the rehearsed period: the mean over ${last.seeds} seeds`,
          text: row => number(Math.round(row.jobs)),
          sort: row => row.jobs,
        },
        ...columns,
      ],
      last.owners,
      { label: 'Rehearsed changes by owner', most: '420px' },
    ),
    last.owners_left_out > 0 &&
      h(
        'p',
        { class: 'faint' },
        `${number(last.owners_left_out)} owners with fewer jobs are left out.`,
      ),
  ];
}

const named = row =>
  h('span', { class: 'owner' }, row.owner, row.harmed ? [' ', badge('waits longer', 'bad')] : null);

/** When, of what, under which policy; and what the whole cluster would have lacked. */
function said(last) {
  const day = at => at.slice(0, 10);
  const harmed = last.owners.filter(owner => owner.harmed).length;
  const unmet = last.whole?.unmet_minutes ?? 0;
  const facts = [
    `Policy ${last.policy} on ${last.cluster}, ${day(last.from)} to ${day(last.to)}, rehearsed ${time(last.made)} UTC.`,
    `Acting: ${last.acts.map(words).join(', ')}.`,
    harmed
      ? `${number(harmed)} would have waited longer by more than ${last.longer_at_most_minutes} minutes.`
      : `Nobody here would have waited longer by more than ${last.longer_at_most_minutes} minutes.`,
    unmet > 0 && `Online demand would have been unmet for ${number(unmet)} minutes more.`,
  ];
  return h('p', { class: 'dim rehearsed' }, facts.filter(Boolean).join(' '));
}

/** The least and the largest end of the intervals, 0 included. */
function ends(owners, key) {
  const all = owners.flatMap(owner => (owner[key] ? [owner[key].low, owner[key].high] : []));
  const [low, high] = [Math.min(0, ...all), Math.max(0, ...all)];
  return low === high ? [-1, 1] : [low, high];
}

/** A mean as a dot with its interval, on a line that all owners share, and in numbers. */
function interval(change, { name, unit, moreIsBetter, low, high, owner }) {
  if (!change) return h('span', { class: 'faint' }, 'not known');
  const x = value => PAD + ((value - low) / (high - low)) * (WIDTH - 2 * PAD);
  const isSure = change.low > 0 || change.high < 0;
  const tone = !isSure ? '--dim' : change.value > 0 === moreIsBetter ? '--good' : '--bad';
  const signed = value => `${value > 0 ? '+' : value < 0 ? '−' : ''}${number(Math.abs(value))}`;
  const text = `${signed(change.value)}${unit && ` ${unit}`}`;
  const range = `${signed(change.low)} to ${signed(change.high)}`;
  const middle = HEIGHT / 2;
  const line = (from, to, color, width) =>
    svg('line', {
      x1: x(from),
      x2: x(to),
      y1: middle,
      y2: middle,
      'stroke-width': width,
      style: { stroke: `var(${color})` },
    });
  return h(
    'div',
    { class: 'interval' },
    svg(
      'svg',
      {
        viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
        width: WIDTH,
        height: HEIGHT,
        role: 'img',
        'aria-label': `${name} of ${owner}: ${text}, 95 % interval ${range}`,
      },
      line(low, high, '--line', 1),
      svg('line', {
        x1: x(0),
        x2: x(0),
        y1: 1,
        y2: HEIGHT - 1,
        'stroke-width': 1,
        style: { stroke: 'var(--line-strong)' },
      }),
      line(change.low, change.high, tone, 3),
      svg('circle', { cx: x(change.value), cy: middle, r: 4.5, style: { fill: `var(${tone})` } }),
    ),
    h('span', { class: 'nowrap' }, text, h('span', { class: 'faint' }, ` (${range})`)),
  );
}
