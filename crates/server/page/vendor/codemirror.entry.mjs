// What the page's editor uses of CodeMirror; build.sh bundles it into codemirror.js.
export { Compartment } from '@codemirror/state';
export {
  EditorView, keymap, placeholder, drawSelection, highlightActiveLine, lineNumbers,
} from '@codemirror/view';
export { defaultKeymap, history, historyKeymap } from '@codemirror/commands';
export {
  autocompletion, closeBrackets, closeBracketsKeymap, completionKeymap,
} from '@codemirror/autocomplete';
export { bracketMatching, HighlightStyle, syntaxHighlighting } from '@codemirror/language';
export { PostgreSQL, sql } from '@codemirror/lang-sql';
export { tags } from '@lezer/highlight';
