// Where does the money go? From what is paid for to what is productive.

import { sql, visible } from './api.js';
import { badge, figure, h, head, legend, panel, segments } from './dom.js';
import { plot, stacked } from './charts.js';
import { bounds, controls, DIMENSIONS, scopeOf, where } from './filters.js';
import { day, money, number, percent, short, time } from './format.js';
import { BANDS, bandOf, bandsOverTime, waterfall } from './ledger.js';
import { detail } from './leak.js';
import { go } from './route.js';
import { empty, fill, loading } from './states.js';
import { table } from './table.js';

export const title = 'Where does the money go?';
const SUMS =
  'CAST(sum(gpu_ms) AS DOUBLE) / 3600000.0 AS hours, CAST(sum(cost_micros) AS DOUBLE) / 1000000.0 AS cost';

export async function show(root, { params, signal }) {
  const line = h('span', null, 'From what is paid for to what is productive');
  const tools = h('div', { class: 'tools' });
  const figures = h('dl', { class: 'figures' });
  const falls = panel('From paid to productive', { flush: true });
  const leaks = panel('Leak');
  const times = panel('Over time', {
    tools: legend(BANDS.map(({ color, label }) => [color, label])),
  });
  const parts = panel('By', { flush: true });
  root.append(
    head(title, line, tools),
    figures,
    h(
      'div',
      { class: 'stack' },
      h('div', { class: 'grid wide-left' }, falls.element, leaks.element),
      times.element,
      parts.element,
    ),
  );

  for (const [place, lines] of [
    [falls, 14],
    [leaks, 8],
    [times, 8],
    [parts, 5],
  ])
    place.body.append(loading(lines));

  const within = await bounds(signal).catch(error => ({ error }));
  if (!within || within.error) {
    figures.hidden = true;
    for (const one of [leaks, times, parts]) one.element.remove();
    return fill(
      falls.body,
      () => {
        if (within) throw within.error;
        return nothing();
      },
      { signal },
    );
  }
  let scope = scopeOf(params, within);
  controls(params, scope, signal).then(
    made => tools.replaceChildren(...made),
    () => {},
  );

  let opened = params.get('leak');
  const refresh = async ({ isNews } = {}) => {
    if (isNews) scope = scopeOf(params, (await bounds(signal)) ?? within);
    line.textContent = `${time(scope.from)} to ${time(scope.to, scope.from)} UTC, by ${scope.hourly ? 'hour' : 'day'}`;
    const [currency, rows] = [
      await currencyOf(signal).catch(() => ({ none: true })),
      sql(
        `SELECT class, formula, ${SUMS} FROM ${scope.table} WHERE ${where(scope)} GROUP BY class,
          formula`,
        { signal },
      ),
    ];
    await Promise.all([
      fill(
        falls.body,
        async () => {
          const { steps, all } = waterfall(await rows);
          if (!steps.some(step => step.hours)) return nothing();
          figures.replaceChildren(...figuresOf(steps, all, currency));
          const biggest = [...steps]
            .filter(step => step.kind === 'leak')
            .sort((a, b) => b.hours - a.hours)[0];
          const of = { scope, currency, all, signal };
          const open = (step, options) => {
            opened = step.name;
            return fill(leaks.body, () => detail(leaks, step, of), { signal, ...options });
          };
          const chosen = steps.find(step => step.name === opened) ?? biggest;
          if (chosen) open(chosen, { isNews });
          return drawn(steps, all, currency, chosen, open);
        },
        { lines: 14, signal, isNews },
      ),
      fill(times.body, () => overTime(scope, signal), { lines: 8, signal, isNews }),
      fill(parts.body, () => byPart(parts, params, scope, currency, signal), { signal, isNews }),
    ]);
  };
  await refresh();
  return { refresh, every: 60_000 };
}

const nothing = () =>
  empty(
    'No GPU time is in the ledger yet',
    'It begins with events of a scheduler or agents. `tidegate up --demo` has some at once; `tidegate import` brings in a history; `tidegate watch` follows a cluster.',
  );

/** The one currency of the price book; none where there are several, whose sums mean nothing. */
async function currencyOf(signal) {
  const rows = await visible('SELECT DISTINCT currency FROM price_of', { signal });
  return {
    one: rows.length === 1 ? rows[0].currency : null,
    many: rows.length > 1,
    none: rows.length === 0,
  };
}

function figuresOf(steps, all, currency) {
  const total = label => steps.find(step => step.kind === 'total' && step.label === label);
  const leak = Math.max(0, ...steps.filter(step => step.kind === 'leak').map(step => step.hours));
  const worst = steps.find(step => step.kind === 'leak' && step.hours === leak);
  const shows = step =>
    currency.one
      ? money(step.cost, currency.one)
      : currency.many
        ? 'in several currencies'
        : 'no price is known';
  const lost = {
    hours: all.hours - total('Productive').hours,
    cost: all.cost - total('Productive').cost,
  };
  return [
    figure(
      'Paid',
      `${short(all.hours)} GPU-h`,
      shows(all),
      'Paid = sum(gpu_ms) / 3,600,000 over all classes of the ledger.\nMoney = sum(cost_micros) / 1,000,000, by the price book.',
    ),
    figure(
      'Productive',
      percent(total('Productive').hours, all.hours),
      `${short(total('Productive').hours)} GPU-h, ${shows(total('Productive'))}`,
      'Productive = GPU time of class productive / paid: in steps, without stalls, checkpoints and redone work.',
    ),
    figure(
      'Allocated',
      percent(total('Allocated').hours, all.hours),
      `${short(total('Allocated').hours)} GPU-h`,
      'Allocated = (paid − not usable − not held) / paid: GPU time that jobs held.',
    ),
    figure(
      'Busy of allocated',
      percent(total('Busy').hours, total('Allocated').hours),
      `${short(total('Busy').hours)} GPU-h`,
      'Busy = (allocated − empty − idle − starting − not observed) / allocated.',
    ),
    figure(
      'Not productive',
      currency.one ? money(lost.cost, currency.one) : `${short(lost.hours)} GPU-h`,
      `${percent(lost.hours, all.hours)} of what is paid`,
      'Not productive = paid − productive. It includes busy time without step reports.',
    ),
    worst &&
      figure(
        'Largest leak',
        worst.label,
        `${percent(worst.hours, all.hours)} of paid, ${shows(worst)}`,
        'The class that takes most GPU time on the way from paid to productive.',
      ),
  ].filter(Boolean);
}

function drawn(steps, all, currency, chosen, open) {
  const scale = all.hours || 1;
  const rows = steps.map(step => {
    const color =
      step.kind === 'total' ? '--c-productive' : BANDS.find(({ band }) => band === step.band).color;
    const left = (100 * Math.min(step.from, step.from + step.hours)) / scale;
    const bar = h('i', {
      style: {
        left: `${left}%`,
        width: `${Math.max(0.15, (100 * Math.abs(step.hours)) / scale)}%`,
        background: `var(${color})`,
      },
    });
    const name =
      step.kind === 'total'
        ? h('strong', null, step.label)
        : h(
            'button',
            { type: 'button', class: 'leak-name' },
            h('span', { class: 'swatch', style: { '--of': `var(${color})` } }),
            step.label,
          );
    const amount = step.kind === 'total' ? step.hours : -step.hours;
    const row = h(
      'tr',
      { class: step.kind, 'aria-selected': step.kind === 'leak' ? String(step === chosen) : null },
      h('th', { scope: 'row' }, name),
      h('td', { class: 'track' }, h('div', null, bar)),
      h('td', { class: 'n' }, short(amount)),
      currency.one &&
        h(
          'td',
          { class: 'n' },
          money(step.kind === 'total' ? step.cost : -step.cost, currency.one).replace('-', '−'),
        ),
      h('td', { class: 'n dim' }, percent(step.hours, scale)),
    );
    if (step.kind === 'leak') {
      row.addEventListener('click', () => {
        for (const other of row.parentElement.rows)
          if (other.ariaSelected) other.ariaSelected = String(other === row);
        open(step);
      });
    }
    return row;
  });
  const heading = (text, formula, also) =>
    h(
      'th',
      { class: also, scope: 'col', 'data-formula': formula },
      h('span', { class: formula && 'tipped' }, text),
    );
  return [
    currency.many &&
      h(
        'p',
        { class: 'pad' },
        badge('The price book has several currencies; money is not added up', 'warn'),
      ),
    h(
      'div',
      { class: 'scroll' },
      h(
        'table',
        { class: 'waterfall' },
        h(
          'thead',
          null,
          h(
            'tr',
            null,
            heading('Step'),
            h(
              'th',
              { class: 'track', scope: 'col' },
              h('span', { class: 'unseen' }, 'From and to'),
            ),
            heading(
              'GPU-hours',
              'sum(gpu_ms) / 3,600,000 of the class. A total is the one above less the leaks between.',
              'n',
            ),
            currency.one &&
              heading(
                'Cost',
                'sum(cost_micros) / 1,000,000 of the class, by the price book at the time.',
                'n',
              ),
            heading('Of paid', 'GPU time of the step / GPU time of all classes.', 'n'),
          ),
        ),
        h('tbody', null, rows),
      ),
    ),
  ];
}

async function overTime(scope, signal) {
  const rows = await sql(
    `SELECT window_start, class, formula, CAST(sum(gpu_ms) AS DOUBLE) / ${scope.step}.0 AS gpus
    FROM ${scope.table} WHERE ${where(scope)} GROUP BY window_start, class, formula`,
    { signal },
  );
  const { times, series } = bandsOverTime(rows);
  return plot(
    `Mean GPUs by what they did, per ${scope.hourly ? 'hour' : 'day'}, ${day(scope.from)} to ${day(scope.to)}`,
    240,
    () => stacked(times, series, scope.step / 1000),
  );
}

async function byPart(place, params, scope, currency, signal) {
  const by = DIMENSIONS.find(name => name === params.get('by')) ?? 'team';
  const choose = name => go('money', Object.assign(Object.fromEntries(params), { by: name }));
  place.element.querySelector('h2').textContent = `By ${by}`;
  place.element.querySelector('.segments')?.remove();
  place.element.querySelector('header').append(
    segments(
      'Group by',
      DIMENSIONS.map(name => [name, name]),
      by,
      choose,
    ),
  );
  const rows = await sql(
    `SELECT coalesce(${by}, '(none)') AS part, class, formula, ${SUMS} FROM ${scope.table}
      WHERE ${where(scope)}
    GROUP BY part, class, formula LIMIT 20000`,
    { signal },
  );
  const groups = new Map();
  for (const row of rows) {
    const group = groups.get(row.part) ?? { part: row.part, hours: 0, cost: 0, bands: {} };
    group.hours += row.hours;
    group.cost += row.cost ?? 0;
    group.bands[bandOf(row)] = (group.bands[bandOf(row)] ?? 0) + row.hours;
    groups.set(row.part, group);
  }
  const list = [...groups.values()].sort((a, b) => b.hours - a.hours);
  const columns = [
    { name: by, text: row => row.part, sort: row => row.part },
    {
      name: 'GPU-hours',
      numeric: true,
      text: row => number(Math.round(row.hours)),
      sort: row => row.hours,
      formula: 'sum(gpu_ms) / 3,600,000 of all classes.',
    },
    currency.one && {
      name: 'Cost',
      numeric: true,
      text: row => money(row.cost, currency.one),
      sort: row => row.cost,
      formula: 'sum(cost_micros) / 1,000,000, by the price book.',
    },
    {
      name: 'Productive',
      numeric: true,
      text: row => percent(row.bands.productive ?? 0, row.hours),
      sort: row => (row.bands.productive ?? 0) / row.hours,
      formula: 'GPU time of class productive / all GPU time of the row.',
    },
    {
      name: 'Lost inside jobs',
      numeric: true,
      text: row => percent((row.bands.step ?? 0) + (row.bands.held ?? 0), row.hours),
      sort: row => ((row.bands.step ?? 0) + (row.bands.held ?? 0)) / row.hours,
      formula:
        '(stalls, checkpoints, redone work, held and idle, starting) / all GPU time of the row.',
    },
    {
      name: 'Where it went',
      show: row =>
        h(
          'div',
          {
            class: 'share',
            role: 'img',
            'aria-label': BANDS.map(
              ({ band, label }) => `${label} ${percent(row.bands[band] ?? 0, row.hours)}`,
            ).join(', '),
          },
          BANDS.filter(({ band }) => row.bands[band] > 0).map(({ band, color }) =>
            h('i', {
              style: {
                width: `${(100 * row.bands[band]) / row.hours}%`,
                background: `var(${color})`,
              },
            }),
          ),
        ),
    },
  ].filter(Boolean);
  const narrow = row => go('money', { ...Object.fromEntries(params), [by]: row.part });
  return table(columns, list, { pick: narrow, label: `GPU time by ${by}`, most: '420px' });
}
