// Which page this is.
"use strict";
hf.theme.restore();
hf.key("?", "show this list", hf.help);
hf.key("d", "switch between light and dark", () => hf.theme.set(hf.theme.get() === "dark" ? "light" : "dark"));

(async () => {
  const main = document.getElementById("main"), embedded = document.getElementById("report-data");
  try {
    if (embedded) {
      hf.report = true;
      hf.page = new hf.RunPage(new hf.ReportSource(JSON.parse(embedded.textContent)));
    } else if (location.pathname.startsWith("/r/")) hf.page = new hf.RunPage(new hf.LiveSource(decodeURIComponent(location.pathname.slice(3))));
    else if (location.pathname === "/compare") hf.page = new hf.ComparePage((new URLSearchParams(location.search).get("runs") || "").split(",").filter(Boolean));
    else hf.page = new hf.RunsPage();
    await hf.page.start(main);
  } catch (error) {
    hf.fill(main, hf.h("section", { class: "card" }, hf.h("h2", {}, "This page cannot be shown"), hf.h("p", {}, String(error.message || error)), hf.report ? null : hf.h("p", {}, hf.h("a", { href: "/" }, "all runs"))));
    document.body.dataset.ready = "no";
  }
})();
