// Questions with their queries, and tables with their columns, to begin with.

import { h, segments } from './dom.js';
import { empty, fill } from './states.js';

/** Lists questions and tables in a panel; `pick(sql)` takes the query of one. */
export function picker(place, described, pick, signal) {
  const search = h('input', {
    type: 'search',
    placeholder: 'Find a question, table or column',
    'aria-label': 'Find a question, table or column',
  });
  const list = h('div', {
    class: 'scroll picks',
    tabindex: '0',
    role: 'region',
    'aria-label': 'Questions and tables',
  });
  let kind = 'questions';
  const kinds = segments(
    'List',
    [
      ['questions', 'Questions'],
      ['tables', 'Tables'],
    ],
    kind,
    to => {
      kind = to;
      draw();
    },
  );
  place.element.querySelector('header').append(kinds);
  const draw = () =>
    fill(
      list,
      async () => {
        const { tables } = await described;
        const wanted = search.value.trim().toLowerCase();
        const has = text => text?.toLowerCase().includes(wanted);
        const rows =
          kind === 'questions'
            ? tables
                .filter(
                  table => table.question && (!wanted || has(table.question) || has(table.name)),
                )
                .map(table => question(table, pick))
            : tables
                .filter(
                  table =>
                    !wanted || has(table.name) || table.columns.some(column => has(column.name)),
                )
                .map(table => columns(table, wanted, pick));
        return rows.length
          ? h('ul', null, rows)
          : empty('Nothing fits', 'Neither a name nor a question has these letters.');
      },
      { lines: 10, signal },
    );
  search.addEventListener('input', draw);
  place.body.append(h('div', { class: 'pad' }, search), list);
  draw();
}

function question(table, pick) {
  const sql = lines(table.example ?? `SELECT * FROM ${table.name} LIMIT 100`);
  return h(
    'li',
    null,
    h(
      'button',
      { type: 'button', class: 'pick', onclick: () => pick(sql) },
      h('span', null, table.question),
      h('span', { class: 'mono faint' }, table.name),
    ),
  );
}

function columns(table, wanted, pick) {
  return h(
    'li',
    null,
    h(
      'details',
      { open: wanted !== '' && !table.name.includes(wanted) },
      h('summary', null, h('span', { class: 'mono' }, table.name)),
      h('p', { class: 'dim' }, table.doc),
      h(
        'button',
        {
          type: 'button',
          class: 'text',
          onclick: () => pick(`SELECT * FROM ${table.name} LIMIT 100`),
        },
        'Show its rows',
      ),
      h(
        'dl',
        { class: 'columns' },
        table.columns.map(column => [
          h(
            'dt',
            null,
            h('span', { class: 'mono' }, column.name),
            h('span', { class: 'faint' }, ` ${column.type}`),
          ),
          h('dd', { class: 'dim' }, column.doc),
        ]),
      ),
    ),
  );
}

/** A query with each of its main parts on a line of its own. */
const lines = sql =>
  [' FROM ', ' WHERE ', ' GROUP BY ', ' ORDER BY '].reduce(
    (text, begin) => text.replaceAll(begin, `\n${begin.slice(1)}`),
    sql,
  );
