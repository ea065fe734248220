// The lower parts of a run's page: faults, log, settings, receipt, environment, files.
"use strict";

hf.card = (id, title, ...content) => hf.h("section", { class: "card", id, "aria-label": title }, hf.h("div", { class: "title" }, hf.h("h2", {}, title), hf.h("span", { class: "more" })), ...content);
hf.rows = (rows) => hf.h("table", { class: "rows" }, rows.filter((row) => row[1] !== null && row[1] !== undefined && row[1] !== "").map(([name, value]) => hf.h("tr", {}, hf.h("th", { scope: "row" }, name), hf.h("td", {}, value))));

// Each cell knows the name of its column: on a phone a row is a block, and the line of names is not shown.
hf.labelled = (names, row) => { [...row.cells].forEach((cell, at) => { if (names[at]) cell.dataset.name = names[at]; }); return row; };

// Faults -------------------------------------------------------------------------------------------------

hf.faultColumns = ["when", "code", "what happened", "step", "recovered", "blame"];
hf.faultTable = (faults, total, open) => {
  const few = 6, shown = faults.slice().reverse();
  const node = hf.h("table", { class: "list faults" }, hf.h("thead", {}, hf.h("tr", {}, hf.faultColumns.map((word) => hf.h("th", { scope: "col", class: word === "step" ? "number" : null }, word)))), hf.h("tbody"));
  const fill = (all) => hf.fill(node.tBodies[0], shown.slice(0, all ? 200 : few).map((fault) => {
    const at = faults.indexOf(fault);
    return hf.labelled(hf.faultColumns, hf.h("tr", { tabIndex: 0, class: "open", onclick: () => open(at), onkeydown: (event) => event.key === "Enter" && open(at) },
      hf.h("td", { class: "time" }, hf.clock(fault.time, true)), hf.h("td", {}, hf.h("b", { class: "code" }, fault.code || "-")), hf.h("td", {}, fault.sentence), hf.h("td", { class: "number" }, hf.count(fault.step)),
      hf.h("td", {}, hf.recovery(fault)), hf.h("td", {}, fault.blame || "-")));
  }), !all && shown.length > few ? hf.h("tr", { class: "rest" }, hf.h("td", { colSpan: 6 }, hf.h("button", { type: "button", class: "link", onclick: () => fill(true) }, `show ${hf.counted(shown.length - few, "earlier fault")}`), total > shown.length ? ` of ${hf.count(total)}` : "")) : null);
  fill(false);
  return node;
};

hf.recovery = (fault) => {
  if (!fault.recovered) return hf.h("span", { class: "warn" }, hf.running() ? "not yet" : "no");
  return hf.known(fault.recovered_s) ? `after ${hf.duration(fault.recovered_s)}` : "within the step";
};

hf.faultDialog = (source, faults, at, files) => {
  const fault = faults[at], folder = fault.folder;
  const names = folder ? files.map((file) => file.path).filter((path) => path.startsWith(`${folder}/`)) : [];
  names.sort((a, b) => (b.endsWith("README.txt") ? 1 : 0) - (a.endsWith("README.txt") ? 1 : 0) || a.localeCompare(b));
  const text = hf.h("pre", { class: "text", tabIndex: 0 }, names.length ? "" : "no evidence was kept for this fault");
  const tabs = hf.h("div", { class: "tabs", role: "tablist" }, names.map((path) => hf.h("button", { type: "button", role: "tab", "aria-selected": "false", onclick: (event) => show(path, event.currentTarget) }, path.slice(folder.length + 1))));
  const show = async (path, tab) => {
    [...tabs.children].forEach((each) => each.setAttribute("aria-selected", String(each === tab)));
    try {
      const answer = await source.text(path);
      text.textContent = answer.text + (answer.cut ? "\n… the rest is in the file" : "");
    } catch (error) { text.textContent = error.message; }
  };
  const next = (way) => (faults[at + way] ? () => hf.faultDialog(source, faults, at + way, files) : null);
  const node = hf.dialog(`fault ${fault.code}`,
    hf.h("p", { class: "eyebrow" }, hf.h("b", { class: "code" }, fault.code || "-"), ` ${fault.kind.replaceAll("_", " ")} · ${hf.clock(fault.time, true)}${faults.length > 1 ? ` · fault\u00a0${at + 1}\u00a0of\u00a0${faults.length}` : ""}`),
    hf.h("h2", {}, fault.sentence),
    hf.rows([["device", fault.device], ["step", hf.count(fault.step) + (fault.phase ? `, in ${fault.phase}` : "")], ["what holdfast did", [fault.action.replaceAll("_", " "), fault.reason].filter(Boolean).join(": ")],
      ["recovered", hf.recovery(fault)], ["time lost", hf.known(fault.lost_s) ? hf.duration(fault.lost_s) : null], ["blame", fault.blame_sentence || fault.blame || "not known"],
      ["evidence", folder], ["explanation", hf.h("code", {}, `holdfast explain ${fault.code}`)]]),
    tabs, text,
    faults.length < 2 ? null : hf.h("p", { class: "between" }, hf.h("button", { type: "button", disabled: !next(-1), onclick: next(-1) }, "← earlier"), hf.h("button", { type: "button", disabled: !next(1), onclick: next(1) }, "later →")));
  node.classList.add("side");
  if (names.length) show(names[0], tabs.children[0]);
  return node;
};

// Log ----------------------------------------------------------------------------------------------------

hf.LogPanel = class {
  constructor(source) {
    this.source = source;
    this.lines = [];
    this.pre = hf.h("pre", { class: "log", tabIndex: 0 });
    this.filter = hf.h("input", { type: "search", placeholder: "filter (/)", "aria-label": "filter the log", id: "log-filter", oninput: () => this.show() });
    this.follow = hf.h("input", { type: "checkbox", checked: true, onchange: () => this.show() });
    this.node = hf.card("log", "Log", this.pre);
    hf.fill(this.node.querySelector(".more"), this.filter, source.live ? hf.h("label", {}, this.follow, " follow") : null);
  }
  async refresh() {
    try { this.lines = (await this.source.log(1000)).lines; } catch (error) { this.lines = [error.message]; }
    this.show();
  }
  show() {
    const wanted = this.filter.value.toLowerCase(), found = wanted ? this.lines.filter((line) => line.toLowerCase().includes(wanted)) : this.lines;
    const text = found.length ? found.join("\n") : this.lines.length ? "no line contains this text" : hf.running() ? "the script has printed nothing yet" : "the script printed nothing";
    hf.text(this.pre, text);
    if (this.follow.checked) this.pre.scrollTop = this.pre.scrollHeight;
  }
};

// Settings, receipt, environment, files ------------------------------------------------------------------

hf.settingsPanel = (settings, identity) => {
  const changed = settings.filter((each) => each.source !== "default"), body = hf.h("tbody");
  const head = hf.h("thead", {}, hf.h("tr", {}, ["setting", "value", "from"].map((word) => hf.h("th", { scope: "col" }, word))));
  const box = hf.h("input", { type: "checkbox", onchange: () => fill() });
  const fill = () => { head.hidden = !box.checked && !changed.length; return hf.fill(body, (box.checked ? settings : changed).map((each) => hf.h("tr", { class: each.source === "default" ? "plain" : "" }, hf.h("td", {}, hf.h("code", {}, each.key)), hf.h("td", {}, each.shown), hf.h("td", { class: "muted" }, each.source))),
    !box.checked && !changed.length ? hf.h("tr", {}, hf.h("td", { colSpan: 3, class: "muted" }, "All settings have their default values.")) : null); };
  fill();
  const pairs = Object.entries(identity.arguments && typeof identity.arguments === "object" ? identity.arguments : {});
  const card = hf.card("settings", "Settings",
    hf.rows([["script", identity.script], ["arguments", pairs.map(([key, value]) => `${key}=${value}`).join(" ")], ["argv", Array.isArray(identity.argv) ? identity.argv.join(" ") : ""], ["seed", identity.seed], ["threads", identity.threads], ["created", hf.known(Date.parse(identity.created)) ? hf.clock(Date.parse(identity.created) / 1000, true) : identity.created], ["written by", `holdfast ${identity.holdfast ?? "?"}, Python ${identity.python ?? "?"}`]]),
    settings.length ? hf.h("div", { class: "scroll" }, hf.h("table", { class: "list" }, head, body)) : hf.h("p", { class: "muted" }, "The run folder holds no settings."));
  if (settings.length) hf.fill(card.querySelector(".more"), hf.h("label", {}, box, ` show all ${settings.length}`));
  return card;
};

hf.plainRows = (value, prefix) => {
  if (value === null || typeof value !== "object") return [[prefix, String(value)]];
  return Object.entries(value).flatMap(([key, each]) => (each === null || (typeof each === "object" && !Object.keys(each).length) ? [] : hf.plainRows(each, prefix ? `${prefix} · ${key}` : key)));
};

hf.receiptPanel = (receipt) => {
  if (!receipt) return null;
  const words = { steps: "steps committed", steps_repeated: "steps repeated", steps_lost: "steps lost", steps_undone: "steps undone", samples_skipped: "samples skipped", samples_repeated: "samples seen twice", samples_quarantined: "samples left out", recoveries: "workers replaced" };
  const faults = Object.entries(receipt.faults && typeof receipt.faults === "object" ? receipt.faults : {}).map(([kind, times]) => `${times}\u00a0×\u00a0${kind.replaceAll("_", "\u00a0")}`).join(", ");
  const sha = receipt.weights_sha256;
  return hf.card("receipt", "Receipt", hf.rows([["survived", receipt.survived === true ? "yes" : receipt.survived === false ? "no" : null], ["faults", faults || "none"], ...Object.entries(words).map(([key, word]) => [word, hf.known(receipt[key]) ? hf.count(receipt[key]) : null]),
    ["time lost", hf.known(receipt.seconds_lost) ? hf.duration(receipt.seconds_lost) : null],
    ["time to recover", receipt.recovery_s && hf.known(receipt.recovery_s.p50) ? `${hf.duration(receipt.recovery_s.p50)} median, ${hf.duration(receipt.recovery_s.max)} at most` : null],
    ["weights", typeof sha === "string" ? hf.h("code", { class: "hash" }, sha) : null]]));
};

hf.environmentPanel = (environment) => {
  const { found, ...named } = environment, kept = found && typeof found === "object" ? found : {};
  const { environment: variables, packages, ...rest } = kept;
  const more = (title, value) => (value && Object.keys(value).length ? hf.h("details", {}, hf.h("summary", {}, title), hf.rows(hf.plainRows(value, ""))) : null);
  return hf.card("environment", "Environment", hf.rows([...hf.plainRows(named, ""), ...hf.plainRows(rest, "").filter(([key]) => /^(system|cpu|memory · total|gpus|torch · (cuda|hip|rocm))/.test(key)).map(([key, value]) => [key, /bytes$/.test(key) ? hf.size(+value) : value])]), more("packages", packages), more("variables", variables), more("everything", rest));
};

// What was found out and decided, in the words of the journal.
hf.findingWords = (each) => each.sentence || each.text || {
  moved: `from ${each.before} to ${each.after} at step ${hf.count(each.step)}`, undone: `steps ${hf.count(each.to_step)} to ${hf.count(each.from_step)} are computed again`,
  stopping: `${each.signal} at step ${hf.count(each.step)}`, end: `${each.state} at step ${hf.count(each.step)}`, saved_again: `after ${hf.duration(each.seconds)}`,
}[each.event] || "";
hf.findingsPanel = (findings) => {
  if (!findings.length) return null;
  const few = 8, shown = findings.slice().reverse(), body = hf.h("tbody");
  const fill = (all) => hf.fill(body, shown.slice(0, all ? undefined : few).map((each) => hf.h("tr", {}, hf.h("td", { class: "time" }, hf.clock(each.time, true)), hf.h("td", {}, String(each.event).replaceAll("_", " ")), hf.h("td", {}, String(hf.findingWords(each)), each.device && each.event !== "moved" ? hf.h("span", { class: "muted" }, ` · ${each.device}`) : null))),
    !all && shown.length > few ? hf.h("tr", { class: "rest" }, hf.h("td", { colSpan: 3 }, hf.h("button", { type: "button", class: "link", onclick: () => fill(true) }, `show ${shown.length - few} earlier`))) : null);
  fill(false);
  return hf.card("findings", "Findings and decisions", hf.h("table", { class: "list findings" }, body));
};

hf.filesPanel = (source, files) => {
  const readable = /\.(txt|json|jsonl|log|toml|md|csv)$|^lock$/, body = hf.h("tbody");
  const few = 14, top = files.filter((file) => !file.path.startsWith("faults/")), all = files;
  const view = async (path) => {
    const text = hf.h("pre", { class: "text", tabIndex: 0 }, "…");
    hf.dialog(path, hf.h("h2", {}, path), text).classList.add("side");
    try { const answer = await source.text(path); text.textContent = answer.text + (answer.cut ? "\n… the rest is in the file" : ""); } catch (error) { text.textContent = error.message; }
  };
  const fill = (list, rest) => hf.fill(body, list.map((file) => hf.h("tr", {}, hf.h("td", {}, hf.h("code", {}, file.path)), hf.h("td", { class: "number" }, hf.size(file.bytes)),
    hf.h("td", { class: "acts" }, readable.test(file.path) && (source.live || file.shown) ? hf.h("button", { type: "button", class: "link", onclick: () => view(file.path) }, "view") : null, source.live ? hf.h("a", { href: source.file(file.path), download: "" }, "download") : null))),
    rest ? hf.h("tr", { class: "rest" }, hf.h("td", { colSpan: 3 }, hf.h("button", { type: "button", class: "link", onclick: () => fill(all, 0) }, `show ${rest} more`))) : null);
  const rest = all.length - Math.min(few, top.length);
  if (rest > 2) fill(top.slice(0, few), rest); else fill(all, 0); // one line that hides one file helps nobody
  return hf.card("files", "Files", hf.h("div", { class: "scroll" }, hf.h("table", { class: "list wide-first" }, body)));
};
