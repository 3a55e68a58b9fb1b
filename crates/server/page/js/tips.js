// What a number means, shown on hover and focus: its formula. A cell of a table without a formula
// of its own has its column's.

const tip = document.getElementById('tip');
let shown;

function formulaOf(target) {
  const own = target.closest?.('[data-formula]');
  if (own) return [own, own.dataset.formula];
  const cell = target.closest?.('td, tbody th');
  const column = cell?.closest('table')?.tHead?.rows[0]?.cells[cell.cellIndex];
  return column?.dataset.formula ? [cell, column.dataset.formula] : [];
}

/** Shows a text at a place; used by canvases, which have no elements to hover. */
export function showAt(text, x, y) {
  tip.textContent = text;
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = Math.min(Math.max(8, x - width / 2), innerWidth - width - 8);
  const above = y - height - 12;
  tip.style.left = `${left}px`;
  tip.style.top = `${above > 8 ? above : y + 18}px`;
}

export function hide() {
  tip.hidden = true;
  shown?.removeAttribute('aria-describedby');
  shown = undefined;
}

function show(target) {
  const [element, text] = formulaOf(target);
  if (!element) return hide();
  if (element === shown) return;
  hide();
  shown = element;
  const { left, top, width } = element.getBoundingClientRect();
  showAt(text, left + width / 2, top);
  element.setAttribute('aria-describedby', 'tip');
}

export function start() {
  document.addEventListener('mouseover', event => show(event.target));
  document.addEventListener('focusin', event => show(event.target));
  document.addEventListener('focusout', hide);
  document.addEventListener('scroll', hide, true);
  document.addEventListener('keydown', event => {
    if (event.key === 'Escape') hide();
  });
}
