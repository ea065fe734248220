// What a run shows of itself: the world it simulates, drawn from numbers, and films and images of its folder.
"use strict";

hf.WorldPanel = class {
  constructor(source) {
    this.source = source;
    this.at = 0;
    this.playing = !matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.canvas = hf.h("canvas", { class: "world", width: 720, height: 720, role: "img" });
    this.words = hf.h("p", { class: "muted small" });
    this.facts = hf.h("div", { class: "facts" });
    this.note = hf.h("div", { class: "problems" });
    this.films = hf.h("div", { class: "films" });
    this.button = hf.h("button", { type: "button", title: "play or pause (p)", onclick: () => this.toggle() });
    const legend = hf.h("p", { class: "legend" }, hf.h("span", {}, hf.h("span", { class: "dot prey", "aria-hidden": "true" }), "prey"), hf.h("span", {}, hf.h("span", { class: "dot predators", "aria-hidden": "true" }), "predators"), hf.h("span", {}, "both fade as they starve"));
    this.stage = hf.h("div", { class: "stage" }, this.canvas, legend, this.words);
    this.node = hf.card("world", "World", hf.h("div", { class: "worldly" }, this.stage, hf.h("div", {}, this.facts, this.note, this.films)));
    hf.fill(this.node.querySelector(".more"), this.button);
    this.node.hidden = true;
    this.toggle(this.playing);
    setInterval(() => this.tick(), 90);
  }

  toggle(on = !this.playing) {
    this.playing = on;
    hf.text(this.button, on ? "pause" : "play");
    if (!on && this.data) { this.at = this.data.frames.length - 1; this.draw(); }
  }

  // `mark` changes with what there is to draw.
  async put(head, body) {
    this.head = head;
    if (head.world && head.world !== this.mark && !this.asking) {
      this.asking = true;
      try {
        const mark = head.world, data = await this.source.world();
        if (data) { this.mark = mark; this.data = data; this.ground = null; this.at = this.playing ? 0 : data.frames.length - 1; }
      } catch { /* the next change asks again */ } finally { this.asking = false; }
    }
    this.pictures(body.pictures || []);
    this.node.hidden = !this.data && !this.films.childElementCount;
    this.stage.hidden = this.button.hidden = !this.data;
    if (!this.data) { hf.text(this.node.querySelector("h2"), "Pictures"); return; }
    hf.fill(this.note, this.data.note ? hf.h("p", { class: "problem" }, hf.h("b", {}, "! "), this.data.note) : null);
    hf.fill(this.facts, this.data.facts.filter((name) => hf.known(head.metrics[name])).map((name) => hf.h("span", { class: "fact" }, hf.h("b", {}, hf.metric(head.metrics[name])), hf.h("span", {}, name.replaceAll("_", " ")))));
    this.draw();
  }

  pictures(named) {
    const key = JSON.stringify(named);
    if (key === this.shown) return;
    this.shown = key;
    hf.fill(this.films, named.map((each) => {
      const src = this.source.picture(each);
      if (!src) return null;
      const seen = each.type.startsWith("video/") ? hf.h("video", { src, controls: true, loop: true, muted: true, "aria-label": each.path }) : hf.h("img", { src, alt: each.path, loading: "lazy" });
      return hf.h("figure", {}, seen, hf.h("figcaption", { class: "muted small" }, each.path));
    }));
  }

  tick() {
    if (!this.playing || !this.data || this.data.frames.length < 2 || document.hidden) return;
    this.at = (this.at + 1) % (this.data.frames.length + 6); // a short rest at the end
    this.draw();
  }

  draw() {
    const { data } = this, frame = data.frames[Math.min(this.at, data.frames.length - 1)], wide = this.canvas.width, unit = wide / data.size, pen = this.canvas.getContext("2d");
    this.ground = this.ground || hf.ground(data.grass);
    pen.imageSmoothingEnabled = true;
    pen.fillStyle = "rgb(58, 46, 36)";
    pen.fillRect(0, 0, wide, wide);
    if (this.ground) pen.drawImage(this.ground, 0, 0, wide, wide);
    pen.lineWidth = 1.5;
    pen.strokeStyle = "rgb(24, 20, 16)";
    for (const [x, y, energy] of frame.prey) {
      pen.fillStyle = hf.mixed([58, 46, 36], [250, 240, 205], 0.35 + 0.65 * energy);
      pen.beginPath();
      pen.arc(x * unit, y * unit, Math.max(3, 0.22 * unit), 0, 2 * Math.PI);
      pen.fill();
      pen.stroke();
    }
    for (const [x, y, energy, dx, dy] of frame.predators) {
      const turn = Math.atan2(dy, dx), radius = Math.max(6, 0.42 * unit);
      pen.fillStyle = hf.mixed([58, 46, 36], [224, 62, 48], 0.4 + 0.6 * energy);
      pen.beginPath();
      for (const [angle, reach] of [[0, 1.3], [2.5, 1], [-2.5, 1]]) pen.lineTo(x * unit + radius * reach * Math.cos(turn + angle), y * unit + radius * reach * Math.sin(turn + angle));
      pen.closePath();
      pen.fill();
      pen.stroke();
    }
    const words = `update ${hf.count(data.turn)} · ${hf.count(frame.prey.length)} prey · ${hf.counted(frame.predators.length, "predator")} · step ${hf.count(frame.time)} of this world`;
    hf.text(this.words, words);
    this.canvas.setAttribute("aria-label", words);
  }
};

hf.mixed = (one, other, part) => `rgb(${one.map((a, i) => Math.round(a + (other[i] - a) * Math.min(1, Math.max(0, part)))).join(", ")})`;

// Grass as a small picture, a pixel a cell: columns of the world are its rows of numbers.
hf.ground = (grass) => {
  if (!grass.length) return null;
  const canvas = hf.h("canvas", { width: grass.length, height: grass[0].length }), pen = canvas.getContext("2d");
  grass.forEach((column, x) => column.forEach((value, y) => { pen.fillStyle = hf.mixed([58, 46, 36], [86, 148, 62], value); pen.fillRect(x, y, 1, 1); }));
  return canvas;
};
