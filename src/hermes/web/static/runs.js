// Live tables and curves. Without it the table is as of the last load and curves are plain SVG.
"use strict";
(() => {
  const { $, $$, toast } = window.hermes;

  // the table: the server says that something changed, the page fetches the table again
  const table = $("[data-live]");
  if (table) {
    const source = new EventSource(table.dataset.live);
    let first = true;
    source.onmessage = async () => {
      if (first) { first = false; return; }
      const chosen = new Set($$("input:checked", table).map((box) => box.value));
      const response = await fetch(table.dataset.source, { headers: { "x-requested-with": "fetch" } });
      if (!response.ok) return;
      const parsed = new DOMParser().parseFromString(await response.text(), "text/html");
      table.replaceChildren(...parsed.body.children);
      $$("input[type=checkbox]", table).forEach((box) => { box.checked = chosen.has(box.value); });
    };
    addEventListener("pagehide", () => source.close());
  }

  $$("[data-unlock]").forEach((box) => box.addEventListener("change", () => {
    $$("[data-locked]").forEach((field) => { field.disabled = !box.checked; });
  }));

  const holder = $("#panels");
  if (!holder || typeof uPlot === "undefined") return;
  const ids = [holder.dataset.run, ...holder.dataset.overlaid.split(" ").filter(Boolean)];
  const figures = $$("[data-panel]");
  const plots = new Map();
  let runs = [], smoothing = 0.9;
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const shades = (index) => [css("--accent"), css("--warm"), css("--ink2"), css("--ink")][index % 4];
  const dashes = (index) => [[], [6, 3], [2, 3]][Math.floor(index / 4) % 3];
  const sync = uPlot.sync("runs");

  const average = (values) => {
    let total = 0, weight = 0;
    return values.map((value) => { total = smoothing * total + (1 - smoothing) * value; weight = smoothing * weight + (1 - smoothing); return total / weight; });
  };
  // uPlot wants one x for all lines: the union of the steps, with holes
  function joined(name) {
    const lines = runs.map((run) => run.curves[name]).filter((line) => line && line.steps.length);
    if (!lines.length) return null;
    const steps = [...new Set(lines.flatMap((line) => line.steps))].sort((a, b) => a - b);
    const data = [steps];
    for (const run of runs) {
      const line = run.curves[name] || { steps: [], values: [], smooth: [] };
      const at = new Map(line.steps.map((step, index) => [step, index]));
      const pick = (values) => steps.map((step) => (at.has(step) ? values[at.get(step)] : undefined));
      data.push(pick(line.values), pick(line.smooth));
    }
    return data;
  }
  function markers(plot) {
    const marks = runs.length ? runs[0].markers : [];
    plot.ctx.save();
    plot.ctx.strokeStyle = css("--line2");
    plot.ctx.setLineDash([3, 3]);
    for (const mark of marks) {
      const x = Math.round(plot.valToPos(mark.step, "x", true));
      if (x < plot.bbox.left || x > plot.bbox.left + plot.bbox.width) continue;
      plot.ctx.beginPath();
      plot.ctx.moveTo(x, plot.bbox.top);
      plot.ctx.lineTo(x, plot.bbox.top + plot.bbox.height);
      plot.ctx.stroke();
    }
    plot.ctx.restore();
  }
  const short = (value) => (value == null ? "" : Math.abs(value) >= 1e5 || (value !== 0 && Math.abs(value) < 1e-3) ? value.toExponential(1) : String(+value.toPrecision(4)));
  function draw(figure) {
    const name = figure.dataset.panel, box = $(".plot", figure), data = joined(name);
    if (!data || !box.clientWidth) return;
    const known = plots.get(name);
    if (known && known.series.length === data.length) { known.setData(data); return; }
    if (known) known.destroy();
    const axis = { stroke: css("--ink2"), grid: { stroke: css("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const series = [{}];
    runs.forEach((run, index) => {
      const colour = shades(index);
      series.push({ label: `${run.id} raw`, stroke: `${colour}55`, width: 1, spanGaps: true, points: { show: data[0].length < 3 } });
      series.push({ label: run.id, stroke: colour, width: 2, dash: dashes(index), spanGaps: true, points: { show: false } });
    });
    box.replaceChildren();
    const plot = new uPlot({
      width: box.clientWidth, height: 168, legend: { show: false }, series,
      cursor: { sync: { key: sync.key }, points: { size: 6 } },
      scales: { x: { time: false } },
      axes: [{ ...axis, size: 24, values: (self, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? String(tick) : "")) }, { ...axis, size: 48, values: (self, ticks) => ticks.map(short) }],
      hooks: {
        drawClear: [markers],
        setCursor: [(self) => {
          const at = self.cursor.idx, label = $("[data-value]", figure);
          if (at == null) { label.textContent = short(last(name)); return; }
          const texts = runs.map((run, index) => short(self.data[1 + 2 * index][at])).filter(Boolean);
          label.textContent = `step ${self.data[0][at]}: ${texts.join(" · ")}`;
        }],
      },
    }, data, box);
    plot.over.addEventListener("click", () => { if (plot.cursor.idx != null) rollouts(plot.data[0][plot.cursor.idx]); });
    plots.set(name, plot);
    figure.classList.add("drawn");
  }
  const last = (name) => { const line = runs[0] && runs[0].curves[name]; return line && line.values.length ? line.values[line.values.length - 1] : null; };
  const redraw = () => figures.forEach((figure) => { draw(figure); const label = $("[data-value]", figure); if (label && last(figure.dataset.panel) != null) label.textContent = short(last(figure.dataset.panel)); });

  async function load() {
    const query = ids.map((id) => `id=${encodeURIComponent(id)}`).concat(figures.map((figure) => `name=${encodeURIComponent(figure.dataset.panel)}`)).join("&");
    const response = await fetch(`/runs/curves?${query}&smooth=${Math.round(smoothing * 100)}`);
    if (!response.ok) { toast("The curves cannot be read", true); return; }
    runs = (await response.json()).runs;
    redraw();
  }
  async function rollouts(step) {
    const target = $("#rollouts");
    if (!target) return;
    const response = await fetch(`/runs/${encodeURIComponent(ids[0])}/steps/${step}`, { headers: { "x-requested-with": "fetch" } });
    const parsed = new DOMParser().parseFromString(await response.text(), "text/html");
    target.replaceChildren(...parsed.body.children);
    target.scrollIntoView({ block: "nearest" });
  }
  function append(rows) {
    for (const row of rows) {
      for (const [name, value] of Object.entries(row)) {
        const line = runs[0].curves[name];
        if (!line || typeof value !== "number" || !isFinite(value)) continue;
        line.steps.push(row.step);
        line.values.push(value);
      }
    }
    for (const line of Object.values(runs[0].curves)) line.smooth = average(line.values);
    redraw();
  }
  let grown = 0;
  function follow() {
    const source = new EventSource(`/runs/${encodeURIComponent(ids[0])}/events?after=${runs[0] ? runs[0].last : 0}`);
    source.onmessage = (message) => {
      const event = JSON.parse(message.data);
      if (event.error) { toast(event.error, true); return; }
      const step = $("#run-step");
      if (step) step.textContent = event.step.toLocaleString("en");
      const bar = $(".run-progress");
      if (bar) bar.value = event.step;
      const badge = $("#run-state .tag");
      if (badge && badge.textContent !== event.state.replace("_", " ")) {
        badge.textContent = event.state.replace("_", " ");
        if (["completed", "failed", "stopped"].includes(event.state)) setTimeout(() => location.reload(), 500);
      }
      if (!figures.length && event.rows.length) { location.reload(); return; }
      grown += event.rows.length;
      if (event.reload || grown > 400) { grown = 0; load(); } else if (event.rows.length) append(event.rows);
    };
    addEventListener("pagehide", () => source.close());
  }
  load().then(() => { if (holder.dataset.active === "1") follow(); });
  const range = $("#smooth");
  if (range) range.addEventListener("input", () => { smoothing = Number(range.value) / 100; for (const run of runs) for (const line of Object.values(run.curves)) line.smooth = average(line.values); redraw(); });
  $$(".more-panels").forEach((more) => more.addEventListener("toggle", redraw));
  let timer = 0;
  addEventListener("resize", () => { clearTimeout(timer); timer = setTimeout(() => { plots.forEach((plot) => plot.destroy()); plots.clear(); redraw(); }, 150); });
  document.addEventListener("hermes:theme", () => { plots.forEach((plot) => plot.destroy()); plots.clear(); redraw(); });
})();
