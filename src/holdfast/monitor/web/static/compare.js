// Several runs in one picture: curves over each other, what differs between them, faults side by side.
"use strict";

hf.ComparePage = class {
  constructor(ids) { this.ids = ids; this.view = new hf.View(); this.charts = new Map(); this.most = 6; }

  async start(main) {
    document.title = "compare · holdfast";
    this.status = hf.h("span", { class: "status", role: "status" });
    hf.header([["runs", "/"], ["compare", null]], this.status);
    this.lead = hf.h("h1", { class: "sentence" });
    this.legend = hf.h("div", { class: "legend big" });
    this.grid = hf.h("div", { class: "charts" });
    this.pick = hf.h("select", { "aria-label": "add a metric", onchange: () => { this.chosen.push(this.pick.value); this.load(); } });
    this.tables = hf.h("div");
    const charts = hf.card("charts", "Charts", this.legend, this.grid);
    const button = (label, title, on, act) => { const node = hf.h("button", { type: "button", title, onclick: () => { act(); node.setAttribute("aria-pressed", String(on())); } }, label); node.setAttribute("aria-pressed", String(on())); return node; };
    hf.fill(charts.querySelector(".more"), "x axis in steps", this.pick,
      button("log", "logarithmic y axis (y)", () => this.view.log, () => this.view.set({ log: !this.view.log })),
      button("smooth", "smooth the lines (s)", () => this.view.smooth > 0, () => this.view.set({ smooth: this.view.smooth ? 0 : 0.9 })));
    hf.fill(main, hf.h("section", { class: "lead" }, this.lead), charts, this.tables);
    hf.key("y", "logarithmic y axis", () => this.view.set({ log: !this.view.log }));
    hf.key("s", "smooth the lines", () => this.view.set({ smooth: this.view.smooth ? 0 : 0.9 }));
    hf.key("0", "zoom out", () => this.view.set({ range: null }));
    hf.key("r", "go to the list of runs", () => { location.href = "/"; });
    await this.load();
    this.later = hf.throttle(() => this.load(), 900);
    hf.news({ run: this.ids }, () => this.later(), (on) => { hf.text(this.status, on ? "live" : "the monitor does not answer"); this.status.className = on ? "status live" : "status old"; });
    document.body.dataset.ready = "yes";
  }

  async load() {
    if (!this.chosen) {
      const first = await hf.get("/api/compare", { run: this.ids });
      this.chosen = first.metrics.slice(0, this.most);
    }
    const data = await hf.get("/api/compare", { run: this.ids, key: this.chosen.map((name) => `m:${name}`), points: this.ids.length > 8 ? 400 : 800 });
    this.draw(data);
  }

  draw(data) {
    const { runs } = data;
    hf.text(this.lead, this.sentence(data));
    hf.fill(this.legend, runs.map((run, i) => hf.h("a", { href: `/r/${encodeURIComponent(run.id)}` }, hf.swatch(hf.look(i)), hf.h("span", { class: "label" }, run.run), " ", hf.badge(run.state))));
    const rest = data.metrics.filter((name) => !this.chosen.includes(name));
    hf.fill(this.pick, hf.h("option", { value: "" }, "add a chart"), rest.map((name) => hf.h("option", { value: name }, name)));
    this.pick.hidden = !rest.length;
    for (const name of this.chosen) {
      if (!this.charts.has(name)) {
        const chart = new hf.Chart(this.view, { title: name, name: "compare", height: 230, quiet: runs.length > 6 });
        this.charts.set(name, chart);
        this.grid.append(chart.node);
      }
      const lines = runs.map((run, i) => ({ key: run.id, label: run.run, look: hf.look(i), ...(data.series[run.id]?.[`m:${name}`] || { t: [], x: [], y: [] }) }));
      this.charts.get(name).put(lines.filter((line) => line.y.length));
    }
    const key = JSON.stringify([runs, data.differs]);
    if (key !== this.tableKey) { this.tableKey = key; hf.fill(this.tables, this.side(runs), this.differs(data), this.faults(data)); }
  }

  sentence({ runs, differs, same_seed }) {
    if (runs.length < 2) return runs.length ? "Only one run is chosen. Choose another one to compare it with." : "None of these runs was found.";
    const what = `${runs.length} runs`;
    const equal = same_seed && runs.every((run) => run.weights_sha256 && run.weights_sha256 === runs[0].weights_sha256);
    if (equal) return `${what} of the same script with the same seed. Their weights are identical, bit for bit.`;
    if (same_seed) return `${what} of the same script with the same seed. They differ in where they ran and in what happened to them.`;
    return differs.length ? `${what} with ${hf.counted(differs.length, "difference")} in script, arguments, seed or settings.` : `${what} with the same script, arguments, seed and settings.`;
  }

  table(title, id, runs, rows) {
    return hf.card(id, title, hf.h("div", { class: "scroll" }, hf.h("table", { class: `list matrix${runs.length < 5 ? " even" : ""}` }, hf.h("thead", {}, hf.h("tr", {}, hf.h("th"), runs.map((run, i) => hf.h("th", { scope: "col" }, hf.swatch(hf.look(i)), " ", run.run)))),
      hf.h("tbody", {}, rows.map(([name, values]) => hf.h("tr", {}, hf.h("th", { scope: "row" }, name), values.map((value) => hf.h("td", {}, value ?? "-"))))))));
  }

  side(runs) {
    const names = [...new Set(runs.flatMap((run) => Object.keys(run.last)))].slice(0, 12);
    return this.table("Side by side", "side", runs, [
      ["state", runs.map((run) => hf.badge(run.state))], ["device", runs.map((run) => run.devices.join(", then "))], ["step", runs.map((run) => hf.count(run.step))], ["time", runs.map((run) => hf.duration(run.lasted_s))],
      ["best", runs.map((run) => (run.best ? `${run.best.name} ${hf.metric(run.best.value)}` : "-"))], ...names.map((name) => [name, runs.map((run) => hf.metric(run.last[name]))]),
      ["weights", runs.map((run) => (run.weights_sha256 ? hf.h("code", {}, String(run.weights_sha256).slice(0, 12)) : "-"))]]);
  }

  differs({ runs, differs }) {
    if (!differs.length) return hf.card("differs", "Differences", hf.h("p", { class: "muted" }, "Script, arguments, seed and settings are the same."));
    return this.table("Differences", "differs", runs, differs.map((row) => [row.key, row.values]));
  }

  faults({ runs, faults }) {
    if (!faults.length) return hf.card("faults", "Faults", hf.h("p", { class: "muted" }, "None of these runs had a fault."));
    return this.table("Faults", "faults", runs, [...faults.map((kind) => [kind.replaceAll("_", " "), runs.map((run) => hf.count(run.faults_by[kind] || 0))]), ["time lost", runs.map((run) => hf.duration(run.seconds_lost))]]);
  }
};
