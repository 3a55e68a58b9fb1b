// Lanes over one time axis: spans of states, attempts, steps, GPUs. Drawn on a canvas; arrows go
// from span to span, and a table says the same.

import { color, repaint } from './charts.js';
import { h } from './dom.js';
import { duration, time } from './format.js';
import { hide, showAt } from './tips.js';
import { table } from './table.js';

const ROW = 17;
const BAR = 13;
const HEAD = 22;
const AXIS = 20;

/**
 * Groups are `{ label, rows: [{ label, spans: [{ from, to, color, text, more? }] }] }` with times in
 * ms and colours by the name of a variable. Shown is `from` to `to`.
 */
export function lanes(label, groups, { from, to }) {
  const canvas = h('canvas', {
    tabindex: '0',
    role: 'application',
    'aria-label': `${label}; arrow keys go from span to span. The table below says the same.`,
  });
  const said = h('p', { class: 'unseen', 'aria-live': 'polite' });
  const element = h('div', { class: 'lanes' }, canvas, said, listed(label, groups));
  let [width, chosen, places] = [0, -1, []];

  function paint() {
    const scale = devicePixelRatio || 1;
    const left = Math.min(150, Math.max(80, width * 0.14));
    const x = at => left + ((at - from) / (to - from)) * (width - left - 4);
    const height = groups.reduce((sum, group) => sum + HEAD + group.rows.length * ROW, AXIS);
    canvas.width = width * scale;
    canvas.height = height * scale;
    canvas.style.height = `${height}px`;
    const pen = canvas.getContext('2d');
    pen.scale(scale, scale);
    pen.font = '11px system-ui, sans-serif';
    const [ink, dim, grid] = [color('--ink'), color('--dim'), color('--line')];
    pen.fillStyle = dim;
    for (const at of ticks(from, to, width)) {
      pen.fillStyle = grid;
      pen.fillRect(Math.round(x(at)), 0, 1, height - AXIS);
      pen.fillStyle = dim;
      const text = to - from > 2 * 86_400_000 ? time(at).slice(5) : time(at).slice(11);
      pen.fillText(text, Math.min(x(at) + 3, width - pen.measureText(text).width), height - 6);
    }
    const colors = new Map();
    places = [];
    let y = 0;
    for (const group of groups) {
      pen.font = '600 11px system-ui, sans-serif';
      pen.fillStyle = ink;
      pen.fillText(group.label, 0, y + 15);
      pen.font = '11px system-ui, sans-serif';
      y += HEAD;
      for (const row of group.rows) {
        pen.fillStyle = dim;
        pen.fillText(fitting(pen, row.label, left - 10), 0, y + 10);
        for (const span of row.spans) {
          const [begin, end] = [x(Math.max(from, span.from)), x(Math.min(to, span.to))];
          if (!colors.has(span.color)) colors.set(span.color, color(span.color));
          pen.fillStyle = colors.get(span.color);
          pen.fillRect(begin, y, Math.max(1.5, end - begin - (end - begin > 3 ? 1 : 0)), BAR);
          places.push({ row, span, x: begin, y, width: Math.max(2, end - begin) });
        }
        y += ROW;
      }
    }
    const one = places[chosen];
    if (one) {
      pen.strokeStyle = ink;
      pen.lineWidth = 2;
      pen.strokeRect(one.x, one.y - 1, one.width, BAR + 2);
    }
  }

  function choose(i) {
    if (!places[i]) return;
    chosen = i;
    paint();
    const box = canvas.getBoundingClientRect();
    const one = places[i];
    said.textContent = textOf(one);
    showAt(textOf(one), box.left + one.x + Math.min(one.width, 200) / 2, box.top + one.y);
  }

  canvas.addEventListener('mousemove', event => {
    const box = canvas.getBoundingClientRect();
    const [px, py] = [event.clientX - box.left, event.clientY - box.top];
    const one = places.findLast(
      place =>
        px >= place.x - 1 &&
        px <= place.x + place.width + 1 &&
        py >= place.y &&
        py <= place.y + ROW,
    );
    if (one) showAt(textOf(one), event.clientX, event.clientY - 8);
    else hide();
  });
  canvas.addEventListener('mouseleave', hide);
  canvas.addEventListener('blur', () => {
    chosen = -1;
    hide();
    paint();
  });
  canvas.addEventListener('keydown', event => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    choose(Math.min(places.length - 1, Math.max(0, chosen + step)));
  });
  repaint(element, canvas, now => {
    width = now;
    paint();
  });
  return element;
}

/** Times for the axis: whole minutes, hours or days, not too many. */
export function ticks(from, to, width) {
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 10_080, 43_200].map(
    minutes => minutes * 60_000,
  );
  const step = steps.find(one => (to - from) / one <= Math.max(3, width / 110)) ?? steps.at(-1);
  const first = Math.ceil(from / step) * step;
  return Array.from(
    { length: Math.max(0, Math.floor((to - first) / step) + 1) },
    (_, i) => first + i * step,
  );
}

function fitting(pen, text, most) {
  if (pen.measureText(text).width <= most) return text;
  let kept = text;
  while (kept.length > 1 && pen.measureText(`${kept}…`).width > most) kept = kept.slice(0, -1);
  return `${kept}…`;
}

const textOf = ({ row, span }) =>
  [
    `${row.label}: ${span.text}`,
    `${time(span.from)} to ${time(span.to, span.from)} UTC, ${duration(span.to - span.from)}`,
    span.more,
  ]
    .filter(Boolean)
    .join('\n');

function listed(label, groups) {
  const details = h('details', { class: 'listed' }, h('summary', null, 'As a table'));
  details.addEventListener('toggle', () => {
    if (details.children.length > 1) return;
    const rows = groups.flatMap(group =>
      group.rows.flatMap(row =>
        row.spans.map(span => ({ group: group.label, lane: row.label, ...span })),
      ),
    );
    details.append(
      table(
        [
          { name: 'Of', text: row => row.group },
          { name: 'Lane', text: row => row.lane, sort: row => row.lane },
          { name: 'What', text: row => row.text, sort: row => row.text },
          {
            name: 'From, UTC',
            show: row => h('span', { class: 'nowrap' }, time(row.from)),
            sort: row => row.from,
          },
          {
            name: 'For',
            numeric: true,
            text: row => duration(row.to - row.from),
            sort: row => row.to - row.from,
            formula: 'End − start',
          },
        ],
        rows.slice(0, 1000),
        { label, most: '360px' },
      ),
    );
  });
  return details;
}
