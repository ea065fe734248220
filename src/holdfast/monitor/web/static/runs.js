// The list of runs: filter, choose, compare.
"use strict";

hf.RunsPage = class {
  constructor() { this.chosen = new Set(); this.rows = []; this.at = -1; }

  async start(main) {
    document.title = "runs · holdfast";
    this.status = hf.h("span", { class: "status", role: "status" });
    hf.header([["runs", null]], this.status);
    this.filter = hf.h("input", { type: "search", placeholder: "filter (/)", "aria-label": "filter the runs", oninput: () => this.draw() });
    this.button = hf.h("button", { type: "button", class: "main", disabled: true, title: "choose two or more runs, then compare them (c)", onclick: () => this.compare() }, "compare");
    this.body = hf.h("tbody");
    this.empty = hf.h("p", { class: "muted" });
    const names = ["", "run", "state", "progress", "time left", "device", "best", "faults", "created"];
    this.names = names;
    this.list = hf.h("div", { class: "scroll" }, hf.h("table", { class: "list runs" }, hf.h("thead", {}, hf.h("tr", {}, names.map((name) => hf.h(name ? "th" : "td", name ? { scope: "col", class: name === "time left" ? "number" : null } : {}, name)))), this.body));
    const card = hf.card("runs", "Runs", this.list, this.empty);
    hf.fill(card.querySelector(".more"), this.filter, this.button);
    hf.fill(main, card);
    const data = hf.first() || (await hf.get("/api/runs"));
    this.folder = data.folder;
    this.put(data);
    hf.news({ list: 1 }, (kind, news) => kind === "runs" && this.put(news), (on) => { hf.text(this.status, on ? "live" : "the monitor does not answer"); this.status.className = on ? "status live" : "status old"; });
    hf.key("/", "filter the runs", () => this.filter.focus());
    hf.key(["j", "ArrowDown"], "go to the next run", () => this.move(1));
    hf.key(["k", "ArrowUp"], "go to the previous run", () => this.move(-1));
    hf.key("Enter", "open the run", () => { const row = this.shown()[this.at]; if (!row) return false; location.href = this.href(row); });
    hf.key(" ", "choose the run for comparison", () => { const row = this.shown()[this.at]; if (!row) return false; this.choose(row.id, !this.chosen.has(row.id)); });
    hf.key("c", "compare the chosen runs", () => this.compare());
    document.body.dataset.ready = "yes";
  }

  href(row) { return `/r/${encodeURIComponent(row.id)}`; }
  put(data) { this.rows = data.runs; this.leftOut = data.left_out || 0; this.draw(); }
  shown() {
    const wanted = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    return this.rows.filter((row) => wanted.every((word) => `${row.run} ${row.workload} ${row.state} ${row.device} ${row.id}`.toLowerCase().includes(word)));
  }
  move(way) { this.at = Math.max(0, Math.min(this.shown().length - 1, this.at + way)); this.draw(); this.body.rows[this.at]?.scrollIntoView({ block: "nearest" }); }
  choose(id, on) { if (on) this.chosen.add(id); else this.chosen.delete(id); this.draw(); }
  compare() { if (this.chosen.size > 1) location.href = `/compare?runs=${[...this.chosen].map(encodeURIComponent).join(",")}`; }

  // What is said below the list, or in its place.
  note(rows) {
    if (!this.rows.length) return [`There are no runs in ${this.folder || "this folder"} yet. To start one: `, hf.h("code", {}, "holdfast train my_script.py")];
    const found = rows.length ? [] : [this.leftOut ? "No run of this list contains this text. " : "No run contains this text."];
    const cut = `The list shows the newest ${hf.count(this.rows.length)} of ${hf.count(this.rows.length + this.leftOut)} runs. To open an older one, put its name behind `;
    return this.leftOut ? [...found, cut, hf.h("code", {}, `${location.origin}/r/`)] : found;
  }

  draw() {
    const rows = this.shown();
    this.button.disabled = this.chosen.size < 2;
    hf.text(this.button, this.chosen.size > 1 ? `compare ${this.chosen.size}` : "compare");
    this.list.hidden = !rows.length;
    this.filter.hidden = this.button.hidden = !this.rows.length;
    hf.fill(this.empty, ...this.note(rows));
    this.empty.hidden = !this.empty.hasChildNodes();
    hf.fill(this.body, rows.map((row, i) => hf.labelled(this.names, hf.h("tr", { class: i === this.at ? "at" : "" },
      hf.h("td", {}, hf.h("input", { type: "checkbox", "aria-label": `choose ${row.run}`, checked: this.chosen.has(row.id), onchange: (event) => this.choose(row.id, event.target.checked) })),
      hf.h("td", {}, hf.h("a", { href: this.href(row), class: "name" }, row.run), hf.h("span", { class: "muted small" }, ` ${row.workload || ""}`)), hf.h("td", {}, hf.badge(row.state), row.stale ? hf.h("span", { class: "warn small" }, ` last beat ${hf.duration(row.beat_age_s)} ago`) : null),
      hf.h("td", {}, hf.bar(row)), hf.h("td", { class: "number" }, row.live ? hf.duration(row.time_left_s) : ""), hf.h("td", {}, row.device || "-"),
      hf.h("td", {}, row.best ? [hf.h("span", { class: "number" }, hf.metric(row.best.value)), hf.h("span", { class: "muted small" }, ` ${row.best.name}`)] : "-"),
      hf.h("td", {}, row.faults ? `${row.faults}${row.all_recovered ? (row.faults === 1 ? ", recovered" : ", all recovered") : ""}` : row.faults === 0 ? "none" : "-"), hf.h("td", { class: "muted" }, row.created ? hf.clock(Date.parse(row.created) / 1000) : "-")))));
  }
};

hf.bar = (row) => {
  const share = row.state === "FINISHED" ? 1 : row.share;
  const fill = hf.h("span", { class: "fill" });
  fill.style.width = `${100 * (hf.known(share) ? share : 0)}%`;
  return hf.h("span", { class: "bar-cell" }, hf.h("span", { class: "mini", "aria-hidden": "true" }, fill), hf.h("span", { class: "small" }, hf.known(share) ? hf.percent(share) : "-", hf.h("span", { class: "muted" }, ` ${hf.count(row.step)}${row.of && row.of !== row.step ? `/${hf.count(row.of)}` : ""}`)));
};
