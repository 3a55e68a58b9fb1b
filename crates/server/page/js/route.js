// Addresses of pages: the part behind `#`. The server never sees it, so a link's query stays with
// those who have the link.

/** `#/page/part/…?name=value` as its parts. */
export function read(hash = location.hash) {
  const [path, query = ''] = hash.replace(/^#\/?/, '').split('?');
  const [page, ...parts] = path.split('/').map(part => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
  return { page: page || 'money', parts, params: new URLSearchParams(query) };
}

/** The address of a page. */
export function address(page, params, ...parts) {
  const query = params ? new URLSearchParams(params).toString() : '';
  return `#/${[page, ...parts].map(encodeURIComponent).join('/')}${query ? `?${query}` : ''}`;
}

export function go(page, params, ...parts) {
  location.hash = address(page, params, ...parts);
}

/** The address that opens a query in Ask. */
export const asking = sql => address('ask', { sql });

/** The address of a job. */
export const job = (cluster, id) => address('job', null, cluster ?? '', id);
