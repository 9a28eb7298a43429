// Rating by keyboard. A decision is an event with an id made here. It is kept in the browser until the server
// has said that it is on disk, and sent again after a failure, also by the next page: it is stored once.
"use strict";
(() => {
  const { $, $$, toast } = window.hermes;
  const stage = $("#item"), form = $("#decide"), warning = $("#pending");
  if (!stage || !form) return;
  const mode = stage.dataset.mode, query = stage.dataset.query, queue = stage.dataset.queue;
  const buttons = new Map($$("button[data-key]", form).map((button) => [button.dataset.key, button]));
  const STORE = "hermes-unsaved-ratings";
  const history = [];   // what was decided in this page, newest last
  let ahead = [];       // the next items, already here
  let began = performance.now(), sending = false, fetching = null, over = false;

  const uuid = () => {
    const bytes = crypto.getRandomValues(new Uint8Array(16));
    return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  };
  const unsaved = () => { try { return JSON.parse(localStorage.getItem(STORE)) || []; } catch { return []; } };
  const store = (events) => localStorage.setItem(STORE, JSON.stringify(events));
  function warn() {
    const count = unsaved().length;
    warning.hidden = !failed || !count;
    if (count) warning.textContent = `${count} rating${count === 1 ? " is" : "s are"} not saved yet: ${failed}. They are kept in this browser and sent again.`;
  }
  let failed = "";

  // One request at a time, in order, so that an undo never overtakes its rating.
  async function flush() {
    if (sending) return;
    sending = true;
    try {
      while (unsaved().length) {
        const [event, ...rest] = unsaved();
        let response;
        try {
          response = await fetch(event.path, { method: "POST", body: new URLSearchParams(event.fields), headers: { "x-requested-with": "fetch", accept: "application/json" } });
        } catch {
          failed = "the server does not answer";
          break;
        }
        if (response.ok) {
          failed = "";
          store(unsaved().filter((other) => other.fields.id !== event.fields.id));
          document.body.dispatchEvent(new Event("rated"));
        } else if (response.status >= 500) {
          failed = `the server answered ${response.status}`;
          break;
        } else {
          const problem = await response.json().catch(() => ({ error: `status ${response.status}` }));
          store(rest);
          toast(`Not saved: ${problem.error}. ${problem.hint || ""}`, true);
        }
      }
    } finally {
      sending = false;
      warn();
      if (unsaved().length) setTimeout(flush, 1500);
    }
  }
  function send(path, fields) {
    store([...unsaved(), { path, fields }]);
    flush();
  }

  const current = () => $(".item:not(.waiting)", stage);
  async function fetchItem() {
    const besides = [current(), ...ahead].filter(Boolean).map((item) => item.dataset.item);
    const recent = history.slice(-8).map((entry) => entry.item.dataset.item);
    const search = new URLSearchParams([["mode", mode], ["q", query], ["queue", queue], ...[...besides, ...recent].map((key) => ["besides", key])]);
    const response = await fetch(`/rate/item?${search}`, { headers: { "x-requested-with": "fetch" } });
    if (response.status === 204) { over = true; return; }
    if (!response.ok) return;
    const parsed = new DOMParser().parseFromString(await response.text(), "text/html");
    const item = $(".item", parsed);
    if (item && !besides.includes(item.dataset.item)) ahead.push(document.adoptNode(item));
  }
  function refill() {
    if (fetching || over || ahead.length >= 3) return fetching;
    fetching = fetchItem().catch(() => {}).finally(() => { fetching = null; prepare(); if (!over && ahead.length < 3) setTimeout(refill, ahead.length ? 0 : 300); });
    return fetching;
  }
  // the next item is laid out behind the one that is shown, so that a key only has to uncover it
  function prepare() {
    const next = ahead[0];
    $$(".item.waiting", stage).forEach((item) => { if (item !== next) item.remove(); });
    if (!next || next.parentNode === stage || !current()) return;
    next.classList.add("waiting");
    next.inert = true;
    stage.append(next);
    window.htmx.process(next);
  }
  function show(item) {
    [...stage.children].forEach((child) => { if (child !== item) child.remove(); });
    if (item) {
      item.classList.remove("waiting");
      item.inert = false;
      if (item.parentNode !== stage) stage.append(item);
      requestAnimationFrame(() => setTimeout(prepare));
    }
    form.hidden = !item;
    if (!item) {
      const note = document.createElement("div");
      note.className = "empty";
      note.innerHTML = "<h2>Nothing waits here</h2><p>Everything that can be rated in this way has your rating.</p>";
      stage.append(note);
      return;
    }
    form.elements.trajectory.value = item.dataset.trajectory;
    form.elements.other.value = item.dataset.other;
    began = performance.now();
    scrollTo(0, 0);
    linkColumns(item);
    if (mode === "step") startSteps(item);
    document.dispatchEvent(new Event("hermes:shown"));
  }
  async function next() {
    if (!ahead.length && !over) { over = false; await refill(); }
    show(ahead.shift() || null);
    refill();
  }
  function count(change) {
    const label = $("#rated");
    label.dataset.rated = Number(label.dataset.rated) + change;
    label.textContent = Number(label.dataset.rated).toLocaleString("en");
  }
  function press(name) {
    const button = $(`button[value="${name}"]`, form);
    if (!button) return;
    button.classList.add("pressed");
    setTimeout(() => button.classList.remove("pressed"), 120);
  }
  function decide(decision) {
    const item = current();
    if (!item || form.hidden) return;
    press(decision);
    const fields = { id: uuid(), mode, decision, queue, trajectory: item.dataset.trajectory, other: item.dataset.other, comment: form.elements.comment.value.trim(), elapsed_ms: String(Math.round(performance.now() - began)) };
    if (mode === "step" && decision !== "skip") {
      fields.step = String(stepAt());
      history.push({ id: fields.id, item, step: stepAt(), fields });
      mark(item, stepAt(), decision);
    } else if (decision !== "skip") history.push({ id: fields.id, item, fields });
    form.elements.comment.value = "";
    if (decision === "skip") { send("/rate", fields); next(); return; }
    send("/rate", fields);
    count(1);
    if (mode === "step" && decision !== "first-bad" && nextStep()) { began = performance.now(); document.dispatchEvent(new Event("hermes:shown")); return; }
    next();
  }
  function undo() {
    const entry = history.pop();
    if (!entry) { toast("Nothing of this page is left to undo"); return; }
    send("/rate/undo", { id: uuid(), event: entry.id });
    count(-1);
    const shown = current();
    if (shown && shown !== entry.item) ahead.unshift(shown);
    if (shown !== entry.item) show(entry.item);
    if (mode === "step") { mark(entry.item, entry.step, ""); goStep(entry.step); }
    over = false;
    toast("Taken back");
  }

  // A rating is not changed: it is taken back and given again, with the comment.
  function commentLast(text) {
    const entry = history.at(-1);
    if (!entry) { toast("Nothing of this page is rated yet: Enter keeps the comment for your next decision"); return; }
    const fields = { ...entry.fields, id: uuid(), comment: text };
    send("/rate/undo", { id: uuid(), event: entry.id });
    send("/rate", fields);
    Object.assign(entry, { id: fields.id, fields });
    comment.value = "";
    toast("Added to your last rating");
  }

  // steps
  let stepPosition = 0;
  const steps = () => (current() ? current().dataset.steps.split(" ").filter(Boolean).map(Number) : []);
  const stepAt = () => steps()[stepPosition];
  const card = (index) => { const slot = $(`[data-mark="${index}"]`, stage); return slot && slot.closest(".card"); };
  function goStep(index) {
    stepPosition = Math.max(0, steps().indexOf(index));
    $$(".card.deciding", stage).forEach((element) => element.classList.remove("deciding"));
    const target = card(stepAt());
    if (target) { target.classList.add("deciding"); target.scrollIntoView({ block: "center" }); }
    form.elements.step.replaceChildren(...steps().map((step) => new Option(step, step, false, step === stepAt())));
  }
  function startSteps() { stepPosition = 0; if (steps().length) goStep(steps()[0]); }
  function nextStep() { if (stepPosition + 1 >= steps().length) return false; goStep(steps()[stepPosition + 1]); return true; }
  function mark(item, index, decision) {
    const slot = $(`[data-mark="${index}"]`, item);
    if (!slot) return;
    slot.textContent = { "step-good": "good", "step-neutral": "neutral", "step-bad": "bad", "first-bad": "first bad step" }[decision] || "";
    slot.className = `spread step-mark ${decision === "step-good" ? "good" : decision === "step-bad" || decision === "first-bad" ? "bad" : "dim"}`;
  }

  // two columns scroll together
  function linkColumns(item) {
    const columns = $$("[data-columns] .column", item);
    if (columns.length !== 2 || item.dataset.linked) return;
    item.dataset.linked = "1";
    const placed = new Map(); // where a column was put by the other: its own scroll event leads nobody
    columns.forEach((column, index) => column.addEventListener("scroll", () => {
      if (placed.get(column) === column.scrollTop) return;
      placed.delete(column);
      const other = columns[1 - index], room = column.scrollHeight - column.clientHeight;
      if (room <= 0) return;
      other.scrollTop = (column.scrollTop / room) * (other.scrollHeight - other.clientHeight);
      placed.set(other, other.scrollTop);
    }, { passive: true }));
  }

  const comment = form.elements.comment;
  comment.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    if ((event.ctrlKey || event.metaKey) && comment.value.trim()) commentLast(comment.value.trim());
    comment.blur();
  });
  form.addEventListener("submit", (event) => {
    const button = event.submitter;
    event.preventDefault();
    if (!button) return;
    if ("undo" in button.dataset) undo(); else decide(button.value);
    button.blur();
  });
  const keys = window.hermes.keys;
  for (const [key, button] of buttons) if (!key.startsWith("Shift+")) keys[key] = (event) => {
    const strong = event.shiftKey && buttons.get(`Shift+${key}`);
    decide((strong || button).value);
  };
  if (keys.ArrowLeft) [keys.a, keys.b] = [keys.ArrowLeft, keys.ArrowRight]; // as `hermes rate` has them
  keys.u = undo;
  keys.c = () => comment.focus();
  if (mode === "step") {
    keys.j = () => nextStep();
    keys.k = () => { if (stepPosition > 0) goStep(steps()[stepPosition - 1]); };
    keys.Enter = () => next();
    if (keys["+"]) keys["="] = keys["+"];
  }
  addEventListener("storage", warn);
  if (current()) { linkColumns(current()); if (mode === "step") startSteps(current()); refill(); }
  if (unsaved().length) { failed = "the last page was closed before they were"; warn(); flush(); }
})();
