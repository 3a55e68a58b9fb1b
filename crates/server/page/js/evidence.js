// One decision: its reason, what it expected, what the guard and people said, and what came of it.

import { sql, visible } from './api.js';
import { h, prose } from './dom.js';
import { verdict } from './decisions.js';
import { capital, duration, money, number, percent, quoted, time, words } from './format.js';
import { asking } from './route.js';
import { confirm } from './steering.js';

export async function evidence(place, row, { steering, signal, again }) {
  place.element.querySelector('h2').textContent =
    `${capital(words(row.decision_kind))} ${row.object ?? ''}`;
  const of = `action = ${quoted(row.action)} AND cluster = ${quoted(row.cluster)}`;
  const [[action], [score], people] = await Promise.all([
    sql(`SELECT * FROM actions WHERE ${of} LIMIT 1`, { signal }),
    sql(
      `SELECT *, CAST(predicted_gpu_ms AS DOUBLE) / 3600000.0 AS predicted,
        CAST(realised_gpu_ms AS DOUBLE) / 3600000.0 AS realised,
        CAST(realised_low_gpu_ms AS DOUBLE) / 3600000.0 AS low,
        CAST(realised_high_gpu_ms AS DOUBLE) / 3600000.0 AS high FROM prediction_scores
        WHERE ${of} LIMIT 1`,
      { signal },
    ),
    visible(
      `SELECT kind, event_time, holder, why FROM autopilot_events
        WHERE ${of} AND kind IN ('APPROVED', 'REJECTED') ORDER BY event_time`,
      { signal },
    ),
  ]);
  return [
    h('div', { class: 'row' }, verdict(row), h('span', { class: 'mono dim wrap' }, row.action)),
    h('p', { class: 'reason' }, row.why ?? 'No reason is recorded.'),
    buttons(row, steering, again),
    bounds(row, score),
    h(
      'dl',
      { class: 'facts' },
      fact('Guard', guard(row)),
      said(people, row),
      row.approval_refused && fact('Approval refused', row.approval_refused),
      fact('Expected over', duration(row.over_ms)),
      row.money !== null && fact('In money', money(row.money)),
      fact('Sure', row.sure === null ? '–' : percent(row.sure, 100)),
      action?.why && fact('What was found', action.why),
      score && fact('Outcome', outcome(score)),
      score?.without_it && fact('Without it', capital(score.without_it)),
    ),
    h('h3', { class: 'above' }, 'What happened when'),
    steps(row, action, people),
    h(
      'div',
      { class: 'row' },
      h(
        'a',
        { class: 'button', href: asking(`SELECT *\nFROM decisions\nWHERE ${of}`) },
        'Open in Ask',
      ),
      h('span', { class: 'faint mono wrap' }, `tidegate explain decision ${row.action}`),
    ),
  ];
}

const fact = (name, value) => [h('dt', null, name), h('dd', null, value ?? '–')];

/** Who let it begin, or did not, when and why. */
function said(people, row) {
  if (!people.length)
    return fact(
      'Approved by',
      row.state === 'PROPOSED' && row.mode === 'approve' ? 'nobody yet' : null,
    );
  return people.map(({ kind, event_time, holder, why }) =>
    kind === 'APPROVED' && holder === 'policy'
      ? fact('Approved by', 'the policy: this kind acts by itself')
      : fact(
          kind === 'APPROVED' ? 'Approved by' : 'Rejected by',
          `${holder}, ${time(event_time)} UTC${why ? `: ${why}` : ''}`,
        ),
  );
}

function guard(row) {
  if (row.rule)
    return `Refused by ${words(row.rule)}${row.refused_why ? `: ${row.refused_why}` : ''}`;
  return row.refused_why ? `Dropped: ${row.refused_why}` : 'No rule objects';
}

function outcome(score) {
  if (score.low !== null && score.low < score.high) {
    const most = score.realised === null ? '' : `, most likely ${number(score.realised)}`;
    return `Between ${number(score.low)} and ${number(score.high)} GPU-h${most}, of ${number(score.predicted)} predicted`;
  }
  if (score.realised === null) return 'It cannot be measured';
  return `${number(score.realised)} GPU-h of ${number(score.predicted)} predicted; ${score.within === 1 ? 'within' : 'outside'} the bounds`;
}

/** Approve and reject, where it waits for that. */
function buttons(row, steering, again) {
  if (row.state !== 'PROPOSED' || row.mode !== 'approve') return null;
  const { may, why, state } = steering;
  const given = instructed(row.action, state);
  if (given) return h('p', { class: 'row', role: 'status' }, given);
  const mustSign = Boolean(state?.signatures_required);
  const can = Boolean(may.approve);
  return h(
    'div',
    { class: 'row' },
    h(
      'button',
      {
        type: 'button',
        class: 'main',
        disabled: !can,
        onclick: () => confirm('approve', again, { row, mustSign }),
      },
      'Approve',
    ),
    h(
      'button',
      { type: 'button', disabled: !can, onclick: () => confirm('reject', again, { row }) },
      'Reject',
    ),
    can
      ? h('span', { class: 'dim' }, `until ${time(row.expires_time)} UTC`)
      : h('span', { class: 'faint steering' }, prose(why)),
    can ? null : h('span', { class: 'mono wrap' }, `tidegate autopilot approve ${row.action}`),
  );
}

/** What a person has said and the autopilot has not taken up yet. */
function instructed(action, state) {
  const by = (list, word) => {
    const one = list?.find(one => one.action === action);
    return one && `${word} by ${one.by}. The autopilot takes it up at its next look.`;
  };
  return by(state?.approvals, 'Approved') ?? by(state?.rejections, 'Rejected');
}

/** Expected gain with its bound, cost with its bound, and what was measured, on one scale. */
function bounds(row, score) {
  const values = [
    row.benefit,
    row.benefit_low,
    -row.cost,
    -row.cost_high,
    row.net,
    score?.realised ?? 0,
    0,
  ];
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const width = most - least || 1;
  const at = value => `${(100 * (value - least)) / width}%`;
  const bar = (name, from, to, color, text, formula) =>
    h(
      'tr',
      null,
      h('th', { scope: 'row' }, name),
      h(
        'td',
        null,
        h(
          'div',
          { class: 'bound' },
          h('i', {
            style: {
              left: at(Math.min(from, to)),
              width: `${Math.max(0.6, (100 * Math.abs(to - from)) / width)}%`,
              background: `var(${color})`,
            },
          }),
          h('b', { style: { left: at(0) } }),
        ),
      ),
      h('td', { class: 'n' }, h('span', { formula }, text)),
    );
  return h(
    'table',
    { class: 'bounds', 'aria-label': 'Expected and measured, GPU-hours' },
    h(
      'tbody',
      null,
      bar(
        'Benefit',
        row.benefit_low,
        row.benefit,
        '--c-productive',
        `${number(row.benefit_low)} to ${number(row.benefit)}`,
        'benefit_low_gpu_ms to benefit_gpu_ms / 3,600,000: expected gain and its lower bound',
      ),
      bar(
        'Cost',
        -row.cost_high,
        -row.cost,
        '--c-held',
        `${number(row.cost)} to ${number(row.cost_high)}`,
        'cost_gpu_ms to cost_high_gpu_ms / 3,600,000: expected cost and its upper bound',
      ),
      bar(
        'Net',
        0,
        row.net,
        '--c-active',
        `${number(row.net)} GPU-h`,
        'net_gpu_ms / 3,600,000 = benefit − cost',
      ),
      score &&
        score.realised !== null &&
        bar(
          'Realised',
          0,
          score.realised,
          score.within === 1 ? '--c-productive' : '--c-step',
          `${number(score.realised)} GPU-h`,
          'realised_gpu_ms / 3,600,000: measured net gain against doing nothing',
        ),
    ),
  );
}

const MOMENTS = [
  ['decided_time', 'Decided'],
  ['noticed_time', 'Jobs told'],
  ['acknowledged_time', 'Checkpoints written'],
  ['applying_time', 'Asked for'],
  ['applied_time', 'Accepted'],
  ['verified_time', 'Read back as done'],
  ['undone_time', 'Undone'],
  ['effect_ends_time', 'Effect ends'],
];

function steps(row, action, people) {
  const of = action ?? row;
  const begun = Date.parse(row.decided_time);
  const told = people.filter(({ holder }) => holder !== 'policy');
  // What a person said comes before what was done in the same moment.
  const [decided, ...later] = MOMENTS.filter(([name]) => of[name]).map(([name, label]) => [of[name], label]);
  const moments = [
    decided,
    ...told.map(({ kind, event_time }) => [event_time, kind === 'APPROVED' ? 'Approved' : 'Rejected']),
    ...later,
  ].sort(([a], [b]) => Date.parse(a) - Date.parse(b));
  return h(
    'ol',
    { class: 'moments' },
    moments.map(([at, label]) =>
      h(
        'li',
        null,
        h('span', null, label),
        h('span', { class: 'dim nowrap' }, `${time(at, row.decided_time)}`),
        h(
          'span',
          { class: 'faint nowrap' },
          label === 'Decided' ? '' : `+${duration(Date.parse(at) - begun)}`,
        ),
      ),
    ),
  );
}
