// Asks a person once more, and for a reason, before the autopilot is told something.

import { approve, pause, reject, resume, statement } from './autopilot.js';
import { h } from './dom.js';

const ASKED = {
  approve: {
    title: row => `Approve ${row.action}?`,
    text: 'It begins at the next look, if the guard still allows it.',
    button: 'Approve',
    signs: 'tidegate-approve',
    send: (row, reason, signed) => approve(row.action, reason, signed),
  },
  reject: {
    title: row => `Reject ${row.action}?`,
    text: 'It is dropped, with your reason, and the like is refused for a day.',
    button: 'Reject',
    needsReason: true,
    send: (row, reason) => reject(row.action, reason),
  },
  pause: {
    title: () => 'Pause the autopilot?',
    text: 'It goes on watching and suggesting. Nothing begins, and nothing is undone; loans end by themselves.',
    button: 'Pause',
    needsReason: true,
    danger: true,
    send: (_, reason) => pause(reason),
  },
  resume: {
    title: () => 'Resume the autopilot?',
    text: 'It acts again as its policy says.',
    button: 'Resume',
    signs: 'tidegate-switch',
    send: (_, reason, signed) => resume(reason, signed),
  },
};

/**
 * Opens the question; `done` is called when the server has taken the answer. `mustSign`: the site
 * asks for a signature of what is approved or switched on.
 */
export async function confirm(what, done, { row, mustSign } = {}) {
  const { title, text, button, needsReason, danger, signs, send } = ASKED[what];
  const signing = mustSign && signs ? await toSign(signs, row) : null;
  const reason = h('textarea', {
    name: 'reason',
    'aria-label': 'Reason',
    placeholder: needsReason
      ? 'Why? It is recorded with your name'
      : 'A word for the record, if you like',
    required: needsReason,
    maxlength: '500',
  });
  const said = h('p', { class: 'bad', role: 'alert' });
  const act = h('button', { class: danger ? 'danger' : 'main' }, button);
  const answer = async event => {
    event.preventDefault();
    act.disabled = true;
    said.textContent = '';
    try {
      await send(row, reason.value.trim(), signing?.signed());
      dialog.close();
      done();
    } catch (error) {
      said.textContent = [error.message, error.hint].filter(Boolean).join(' ');
      act.disabled = false;
    }
  };
  const dialog = h(
    'dialog',
    { 'aria-label': title(row), onclose: () => dialog.remove() },
    h('h2', null, title(row)),
    h('p', { class: 'dim' }, text),
    h(
      'form',
      { onsubmit: answer },
      reason,
      signing?.fields,
      said,
      h(
        'div',
        { class: 'actions' },
        h('button', { type: 'button', onclick: () => dialog.close() }, 'Cancel'),
        act,
      ),
    ),
  );
  document.body.append(dialog);
  dialog.showModal();
}

/** The statement to sign, how, and where its signature goes. */
async function toSign(namespace, row) {
  const text = await statement(row?.action);
  const signature = h('textarea', {
    name: 'signature',
    'aria-label': 'Signature',
    placeholder: '-----BEGIN SSH SIGNATURE-----',
    required: true,
    maxlength: '8192',
  });
  const fields = [
    h('p', { class: 'dim' }, 'This site asks for a signature. Save this text as it is and sign it:'),
    h('pre', null, text),
    h('pre', null, `ssh-keygen -Y sign -n ${namespace} -f ~/.ssh/id_ed25519 FILE`),
    signature,
  ];
  return { fields, signed: () => ({ statement: text, signature: signature.value.trim() }) };
}
