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
  const metricsOf = (figure) => figure.dataset.metrics.split(" ");
  const lines = (figure) => runs.flatMap((run, at) => metricsOf(figure).map((name, line) => ({ run, at, line, curve: run.curves[name] || { steps: [], values: [], smooth: [] } })));
  // uPlot wants one x for all lines: the union of the steps, with holes
  function joined(figure) {
    const all = lines(figure);
    const steps = [...new Set(all.flatMap((line) => line.curve.steps))].sort((a, b) => a - b);
    if (!steps.length) return null;
    const data = [steps];
    for (const { curve } of all) {
      const at = new Map(curve.steps.map((step, index) => [step, index]));
      const pick = (values) => steps.map((step) => (at.has(step) ? values[at.get(step)] : undefined));
      data.push(pick(curve.values), pick(curve.smooth));
    }
    return data;
  }
  // of one run the lines of a panel have colours; of several each run has one, and a panel's lines are dashed
  const colourOf = (line) => shades(runs.length === 1 ? line.line : line.at);
  const dashOf = (line) => (runs.length === 1 ? dashes(line.line) : line.line ? [[6, 3], [2, 3]][(line.line - 1) % 2] : dashes(line.at));
  const markStyles = { checkpoint: ["--line2", [3, 3], 1], resume: ["--accent", [4, 3], 0.55], crash: ["--warm", [], 0.55], alert: ["--warm", [1, 3], 1] };
  const marksOf = (figure) => (runs.length && holder.dataset.marks !== "0" ? runs[0].markers : []).filter((mark) => !mark.metric || metricsOf(figure).includes(mark.metric));
  function markers(plot, figure) {
    const ratio = devicePixelRatio || 1;
    plot.ctx.save();
    for (const mark of marksOf(figure)) {
      const [colour, dash, strength] = markStyles[mark.kind];
      const x = Math.round(plot.valToPos(mark.step, "x", true));
      if (x < plot.bbox.left || x > plot.bbox.left + plot.bbox.width) continue;
      plot.ctx.strokeStyle = css(colour);
      plot.ctx.lineWidth = (mark.kind === "alert" ? 1.5 : 1) * ratio;
      plot.ctx.globalAlpha = strength;
      plot.ctx.setLineDash(dash.map((length) => length * ratio));
      plot.ctx.beginPath();
      plot.ctx.moveTo(x, plot.bbox.top);
      plot.ctx.lineTo(x, plot.bbox.top + plot.bbox.height);
      plot.ctx.stroke();
    }
    plot.ctx.restore();
  }
  // what happened where the cursor is: a checkpoint says little, so that anything else goes first
  function markAt(plot, figure) {
    const near = marksOf(figure).filter((mark) => Math.abs(plot.valToPos(mark.step, "x") - plot.cursor.left) <= 5);
    const mark = near.find((entry) => entry.kind !== "checkpoint") || near[0];
    return mark ? `${mark.text} · ` : "";
  }
  const short = (value, digits = 4) => (value == null ? "" : Math.abs(value) >= 1e5 || (value !== 0 && Math.abs(value) < 1e-3) ? value.toExponential(1) : String(+value.toPrecision(digits)));
  const newest = (figure) => {
    const own = lines(figure).filter((line) => line.at === 0), digits = own.length > 2 ? 2 : own.length > 1 ? 3 : 4;
    const values = own.map(({ curve }) => (curve.values.length ? short(curve.values[curve.values.length - 1], digits) : "")).filter(Boolean);
    return values.join(" · ");
  };
  function draw(figure) {
    const name = figure.dataset.panel, box = $(".plot", figure), data = joined(figure);
    if (!data || !box.clientWidth) return;
    const known = plots.get(name);
    if (known && known.series.length === data.length) { known.setData(data); return; }
    if (known) known.destroy();
    const axis = { stroke: css("--ink2"), grid: { stroke: css("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const series = [{}];
    for (const line of lines(figure)) {
      const colour = colourOf(line), label = `${line.run.id} ${metricsOf(figure)[line.line]}`;
      series.push({ label: `${label} raw`, stroke: `${colour}55`, width: 1, spanGaps: true, points: { show: data[0].length < 3 } });
      series.push({ label, stroke: colour, width: 2, dash: dashOf(line), spanGaps: true, points: { show: false } });
    }
    box.replaceChildren();
    const plot = new uPlot({
      width: box.clientWidth, height: 168, legend: { show: false }, series,
      cursor: { sync: { key: sync.key }, points: { size: 6 } },
      scales: { x: { time: false }, y: { range: (self, low, high) => (low === 0 && high === 0 ? [0, 1] : uPlot.rangeNum(low, high, 0.1, true)) } },
      axes: [{ ...axis, size: 24, values: (self, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? String(tick) : "")) }, { ...axis, size: 48, values: (self, ticks) => ticks.map((tick) => short(tick)) }],
      hooks: {
        drawClear: [(self) => markers(self, figure)],
        setCursor: [(self) => {
          const at = self.cursor.idx, label = $("[data-value]", figure);
          if (at == null) { label.textContent = newest(figure); return; }
          const texts = lines(figure).map((line, index) => short(self.data[1 + 2 * index][at])).filter(Boolean);
          label.textContent = `${markAt(self, figure)}step ${self.data[0][at]}: ${texts.join(" · ")}`;
        }],
      },
    }, data, box);
    plot.over.addEventListener("click", () => { if (plot.cursor.idx != null) rollouts(plot.data[0][plot.cursor.idx]); });
    plots.set(name, plot);
    figure.classList.add("drawn");
  }
  const redraw = () => figures.forEach((figure) => { draw(figure); const label = $("[data-value]", figure); if (label && newest(figure)) label.textContent = newest(figure); });

  async function load() {
    const names = [...new Set(figures.flatMap(metricsOf))];
    const query = ids.map((id) => `id=${encodeURIComponent(id)}`).concat(names.map((name) => `name=${encodeURIComponent(name)}`)).join("&");
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
