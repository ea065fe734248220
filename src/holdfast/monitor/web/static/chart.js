// A line chart on a canvas: several lines, one cursor shared by all charts, marks where faults were.
"use strict";

// What all charts of a page agree on: which axis, which part of it, where the cursor is.
hf.View = class {
  constructor() {
    this.axis = "step"; // or "time"
    this.range = null; // [low, high] in the present axis
    this.cursor = null; // in the present axis
    this.log = false;
    this.smooth = 0;
    this.anchors = [];
    this.listeners = new Set();
  }
  tell(what) { this.listeners.forEach((each) => each(what)); }
  set(changes, what) { Object.assign(this, changes); this.tell(what || "view"); }
  // From a time to a step and back, between what is known of both.
  stepAt(time) { return hf.between(this.anchors, 0, 1, time); }
  timeAt(step) { return hf.between(this.anchors, 1, 0, step); }
};

hf.between = (rows, from, to, value) => {
  if (!rows.length || value === null) return null;
  let low = 0, high = rows.length - 1;
  if (value <= rows[0][from]) return rows[0][to];
  if (value >= rows[high][from]) return rows[high][to];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (rows[middle][from] <= value) low = middle; else high = middle;
  }
  const a = rows[low], b = rows[high], span = b[from] - a[from];
  return span > 0 ? a[to] + ((b[to] - a[to]) * (value - a[from])) / span : a[to];
};

hf.ticks = (low, high, count) => {
  const span = high - low;
  if (!(span > 0)) return [low];
  const rough = span / Math.max(1, count), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((n) => n * power).find((n) => n >= rough * 0.999);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-6 && found.length < 50; at += step) found.push(Math.abs(at) < step * 1e-9 ? 0 : at);
  return found;
};

hf.timeTicks = (low, high, count) => {
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];
  const step = steps.find((each) => (high - low) / each <= count) || 2592000;
  const shift = new Date(low * 1000).getTimezoneOffset() * 60, found = [];
  for (let at = Math.ceil((low - shift) / step) * step + shift; at <= high && found.length < 50; at += step) found.push(at);
  return { step, found };
};

hf.tickTime = (at, step) => {
  const when = new Date(at * 1000), two = (n) => String(n).padStart(2, "0");
  if (step >= 86400) return `${two(when.getMonth() + 1)}-${two(when.getDate())}`;
  const time = `${two(when.getHours())}:${two(when.getMinutes())}`;
  return step < 60 ? `${time}:${two(when.getSeconds())}` : time;
};

const short = (value) => {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(1).replace("e+", "e").replace(".0e", "e");
  if (size >= 1e4) return `${+(value / 1000).toFixed(1)}k`;
  return String(+value.toPrecision(4));
};

hf.Chart = class {
  constructor(view, options) {
    this.view = view;
    this.title = options.title;
    this.unit = options.unit || "";
    this.name = options.name || "run";
    this.lines = []; // {key, label, x, t, y, scale, look}
    this.marks = () => []; // [{time, step, code}]
    this.height = options.height || 190;
    this.low = options.low ?? null; // what the axis holds in any case
    this.high = options.high ?? null;
    this.quiet = options.quiet || false; // the legend is elsewhere
    this.csv = options.csv;
    this.legend = hf.h("div", { class: "legend" });
    this.canvas = hf.h("canvas", { tabIndex: 0, role: "img" });
    this.node = hf.h("figure", { class: "chart", "data-chart": this.title },
      hf.h("figcaption", {}, hf.h("div", {}, hf.h("b", { class: "name" }, this.title, this.unit ? hf.h("span", { class: "unit" }, ` ${this.unit}`) : null), this.legend),
        hf.h("span", { class: "keep" },
          hf.h("button", { type: "button", title: "save the numbers as CSV", "aria-label": `${this.title} as CSV`, onclick: () => this.keepCsv() }, "csv"),
          hf.h("button", { type: "button", title: "save the picture as PNG", "aria-label": `${this.title} as PNG`, onclick: () => this.keepPng() }, "png"))),
      this.canvas);
    this.listen();
    this.watcher = new ResizeObserver(() => this.draw());
    this.watcher.observe(this.canvas);
    hf.drawn.add(this);
    this.hear = () => this.draw();
    view.listeners.add(this.hear);
  }

  gone() { this.watcher.disconnect(); hf.drawn.delete(this); this.view.listeners.delete(this.hear); this.node.remove(); }

  // Where a point is on the axis that is shown.
  at(line, i) {
    const shift = line.shift || 0;
    if (this.view.axis === "time") return line.t && hf.known(line.t[i]) ? line.t[i] - shift : line.x ? this.view.timeAt(line.x[i]) : null;
    return line.x ? line.x[i] : this.view.stepAt(line.t[i]);
  }

  put(lines) {
    this.lines = lines;
    this.prepare();
    this.draw();
  }

  prepare() {
    for (const line of this.lines) {
      line.at = line.y.map((_, i) => this.at(line, i));
      line.v = line.scale && line.scale !== 1 ? line.y.map((y) => (y === null ? null : y * line.scale)) : line.y;
    }
    this.axisOf = this.view.axis;
    this.anchorsOf = this.view.anchors;
  }

  smoothed(values) {
    const keep = this.view.smooth;
    if (!keep) return values;
    let sum = 0, weight = 0;
    return values.map((value) => {
      if (!hf.known(value)) return value;
      sum = keep * sum + (1 - keep) * value;
      weight = keep * weight + (1 - keep);
      return sum / weight;
    });
  }

  extent() {
    let low = Infinity, high = -Infinity;
    for (const line of this.lines) {
      for (const x of line.at) if (hf.known(x)) { if (x < low) low = x; if (x > high) high = x; }
    }
    return low <= high ? [low, high === low ? low + 1 : high] : [0, 1];
  }

  draw() {
    if (this.axisOf !== this.view.axis || this.anchorsOf !== this.view.anchors) this.prepare();
    const ratio = window.devicePixelRatio || 1, width = this.canvas.clientWidth, height = this.height;
    if (!width) return;
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
      this.canvas.style.height = `${height}px`;
    }
    const pen = this.canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    this.paint(pen, width, height);
    this.tell();
  }

  paint(pen, width, height) {
    const ink = hf.css("--muted"), grid = hf.css("--grid"), bad = hf.css("--bad");
    pen.font = `11px ${hf.css("--sans")}`;
    const [x0, x1] = this.view.range || this.view.whole || this.extent();
    const shown = this.lines.map((line) => ({ ...line, s: this.smoothed(line.v) }));
    const seen = [];
    for (const line of shown) {
      line.at.forEach((x, i) => {
        if (!hf.known(x) || !hf.known(line.v[i])) return;
        if (x >= x0 && x <= x1) seen.push(line.v[i]);
        const before = line.at[i - 1]; // where a line crosses an edge of what is shown, it must be inside as well
        for (const edge of [x0, x1]) if (hf.known(before) && hf.known(line.v[i - 1]) && before < edge && x > edge) seen.push(line.v[i - 1] + ((line.v[i] - line.v[i - 1]) * (edge - before)) / (x - before));
      });
    }
    let low = seen.reduce((a, b) => Math.min(a, b), Infinity), high = seen.reduce((a, b) => Math.max(a, b), -Infinity);
    const log = this.view.log && low > 0;
    if (!(low <= high)) { low = 0; high = 1; }
    if (!log && this.low !== null) low = Math.min(low, this.low);
    if (!log && this.high !== null) high = Math.max(high, this.high);
    if (log) { low = Math.log10(low); high = Math.log10(high); }
    const pad = (high - low || Math.abs(high) || 1) * 0.06;
    if (!(low >= 0 && low - pad < 0)) low -= pad; else low = log ? low - pad : 0;
    if (this.high === null || log || high > this.high) high += pad;
    const yTicks = hf.ticks(low, high, 4), tickText = (v) => (log ? short(10 ** v) : short(v));
    const left = Math.max(44, ...yTicks.map((v) => pen.measureText(tickText(v)).width + 12)), right = width - 8, top = 14, bottom = height - 20;
    const X = (x) => left + ((x - x0) / (x1 - x0 || 1)) * (right - left), Y = (y) => bottom - (((log ? Math.log10(y) : y) - low) / (high - low || 1)) * (bottom - top);
    this.place = { x0, x1, left, right, top, bottom, X, Y };
    pen.lineWidth = 1;
    pen.strokeStyle = grid;
    pen.fillStyle = ink;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const tick of yTicks) {
      const y = Math.round(bottom - ((tick - low) / (high - low || 1)) * (bottom - top)) + 0.5;
      pen.beginPath(); pen.moveTo(left, y); pen.lineTo(right, y); pen.stroke();
      pen.fillText(tickText(tick), left - 7, y);
    }
    pen.textAlign = "center";
    pen.textBaseline = "alphabetic";
    if (this.view.axis === "time" && !this.view.relative) {
      const { step, found } = hf.timeTicks(x0, x1, (right - left) / 80);
      for (const tick of found) pen.fillText(hf.tickTime(tick, step), Math.min(right - 16, Math.max(left + 16, X(tick))), height - 5);
    } else {
      for (const tick of hf.ticks(x0, x1, (right - left) / 70)) {
        if (this.view.axis === "step" && tick !== Math.round(tick)) continue;
        const word = this.view.axis === "time" ? hf.duration(tick) : short(tick);
        pen.fillText(word, Math.min(right - 10, Math.max(left + 4, X(tick))), height - 5);
      }
    }
    pen.save();
    pen.beginPath();
    pen.rect(left - 3, 0, right - left + 6, bottom + 3);
    pen.clip();
    const places = this.marks().map((mark) => (this.view.axis === "time" ? mark.time : mark.step)).filter((at) => hf.known(at) && at >= x0 && at <= x1);
    this.marked = hf.groups(places.map((at) => ({ x: X(at) })), 12).map((group) => (group[0].x + group.at(-1).x) / 2);
    const lined = this.marked.length * 30 <= right - left; // closer together, their lines would hide the curve
    for (const middle of this.marked) {
      const x = Math.round(middle) + 0.5;
      pen.strokeStyle = bad;
      if (lined) {
        pen.globalAlpha = 0.35;
        pen.setLineDash([2, 3]);
        pen.beginPath(); pen.moveTo(x, top); pen.lineTo(x, bottom); pen.stroke();
        pen.setLineDash([]);
        pen.globalAlpha = 1;
      }
      pen.fillStyle = bad;
      pen.beginPath(); pen.moveTo(x - 4, 3); pen.lineTo(x + 4, 3); pen.lineTo(x, 10); pen.fill();
    }
    shown.forEach((line) => {
      if (this.view.smooth) this.stroke(pen, line, line.v, X, Y, log, 0.25);
      this.stroke(pen, line, this.view.smooth ? line.s : line.v, X, Y, log, 1);
      this.broken(pen, line, X, bottom, bad);
    });
    if (hf.known(this.view.cursor) && this.view.cursor >= x0 && this.view.cursor <= x1) {
      const x = Math.round(X(this.view.cursor)) + 0.5;
      pen.strokeStyle = ink;
      pen.globalAlpha = 0.7;
      pen.beginPath(); pen.moveTo(x, top - 4); pen.lineTo(x, bottom); pen.stroke();
      pen.globalAlpha = 1;
      for (const line of shown) {
        const i = this.nearest(line, this.view.cursor);
        if (i === null || !hf.known(line.s[i])) continue;
        pen.fillStyle = line.look.colour;
        pen.beginPath(); pen.arc(X(line.at[i]), Y(line.s[i]), 3.2, 0, 7); pen.fill();
      }
    }
    if (this.drag) {
      pen.fillStyle = hf.css("--accent");
      pen.globalAlpha = 0.14;
      pen.fillRect(Math.min(this.drag.from, this.drag.to), top, Math.abs(this.drag.to - this.drag.from), bottom - top);
      pen.globalAlpha = 1;
    }
    pen.restore();
    if (!seen.length) {
      pen.fillStyle = ink;
      pen.textAlign = "center";
      pen.fillText(this.lines.length ? "no values in this range" : "no values yet", (left + right) / 2, (top + bottom) / 2);
    }
  }

  stroke(pen, line, values, X, Y, log, alpha) {
    pen.strokeStyle = line.look.colour;
    pen.globalAlpha = alpha;
    pen.lineWidth = 1.7;
    pen.lineJoin = "round";
    pen.setLineDash(line.look.dash);
    pen.beginPath();
    let open = false, alone = [];
    line.at.forEach((x, i) => {
      const y = values[i];
      if (!hf.known(x) || !hf.known(y) || (log && y <= 0)) { open = false; return; }
      if (open) pen.lineTo(X(x), Y(y)); else { pen.moveTo(X(x), Y(y)); if (!hf.known(values[i + 1])) alone.push(i); }
      open = true;
    });
    pen.stroke();
    pen.setLineDash([]);
    pen.fillStyle = line.look.colour;
    const ends = line.at.filter(hf.known), room = ends.length > 1 ? (X(ends.at(-1)) - X(ends[0])) / (ends.length - 1) : Infinity;
    for (const i of line.at.length <= 40 && room > 10 ? line.at.keys() : alone) { // closer dots would hide how a line is dashed
      if (!hf.known(line.at[i]) || !hf.known(values[i]) || (log && values[i] <= 0)) continue;
      pen.beginPath(); pen.arc(X(line.at[i]), Y(values[i]), 2.3, 0, 7); pen.fill();
    }
    pen.globalAlpha = 1;
  }

  // A value that was not finite is a cross on the floor: a curve that breaks off is seen to.
  broken(pen, line, X, bottom, bad) {
    pen.strokeStyle = bad;
    pen.lineWidth = 1.5;
    line.v.forEach((value, i) => {
      if (value !== null || !hf.known(line.at[i])) return;
      const x = X(line.at[i]), y = bottom - 5;
      pen.beginPath(); pen.moveTo(x - 3, y - 3); pen.lineTo(x + 3, y + 3); pen.moveTo(x + 3, y - 3); pen.lineTo(x - 3, y + 3); pen.stroke();
    });
  }

  nearest(line, at) {
    let low = 0, high = line.at.length - 1;
    if (high < 0) return null;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (line.at[middle] <= at) low = middle; else high = middle;
    }
    return Math.abs((line.at[high] ?? Infinity) - at) < Math.abs((line.at[low] ?? Infinity) - at) ? high : low;
  }

  // The legend says each line's value at the cursor, or its last.
  tell() {
    const items = this.lines.map((line) => {
      const i = hf.known(this.view.cursor) ? this.nearest(line, this.view.cursor) : line.v.length - 1;
      const value = i === null || i < 0 ? null : line.v[i];
      return [line.label, i >= 0 && i !== null && value === null ? "not finite" : hf.metric(value), line.look];
    });
    if (this.quiet) items.length = 0;
    if (this.legend.childElementCount !== items.length || this.legendOf !== hf.theme.get()) {
      this.legendOf = hf.theme.get();
      hf.fill(this.legend, items.map(([label, , look]) => hf.h("span", {}, hf.swatch(look), hf.h("span", { class: "label" }, label), hf.h("span", { class: "value" }))));
    }
    items.forEach(([label, value], i) => {
      hf.text(this.legend.children[i].querySelector(".label"), label);
      hf.text(this.legend.children[i].querySelector(".value"), value);
    });
    const where = hf.known(this.view.cursor) ? (this.view.axis === "time" ? ` at ${hf.clock(this.view.cursor, true)}` : ` at step ${hf.count(this.view.cursor)}`) : "";
    this.canvas.setAttribute("aria-label", `${this.title}: ${items.map(([label, value]) => `${label} ${value}`).join(", ")}${where}`);
  }

  listen() {
    const at = (event) => {
      const box = this.canvas.getBoundingClientRect(), { left, right, x0, x1 } = this.place;
      const x = Math.max(left, Math.min(right, event.clientX - box.left));
      return [x, x0 + ((x - left) / (right - left)) * (x1 - x0)];
    };
    this.canvas.addEventListener("pointermove", (event) => {
      if (!this.place) return;
      const [x, value] = at(event);
      if (this.drag) this.drag.to = x;
      this.view.set({ cursor: value }, "cursor");
    });
    this.canvas.addEventListener("pointerleave", () => { if (!this.drag) this.view.set({ cursor: null }, "cursor"); });
    this.canvas.addEventListener("pointerdown", (event) => {
      if (!this.place || event.button !== 0) return;
      const [x, value] = at(event);
      this.drag = { from: x, to: x, value };
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener("pointerup", (event) => {
      if (!this.drag) return;
      const { from, to, value } = this.drag;
      this.drag = null;
      if (Math.abs(to - from) < 6) { this.draw(); return; }
      const end = at(event)[1];
      this.view.set({ range: [Math.min(value, end), Math.max(value, end)] }, "range");
    });
    this.canvas.addEventListener("dblclick", () => this.view.set({ range: null }, "range"));
    this.canvas.addEventListener("keydown", (event) => {
      const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!way || !this.place) return;
      event.preventDefault();
      event.stopPropagation();
      const { x0, x1 } = this.place, now = this.view.cursor ?? (way > 0 ? x0 : x1);
      this.view.set({ cursor: Math.max(x0, Math.min(x1, now + (way * (x1 - x0)) / 60)) }, "cursor");
    });
  }

  keepCsv() {
    if (this.csv && this.csv(this)) return;
    const rows = [["line", "time", "step", "value"]];
    for (const line of this.lines) line.y.forEach((y, i) => rows.push([line.label, line.t && hf.known(line.t[i]) ? new Date(line.t[i] * 1000).toISOString() : "", line.x ? line.x[i] : "", y === null ? "" : y]));
    const cell = (value) => { const text = String(value), safe = /^[=+\-@\t\r]/.test(text) && typeof value === "string" ? `'${text}` : text; return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe; };
    hf.save(`${this.name}-${this.title}.csv`, new Blob([rows.map((row) => row.map(cell).join(",")).join("\n") + "\n"], { type: "text/csv" }));
  }

  // The picture with its title, on the ground of the page.
  keepPng() {
    const ratio = 2, width = 900, height = 360, canvas = hf.h("canvas", { width: width * ratio, height: height * ratio }), pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.fillStyle = hf.css("--card");
    pen.fillRect(0, 0, width, height);
    pen.fillStyle = hf.css("--ink");
    pen.font = `600 15px ${hf.css("--sans")}`;
    pen.fillText(`${this.title}${this.unit ? ` (${this.unit})` : ""}`, 14, 24);
    pen.font = `12px ${hf.css("--sans")}`;
    let x = 14;
    for (const line of this.lines) {
      pen.strokeStyle = line.look.colour;
      pen.lineWidth = 3;
      pen.setLineDash(line.look.dash);
      pen.beginPath(); pen.moveTo(x, 39.5); pen.lineTo(x + 18, 39.5); pen.stroke();
      pen.setLineDash([]);
      pen.fillStyle = hf.css("--muted");
      pen.fillText(line.label, x + 23, 43);
      x += pen.measureText(line.label).width + 42;
    }
    pen.translate(6, 54);
    const place = this.place;
    this.paint(pen, width - 12, height - 62);
    this.place = place;
    canvas.toBlob((blob) => hf.save(`${this.name}-${this.title}.png`, blob));
  }
};

hf.swatch = (look) => hf.h("svg", { width: 18, height: 8, class: "swatch", "aria-hidden": "true" },
  hf.h("line", { x1: 0, y1: 4, x2: 18, y2: 4, stroke: look.colour, "stroke-width": 2.4, "stroke-dasharray": look.dash.join(" ") || null }));
