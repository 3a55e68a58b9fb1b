// Autopilot: what it decided and why, what a rule stopped, what came of it, and what people say.

import { sql, visible } from './api.js';
import { control } from './autopilot.js';
import { badge, figure, h, head, panel, prose, segments, select } from './dom.js';
import { evidence } from './evidence.js';
import { duration, number, percent, time, words } from './format.js';
import { rehearsal } from './rehearsal.js';
import { scorePlot } from './scores.js';
import { confirm } from './steering.js';
import { empty, fill, loading } from './states.js';
import { table } from './table.js';

export const title = 'Autopilot';
const MOST = 300;

const SHOWN = {
  all: ['All', 'true'],
  waiting: ['For approval', "mode = 'approve' AND state = 'PROPOSED'"],
  acted: [
    'Acted',
    "state IN ('APPLYING', 'APPLIED', 'VERIFIED', 'COMPENSATING', 'COMPENSATED', 'ACTION_FAILED', 'YIELDED')",
  ],
  refused: ['Refused', "(rule IS NOT NULL OR refused_why IS NOT NULL OR state = 'REJECTED')"],
};

export async function show(root, { params, signal }) {
  const state = {
    shown: SHOWN[params.get('show')] ? params.get('show') : 'all',
    kind: params.get('kind') ?? '',
    action: params.get('action'),
  };
  const figures = h('dl', { class: 'figures' });
  const steer = h('div', { class: 'tools' });
  const list = panel('Decisions', { flush: true });
  const detail = panel('Decision');
  const scores = panel('Predicted against realised');
  const plans = panel('Why it did nothing', { flush: true });
  const rehearsed = panel('Rehearsed: what a policy would have changed');
  root.append(
    head('Autopilot', 'What it decided and why, what a rule stopped, and what came of it', steer),
    figures,
    h(
      'div',
      { class: 'stack' },
      h('div', { class: 'grid wide-left' }, list.element, detail.element),
      h('div', { class: 'grid two' }, scores.element, plans.element),
      rehearsed.element,
    ),
  );
  for (const [place, lines] of [
    [list, 10],
    [detail, 8],
    [scores, 6],
    [plans, 4],
    [rehearsed, 4],
  ])
    place.body.append(loading(lines));

  let steering;
  const open = (row, isNews) => {
    state.action = row.action;
    return fill(
      detail.body,
      () => evidence(detail, row, { steering, signal, again: () => refresh() }),
      { signal, isNews },
    );
  };
  const change = part => {
    Object.assign(state, part);
    history.replaceState(
      null,
      '',
      `#/autopilot?${new URLSearchParams({ show: state.shown, ...(state.kind && { kind: state.kind }) })}`,
    );
    return decisions();
  };
  const kinds = await visible(
    "SELECT DISTINCT decision_kind FROM decisions WHERE role <> 'shadow' ORDER BY 1",
    { signal },
  ).catch(() => []);
  list.element.querySelector('header').append(
    kinds.length > 1
      ? select(
          'Kind of decision',
          [['', 'Every kind'], ...kinds.map(row => [row.decision_kind, words(row.decision_kind)])],
          state.kind,
          kind => change({ kind }),
        )
      : '',
    segments(
      'Which decisions',
      Object.entries(SHOWN).map(([name, [label]]) => [name, label]),
      state.shown,
      shown => change({ shown }),
    ),
  );

  const unchosen = () =>
    detail.body.replaceChildren(
      empty(
        'No decision is chosen',
        'Its evidence, the verdict of the guard and its outcome are shown here.',
      ),
    );
  const decisions = isNews =>
    fill(
      list.body,
      async () => {
        const rows = await asked(state, signal).catch(error => {
          if (error.name !== 'AbortError') unchosen();
          throw error;
        });
        const chosen = rows.find(row => row.action === state.action) ?? rows[0];
        if (chosen) open(chosen, isNews);
        else unchosen();
        return rows.length ? listed(rows, chosen, open) : nothing(state);
      },
      { lines: 10, signal, isNews },
    );

  const refresh = async ({ isNews } = {}) => {
    steering = await control({ signal }).catch(() => ({
      may: {},
      why: 'Whether this server takes approvals is not known.',
    }));
    steer.replaceChildren(...controls(steering, refresh));
    await Promise.all([
      summary(signal).then(
        made => figures.replaceChildren(...made),
        () => {
          figures.hidden = true;
        },
      ),
      decisions(isNews),
      fill(scores.body, () => scorePlot(signal), { lines: 6, signal, isNews }),
      fill(plans.body, () => idle(signal), { lines: 4, signal, isNews }),
      fill(rehearsed.body, () => rehearsal(signal), { lines: 4, signal, isNews }),
    ]);
  };
  await refresh();
  return { refresh };
}

/** What only suggests is decided anew as long as it holds: its newest decision stands for all. */
const asked = (state, signal) =>
  sql(
    `SELECT cluster, action, plan, decided_time, decision_kind, object, mode, gpus, state, rule,
      refused_why, why, role, policy, approved_by, approval_refused, expires_time,
    CAST(benefit_gpu_ms AS DOUBLE) / 3600000.0 AS benefit,
    CAST(benefit_low_gpu_ms AS DOUBLE) / 3600000.0 AS benefit_low,
    CAST(cost_gpu_ms AS DOUBLE) / 3600000.0 AS cost,
    CAST(cost_high_gpu_ms AS DOUBLE) / 3600000.0 AS cost_high,
    CAST(net_gpu_ms AS DOUBLE) / 3600000.0 AS net,
    CAST(net_micros AS DOUBLE) / 1000000.0 AS money,
    CAST(confidence_ppm AS DOUBLE) / 10000.0 AS sure, over_ms, repeats
  FROM (
    SELECT *, count(*) OVER same AS repeats, row_number() OVER (
      PARTITION BY cluster, decision_kind, object, mode, role, CASE mode WHEN 'suggest' THEN '' ELSE action END
      ORDER BY decided_time DESC) AS nth
    FROM decisions WINDOW same AS (
      PARTITION BY cluster, decision_kind, object, mode, role, CASE mode WHEN 'suggest' THEN '' ELSE action END)
  ) WHERE role <> 'shadow' AND nth = 1
  AND ${SHOWN[state.shown][1]} ${state.kind ? `AND decision_kind = '${state.kind.replaceAll("'", "''")}'` : ''}
  ORDER BY state = 'PROPOSED' AND mode = 'approve' DESC, decided_time DESC, action LIMIT ${MOST}`,
    { signal },
  );

function nothing({ shown }) {
  return {
    all: () =>
      empty(
        'The autopilot has decided nothing',
        '`tidegate autopilot init` writes a policy, and `tidegate up --autopilot FILE` runs it. It begins by watching: nothing is changed before you let it.',
      ),
    waiting: () =>
      empty(
        'Nothing waits for approval',
        'Decisions of kinds in the mode `approve` appear here first.',
      ),
    acted: () => empty('It has acted on nothing', 'Decisions that it carried out appear here.'),
    refused: () =>
      empty(
        'Nobody and no rule has stopped anything',
        'What a person rejects is here, and each decision that the guard refuses, with the rule.',
      ),
  }[shown]();
}

/** The state of a decision in a word. */
export function verdict(row) {
  if (row.state === 'PROPOSED' && row.mode === 'approve')
    return badge('waits for approval', 'warn');
  if (row.rule) return badge(`refused: ${words(row.rule)}`, '');
  if (row.state === 'PROPOSED' && row.mode === 'suggest') return badge(row.repeats > 1 ? `suggested ${row.repeats} times` : 'suggested', 'tide');
  const tone =
    {
      VERIFIED: 'good',
      ACTION_FAILED: 'bad',
      COMPENSATED: 'bad',
      COMPENSATING: 'warn',
      YIELDED: 'warn',
    }[row.state] ?? (['DROPPED', 'REJECTED'].includes(row.state) ? '' : 'tide');
  return badge(words(row.state), tone);
}

function listed(rows, chosen, open) {
  const pick = (row, element) => {
    for (const other of element.parentElement.rows) other.ariaSelected = String(other === element);
    open(row);
  };
  const made = table(
    [
      {
        name: 'Decided, UTC',
        show: row => h('span', { class: 'nowrap' }, time(row.decided_time, row.decided_time)),
        sort: row => row.decided_time,
      },
      { name: 'What', text: row => words(row.decision_kind), sort: row => row.decision_kind },
      { name: 'On', text: row => row.object },
      {
        name: 'GPUs',
        numeric: true,
        text: row => number(row.gpus),
        sort: row => row.gpus,
        formula: 'GPUs that the decision affects',
      },
      {
        name: 'Worth',
        numeric: true,
        text: row => `${number(row.net)} GPU-h`,
        sort: row => row.net,
        formula:
          'net_gpu_ms / 3,600,000: expected benefit − cost, in useful GPU-hours, against doing nothing',
      },
      {
        name: 'Sure',
        numeric: true,
        text: row => (row.sure === null ? null : percent(row.sure, 100)),
        sort: row => row.sure,
        formula: 'confidence_ppm / 10,000: probability that it takes effect and pays off',
      },
      { name: 'State', show: verdict },
    ],
    rows,
    { label: 'Decisions', pick, most: '560px' },
  );
  const at = rows.indexOf(chosen);
  [...made.querySelectorAll('tbody tr')].forEach((row, i) => {
    row.ariaSelected = String(i === at);
  });
  return [
    made,
    rows.length === MOST ? h('p', { class: 'pad faint' }, `The newest ${MOST}.`) : null,
  ];
}

async function summary(signal) {
  const [[all], [scores]] = await Promise.all([
    sql(
      `SELECT count(*) AS decisions,
        count(*) FILTER (WHERE mode = 'approve' AND state = 'PROPOSED') AS waiting,
        count(*) FILTER (WHERE rule IS NOT NULL) AS refused,
        count(*) FILTER (WHERE state = 'VERIFIED') AS verified,
        count(*) FILTER (WHERE state IN ('ACTION_FAILED', 'COMPENSATED')) AS failed FROM decisions
        WHERE role <> 'shadow'`,
      { signal },
    ),
    sql(
      `SELECT count(*) AS scored, CAST(sum(realised_gpu_ms) AS DOUBLE) / 3600000.0 AS realised,
        CAST(sum(predicted_gpu_ms) FILTER (WHERE realised_gpu_ms IS NOT NULL) AS DOUBLE) / 3600000.0 AS predicted,
        count(*) FILTER (WHERE within = 1) AS within,
        count(*) FILTER (WHERE realised_gpu_ms IS NOT NULL) AS measured FROM prediction_scores`,
      { signal },
    ),
  ]);
  const [took] = await sql(
    "SELECT CAST(median(verified_after_ms) AS DOUBLE) AS ms FROM actions WHERE state = 'VERIFIED'",
    { signal },
  );
  return [
    figure(
      'For approval',
      number(all.waiting),
      all.waiting ? 'wait for a person' : 'nothing waits',
      'Decisions in mode approve whose state is PROPOSED.',
    ),
    figure(
      'Decisions',
      number(all.decisions),
      `${number(all.refused)} refused by a rule`,
      'Rows of decisions, but those of shadow policies.',
    ),
    figure(
      'Done',
      number(all.verified),
      `${number(all.failed)} failed or undone`,
      'Decisions whose state is VERIFIED: read back as done.',
    ),
    figure(
      'Gained',
      `${number(scores.realised)} GPU-h`,
      `${percent(scores.realised, scores.predicted)} of what was predicted`,
      'sum(realised_gpu_ms) / 3,600,000 of prediction_scores: measured net gain against doing nothing.',
    ),
    figure(
      'Within bounds',
      percent(scores.within, scores.measured),
      `of ${number(scores.measured)} measured outcomes`,
      'Outcomes with within = 1 / outcomes that could be measured.',
    ),
    figure(
      'From decision to done',
      duration(took?.ms),
      'median',
      'median(verified_after_ms) of verified actions.',
    ),
  ];
}

async function idle(signal) {
  const rows = await sql(
    "SELECT made_time, policy, why FROM plans WHERE role = 'base' AND decisions = 0 AND why IS NOT NULL ORDER BY made_time DESC LIMIT 40",
    { signal },
  );
  if (!rows.length)
    return empty(
      'No plan without a decision',
      'Every ten minutes a plan that does nothing is recorded with its reasons.',
    );
  return table(
    [
      {
        name: 'Planned, UTC',
        show: row => h('span', { class: 'nowrap' }, time(row.made_time, row.made_time)),
        sort: row => row.made_time,
      },
      { name: 'Policy', text: row => row.policy },
      { name: 'Why nothing was done', text: row => [row.why].flat().join('; '), long: true },
    ],
    rows,
    { label: 'Plans that did nothing', most: '300px' },
  );
}

/** Pause and the switch, or why they are not to be had. */
function controls({ may, why, state }, again) {
  const isOn = Boolean(state?.switch.on);
  const [label, dialog] = isOn ? ['Pause', 'pause'] : ['Resume', 'resume'];
  const can = Boolean(may[dialog]);
  const button = h(
    'button',
    {
      type: 'button',
      class: isOn ? 'danger' : '',
      disabled: !can,
      title: can ? null : why,
      'aria-describedby': can ? null : 'no-steering',
      onclick: () => confirm(dialog, again, { mustSign: state.signatures_required }),
    },
    label,
  );
  const stands = state ? h('span', { class: 'dim' }, said(state)) : null;
  const note = why ? h('span', { class: 'faint steering', id: 'no-steering' }, prose(why)) : null;
  return [stands, note, button].filter(Boolean);
}

function said({ switch: { on, by, at, why, refused } }) {
  const who = by ? ` by ${by}${at ? `, ${time(at)} UTC` : ''}` : '';
  if (on) return `On${who}`;
  return `Paused${who}${(refused ?? why) ? `: ${refused ?? why}` : ''}`;
}
