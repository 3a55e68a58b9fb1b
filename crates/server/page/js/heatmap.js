// Nodes and their GPUs as cells: a row of cells a node, nodes beside each other, pools below each
// other. Drawn on a canvas, since a cluster has ten thousand; arrows move over it, and a table says
// the same.

import { color, repaint } from './charts.js';
import { h } from './dom.js';
import { many, number, percent, words } from './format.js';
import { job } from './route.js';
import { hide, showAt } from './tips.js';
import { table } from './table.js';

const STEPS = ['--heat-0', '--heat-1', '--heat-2', '--heat-3', '--heat-4'];

/** What cells can show: their colour, and its legend. */
export const MODES = {
  use: {
    label: 'Use',
    legend: [
      ['--c-productive', 'Held, active'],
      ['--c-held', 'Held, idle'],
      ['--c-active', 'Held'],
      ['--cell-free', 'Free'],
      ['--c-unusable', 'Not usable'],
    ],
    of: (gpu, node) => {
      if (!node.usable && !gpu.held) return '--c-unusable';
      if (!gpu.held) return '--cell-free';
      if (gpu.active === null) return '--c-active';
      return gpu.active < 0.05 ? '--c-held' : '--c-productive';
    },
  },
  active: {
    label: 'Activity',
    legend: [
      ...STEPS.map((name, i) => [name, ['0 %', '25 %', '50 %', '75 %', '100 %'][i]]),
      ['--cell-none', 'No samples'],
    ],
    of: gpu =>
      gpu.active === null ? '--cell-none' : STEPS[Math.min(4, Math.round(gpu.active * 4))],
  },
  health: {
    label: 'Health',
    legend: [
      ['--cell-free', 'Healthy'],
      ['--c-step', 'Watch'],
      ['--c-held', 'Bad or failed'],
      ['--c-unusable', 'Not usable'],
    ],
    of: (gpu, node) => {
      if (gpu.sick && node.health !== 'HEALTHY')
        return node.health === 'WATCH' ? '--c-step' : '--c-held';
      return node.usable ? '--cell-free' : '--c-unusable';
    },
  },
};

const LABEL = 18;

/** Cells get smaller where there are many. */
const cellOf = count => (count > 4000 ? 7 : count > 1200 ? 9 : count > 300 ? 12 : 18);

/** Where each GPU is drawn, for a width. */
function layout(nodes, width, cell) {
  const gap = cell > 9 ? 2 : 1;
  const places = [];
  const labels = [];
  const most = Math.max(...nodes.map(node => node.gpus.length));
  const block = most * cell + Math.max(10, cell);
  const across = Math.max(1, Math.floor(width / block));
  const named = cell > 9;
  const rowHeight = cell + (named ? LABEL : gap + 1);
  let y = 0;
  for (const [pool, members] of Map.groupBy(nodes, node => node.pool)) {
    labels.push({
      text: pool,
      detail: many(members.length, 'node'),
      x: 0,
      y: y + 14,
      isPool: true,
    });
    y += 24;
    members.forEach((node, i) => {
      const [x, top] = [(i % across) * block, y + Math.floor(i / across) * rowHeight];
      if (named) labels.push({ text: node.name, x, y: top + 11, width: block - 6 });
      node.gpus.forEach((gpu, g) =>
        places.push({ node, gpu, x: x + g * cell, y: top + (named ? 15 : 0), size: cell - gap }),
      );
    });
    y += Math.ceil(members.length / across) * rowHeight + 12;
  }
  return { places, labels, height: y };
}

/** The map; `color(mode)` paints it anew. */
export function heatmap(fleet, mode) {
  const count = fleet.nodes.reduce((sum, node) => sum + node.gpus.length, 0);
  const cell = cellOf(count);
  const canvas = h('canvas', {
    tabindex: '0',
    role: 'application',
    'aria-label': `Map of ${number(count)} GPUs; arrow keys move over it, Enter opens the job. The table below says the same.`,
  });
  const said = h('p', { class: 'unseen', 'aria-live': 'polite' });
  const element = h('div', { class: 'heatmap' }, canvas, said, listed(fleet));
  let shape = { places: [], labels: [], height: 0 };
  let width = 0;
  let chosen = -1;

  function paint() {
    const scale = devicePixelRatio || 1;
    shape = layout(fleet.nodes, width, cell);
    canvas.width = width * scale;
    canvas.height = shape.height * scale;
    canvas.style.height = `${shape.height}px`;
    const pen = canvas.getContext('2d');
    pen.scale(scale, scale);
    const [ink, dim] = [color('--ink'), color('--dim')];
    const colors = new Map();
    for (const { node, gpu, x, y, size } of shape.places) {
      const name = MODES[mode].of(gpu, node);
      if (!colors.has(name)) colors.set(name, color(name));
      pen.fillStyle = colors.get(name);
      pen.fillRect(x, y, size, size);
    }
    for (const { text, detail, x, y, width: most, isPool } of shape.labels) {
      pen.font = `${isPool ? '600 12px' : '11px'} system-ui, sans-serif`;
      pen.fillStyle = isPool ? ink : dim;
      pen.fillText(fitting(pen, text, most), x, y);
      if (!detail) continue;
      const after = x + pen.measureText(text).width + 8;
      pen.font = '11px system-ui, sans-serif';
      pen.fillStyle = dim;
      pen.fillText(detail, after, y);
    }
    const one = shape.places[chosen];
    if (one) {
      pen.strokeStyle = ink;
      pen.lineWidth = 2;
      pen.strokeRect(one.x - 1, one.y - 1, one.size + 2, one.size + 2);
    }
  }

  function choose(i) {
    if (!shape.places[i]) return;
    chosen = i;
    paint();
    const one = shape.places[i];
    const box = canvas.getBoundingClientRect();
    said.textContent = textOf(one);
    showAt(textOf(one), box.left + one.x + one.size / 2, box.top + one.y);
  }

  const under = event => {
    const box = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    return shape.places.find(
      one => x >= one.x && x <= one.x + one.size && y >= one.y && y <= one.y + one.size,
    );
  };
  const openJob = one => {
    if (one?.gpu.job) location.hash = job(one.node.cluster, one.gpu.job);
  };
  canvas.addEventListener('mousemove', event => {
    const one = under(event);
    canvas.style.cursor = one?.gpu.job ? 'pointer' : 'default';
    if (one) showAt(textOf(one), event.clientX, event.clientY - 6);
    else hide();
  });
  canvas.addEventListener('mouseleave', hide);
  canvas.addEventListener('click', event => openJob(under(event)));
  canvas.addEventListener('blur', () => {
    chosen = -1;
    hide();
    paint();
  });
  canvas.addEventListener('keydown', event => {
    const one = shape.places[chosen];
    if (event.key === 'Enter') return openJob(one);
    const next = {
      ArrowRight: () => chosen + 1,
      ArrowLeft: () => chosen - 1,
      ArrowDown: () => below(shape.places, one, 1),
      ArrowUp: () => below(shape.places, one, -1),
    }[event.key];
    if (!next) return;
    event.preventDefault();
    choose(one ? next() : 0);
  });
  repaint(element, canvas, now => {
    width = now;
    paint();
  });
  return {
    element,
    color: to => {
      mode = to;
      paint();
    },
  };
}

/** The cell nearest to one, in the next row up or down. */
function below(places, one, way) {
  const rows = places.filter(other => (other.y - one.y) * way > 0);
  if (!rows.length) return -1;
  const y = rows.reduce(
    (nearest, other) => (Math.abs(other.y - one.y) < Math.abs(nearest - one.y) ? other.y : nearest),
    rows[0].y,
  );
  const nearest = rows
    .filter(other => other.y === y)
    .reduce((a, b) => (Math.abs(b.x - one.x) < Math.abs(a.x - one.x) ? b : a));
  return places.indexOf(nearest);
}

function fitting(pen, text, most) {
  if (!most || pen.measureText(text).width <= most) return text;
  let kept = text;
  while (kept.length > 1 && pen.measureText(`${kept}…`).width > most) kept = kept.slice(0, -1);
  return `${kept}…`;
}

function textOf({ node, gpu }) {
  const lines = [
    `${node.name}, GPU ${gpu.index}${node.model ? `, ${node.model}` : ''}`,
    gpu.job
      ? `Held by job ${gpu.job}${gpu.team ? ` of ${gpu.team}` : ''}`
      : gpu.held
        ? 'Held'
        : node.usable
          ? 'Free'
          : 'Not usable',
    gpu.active === null
      ? 'No samples of the last minutes'
      : `Active ${percent(gpu.active, 1)} of the last five minutes${gpu.memory === null ? '' : `, memory ${percent(gpu.memory, 1)}`}${gpu.celsius === null ? '' : `, ${gpu.celsius} °C`}`,
    node.health === 'HEALTHY' ? null : `Node is ${words(node.health)}`,
    node.state ? `Scheduler: ${node.state}` : null,
  ];
  return lines.filter(Boolean).join('\n');
}

/** The same as rows, for those who read rather than look. */
function listed(fleet) {
  const rows = fleet.nodes.map(node => ({
    ...node,
    held: node.heldMilli / 1000,
    free: node.freeMilli / 1000,
    active: mean(node.gpus.map(gpu => gpu.active).filter(value => value !== null)),
  }));
  const details = h('details', { class: 'listed' }, h('summary', null, 'As a table'));
  details.addEventListener('toggle', () => {
    if (details.children.length > 1) return;
    details.append(
      table(
        [
          { name: 'Node', text: row => row.name, sort: row => row.name },
          { name: 'Pool', text: row => row.pool, sort: row => row.pool },
          {
            name: 'GPUs',
            numeric: true,
            text: row => number(row.milli / 1000),
            sort: row => row.milli,
            formula: 'gpus_milli / 1000',
          },
          {
            name: 'Held',
            numeric: true,
            text: row => number(row.held),
            sort: row => row.held,
            formula: '(held_gpus_milli + assumed_gpus_milli) / 1000',
          },
          {
            name: 'Free',
            numeric: true,
            text: row => number(row.free),
            sort: row => row.free,
            formula: 'free_gpus_milli / 1000',
          },
          {
            name: 'Active',
            numeric: true,
            text: row => (row.active === null ? null : percent(row.active, 1)),
            sort: row => row.active,
            formula: 'active_us / us_sampled, mean of its GPUs over the newest five minutes',
          },
          { name: 'Health', text: row => words(row.health) },
          { name: 'State', text: row => row.state },
        ],
        rows,
        { label: 'Nodes', most: '420px' },
      ),
    );
  });
  return details;
}

const mean = values =>
  values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null;
