// The stream of what changed: which tables were committed anew, and who asks. `EventSource` sends
// no token, so the events are read from a response that goes on.

import { request } from './api.js';

const RETRY_MS = [1000, 2000, 5000, 15_000];

/** Calls `told(event, data)` for each event and `state(text, code)` when the connection changes,
 *  for as long as the page is visible: a browser grants few connections to all its tabs. */
export function follow(told, state) {
  let current;
  let failures = 0;
  let timer;

  async function connect() {
    if (current || document.hidden) return;
    current = new AbortController();
    const { signal } = current;
    try {
      const response = await request('/v1/changes', { accept: 'text/event-stream', signal });
      state('Live', 'live');
      for await (const { event, data } of events(response.body)) {
        failures = 0;
        told(event, JSON.parse(data));
      }
      failures = 0;
    } catch (error) {
      if (signal.aborted) return;
      failures += 1;
      state(
        error.status === 503 ? 'Refresh by hand' : error.status ? 'Not allowed' : 'Not connected',
        'late',
      );
    }
    current = undefined;
    timer = setTimeout(connect, RETRY_MS[Math.min(failures, RETRY_MS.length - 1)]);
  }

  function disconnect() {
    clearTimeout(timer);
    current?.abort();
    current = undefined;
  }

  document.addEventListener('visibilitychange', () => {
    disconnect();
    if (!document.hidden) connect();
  });
  connect();
  return {
    again: () => {
      disconnect();
      connect();
    },
  };
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    const blocks = text.split('\n\n');
    text = blocks.pop();
    for (const block of blocks) {
      const field = name =>
        block
          .split('\n')
          .find(line => line.startsWith(`${name}: `))
          ?.slice(name.length + 2);
      if (field('event')) yield { event: field('event'), data: field('data') ?? 'null' };
    }
  }
}
