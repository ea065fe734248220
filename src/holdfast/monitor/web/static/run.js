// The page of a run, top to bottom: one sentence, progress, timeline, charts, log, settings, files.
"use strict";

hf.RunPage = class {
  constructor(source) {
    this.source = source;
    this.view = new hf.View();
    this.charts = new Map();
    this.wide = 800;
  }

  async start(main) {
    this.main = main;
    const { head, body } = await this.source.whole();
    this.head = head;
    this.body = body;
    this.build();
    this.update(head);
    this.keys();
    this.view.listeners.add((what) => what === "range" && this.load(true));
    await this.load(true);
    await this.log.refresh();
    await this.drawn;
    if (this.source.live) {
      this.stream = hf.news({ run: head.id }, (kind, data) => this.hear(kind, data), (on) => { this.connected = on; this.age(); });
      setInterval(() => this.age(), 500);
    }
    document.body.dataset.ready = "yes";
  }

  // Once --------------------------------------------------------------------------------------------------

  build() {
    const { head, body } = this;
    document.title = `${head.run} · holdfast`;
    this.status = hf.h("span", { class: "status", role: "status" });
    hf.header([...(this.source.live ? [["runs", "/"]] : []), [head.run, null]], this.status);
    this.sentence = hf.h("h1", { class: "sentence" });
    this.verdict = hf.h("p", { class: "verdict" });
    this.badge = hf.h("span", { class: "badge-place" });
    this.problems = hf.h("div", { class: "problems" });
    this.band = hf.h("div", { class: "band" }, hf.h("div", { class: "track", role: "progressbar", "aria-label": "progress", "aria-valuemin": 0, "aria-valuemax": 100 }, hf.h("div", { class: "done" })), hf.h("div", { class: "facts" }));
    this.bottleneck = hf.h("p", { class: "bottleneck" });
    const open = (at) => hf.faultDialog(this.source, this.head.faults, at, this.body.files);
    this.openFault = open;
    this.timeline = new hf.Timeline(this.view, open);
    this.faults = hf.h("div", { class: "fault-list" });
    this.grid = hf.h("div", { class: "charts" });
    this.log = new hf.LogPanel(this.source);
    this.world = new hf.WorldPanel(this.source);
    const charts = hf.card("charts", "Charts", this.grid);
    hf.fill(charts.querySelector(".more"), this.chartTools());
    hf.fill(this.main,
      hf.h("section", { class: "lead", "aria-label": "status of the run" }, hf.h("div", { class: "eyebrow" }, this.badge, ` ${head.workload || ""} · ${head.run}`), this.sentence, this.verdict, this.problems, this.band, this.bottleneck),
      hf.card("timeline", "Timeline", this.timeline.node, this.faults), this.world.node, charts, this.log.node,
      hf.h("div", { class: "two", id: "lower" }), hf.h("footer", {}, this.source.live ? "This page only reads the run folder and changes nothing. Press " : `This report was made by holdfast ${this.body.identity.holdfast || ""}. Press `, hf.h("kbd", {}, "?"), " for keyboard shortcuts."));
    this.lower();
  }

  lower() {
    const { body } = this;
    const receipt = hf.receiptPanel(body.receipt), environment = hf.environmentPanel(body.environment);
    hf.fill(document.getElementById("lower"), hf.h("div", {}, hf.settingsPanel(body.settings, body.identity), receipt && environment),
      hf.h("div", {}, receipt || environment, hf.findingsPanel(body.findings)), hf.filesPanel(this.source, body.files));
  }

  chartTools() {
    const button = (label, title, on, act) => { const node = hf.h("button", { type: "button", title, onclick: act }, label); node.sync = () => node.setAttribute("aria-pressed", String(on())); node.sync(); return node; };
    const tools = [
      button("step", "x axis in steps (x)", () => this.view.axis === "step", () => this.setAxis("step")),
      button("time", "x axis in time (x)", () => this.view.axis === "time", () => this.setAxis("time")),
      button("log", "logarithmic y axis (y)", () => this.view.log, () => this.view.set({ log: !this.view.log })),
      button("smooth", "smooth the lines (s)", () => this.view.smooth > 0, () => this.view.set({ smooth: { 0: 0.6, 0.6: 0.9, 0.9: 0.98 }[this.view.smooth] || 0 })),
    ];
    const reset = hf.h("button", { type: "button", title: "show the whole run (0)", onclick: () => this.view.set({ range: null }, "range") }, "zoom out");
    const sync = () => { tools.forEach((each) => each.sync()); reset.hidden = !this.view.range; };
    this.view.listeners.add((what) => what !== "cursor" && sync());
    sync();
    return [hf.h("span", { class: "group" }, tools[0], tools[1]), hf.h("span", { class: "group" }, tools[2], tools[3]), reset];
  }

  setAxis(axis) {
    if (axis === this.view.axis) return;
    const turn = (value) => (axis === "time" ? this.view.timeAt(value) : this.view.stepAt(value));
    this.view.set({ axis, range: this.view.range && this.view.range.map(turn), cursor: null, whole: null }, "range");
  }

  keys() {
    hf.key("x", "x axis in steps or in time", () => this.setAxis(this.view.axis === "step" ? "time" : "step"));
    hf.key("y", "logarithmic y axis", () => this.view.set({ log: !this.view.log }));
    hf.key("s", "smooth the lines: a little, more, much, not at all", () => this.view.set({ smooth: { 0: 0.6, 0.6: 0.9, 0.9: 0.98 }[this.view.smooth] || 0 }));
    hf.key("0", "zoom out to the whole run", () => this.view.set({ range: null }, "range"));
    hf.key("f", "open the last fault", () => { if (!this.head.faults.length) return false; this.openFault(this.head.faults.length - 1); }, () => this.head.faults.length > 0);
    hf.key("/", "filter the log", () => { this.log.node.scrollIntoView(); this.log.filter.focus(); });
    const parts = ["timeline", "charts", "log", "settings", "files"];
    hf.key(parts.map((_, i) => String(i + 1)), `go to ${parts.join(", ")}`, (event) => document.getElementById(parts[+event.key - 1])?.scrollIntoView({ behavior: "smooth" }));
    hf.key("p", "play or pause the simulated world", () => (this.world.data ? this.world.toggle() : false), () => Boolean(this.world.data));
    if (this.source.live) hf.key("r", "go to the list of runs", () => { location.href = "/"; });
  }

  // Whenever something changed ----------------------------------------------------------------------------

  update(head) {
    this.head = head;
    this.heard = Date.now();
    this.view.anchors = head.anchors;
    hf.text(this.sentence, head.sentence);
    hf.text(this.verdict, head.verdict || "");
    if (this.shownState !== head.state) { this.shownState = head.state; hf.fill(this.badge, hf.badge(head.state)); }
    hf.fill(this.problems, head.problems.map((problem) => hf.h("p", { class: "problem" }, hf.h("b", {}, "! "), problem)), head.behind ? hf.h("p", { class: "problem calm" }, `reading the run folder: ${hf.percent(head.read / (head.read + head.behind))} done`) : null);
    this.progress(head);
    this.drawn = this.world.put(head, this.body);
    hf.text(this.bottleneck, head.bottleneck ? [head.bottleneck.sentence, head.bottleneck.advice].filter(Boolean).join("; ") : "");
    this.timeline.put(head);
    const key = JSON.stringify(head.faults);
    if (key !== this.faultKey) {
      this.faultKey = key;
      hf.fill(this.faults, head.faults.length ? hf.faultTable(head.faults, head.faults_total, this.openFault) : hf.h("p", { class: "muted" }, head.live ? "No faults so far." : "No faults."));
    }
    this.age();
  }

  progress(head) {
    const { progress } = head, share = head.state === "FINISHED" ? 1 : head.share;
    const track = this.band.firstChild, known = hf.known(share);
    track.classList.toggle("unknown", !known && head.live);
    track.firstChild.style.width = `${100 * (known ? share : 0)}%`;
    track.setAttribute("aria-valuenow", known ? Math.round(share * 100) : 0);
    const facts = [
      [known ? hf.percent(share) : null, "done"], [progress.epochs && progress.epoch ? `${progress.epoch}/${progress.epochs}` : null, "epoch"],
      [hf.known(progress.step) ? hf.count(progress.step) + (progress.of && progress.of !== progress.step ? `/${hf.count(progress.of)}` : "") : null, "step"], [hf.known(progress.rate) ? hf.metric(progress.rate) : null, "steps/s"],
      [hf.known(progress.time_left_s) ? hf.duration(progress.time_left_s) : null, "time left"], [hf.known(head.lasted_s) ? hf.duration(head.lasted_s) : null, head.live ? "time so far" : "total time"], [head.device, "device"],
      [head.checkpoint.step !== null ? `step ${hf.count(head.checkpoint.step)}` : null, "last save"], [head.best ? hf.metric(head.best.value) : null, head.best ? `best ${head.best.name}` : ""],
      [head.plan && head.plan.time ? head.plan.time : null, head.plan && head.plan.option ? `planned time for ${head.plan.option}` : "planned time"],
    ];
    hf.fill(this.band.lastChild, facts.filter(([value]) => value !== null && value !== undefined).map(([value, name]) => hf.h("span", { class: "fact" }, hf.h("b", {}, value), hf.h("span", {}, name))));
  }

  // How fresh this is, in words.
  age() {
    const { head } = this;
    if (!this.source.live) { hf.text(this.status, `report made ${hf.clock(head.now)}`); return; }
    if (this.connected === false) { hf.text(this.status, "the monitor does not answer; this page is not up to date"); this.status.className = "status old"; return; }
    if (!head.live) { hf.text(this.status, "not running"); this.status.className = "status"; return; }
    const old = hf.known(head.beat_age_s) ? head.beat_age_s + (Date.now() - this.heard) / 1000 : null;
    hf.text(this.status, old === null ? "live" : old > 10 ? `last beat ${hf.duration(old)} ago` : "live");
    this.status.className = old !== null && old > 10 ? "status old" : "status live";
  }

  hear(kind, data) {
    if (kind === "gone") { this.connected = false; this.age(); return; }
    const finished = this.head.live && !data.live;
    this.update(data);
    this.later = this.later || hf.throttle(() => this.load(false), 600);
    this.later();
    this.laterLog = this.laterLog || hf.throttle(() => this.log.refresh(), 1500);
    this.laterLog();
    if (finished || data.faults_total !== this.bodyFaults) { this.bodyFaults = data.faults_total; this.again(); }
  }

  async again() {
    const { body } = await this.source.whole();
    this.body = body;
    this.lower();
    this.world.put(this.head, body);
  }

  // Charts ------------------------------------------------------------------------------------------------

  arrange() {
    const wanted = new Map(this.head.charts.map((chart) => [`${chart.kind}:${chart.title}`, chart]));
    for (const [key, chart] of this.charts) if (!wanted.has(key)) { chart.gone(); this.charts.delete(key); }
    for (const [key, about] of wanted) {
      if (!this.charts.has(key)) {
        const chart = new hf.Chart(this.view, { title: about.title, unit: about.unit, low: about.low, high: about.high, name: this.head.run, csv: (each) => this.keepAll(each) });
        chart.marks = () => this.head.faults;
        chart.data = new Map();
        this.charts.set(key, chart);
        this.grid.append(chart.node);
      }
      this.charts.get(key).about = about;
    }
    if (!wanted.size) hf.fill(this.grid, hf.h("p", { class: "muted" }, hf.running() ? "The script has logged no numbers yet." : "The script logged no numbers."));
    else this.grid.querySelector(":scope > p")?.remove();
  }

  // The whole chart's metrics with every record, from the server.
  keepAll(chart) {
    const names = chart.lines.map((line) => line.key).filter((key) => key.startsWith("m:")).map((key) => key.slice(2));
    const href = names.length === chart.lines.length ? this.source.csv(names) : null;
    if (!href) return false;
    const link = hf.h("a", { href, download: "" });
    document.body.append(link);
    link.click();
    link.remove();
    return true;
  }

  async load(all) {
    if (this.loading) { this.again2 = this.again2 || all ? "all" : "some"; return; }
    this.loading = true;
    try {
      this.arrange();
      const keys = [...this.charts.values()].flatMap((chart) => chart.about.lines.map((line) => line.key));
      const logged = keys.filter((key) => !key.startsWith("r:")), sensed = keys.filter((key) => key.startsWith("r:"));
      const data = this.data = this.data || new Map(), view = this.view;
      const full = all || view.range || [...data.values()].some((each) => each.y.length > 3 * this.wide);
      const bounds = (by) => {
        if (view.range) { const [low, high] = view.range.map((x) => (view.axis === by ? x : by === "time" ? view.timeAt(x) : view.stepAt(x))); return { by, from: low, to: high }; }
        if (full) return { by };
        const lists = (by === "time" ? sensed : logged).filter((key) => key !== "rate").map((key) => data.get(key));
        const ends = lists.map((each) => (each && each.y.length ? (by === "time" ? each.t : each.x).at(-1) : null));
        return ends.some((end) => end === null) ? { by } : { by, from: Math.min(...ends) };
      };
      const ask = async (list, by) => {
        if (!list.length) return;
        const limits = bounds(by), answer = await this.source.series(list, { points: this.wide, ...limits });
        for (const key of list) this.take(data, key, answer.series[key], limits.from !== undefined && !view.range, by);
      };
      await ask(logged, "step");
      await ask(sensed, "time");
      this.put(data);
    } catch (error) {
      if (this.source.live) { this.connected = false; this.age(); } else throw error;
    } finally {
      this.loading = false;
      if (this.again2) { const what = this.again2 === "all"; this.again2 = null; this.load(what); }
    }
  }

  // New points go to the end; where they begin earlier than that, a step was repeated and the new ones count.
  take(data, key, fresh, adding, by) {
    if (!fresh) { data.delete(key); return; }
    const old = data.get(key), at = by === "time" ? "t" : "x";
    if (!adding || !old || key === "rate" || !fresh.y.length || fresh.n < old.n) { data.set(key, fresh); return; }
    const begin = fresh[at][0];
    let keep = old.y.length;
    while (keep > 0 && old[at][keep - 1] >= begin) keep -= 1;
    const join = (name) => (fresh[name] ? old[name].slice(0, keep).concat(fresh[name]) : null);
    data.set(key, { t: join("t"), x: join("x"), y: join("y"), n: fresh.n });
  }

  put(data) {
    let low = Infinity, high = -Infinity;
    for (const [key, each] of data) {
      if (key.startsWith("r:") && this.view.axis === "step") continue;
      const at = this.view.axis === "time" ? each.t : each.x;
      for (const x of [at && at[0], at && at.at(-1)]) if (hf.known(x)) { low = Math.min(low, x); high = Math.max(high, x); }
    }
    const first = this.view.axis === "step" ? 0 : this.head.lanes[0]?.since ?? low;
    this.view.whole = low <= high ? [Math.min(low, first), Math.max(high, first + 1)] : null;
    for (const chart of this.charts.values()) {
      chart.put(chart.about.lines.map((line, i) => ({ ...line, ...(data.get(line.key) || { t: [], x: [], y: [] }), look: hf.look(i) })));
    }
  }
};

hf.drawn.add({ draw: () => hf.page && hf.page.charts && hf.page.charts.forEach((chart) => chart.lines.forEach((line, i) => { line.look = hf.look(i); })) });
