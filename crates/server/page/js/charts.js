// Plots with uPlot, in the page's colours. They are drawn anew when the theme or the width changes.

/* global uPlot */
import { h } from './dom.js';
import { number } from './format.js';
import { hide, showAt } from './tips.js';

/** The colour that a CSS variable has now. */
export function color(name, part = 1) {
  const probe = h('span', { style: { color: `var(${name})`, display: 'none' } });
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  if (part === 1) return value;
  const [r, g, b] = value.match(/[\d.]+/g);
  return `rgba(${r}, ${g}, ${b}, ${part})`;
}

/** What redraws when the theme changes: each plot that is on the page. */
const drawn = new Set();

export function redraw() {
  for (const draw of drawn) draw();
}

/**
 * A plot that fits its place. `make(width)` gives uPlot's options and data; `label` says what it
 * shows to whoever does not see it.
 */
export function plot(label, height, make) {
  const place = h('div', {
    role: 'img',
    'aria-label': label,
    style: { 'min-height': `${height}px` },
  });
  let chart;
  let width = 0;
  const draw = () => {
    if (!place.isConnected) {
      chart?.destroy();
      drawn.delete(draw);
      return;
    }
    chart?.destroy();
    const { options, data } = make();
    chart = new uPlot({ width, height, ...common(options) }, data, place);
  };
  new ResizeObserver(([entry]) => {
    const now = Math.floor(entry.contentRect.width);
    if (!now || Math.abs(now - width) < 2) return;
    width = now;
    if (chart && drawn.has(draw)) chart.setSize({ width, height });
    else {
      drawn.add(draw);
      draw();
    }
  }).observe(place);
  return place;
}

function common(options) {
  const line = {
    stroke: color('--dim'),
    grid: { stroke: color('--line'), width: 1 },
    ticks: { stroke: color('--line'), size: 4 },
    font: '11px system-ui, sans-serif',
  };
  const axes = (options.axes ?? [{}, {}]).map((axis, i) => ({
    ...line,
    ...(i ? { size: 58, values: measured } : { grid: { show: false } }),
    ...axis,
  }));
  if (axes[0].values === undefined) axes[0].values = clock;
  return {
    tzDate: seconds => uPlot.tzDate(new Date(seconds * 1e3), 'Etc/UTC'),
    cursor: { points: { size: 6 }, drag: { x: true, y: false } },
    legend: { show: false },
    padding: [8, 18, 0, 0],
    ...options,
    hooks: { setCursor: [chart => pointed(chart, options.tip)], ...options.hooks },
    axes,
  };
}

/** Numbers with as many digits as tell two ticks apart. */
export function measured(_, ticks) {
  const apart = ticks.length > 1 ? Math.abs(ticks[1] - ticks[0]) : 1;
  const digits = Math.min(6, Math.max(0, Math.ceil(-Math.log10(apart) - 1e-9)));
  const format = new Intl.NumberFormat('en-US', {
    minimumFractionDigits: digits,
    maximumFractionDigits: digits,
  });
  return ticks.map(tick => format.format(tick));
}

/** Times of day by 24 hours, with the date where a day begins, or dates alone. */
function clock(chart, ticks, _, __, apart) {
  const text = at => new Date(at * 1e3).toISOString();
  if (apart >= 86_400) return ticks.map(at => text(at).slice(5, 10));
  const to = apart < 60 ? 19 : 16;
  return ticks.map((at, i) => {
    const isDay = at % 86_400 === 0;
    return `${text(at).slice(11, to)}${i === 0 || isDay ? `\n${text(at).slice(5, 10)}` : ''}`;
  });
}

/** Shows the values below the cursor; `tip(at)` overrides them. */
function pointed(chart, tip) {
  const { idx: at, left, top } = chart.cursor;
  if (at === null || at === undefined || left < 0) return hide();
  const lines = chart.series
    .slice(1)
    .filter(one => one.show !== false && one.label)
    .map(one => [one.label, chart.data[chart.series.indexOf(one)][at]])
    .filter(([, value]) => value !== null && value !== undefined);
  const box = chart.over.getBoundingClientRect();
  const isTime = chart.scales.x.time;
  const when =
    isTime && new Date(chart.data[0][at] * 1e3).toISOString().slice(0, 16).replace('T', ' ');
  const texts = tip ? tip(at) : lines.map(([label, value]) => `${label}  ${number(value)}`);
  showAt([when, ...texts].filter(Boolean).join('\n'), box.left + left, box.top + top);
}

/** A series drawn as a line over an area. */
export const area = (label, variable, more = {}) => ({
  label,
  stroke: color(variable),
  fill: color(variable, 0.14),
  width: 1.5,
  points: { show: false },
  ...more,
});

export const line = (label, variable, more = {}) => ({
  label,
  stroke: color(variable),
  width: 1.5,
  points: { show: false },
  ...more,
});

/**
 * Values stacked on each other as bars: series are `{ label, color, values }`, from the bottom.
 * uPlot draws each from 0, so the sums go in from the top down. `step` is the length of a bar, s.
 */
export function stacked(times, series, step) {
  const sums = [];
  let below = times.map(() => 0);
  for (const one of series) {
    below = below.map((sum, i) => sum + (one.values[i] ?? 0));
    sums.push(below);
  }
  const bars = uPlot.paths.bars({ size: [0.9, Infinity], align: 1 });
  const order = series.map((_, i) => i).reverse();
  // Around a single time uPlot would show years.
  const span = (from, to) => (times.length === 1 ? [times[0], times[0] + step] : [from, to + step]);
  return {
    options: {
      scales: {
        x: { time: true, range: (_, from, to) => span(from, to) },
        y: { range: (_, __, most) => [0, most || 1] },
      },
      series: [
        {},
        ...order.map(i => ({
          label: series[i].label,
          fill: color(series[i].color),
          stroke: color(series[i].color),
          width: 0,
          paths: bars,
          points: { show: false },
        })),
      ],
      tip: at =>
        order
          .filter(i => series[i].values[at] > 0)
          .map(i => `${series[i].label}  ${number(series[i].values[at])}`),
    },
    data: [times, ...order.map(i => sums[i])],
  };
}

/** Calls `paint` with the element's width whenever that changes, and when the theme does. */
export function repaint(element, canvas, paint) {
  let width = 0;
  new ResizeObserver(([entry]) => {
    const now = Math.floor(entry.contentRect.width);
    if (!now || now === width) return;
    width = now;
    paint(width);
  }).observe(element);
  new MutationObserver(() => canvas.isConnected && width && paint(width)).observe(
    document.documentElement,
    { attributeFilter: ['data-theme'] },
  );
}
