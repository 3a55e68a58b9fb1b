// Starts the page: navigation, the page that the address names, keys, theme, and news of changes.

import { OFFLINE, ServerError } from './api.js';
import { h, svg } from './dom.js';
import { redraw } from './charts.js';
import { follow } from './changes.js';
import { help, keys } from './keys.js';
import { read } from './route.js';
import { failed } from './states.js';
import * as tips from './tips.js';

const PAGES = {
  money: { label: 'Money', icon: 'M3 4h18M3 9h13M3 14h9M3 19h6', load: () => import('./money.js') },
  now: {
    label: 'Now',
    icon: 'M4 4h6v6H4zM14 4h6v6h-6zM4 14h6v6H4zM14 14h6v6h-6z',
    load: () => import('./now.js'),
  },
  job: { label: 'Jobs', icon: 'M4 6h9M8 12h12M4 18h7', load: () => import('./jobs.js') },
  autopilot: {
    label: 'Autopilot',
    icon: 'M12 3a9 9 0 1 0 9 9M12 12l6-6M12 7a5 5 0 1 0 5 5',
    load: () => import('./decisions.js'),
  },
  ask: { label: 'Ask', icon: 'M4 5l6 7-6 7M12 19h8', load: () => import('./ask.js') },
};
/** Pages are not asked anew more often, whatever is committed. */
const REFRESH_MS = 10_000;

const main = document.getElementById('main');
const live = document.getElementById('live');
let shown;

function navigation() {
  const icon = path =>
    svg(
      'svg',
      { viewBox: '0 0 24 24', width: 16, height: 16, 'aria-hidden': 'true' },
      svg('path', {
        d: path,
        fill: 'none',
        stroke: 'currentColor',
        'stroke-width': 2,
        'stroke-linecap': 'round',
        'stroke-linejoin': 'round',
      }),
    );
  document
    .getElementById('nav')
    .append(
      ...Object.entries(PAGES).map(([name, { label, icon: path }]) =>
        h('a', { href: `#/${name}`, 'data-page': name }, icon(path), label),
      ),
    );
}

async function open() {
  const { page, parts, params } = read();
  const found = PAGES[page] ?? PAGES.money;
  shown?.ends.abort();
  const ends = new AbortController();
  const mine = { ends, page, refreshed: performance.now() };
  const isSamePage = shown?.page === page;
  const isFirst = shown === undefined;
  shown = mine;
  for (const link of document.querySelectorAll('#nav a')) {
    if (link.dataset.page === page) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  const module = await found.load().catch(() => null);
  if (ends.signal.aborted) return;
  if (!module) {
    // A module that did not load is not asked for again by a browser: the page starts anew.
    const gone = new ServerError(OFFLINE, {
      message: 'It may have stopped, or be another version now.',
    });
    return main.replaceChildren(
      h(
        'div',
        { class: 'page' },
        failed(gone, () => location.reload()),
      ),
    );
  }
  tips.hide();
  document.title = `${module.title} · Tidegate`;
  const root = h('div', { class: `page ${page}` });
  main.replaceChildren(root);
  if (!isSamePage) scrollTo(0, 0);
  try {
    const showing = module.show(root, { params, parts, signal: ends.signal, isFirst });
    // What is drawn now answers clicks and keys; numbers come as queries are answered.
    if (isFirst) performance.mark('interactive');
    Object.assign(mine, await showing);
    root.dataset.state = 'shown';
    // The other pages are there when they are wanted.
    if (isFirst) for (const one of Object.values(PAGES)) one.load().catch(() => {});
  } catch (error) {
    if (error.name !== 'AbortError') throw error;
  }
}

/** Asks a page's queries again, once what is committed is new and the page is not busy. */
async function refresh() {
  const mine = shown;
  const due = mine.refreshed + (mine.every ?? REFRESH_MS);
  if (!mine.refresh || mine.waits) return;
  mine.waits = true;
  await new Promise(resolve => setTimeout(resolve, Math.max(0, due - performance.now())));
  mine.waits = false;
  if (mine !== shown || document.hidden) return;
  mine.refreshed = performance.now();
  await mine.refresh({ isNews: true });
}

function told(event, data) {
  if (event === 'principal') {
    live.title = `Signed in as ${data.principal}, ${data.role}`;
    live.textContent = data.role === 'local' ? 'Live' : `Live, ${data.principal}`;
    live.dataset.state = 'live';
  }
  if (event === 'tables') refresh();
}

function themes() {
  const button = document.getElementById('theme');
  const system = matchMedia('(prefers-color-scheme: dark)');
  const current = () =>
    document.documentElement.dataset.theme ?? (system.matches ? 'dark' : 'light');
  const name = () =>
    button.replaceChildren(
      h('span', null, current() === 'dark' ? 'Dark' : 'Light'),
      svg(
        'svg',
        { viewBox: '0 0 16 16', width: 14, height: 14, 'aria-hidden': 'true' },
        svg('path', { d: 'M8 1.5a6.5 6.5 0 0 1 0 13z', fill: 'currentColor' }),
        svg('circle', {
          cx: 8,
          cy: 8,
          r: 6.5,
          fill: 'none',
          stroke: 'currentColor',
          'stroke-width': 1.5,
        }),
      ),
    );
  const change = () => {
    name();
    redraw();
  };
  const toggle = () => {
    const next = current() === 'dark' ? 'light' : 'dark';
    document.documentElement.dataset.theme = next;
    try {
      localStorage.setItem('theme', next);
    } catch {
      // It lasts as long as the page, then.
    }
    change();
  };
  button.setAttribute('aria-label', 'Switch between light and dark');
  button.addEventListener('click', toggle);
  system.addEventListener('change', change);
  name();
  return toggle;
}

navigation();
tips.start();
const toggle = themes();
keys({ toggle });
document.getElementById('keys').addEventListener('click', help);
addEventListener('hashchange', open);
const stream = follow(told, (text, state) => {
  live.textContent = text;
  live.dataset.state = state;
});
addEventListener('token', () => {
  stream.again();
  open();
});
open();
