// One lane a device, a stretch a worker, a mark a fault. A mark is a button: it opens what is known of the fault.
"use strict";

hf.Timeline = class {
  constructor(view, open) {
    this.view = view;
    this.open = open;
    this.node = hf.h("div", { class: "timeline" });
    this.watcher = new ResizeObserver(() => this.draw());
    this.watcher.observe(this.node);
    hf.drawn.add(this);
    view.listeners.add((what) => (what === "cursor" ? this.cursor() : this.draw()));
  }

  put(head) {
    this.head = head;
    this.draw();
  }

  span() {
    const { head } = this, lanes = head.lanes;
    const times = lanes.flatMap((lane) => [lane.since, lane.until]).concat(head.faults.map((fault) => fault.time), [head.began, head.last_seen]).filter(hf.known);
    if (!times.length) return null;
    const low = Math.min(...times), now = head.live ? Math.max(head.now, ...times) : Math.max(...times);
    const left = head.live && hf.known(head.time_left_s) ? Math.min(head.time_left_s, Math.max(60, (now - low) * 3)) : 0;
    return { low, now, high: Math.max(now + left, low + 1) };
  }

  draw() {
    const width = this.node.clientWidth;
    if (!this.head || !width) return;
    const span = this.span();
    if (!span) { hf.fill(this.node, hf.h("p", { class: "muted" }, "no worker has started yet")); return; }
    const { head } = this, devices = [...new Set(head.lanes.map((lane) => lane.device || "?").concat(head.faults.map((fault) => fault.device).filter(Boolean)))];
    const label = Math.min(150, 20 + 7.2 * Math.max(4, ...devices.map((each) => each.length))), tall = 34, top = 6, height = top + devices.length * tall + 22;
    const X = (time) => label + ((time - span.low) / (span.high - span.low)) * (width - label - 10);
    this.place = { X, label, width, span, height };
    const marks = this.faults(X, devices, top, tall);
    const svg = hf.h("svg", { width, height, role: "group", "aria-label": `timeline of ${hf.counted(devices.length, "device")} with ${hf.counted(head.faults_total, "fault")}` },
      hf.h("defs", {}, hf.h("pattern", { id: "to-come", width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, hf.h("rect", { width: 2.4, height: 7, class: "to-come" }))),
      devices.map((device, row) => [
        hf.h("text", { x: 0, y: top + row * tall + 22, class: "device" }, device),
        hf.h("rect", { x: label, y: top + row * tall + 9, width: Math.max(0, width - label - 10), height: 18, rx: 4, class: "rail" }),
      ]),
      this.stretches(X, devices, top, tall, span),
      this.axis(X, span, width, label, height),
      hf.h("line", { class: "cursor", y1: 2, y2: height - 18, x1: -10, x2: -10 }),
      marks);
    hf.fill(this.node, svg);
    this.cursor();
  }

  stretches(X, devices, top, tall, span) {
    const lanes = this.head.lanes, found = [];
    lanes.forEach((lane, i) => {
      if (!hf.known(lane.since)) return;
      const row = devices.indexOf(lane.device || "?"), until = lane.until ?? span.now;
      const begin = X(lane.since), wide = Math.max(1.5, X(until) - begin - 0.8);
      const tone = devices.indexOf(lane.device) % 4;
      found.push(hf.h("rect", { x: begin, y: top + row * tall + 9, width: wide, height: 18, rx: Math.min(3, wide / 2), class: `worker tone-${tone}${i % 2 ? " odd" : ""}` },
        hf.h("title", {}, `${lane.device}, worker ${lane.worker ?? "?"}\n${hf.clock(lane.since, true)} to ${lane.until ? hf.clock(lane.until, true) : "now"}\nstep ${hf.count(lane.from_step)} to ${lane.until ? hf.count(lane.to_step) : "now"}${lane.ended_by ? `\nended by ${lane.ended_by}` : ""}`)));
    });
    if (span.high > span.now + 1 && lanes.length) {
      const row = devices.indexOf(lanes[lanes.length - 1].device || "?"), begin = X(span.now);
      found.push(hf.h("rect", { x: begin, y: top + row * tall + 9, width: X(span.high) - begin, height: 18, rx: 3, fill: "url(#to-come)" }, hf.h("title", {}, "estimated remaining time")));
    }
    return found;
  }

  // Faults that are closer together than a mark is wide share one: it opens the last of them, and from there the others.
  faults(X, devices, top, tall) {
    const rows = devices.length ? devices : [""];
    const marks = this.head.faults.map((fault, i) => ({ fault, i, row: Math.max(0, devices.indexOf(fault.device)), x: X(fault.time) })).filter((mark) => hf.known(mark.fault.time));
    return rows.flatMap((_, row) => hf.groups(marks.filter((mark) => mark.row === row), 13)).map((group) => {
      const { fault, i, row } = group.at(-1), x = (group[0].x + group.at(-1).x) / 2, y = top + row * tall;
      const act = () => this.open(i), words = `${group.length > 1 ? `${group.length} faults, the last: ` : ""}${fault.code} ${fault.sentence}`;
      return hf.h("g", {
        class: `fault${group.every((mark) => mark.fault.recovered) ? "" : " open"}`, tabindex: 0, role: "button", "data-fault": i, "aria-label": words,
        onclick: act, onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); act(); } },
      }, hf.h("rect", { x: x - 9, y: y - 4, width: 18, height: tall, fill: "transparent" }),
      hf.h("line", { x1: x, x2: x, y1: y + 6, y2: y + 28 }), hf.h("path", { d: `M${x - 6} ${y - 2}h12l-6 10z` }), hf.h("title", {}, words));
    });
  }

  axis(X, span, width, label, height) {
    const { step, found } = hf.timeTicks(span.low, span.high, (width - label) / (span.high - span.low < 900 ? 90 : 64));
    const ticks = found.map((at) => hf.h("text", { x: Math.min(width - 24, Math.max(label + 14, X(at))), y: height - 5, class: "tick" }, hf.tickTime(at, step)));
    if (this.head.live) ticks.push(hf.h("line", { x1: X(span.now), x2: X(span.now), y1: 2, y2: height - 18, class: "now" }, hf.h("title", {}, "now")));
    return ticks;
  }

  cursor() {
    const line = this.node.querySelector(".cursor");
    if (!line || !this.place) return;
    const { view } = this, time = view.cursor === null ? null : view.axis === "time" ? view.cursor : view.timeAt(view.cursor);
    const x = time === null ? 0 : this.place.X(time);
    line.style.display = time === null ? "none" : "";
    line.setAttribute("x1", x);
    line.setAttribute("x2", x);
  }
};
