// What people tell the autopilot: approve, reject, pause, resume. Every call to its routes is here.
// A server without an autopilot answers 404, and the buttons say so.

import { request, ServerError } from './api.js';

const ROUTES = '/v1/autopilot';

/**
 * What this reader may tell the autopilot, and how it stands:
 * `{ may: { approve, reject, pause, resume }, why, state }`.
 */
export async function control({ signal } = {}) {
  try {
    const response = await request(ROUTES, { signal });
    const state = await response.json();
    return { may: state.may, why: refused(state), state };
  } catch (error) {
    if (!(error instanceof ServerError)) throw error;
    if (error.status === 404) return nobody('No autopilot runs in this server.');
    if (error.status === 401) return nobody('This server asks for a token.');
    if (error.status === 403)
      return nobody('Your token does not let you see what the autopilot waits for.');
    return nobody(error.message);
  }
}

const nobody = why => ({ may: {}, why });

/** Why a reader who sees the state may not change it. */
function refused({ may, leads, leader }) {
  if (!may.approve && !may.pause)
    return 'An operator decides: `tidegate token new --role operator` makes a token for one.';
  if (leads === false)
    return `Another process acts${leader ? `: ${leader}` : ''}. Approve and reject there.`;
  return null;
}

const post = (path, body) =>
  request(`${ROUTES}/${path}`, { body: JSON.stringify(body), type: 'application/json' }).then(
    response => response.json(),
  );

const given = (why, signed) => ({ ...(why && { why }), ...signed });

/** Lets an action that waits for approval begin; `signed` is `{ statement, signature }`. */
export const approve = (action, why, signed) => post('approve', { action, ...given(why, signed) });

/** Drops it, and refuses the like for a day. */
export const reject = (action, why) => post('reject', { action, ...given(why) });

/** Nothing begins any more. */
export const pause = why => post('pause', given(why));

/** Takes that back. */
export const resume = (why, signed) => post('resume', given(why, signed));

/** The text that a person signs to approve an action, or to resume. */
export const statement = action =>
  request(
    `${ROUTES}/statement?${action ? `approve=${encodeURIComponent(action)}` : 'switch=on'}`,
  ).then(response => response.text());
