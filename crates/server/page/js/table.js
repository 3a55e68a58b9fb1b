// Rows as a table: aligned by type, with a formula for each column, sorted by a click.

import { h } from './dom.js';
import { exact } from './format.js';

/**
 * Columns are `{ name, formula?, numeric?, text?(row), show?(row), sort?(row), long? }`: `text` or
 * `show` make the cell, `sort` is what to sort by. `pick(row)` makes rows open something.
 */
export function table(columns, rows, { pick, label, most } = {}) {
  const body = h('tbody');
  const element = h('table', { 'aria-label': label }, h('thead', null, h('tr')), body);
  const order = { column: null, down: true };

  function fill() {
    const sorted = order.column
      ? [...rows].sort((a, b) => compare(order.column.sort(a), order.column.sort(b), order.down))
      : rows;
    body.replaceChildren(...sorted.map(row => line(columns, row, pick)));
  }

  for (const column of columns) {
    const cell = h('th', {
      class: column.numeric ? 'n' : null,
      scope: 'col',
      formula: column.formula,
      focusable: false,
    });
    cell.removeAttribute('tabindex');
    const title = column.formula ? h('span', { class: 'tipped' }, column.name) : column.name;
    cell.append(
      column.sort
        ? h(
            'button',
            {
              type: 'button',
              onclick: () => {
                order.down = order.column === column ? !order.down : true;
                order.column = column;
                for (const other of cell.parentElement.cells) other.removeAttribute('aria-sort');
                cell.setAttribute('aria-sort', order.down ? 'descending' : 'ascending');
                fill();
              },
            },
            title,
          )
        : title,
    );
    element.tHead.rows[0].append(cell);
  }
  fill();
  return h(
    'div',
    {
      class: 'scroll',
      style: most ? { '--most': most } : null,
      tabindex: most ? '0' : null,
      role: most ? 'region' : null,
      'aria-label': most ? `${label}: rows` : null,
    },
    element,
  );
}

function line(columns, row, pick) {
  const open =
    pick &&
    (event => {
      if (!event.target.closest('a, button')) pick(row, event.currentTarget);
    });
  const element = h(
    'tr',
    pick && {
      tabindex: '0',
      onclick: open,
      style: { cursor: 'pointer' },
      onkeydown: event => {
        if (event.key === 'Enter' && event.target === event.currentTarget) open(event);
      },
    },
  );
  for (const column of columns) {
    const content = column.show ? column.show(row) : column.text(row);
    const isNone = content === null || content === undefined || content === '';
    element.append(
      h(
        'td',
        { class: [column.numeric && 'n', column.long && 'long'].filter(Boolean).join(' ') || null },
        isNone ? h('span', { class: 'null' }, '–') : content,
      ),
    );
  }
  return element;
}

function compare(a, b, down) {
  const isNone = value => value === null || value === undefined;
  if (isNone(a) || isNone(b)) return isNone(a) - isNone(b);
  const order = a < b ? -1 : a > b ? 1 : 0;
  return down ? -order : order;
}

const isNumber = value => typeof value === 'number' || typeof value === 'bigint';

/** Columns for any rows of a query, as they came. */
export function columnsOf(rows) {
  const names = rows.length ? Object.keys(rows[0]) : [];
  return names.map(name => {
    const values = rows.map(row => row[name]);
    const numeric =
      values.some(isNumber) && values.every(value => value === null || isNumber(value));
    const text = row => {
      const value = row[name];
      if (value === null || value === undefined) return null;
      if (numeric) return exact(value);
      if (typeof value === 'object') return JSON.stringify(value);
      return value === '' ? '(empty)' : String(value);
    };
    return {
      name,
      numeric,
      text,
      sort: row => row[name],
      long: values.some(value => typeof value === 'string' && value.length > 60),
    };
  });
}
