// What a panel shows before, instead of and after its content.

import { OFFLINE, ServerError, keepToken } from './api.js';
import { h, prose } from './dom.js';

/** While a query runs: lines that stand for content, and after a while how long it has taken. */
export function loading(lines = 5) {
  const since = performance.now();
  const note = h('p', { 'aria-live': 'polite' });
  const element = h(
    'div',
    { class: 'skeleton', 'aria-busy': 'true' },
    Array.from({ length: lines }, () => h('i')),
    note,
  );
  const timer = setInterval(() => {
    if (!element.isConnected && performance.now() - since > 2000) clearInterval(timer);
    else note.textContent = `Still asking, ${Math.round((performance.now() - since) / 1000)} s`;
  }, 1500);
  return element;
}

/** Nothing is there: what is missing, and what brings it. */
export const empty = (title, text, ...more) =>
  h('div', { class: 'state' }, h('strong', null, title), text && h('p', null, prose(text)), more);

/** Something went wrong: what, and what to do. Pages ask only tables that are there: one that is not
 *  is one that this principal does not see. In a query that a person wrote it is a mistake. */
export function failed(error, again, { isOwnQuery = false } = {}) {
  if (error instanceof ServerError && error.status === 401) return denied(error);
  if (
    error instanceof ServerError &&
    (error.status === 403 || (error.code === 'unknown_table' && !isOwnQuery))
  )
    return forbidden(error);
  const isOffline = error.status === OFFLINE;
  return h(
    'div',
    { class: 'state error', role: 'alert' },
    h('strong', null, isOffline ? 'The server does not answer' : 'This could not be answered'),
    h('p', null, error.message),
    error.hint && h('p', null, error.hint),
    again && h('button', { type: 'button', onclick: again }, 'Try again'),
  );
}

function forbidden(error) {
  return h(
    'div',
    { class: 'state denied', role: 'alert' },
    h('strong', null, 'You may not see this'),
    h(
      'p',
      null,
      error.code === 'unknown_table'
        ? 'Your token shows the rows of your teams; this is about the whole cluster.'
        : error.message,
    ),
    h('p', null, prose('An administrator gives more with `tidegate token new`.')),
  );
}

function denied(error) {
  const input = h('input', {
    type: 'password',
    name: 'token',
    autocomplete: 'off',
    'aria-label': 'Token',
    placeholder: 'Token',
    required: true,
  });
  const enter = event => {
    event.preventDefault();
    keepToken(input.value);
    dispatchEvent(new CustomEvent('token'));
  };
  return h(
    'div',
    { class: 'state denied', role: 'alert' },
    h(
      'strong',
      null,
      sessionStorage.getItem('token')
        ? 'This token does not count here'
        : 'This server asks for a token',
    ),
    h('p', null, error.message),
    h('form', { onsubmit: enter }, input, h('button', { class: 'main' }, 'Enter')),
    h(
      'p',
      null,
      prose('It is kept for this tab alone. `tidegate token new --role viewer` makes one.'),
    ),
  );
}

/** Whether somebody is in it: with the keyboard, with the wheel, or in a list that they opened. */
const isInUse = body =>
  body.contains(document.activeElement) ||
  body.querySelector('details[open]') !== null ||
  [...body.querySelectorAll('.scroll')].some(one => one.scrollTop > 0);

/**
 * Fills a body with what `make` returns, with its states; a newer call wins over an older one. What
 * is there already stays until something newer is, and news (`isNews`) replace nothing that
 * somebody is in.
 */
export async function fill(body, make, { lines, signal, isNews = false } = {}) {
  const isShown = body.dataset.state === 'shown';
  if (isNews && isShown && isInUse(body)) return;
  const turn = (body.turn ?? 0) + 1;
  body.turn = turn;
  if (!isShown) body.replaceChildren(loading(lines));
  const isNewest = () => body.turn === turn && !signal?.aborted;
  try {
    const content = await make();
    if (!isNewest() || (isNews && isShown && isInUse(body))) return;
    body.replaceChildren(...[content].flat().filter(Boolean));
    body.dataset.state = 'shown';
  } catch (error) {
    if (error.name === 'AbortError' || !isNewest()) return;
    body.dataset.state = 'failed';
    body.replaceChildren(failed(error, () => fill(body, make, { lines, signal })));
    if (!(error instanceof ServerError)) throw error;
  }
}
