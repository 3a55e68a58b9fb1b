// Keys: g and a letter opens a page, t switches the theme, / goes to the first field, ? lists them.

import { h } from './dom.js';
import { go } from './route.js';

const LETTERS = { m: 'money', n: 'now', j: 'job', p: 'autopilot', a: 'ask' };
const LIST = [
  ['g m', 'Money'],
  ['g n', 'Now'],
  ['g j', 'Jobs'],
  ['g p', 'Autopilot'],
  ['g a', 'Ask'],
  ['t', 'Light or dark'],
  ['/', 'To the search field or the query'],
  ['Ctrl Enter', 'Run the query'],
  ['?', 'This list'],
  ['Esc', 'Close'],
];

const isTyping = element =>
  element.closest('input, textarea, select, [contenteditable="true"], dialog');

export function keys({ toggle }) {
  let going = 0;
  document.addEventListener('keydown', event => {
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    const { key, timeStamp } = event;
    if (timeStamp - going < 1200 && LETTERS[key]) {
      going = 0;
      event.preventDefault();
      return go(LETTERS[key]);
    }
    going = key === 'g' ? timeStamp : 0;
    if (key === 't') toggle();
    if (key === '?') help();
    if (key === '/') {
      const field = document.querySelector('main input[type="search"], main .cm-content');
      if (field) event.preventDefault();
      field?.focus();
    }
  });
}

export function help() {
  const dialog = h(
    'dialog',
    { 'aria-label': 'Keys', onclose: () => dialog.remove() },
    h('h2', null, 'Keys'),
    h(
      'dl',
      null,
      LIST.map(([key, text]) => [
        h(
          'dt',
          null,
          key.split(' ').map(one => [h('kbd', null, one), ' ']),
        ),
        h('dd', null, text),
      ]),
    ),
    h('form', { method: 'dialog', class: 'actions' }, h('button', null, 'Close')),
  );
  document.body.append(dialog);
  dialog.showModal();
}
