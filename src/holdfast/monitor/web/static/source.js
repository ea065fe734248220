// Where a page gets its data: from the server that runs here, or from the report it is part of.
"use strict";

hf.get = async (path, params) => {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(params || {})) [].concat(value).forEach((each) => each !== null && each !== undefined && query.append(key, each));
  const answer = await fetch(`${path}?${query}`, { credentials: "same-origin" });
  const data = answer.headers.get("content-type")?.includes("json") ? await answer.json() : {};
  if (!answer.ok) throw new Error(answer.status === 401 ? "the token is not valid any more: open the address that `holdfast watch --web` prints" : data.error || `the server answered with status ${answer.status}`);
  return data;
};

// What came with the page itself; once, because it grows old.
hf.first = () => {
  const node = document.getElementById("first-data");
  if (!node) return null;
  node.remove();
  return JSON.parse(node.textContent);
};

hf.LiveSource = class {
  constructor(id) { this.id = id; this.base = `/api/run/${encodeURIComponent(id)}`; this.live = true; }
  async whole() { return hf.first() || hf.get(this.base); }
  series(keys, options) { return hf.get(`${this.base}/series`, { key: keys, ...options }); }
  log(lines) { return hf.get(`${this.base}/log`, { lines }); }
  text(path) { return hf.get(`${this.base}/text`, { path }); }
  file(path) { return `${this.base}/file?path=${encodeURIComponent(path)}`; }
  async world() { return (await hf.get(`${this.base}/world`)).world; }
  picture(each) { return `${this.base}/picture?path=${encodeURIComponent(each.path)}&at=${each.time}`; }
  csv(names) { return `${this.base}/metrics.csv?${new URLSearchParams(names.map((name) => ["name", name]))}`; }
};

hf.ReportSource = class {
  constructor(data) { this.data = data; this.id = data.head.id; this.live = false; }
  async whole() { return this.data; }
  async series(keys, options) {
    const low = options.from ?? -Infinity, high = options.to ?? Infinity, by = options.by === "time" ? "t" : "x", found = {};
    for (const key of keys) {
      const all = this.data.series[key];
      if (!all) continue;
      const at = all[by] || all.t, first = Math.max(0, at.findIndex((x) => x >= low) - 1), after = at.findIndex((x) => x > high);
      const cut = (list) => (list ? list.slice(first, after < 0 ? undefined : after + 1) : null);
      found[key] = { t: cut(all.t), x: cut(all.x), y: cut(all.y), n: all.n };
    }
    return { series: found };
  }
  async log() { return { lines: this.data.log }; }
  async text(path) {
    const text = this.data.texts[path];
    if (text === undefined) throw new Error("this file is not part of the report; it is in the run folder");
    return { path, text, cut: false };
  }
  async world() { return this.data.world; }
  picture(each) { return this.data.pictures[each.path] || null; }
  file() { return null; }
  csv() { return null; }
};

// News from the server. The browser connects again by itself; meanwhile the page says that it is not live.
hf.news = (params, hear, state) => {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(params)) [].concat(value).forEach((each) => query.append(key, each));
  const stream = new EventSource(`/api/live?${query}`);
  for (const kind of ["run", "runs", "gone"]) stream.addEventListener(kind, (event) => hear(kind, JSON.parse(event.data)));
  stream.onopen = () => state(true);
  stream.onerror = () => state(false);
  addEventListener("pagehide", () => stream.close());
  return stream;
};
