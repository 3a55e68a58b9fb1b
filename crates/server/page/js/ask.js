// Ask: a query, its answer as table or plot, and questions to begin with.

import { download, save, sql, tables } from './api.js';
import { h, head, panel, segments } from './dom.js';
import { editor } from './editor.js';
import { duration, number } from './format.js';
import { picker } from './picker.js';
import { answerPlot } from './answer-plot.js';
import { address } from './route.js';
import { empty, failed } from './states.js';
import { columnsOf, table } from './table.js';

export const title = 'Ask';
/** Rows that the page takes, and that its table shows; a download has them all. */
const ROWS_MOST = 20_000;
const SHOWN_MOST = 1_000;
const FIRST = `SELECT team, sum(gpu_ms_held) / 3600000.0 AS gpu_hours
FROM usage_1d
GROUP BY team
ORDER BY gpu_hours DESC`;

export async function show(root, { params, signal, isFirst }) {
  const place = h('div', { class: 'editor' });
  const said = h('span', { class: 'dim', 'aria-live': 'polite' });
  const start = h(
    'button',
    { type: 'button', class: 'main', id: 'run', onclick: () => run() },
    'Run',
  );
  const stop = h(
    'button',
    { type: 'button', hidden: true, onclick: () => running?.abort() },
    'Cancel',
  );
  const share = h('button', { type: 'button', id: 'share', onclick: copy }, 'Copy link');
  const formats = ['csv', 'parquet', 'jsonl'].map(format =>
    h(
      'button',
      { type: 'button', 'data-format': format, onclick: event => get(format, event.currentTarget) },
      format === 'jsonl' ? 'JSONL' : format === 'csv' ? 'CSV' : 'Parquet',
    ),
  );
  const bar = h(
    'div',
    { class: 'bar' },
    start,
    stop,
    h('kbd', null, 'Ctrl Enter'),
    said,
    h('span', { class: 'push' }, share, formats),
  );
  const query = h('section', { class: 'panel', 'aria-label': 'Query' }, place, bar);
  const answer = panel('Answer', { flush: true });
  const questions = panel('Begin with', { flush: true });
  root.append(
    head('Ask', 'Any question of the tables, in SQL. Queries only read'),
    h(
      'div',
      { class: 'grid asking' },
      h('div', { class: 'stack' }, query, answer.element),
      questions.element,
    ),
  );

  let running;
  let rows = [];
  let look = params.get('view') === 'plot' ? 'plot' : 'table';
  const looks = segments(
    'Show as',
    [
      ['table', 'Table'],
      ['plot', 'Plot'],
    ],
    look,
    to => {
      look = to;
      drawn();
      keep();
    },
  );
  looks.hidden = true;
  answer.element.querySelector('header').append(looks);

  const described = tables();
  described.catch(() => {});
  const linked = params.get('sql');
  const edit = await editor(place, linked ?? FIRST, { described, run: () => run() });
  picker(
    questions,
    described,
    text => {
      edit.set(text);
      run();
    },
    signal,
  );

  function keep() {
    const now = new URLSearchParams({ sql: edit.text(), ...(look === 'plot' && { view: 'plot' }) });
    history.replaceState(null, '', address('ask', now));
  }

  function drawn() {
    if (!rows.length)
      return answer.body.replaceChildren(empty('No rows', 'The query ran, and nothing fits it.'));
    const shown = rows.slice(0, SHOWN_MOST);
    answer.body.replaceChildren(
      look === 'plot'
        ? answerPlot(rows)
        : table(columnsOf(shown), shown, { label: 'Answer', most: '70vh' }),
    );
  }

  async function run() {
    const text = edit.text();
    if (!text.trim()) return;
    running?.abort();
    const mine = new AbortController();
    running = mine;
    signal.addEventListener('abort', () => mine.abort(), { once: true });
    keep();
    const since = performance.now();
    const timer = watch('Running', since);
    answer.element.setAttribute('aria-busy', 'true');
    try {
      rows = await sql(text, { signal: mine.signal, most: ROWS_MOST });
      said.textContent = `${number(rows.length)} rows in ${duration(performance.now() - since)}${rows.length > SHOWN_MOST ? `, ${number(SHOWN_MOST)} in the table` : ''}`;
      looks.hidden = !rows.length;
      drawn();
    } catch (error) {
      if (running === mine) {
        said.textContent = error.name === 'AbortError' ? 'Cancelled' : '';
        if (error.name !== 'AbortError')
          answer.body.replaceChildren(failed(error, null, { isOwnQuery: true }));
        looks.hidden = true;
      }
    }
    clearInterval(timer);
    if (running === mine) {
      stop.hidden = true;
      answer.element.removeAttribute('aria-busy');
    }
  }

  /** Says after a moment how long it has taken, beside a button that ends it. */
  function watch(word, since) {
    return setInterval(() => {
      said.textContent = `${word}, ${duration(performance.now() - since)}`;
      stop.hidden = false;
    }, 500);
  }

  async function get(format, button) {
    running?.abort();
    const mine = new AbortController();
    running = mine;
    signal.addEventListener('abort', () => mine.abort(), { once: true });
    button.disabled = true;
    said.textContent = `Writing ${format}`;
    const timer = watch(`Writing ${format}`, performance.now());
    try {
      const blob = await download(edit.text(), format, { signal: mine.signal });
      save(blob, `tidegate.${format}`);
      said.textContent = `${number(blob.size)} bytes of ${format}`;
    } catch (error) {
      if (running === mine)
        said.textContent =
          error.name === 'AbortError'
            ? 'Cancelled'
            : [error.message, error.hint].filter(Boolean).join(' ');
    }
    clearInterval(timer);
    button.disabled = false;
    if (running === mine) stop.hidden = true;
  }

  async function copy() {
    keep();
    try {
      await navigator.clipboard.writeText(location.href);
      said.textContent = 'The link is copied; the query stands behind its #';
    } catch {
      said.textContent = 'The address above is the link';
    }
  }

  // A link from elsewhere runs nothing by itself: what is asked is recorded with who asks.
  if (linked !== null && isFirst)
    answer.body.replaceChildren(
      empty('This query came with a link', 'Read it, then run it with Ctrl Enter.'),
    );
  else await run();
}
