// The server: queries, tables, and who asks. A token is kept for this tab alone.

let running = 0;
let slow;
const progress = document.getElementById('progress');

/** A refusal or failure as the server states it. */
export class ServerError extends Error {
  constructor(status, { code, message, hint } = {}) {
    super(message ?? `the server answered ${status}`);
    Object.assign(this, { status, code: code ?? String(status), hint });
  }
}

/** The status of an error without an answer. */
export const OFFLINE = 0;

/** Sends a request with the token of this tab. Throws `ServerError`. */
export async function request(
  path,
  { body, type, accept = 'application/json', method, signal } = {},
) {
  const token = sessionStorage.getItem('token');
  const headers = {
    accept,
    ...(type && { 'content-type': type }),
    ...(token && { authorization: `Bearer ${token}` }),
  };
  begin();
  try {
    const response = await fetch(path, {
      method: method ?? (body === undefined ? 'GET' : 'POST'),
      headers,
      body,
      signal,
    });
    if (response.ok) return response;
    const told = await response.json().catch(() => ({}));
    throw new ServerError(response.status, told);
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
    throw new ServerError(OFFLINE, {
      code: 'offline',
      message: 'It may have stopped, or the network is away.',
    });
  } finally {
    end();
  }
}

function begin() {
  running += 1;
  slow ??= setTimeout(() => {
    progress.hidden = false;
  }, 250);
}

function end() {
  running -= 1;
  if (running > 0) return;
  clearTimeout(slow);
  slow = undefined;
  progress.hidden = true;
}

/** Keeps a token, or drops it. */
export function keepToken(token) {
  if (token) sessionStorage.setItem('token', token.trim());
  else sessionStorage.removeItem('token');
}

/** Queries of a page at a time: a small server has two workers, and memory for as many. */
const AT_ONCE = 3;
let asking = 0;
const waiting = [];

/** The rows of a query, as objects; an error if there are more than `most`. */
export async function sql(text, { signal, most } = {}) {
  if (asking >= AT_ONCE) await new Promise(resolve => waiting.push(resolve));
  asking += 1;
  try {
    signal?.throwIfAborted();
    const body = JSON.stringify({ sql: text, ...(most && { max_rows: most }) });
    const response = await request('/v1/sql', { body, type: 'application/json', signal });
    return parsed(await response.text());
  } finally {
    asking -= 1;
    waiting.shift()?.();
  }
}

/** The rows of a query; none if its table is not one that this reader sees. */
export const visible = (text, options) =>
  sql(text, options).catch(error => {
    if (error.code === 'unknown_table') return [];
    throw error;
  });

/** Rows from JSON; whole numbers that a float does not hold stay exact where the browser can. */
function parsed(text) {
  if (!/\d{16}/.test(text)) return JSON.parse(text);
  const isCut = value => Number.isInteger(value) && !Number.isSafeInteger(value);
  return JSON.parse(text, (_, value, context) =>
    isCut(value) && /^-?\d+$/.test(context?.source ?? '') ? BigInt(context.source) : value,
  );
}

/** The bytes of a query's answer in another format: csv, jsonl, arrow, parquet. */
export async function download(text, format, { signal } = {}) {
  const body = JSON.stringify({ sql: text, format });
  const response = await request('/v1/sql', {
    body,
    type: 'application/json',
    accept: '*/*',
    signal,
  });
  return response.blob();
}

let described;

/** Tables with columns, questions and examples; functions. Asked once. */
export function tables() {
  described ??= request('/v1/tables')
    .then(response => response.json())
    .catch(error => {
      described = undefined;
      throw error;
    });
  return described;
}

/** Hands a file to the browser. */
export function save(blob, name) {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
