// Small things everything else stands on: elements, numbers as people read them, theme, keys, pictures of colours.
// Text from a run folder is only ever put into text nodes: nothing here takes markup.
"use strict";
const hf = {};

hf.h = (tag, props, ...children) => {
  const svg = hf.h.svg.has(tag);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "class") node.setAttribute("class", value);
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "style") Object.assign(node.style, value);
    else if (key in node && !svg && key !== "list" && key !== "form") node[key] = value;
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false));
  return node;
};
hf.h.svg = new Set(["svg", "g", "rect", "path", "line", "text", "circle", "title", "defs", "pattern", "clipPath"]);

hf.fill = (node, ...children) => {
  node.replaceChildren(...children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false));
  return node;
};

hf.text = (node, value) => {
  if (node.textContent !== value) node.textContent = value;
};

// Numbers ------------------------------------------------------------------------------------------------

hf.known = (value) => value !== null && value !== undefined && Number.isFinite(value);

hf.duration = (seconds) => {
  if (!hf.known(seconds)) return "-";
  if (seconds > 0 && seconds < 0.0995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 9.95 && Math.round(seconds * 10) % 10) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds), two = (n) => String(n).padStart(2, "0");
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}m ${two(whole % 60)}s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 1440) return `${Math.floor(minutes / 60)}h ${two(minutes % 60)}m`;
  const hours = Math.round(seconds / 3600);
  return `${Math.floor(hours / 24)}d ${two(hours % 24)}h`;
};

hf.count = (n) => (hf.known(n) ? String(Math.round(n)).replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f") : "-");

hf.size = (bytes) => {
  if (!hf.known(bytes)) return "-";
  if (bytes < 1000) return `${bytes} B`;
  let value = bytes, unit = "";
  for (unit of ["kB", "MB", "GB", "TB"]) {
    value /= 1000;
    if (value < 999.5) break;
  }
  return value < 99.95 ? `${value.toFixed(1)} ${unit}` : `${value.toFixed(0)} ${unit}`;
};

hf.percent = (share) => (hf.known(share) ? `${(share * 100).toFixed(share < 0.0995 && share > 0 ? 1 : 0)} %` : "-");

hf.metric = (value) => {
  if (value === null || value === undefined) return "-";
  if (!Number.isFinite(value)) return String(value);
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e6) return value.toExponential(2).replace(/e([+-])(\d)$/, "e$10$2");
  if (size >= 1000) return value.toFixed(0);
  return size >= 100 ? value.toFixed(1) : value.toFixed(4).replace(/(\.\d*?[1-9])0+$|\.0+$/, "$1");
};

const two = (n) => String(n).padStart(2, "0");
hf.clock = (seconds, exact) => {
  if (!hf.known(seconds)) return "-";
  const when = new Date(seconds * 1000), now = new Date();
  const time = `${two(when.getHours())}:${two(when.getMinutes())}${exact ? `:${two(when.getSeconds())}` : ""}`;
  const day = when.toDateString() === now.toDateString() ? "" : `${when.getFullYear()}-${two(when.getMonth() + 1)}-${two(when.getDate())} `;
  return day + time;
};

// A list of things at `x` as groups that stand at least `least` apart: marks that would cover each other become one.
hf.groups = (things, least) => {
  const found = [];
  for (const thing of things.slice().sort((a, b) => a.x - b.x)) {
    const last = found.at(-1);
    if (last && thing.x - last[0].x < least) last.push(thing); else found.push([thing]);
  }
  return found;
};

hf.counted = (n, word, words) => `${hf.count(n)} ${n === 1 ? word : words || `${word}s`}`;

// Whether the run of this page is under way: what has not happened "yet" may still come.
hf.running = () => Boolean(hf.page && hf.page.head && hf.page.head.live);

// States: a word, a sign and a colour, never a colour alone.
hf.states = {
  STARTING: ["◌", "calm"], RUNNING: ["●", "good"], RECOVERING: ["↺", "warn"], MOVED: ["⇢", "warn"], PAUSED: ["‖", "warn"],
  STOPPED: ["■", "calm"], FINISHED: ["✓", "good"], FAILED: ["✗", "bad"], CRASHED: ["✗", "bad"], GAVE_UP: ["✗", "bad"],
};
hf.badge = (state) => {
  const [sign, kind] = hf.states[state] || ["?", "calm"];
  return hf.h("span", { class: `badge ${kind}` }, hf.h("span", { class: "sign", "aria-hidden": "true" }, sign), String(state));
};

// Theme and colours --------------------------------------------------------------------------------------

hf.theme = {
  get: () => document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"),
  set: (name) => {
    document.documentElement.dataset.theme = name;
    try {
      localStorage.setItem("holdfast-theme", name);
      document.cookie = `holdfast_theme=${name}; path=/; max-age=31536000; samesite=strict`; // for the first bytes of the next page
    } catch { /* a report on disk may have no storage */ }
    hf.redraw();
  },
  restore: () => {
    let kept = null;
    try { kept = localStorage.getItem("holdfast-theme"); } catch { /* as above */ }
    if (kept === "dark" || kept === "light") document.documentElement.dataset.theme = kept;
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => hf.redraw());
  },
};
hf.css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
// Eight colours that stay apart for every kind of colour vision (after Okabe and Ito), and four ways to draw a line: two
// lines next to each other in the legend differ in both, so that they are told apart without colours, too.
hf.colours = () => Array.from({ length: 8 }, (_, i) => hf.css(`--line-${i}`));
hf.dashes = [[], [7, 4], [2, 3], [9, 3, 2, 3]];
hf.look = (index) => ({ colour: hf.colours()[index % 8], dash: hf.dashes[(index + Math.floor(index / 8)) % hf.dashes.length] });

hf.drawn = new Set();
hf.redraw = () => hf.drawn.forEach((each) => each.draw());

// Keys ---------------------------------------------------------------------------------------------------

hf.keys = [];
// `when` says whether the key can do anything on this page: the list of keys leaves it out otherwise.
hf.key = (keys, about, act, when = () => true) => hf.keys.push({ keys: [].concat(keys), about, act, when });
// A long row of keys is shown by its ends: on a phone there is no room for five.
hf.keyNames = (keys) => (keys.length > 3 ? [keys[0], "…", keys.at(-1)] : keys).map((key) => [key === "…" ? key : hf.h("kbd", {}, key === " " ? "space" : key), " "]);
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest && event.target.closest("input, select, textarea");
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (typing && event.key !== "Escape") return;
  if (typing) { event.target.blur(); return; }
  const found = hf.keys.find((each) => each.keys.includes(event.key));
  if (found && found.act(event) !== false) event.preventDefault();
});

hf.dialog = (title, ...content) => {
  const old = document.querySelector("dialog[open]");
  if (old) old.close();
  const node = hf.h("dialog", { "aria-label": title, onclose: () => node.remove(), onclick: (event) => event.target === node && node.close() },
    hf.h("div", { class: "inside" },
      hf.h("button", { class: "close", type: "button", "aria-label": "close", onclick: () => node.close() }, "×"), ...content));
  document.body.append(node);
  node.showModal();
  return node;
};

hf.help = () => hf.dialog("keyboard shortcuts", hf.h("h2", {}, "Keyboard shortcuts"), hf.h("table", { class: "keys" },
  hf.keys.filter((each) => each.when()).map((each) => hf.h("tr", {}, hf.h("td", {}, hf.keyNames(each.keys)), hf.h("td", {}, each.about)))),
  hf.h("p", { class: "muted" }, "Drag over a chart to zoom in; double-click to zoom out. Each chart can be saved as CSV or PNG."));

// Keeping things -----------------------------------------------------------------------------------------

hf.save = (name, blob) => {
  const link = hf.h("a", { href: URL.createObjectURL(blob), download: name.replace(/[^\w.-]+/g, "-") });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 2000);
};

hf.throttle = (act, pause) => {
  let last = 0, waiting = null;
  return () => {
    const left = last + pause - Date.now();
    if (waiting) return;
    if (left <= 0) { last = Date.now(); act(); return; }
    waiting = setTimeout(() => { waiting = null; last = Date.now(); act(); }, left);
  };
};

hf.header = (crumbs, ...right) => hf.fill(document.getElementById("top"), hf.h("div", { class: "bar" },
  hf.h("nav", { "aria-label": "where you are" }, hf.h(hf.report ? "span" : "a", { class: "brand", href: hf.report ? null : "/", "aria-label": hf.report ? null : "holdfast: all runs" }, hf.logo(), hf.h("span", { class: "word" }, "holdfast")),
    crumbs.map(([text, href]) => [hf.h("span", { class: "slash", "aria-hidden": "true" }, "/"), href ? hf.h("a", { href }, text) : hf.h("span", { class: "here" }, text)])),
  hf.h("div", { class: "tools" }, ...right,
    hf.h("button", { type: "button", title: "switch between light and dark (d)", "aria-label": "switch between light and dark", onclick: () => hf.theme.set(hf.theme.get() === "dark" ? "light" : "dark") }, "◐"),
    hf.h("button", { type: "button", title: "keyboard shortcuts (?)", "aria-label": "keyboard shortcuts", onclick: hf.help }, "?"))));

hf.logo = () => hf.h("svg", { viewBox: "0 0 20 20", width: 18, height: 18, "aria-hidden": "true", class: "logo" },
  hf.h("circle", { cx: 10, cy: 3.6, r: 2, fill: "none", stroke: "currentColor", "stroke-width": 1.7 }),
  hf.h("path", { d: "M10 5.6V18M6.500 8.600h7M2.800 11.500c.3 4 3.200 6.500 7.200 6.500s6.900-2.500 7.200-6.500M2.800 11.500l-1 2.300M2.800 11.500l2.300 1.400M17.200 11.500l1 2.300M17.200 11.500l-2.300 1.400", fill: "none", stroke: "currentColor", "stroke-width": 1.7, "stroke-linecap": "round", "stroke-linejoin": "round" }));
