// Requests to the server of this page, with its key if it needs one, and feeds of growing files.

const KEY = "marl_jax key";
let waiting = null;

async function request(path, options = {}) {
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
    const response = await fetch(`api/${path}`, { ...options, headers, cache: "no-store" });
    if (response.status === 401) { await askForKey(); continue; }
    let value = null;
    try { value = await response.json(); } catch { /* not JSON: a proxy, or the server is gone */ }
    if (!response.ok) throw new Error(value?.error?.message ?? `the server returned status ${response.status}`);
    return value;
  }
}

/** Send a GET request with query parameters. */
export const get = (path, query = {}) => request(`${path}?${new URLSearchParams(query)}`);

/** Send a POST request with a JSON object. */
export const post = (path, body) =>
  request(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });

function askForKey() {
  waiting ??= new Promise((done) => {
    const form = document.getElementById("key");
    form.hidden = false;
    form.onsubmit = (event) => {
      event.preventDefault();
      sessionStorage.setItem(KEY, form.querySelector("input").value);
      form.hidden = true;
      waiting = null;
      done();
    };
  });
  return waiting;
}

/** The rows of a run's file; `update` fetches new rows and returns whether anything changed. */
export class Feed {
  constructor(run, file, brief = false) {
    Object.assign(this, { run, file, brief, rows: [], offset: 0, mark: "", busy: false });
  }

  async update() {
    if (this.busy) return false;
    this.busy = true;
    try {
      let changed = false, more = true;
      while (more) {
        const query = { run: this.run, file: this.file, after: this.offset, mark: this.mark };
        const found = await get("rows", this.brief ? { ...query, brief: 1 } : query);
        if (found.restarted) this.rows = [];
        for (const row of found.rows) this.rows.push(row);
        changed ||= found.restarted || found.rows.length > 0;
        ({ offset: this.offset, mark: this.mark, more } = found);
      }
      return changed;
    } finally {
      this.busy = false;
    }
  }
}
