// Elements from values. Text goes in as text: there is no way to markup from a string.

/** An element. Properties: `class`, `style` as an object, `on…` for listeners, `formula` for the
 *  text that explains a number, and attributes; null and false leave one out. */
export function h(name, properties, ...children) {
  const element = document.createElement(name);
  apply(element, properties ?? {});
  element.append(...nodes(children));
  return element;
}

/** An element of a drawing. */
export function svg(name, properties, ...children) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', name);
  apply(element, properties ?? {});
  element.append(...nodes(children));
  return element;
}

function apply(element, properties) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (name === 'style') {
      for (const [key, to] of Object.entries(value)) element.style.setProperty(key, to);
    } else if (name === 'formula') {
      element.dataset.formula = value;
      if (!element.hasAttribute('tabindex') && properties.focusable !== false) element.tabIndex = 0;
    } else if (name !== 'focusable') {
      element.setAttribute(name, value === true ? '' : value);
    }
  }
}

const nodes = children =>
  children.flat(Infinity).filter(child => child !== null && child !== undefined && child !== false);

/** A text in which `code` stands between backticks. */
export const prose = text =>
  text.split('`').map((part, i) => (i % 2 ? h('code', null, part) : part));

/** A panel: its element, and the body that content goes into. */
export function panel(title, { tools = [], flush = false, class: also = '' } = {}) {
  const body = h('div', { class: flush ? 'body flush' : 'body' });
  const element = h(
    'section',
    { class: `panel ${also}`, 'aria-label': title },
    h('header', null, h('h2', null, title), tools),
    body,
  );
  return { element, body };
}

/** A figure with its name, a line below it, and its formula. */
export const figure = (name, value, below, formula) =>
  h(
    'div',
    { class: 'figure' },
    h('dt', null, name),
    h('dd', null, h('span', { formula }, value)),
    h('dd', { class: 'below', title: below }, below),
  );

/** The head of a page: its question, a line below it, and tools. */
export function head(title, line, ...tools) {
  return h(
    'div',
    { class: 'head' },
    h('div', null, h('h1', null, title), h('p', null, line)),
    h('div', { class: 'tools' }, tools),
  );
}

/** Buttons of which one is pressed. `choices` are [value, label]. */
export function segments(label, choices, chosen, choose) {
  const group = h('div', { class: 'segments', role: 'group', 'aria-label': label });
  for (const [value, text] of choices) {
    group.append(
      h(
        'button',
        {
          type: 'button',
          'aria-pressed': String(value === chosen),
          'data-value': value,
          onclick: event => {
            for (const other of group.children)
              other.setAttribute('aria-pressed', String(other === event.currentTarget));
            choose(value);
          },
        },
        text,
      ),
    );
  }
  return group;
}

/** A select with a label. `choices` are [value, label]. */
export function select(label, choices, chosen, choose) {
  const box = h('select', { 'aria-label': label, onchange: event => choose(event.target.value) });
  for (const [value, text] of choices) {
    box.append(h('option', { value, selected: value === chosen }, text));
  }
  return box;
}

/** A state in a word, with a colour: good, warn, bad, tide, or none. */
export const badge = (text, tone = '') => h('span', { class: `badge ${tone}` }, text);

/** The key of a drawing: [colour variable, text]. */
export const legend = entries =>
  h(
    'ul',
    { class: 'legend' },
    entries.map(([color, text]) =>
      h('li', null, h('span', { class: 'swatch', style: { '--of': `var(${color})` } }), text),
    ),
  );
