// Any answer as a plot: a column along, a number up, and a line or bar for each value of a third.

import { color, measured, plot } from './charts.js';
import { h, legend, select } from './dom.js';
import { number } from './format.js';
import { empty } from './states.js';

const COLORS = [
  '--c-productive',
  '--c-step',
  '--c-free',
  '--c-held',
  '--c-unusable',
  '--c-active',
  '--ink',
  '--faint',
];
const TIME = /^\d{4}-\d\d-\d\dT[\d:.]+Z$/;
const NONE = '(one)';

const isTime = value => typeof value === 'string' && TIME.test(value);

/** The columns by what they can be: times, numbers, names. */
function kinds(rows) {
  const kind = name => {
    const values = rows.map(row => row[name]).filter(value => value !== null);
    if (!values.length) return 'none';
    if (values.every(isTime)) return 'time';
    return values.every(value => typeof value === 'number' || typeof value === 'bigint')
      ? 'number'
      : 'name';
  };
  return Object.keys(rows[0]).map(name => ({ name, kind: kind(name) }));
}

export function answerPlot(rows) {
  const columns = kinds(rows);
  const of = kind => columns.filter(column => column.kind === kind).map(({ name }) => name);
  const [times, numbers, names] = [of('time'), of('number'), of('name')];
  if (!numbers.length)
    return empty(
      'There is no number to plot',
      'A plot needs a column of numbers, and a time, name or number along.',
    );
  const alongs = [...times, ...names, ...numbers];
  const chosen = {
    x: alongs[0],
    y: numbers.find(name => name !== alongs[0]) ?? numbers[0],
    by: times.length && names.length ? names[0] : NONE,
  };
  const place = h('div');
  const draw = () =>
    place.replaceChildren(drawn(rows, chosen, columns.find(({ name }) => name === chosen.x).kind));
  const choose = (label, key, choices) =>
    h(
      'label',
      { class: 'field' },
      label,
      select(
        label,
        choices.map(name => [name, name]),
        chosen[key],
        value => {
          chosen[key] = value;
          draw();
        },
      ),
    );
  draw();
  return h(
    'div',
    { class: 'pad' },
    h(
      'div',
      { class: 'row' },
      choose('Along', 'x', alongs),
      choose('Up', 'y', numbers),
      choose('A line for each', 'by', [NONE, ...names]),
    ),
    place,
  );
}

function drawn(rows, { x, y, by }, kind) {
  const groups = [...Map.groupBy(rows, row => (by === NONE ? y : (row[by] ?? '(none)')))].slice(
    0,
    COLORS.length,
  );
  const keyOf = row => (kind === 'time' ? Date.parse(row[x]) / 1000 : row[x]);
  const keys = [...new Set(rows.map(keyOf))].filter(key => key !== null);
  if (kind !== 'name') keys.sort((a, b) => a - b);
  const places = new Map(keys.map((key, i) => [key, i]));
  const series = groups.map(([label, members]) => {
    const values = keys.map(() => null);
    for (const row of members)
      if (places.has(keyOf(row)))
        values[places.get(keyOf(row))] = row[y] === null ? null : Number(row[y]);
    return { label: String(label), values };
  });
  const cut = by !== NONE && new Set(rows.map(row => row[by])).size > COLORS.length;
  return h(
    'div',
    null,
    h(
      'div',
      { class: 'legend-row' },
      legend(series.map(({ label }, i) => [COLORS[i], label])),
      cut && h('span', { class: 'faint' }, `the first ${COLORS.length}`),
    ),
    kind === 'name' ? bars(keys, series, y) : lines(keys, series, kind, y),
  );
}

function lines(keys, series, kind, y) {
  return plot(`${y} along ${kind === 'time' ? 'time' : 'a number'}`, 340, () => ({
    options: {
      scales: { x: { time: kind === 'time' } },
      axes: [kind === 'time' ? {} : { values: measured }, {}],
      series: [
        {},
        ...series.map(({ label }, i) => ({
          label,
          stroke: color(COLORS[i]),
          width: 1.5,
          spanGaps: true,
          points: { show: keys.length < 60, size: 5 },
        })),
      ],
    },
    data: [keys, ...series.map(({ values }) => values)],
  }));
}

/** Names are not along an axis of numbers: a bar a row, which long names fit beside. */
function bars(keys, series, y) {
  const most = Math.max(
    ...series.flatMap(({ values }) => values.map(value => Math.abs(value ?? 0))),
    1e-9,
  );
  return h(
    'table',
    { class: 'bars', 'aria-label': y },
    h(
      'tbody',
      null,
      keys.slice(0, 200).map((key, i) =>
        h(
          'tr',
          null,
          h('th', { scope: 'row' }, String(key)),
          h(
            'td',
            null,
            series.map(
              ({ values }, s) =>
                values[i] !== null &&
                h('i', {
                  style: {
                    width: `${(100 * Math.abs(values[i])) / most}%`,
                    background: `var(${COLORS[s]})`,
                  },
                }),
            ),
          ),
          h(
            'td',
            { class: 'n' },
            series
              .map(({ values }) => values[i])
              .filter(value => value !== null)
              .map(number)
              .join(', '),
          ),
        ),
      ),
    ),
  );
}
