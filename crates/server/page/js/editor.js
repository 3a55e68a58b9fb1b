// The SQL editor: CodeMirror with the tables' names. It is loaded when Ask is opened first.

import { h } from './dom.js';

/** What the editor's parts look like; the colours are the page's. */
const LOOK = {
  '&': { fontSize: '13px', backgroundColor: 'var(--panel)', color: 'var(--ink)' },
  '&.cm-focused': { outline: 'none' },
  '.cm-content': {
    fontFamily: 'var(--mono)',
    padding: '10px 0',
    caretColor: 'var(--tide)',
    minHeight: '128px',
  },
  '.cm-gutters': {
    backgroundColor: 'transparent',
    color: 'var(--faint)',
    border: 'none',
    paddingLeft: '6px',
  },
  '.cm-activeLine': { backgroundColor: 'var(--hover)' },
  '.cm-activeLineGutter': { backgroundColor: 'transparent', color: 'var(--ink)' },
  '.cm-cursor': { borderLeftColor: 'var(--tide)', borderLeftWidth: '2px' },
  '&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground':
    { backgroundColor: 'var(--tide-soft)' },
  '.cm-matchingBracket': { backgroundColor: 'var(--tide-soft)', outline: '1px solid var(--tide)' },
  '.cm-tooltip': {
    backgroundColor: 'var(--raised)',
    border: '1px solid var(--line-strong)',
    borderRadius: '7px',
    boxShadow: 'var(--shadow)',
    overflow: 'hidden',
  },
  '.cm-tooltip.cm-tooltip-autocomplete > ul': {
    fontFamily: 'var(--mono)',
    fontSize: '12px',
    maxHeight: '260px',
  },
  '.cm-tooltip.cm-tooltip-autocomplete > ul > li': { padding: '3px 10px' },
  '.cm-tooltip.cm-tooltip-autocomplete > ul > li[aria-selected]': {
    backgroundColor: 'var(--tide)',
    color: 'var(--on-tide)',
  },
  '.cm-completionDetail': { color: 'var(--faint)', fontStyle: 'normal', marginLeft: '12px' },
  'li[aria-selected] .cm-completionDetail': { color: 'inherit' },
  '.cm-completionInfo': {
    padding: '8px 11px',
    maxWidth: '340px',
    fontFamily: 'var(--sans)',
    fontSize: '12px',
    color: 'var(--ink)',
  },
  '.cm-completionMatchedText': { textDecoration: 'none', fontWeight: '700' },
};

/** Types over a selection. Chromium's own way keeps the style of what goes in an inline style, which
 *  the page's policy refuses. */
function typedOver(event, view) {
  if (
    event.inputType !== 'insertText' ||
    !/^[\w ]$/.test(event.data ?? '') ||
    view.state.selection.main.empty
  )
    return false;
  view.dispatch(
    view.state.update(view.state.replaceSelection(event.data), {
      userEvent: 'input.type',
      scrollIntoView: true,
    }),
  );
  event.preventDefault();
  return true;
}

/** An editor in `place`; `run` is called on Ctrl+Enter. */
export async function editor(place, text, { described, run }) {
  const cm = await import('../vendor/codemirror.js');
  const { tags } = cm;
  const colors = cm.HighlightStyle.define([
    { tag: [tags.keyword, tags.operatorKeyword], color: 'var(--tide)', fontWeight: '600' },
    { tag: [tags.string, tags.special(tags.string)], color: 'var(--good)' },
    { tag: [tags.number, tags.bool, tags.null], color: 'var(--warn)' },
    { tag: [tags.lineComment, tags.blockComment], color: 'var(--faint)', fontStyle: 'italic' },
    { tag: tags.typeName, color: 'var(--c-unusable)' },
  ]);
  const language = new cm.Compartment();
  const view = new cm.EditorView({
    parent: place,
    doc: text,
    extensions: [
      cm.EditorView.cspNonce.of(document.querySelector('script[nonce]').nonce),
      cm.lineNumbers(),
      cm.history(),
      cm.drawSelection(),
      cm.bracketMatching(),
      cm.closeBrackets(),
      cm.highlightActiveLine(),
      cm.syntaxHighlighting(colors),
      cm.EditorView.theme(LOOK),
      cm.EditorView.lineWrapping,
      cm.placeholder('SELECT … FROM …'),
      cm.EditorView.contentAttributes.of({
        'aria-label': 'SQL. Ctrl Enter runs it; Escape, then Tab, leaves it',
      }),
      cm.EditorView.domEventHandlers({ beforeinput: typedOver }),
      cm.autocompletion({ icons: false }),
      language.of(cm.sql({ dialect: cm.PostgreSQL })),
      cm.keymap.of([
        {
          key: 'Mod-Enter',
          run: () => {
            run();
            return true;
          },
        },
        ...cm.closeBracketsKeymap,
        ...cm.completionKeymap,
        ...cm.historyKeymap,
        ...cm.defaultKeymap,
      ]),
    ],
  });
  described.then(
    ({ tables, functions }) => {
      const schema = Object.fromEntries(
        tables.map(table => [
          table.name,
          {
            self: {
              label: table.name,
              type: 'class',
              detail: 'table',
              info: () => h('div', null, table.doc),
            },
            children: table.columns.map(column => ({
              label: column.name,
              type: 'property',
              detail: column.type,
              info: () => h('div', null, column.doc),
            })),
          },
        ]),
      );
      const named = functions.map(one => ({
        label: one.name,
        type: 'function',
        detail: one.usage,
        info: () => h('div', null, one.doc),
        apply: `${one.name}(`,
      }));
      const support = cm.sql({ dialect: cm.PostgreSQL, schema, upperCaseKeywords: true });
      const ours = cm.PostgreSQL.language.data.of({
        autocomplete: context => {
          const word = context.matchBefore(/\w+/);
          return word ? { from: word.from, options: named } : null;
        },
      });
      view.dispatch({ effects: language.reconfigure([support, ours]) });
    },
    () => {},
  );
  return {
    text: () => view.state.doc.toString(),
    set: to =>
      view.dispatch({
        changes: { from: 0, to: view.state.doc.length, insert: to },
        selection: { anchor: to.length },
      }),
    focus: () => view.focus(),
  };
}
