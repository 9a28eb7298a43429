// Keys, completion, themes. Every page works without this file; it only makes them quick.
"use strict";
(() => {
  const $ = (selector, root = document) => root.querySelector(selector);
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
  const body = document.body;

  let toastTimer = 0;
  function toast(text, bad = false) {
    const box = $("#toast");
    box.textContent = text;
    box.className = bad ? "on bad" : "on";
    clearTimeout(toastTimer);
    toastTimer = setTimeout(() => { box.className = ""; }, bad ? 8000 : 2500);
  }
  window.hermes = { toast, $, $$, typing, keys: {} };

  // A key is ignored while somebody types, with a modifier, in a dialog, and while a letter is composed.
  function typing(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return true;
    if (event.getModifierState && event.getModifierState("AltGraph")) return true;
    if ([...dialogs].some((dialog) => dialog.open)) return true;
    const target = event.target;
    if (target.type === "checkbox") return event.key === " ";
    return target.isContentEditable || ["INPUT", "TEXTAREA", "SELECT"].includes(target.tagName);
  }

  // on a phone the navigation scrolls: the current page is brought into view
  const currentLink = $(".rail nav [aria-current]");
  if (currentLink && currentLink.parentElement.scrollWidth > currentLink.parentElement.clientWidth) {
    currentLink.parentElement.scrollLeft = currentLink.offsetLeft - currentLink.parentElement.offsetLeft - 40;
  }

  // themes: automatic, light, dark; the server renders what the cookie says, so nothing flashes
  $$("[data-theme-toggle]").forEach((button) => button.addEventListener("click", () => {
    const order = ["auto", "light", "dark"];
    const next = order[(order.indexOf(document.documentElement.dataset.theme) + 1) % 3];
    document.documentElement.dataset.theme = next;
    document.cookie = `hermes_theme=${next}; path=/; max-age=31536000; samesite=strict`;
    toast(`Theme: ${next === "auto" ? "as the system" : next}`);
    document.dispatchEvent(new Event("hermes:theme"));
  }));

  function help() {
    const dialog = $("#help");
    if (!dialog.open) dialog.showModal();
  }
  $$("[data-help]").forEach((button) => button.addEventListener("click", help));

  // moving through rows of a list or steps of a transcript
  let at = -1, marked = null, markedLink = null, addressTimer = 0;
  const outlineLinks = new Map($$(".outline a").map((link) => [link.getAttribute("href").slice(1), link]));
  // a long transcript has 100,000 elements: they are looked through only when some were added
  let listed = null;
  const items = () => { if (!listed) listed = $$("[data-step], [data-row]"); return listed; };
  const dialogs = document.getElementsByTagName("dialog"), preferences = document.getElementsByClassName("prefer");
  function go(index) {
    const all = items();
    if (!all.length) return;
    at = Math.max(0, Math.min(all.length - 1, index));
    const item = all[at];
    if (marked) marked.classList.remove("at");
    marked = item;
    item.classList.add("at");
    const folded = item.closest("details:not([open])");
    if (folded) folded.open = true;
    item.scrollIntoView({ block: item.matches("[data-row]") ? "nearest" : "start" });
    if (item.id) {
      if (markedLink) markedLink.classList.remove("at");
      markedLink = outlineLinks.get(item.id) || null;
      if (markedLink) { markedLink.classList.add("at"); markedLink.scrollIntoView({ block: "nearest" }); }
      clearTimeout(addressTimer);
      addressTimer = setTimeout(() => history.replaceState(null, "", `#${item.id}`), 150);
    }
  }
  function current() {
    const all = items();
    if (at >= 0 && at < all.length) return all[at];
    return all.find((item) => item.getBoundingClientRect().bottom > 40) || all[0];
  }
  function place() {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    const card = target && target.closest("[data-step]");
    if (card) { at = items().indexOf(card); go(at); }
  }
  const click = (selector, root = document) => { const link = root && $(selector, root); if (link) link.click(); return Boolean(link); };
  const position = () => (at >= 0 ? at : items().indexOf(current()) - 1);

  let prefix = "";
  const places = { t: "/trajectories", r: "/rate", u: "/runs", h: "/", b: "/batches", e: "/environments", p: "/policies", d: "/datasets", s: "/skills" };
  const keys = {
    "?": help,
    "/": () => { const box = $("[data-search]"); if (box) { box.focus(); box.select(); } },
    j: () => go(position() + 1),
    k: () => go(Math.max(0, position() - 1)),
    G: () => go(items().length - 1),
    J: () => click("a[rel=next]"),
    K: () => click("a[rel=prev]"),
    f: () => body.classList.toggle("focus"),
    o: outline,
    r: () => slot("[data-raw]"),
    t: () => slot("[data-tokens]"),
    e: () => click(".unfold", current()),
    d: () => click("[data-diff]") || toast("There is nothing to compare it with"),
    c: copyLink,
    x: () => { if (at < 0) go(0); click("[data-pick]", current()); },
    Enter: () => { const row = current(); if (at >= 0 && row) click("a", row); },
  };
  document.addEventListener("keydown", (event) => {
    if (typing(event)) {
      if (event.key === "Escape" && document.activeElement) document.activeElement.blur();
      return;
    }
    if (event.target.tagName === "A" && event.key === "Enter") return;
    if (event.target.tagName === "BUTTON" && (event.key === "Enter" || event.key === " ")) return;
    if (prefix === "g") {
      prefix = "";
      if (event.key === "g" && items().length) { go(0); return; }
      if (places[event.key]) { location.href = places[event.key]; return; }
    }
    if (window.hermes.keys[event.key]) { event.preventDefault(); window.hermes.keys[event.key](event); return; }
    if (preferences.length && ["ArrowLeft", "=", "ArrowRight"].includes(event.key)) { event.preventDefault(); click(`.prefer [data-key="${event.key}"]`); return; }
    if (event.key === "g") { prefix = "g"; return; }
    const action = keys[event.key];
    if (action && (event.key === "?" || event.key === "/" || items().length)) {
      event.preventDefault();
      action();
    }
  });

  function outline() {
    const narrow = matchMedia("(max-width: 1100px)").matches;
    body.classList.toggle(narrow ? "with-outline" : "no-outline");
  }
  function slot(selector) {
    const card = current();
    if (!card) return;
    const filled = $(".slot", card);
    if (filled && filled.firstChild && filled.dataset.view === selector) { filled.replaceChildren(); filled.dataset.view = ""; return; }
    if (click(selector, card)) filled.dataset.view = selector; else toast(selector === "[data-tokens]" ? "This step has no recorded tokens" : "Nothing to show");
  }
  function copyLink() {
    const card = current();
    if (!card) return;
    const url = `${location.origin}${location.pathname}?step=${card.id.replace("step-", "")}#${card.id}`;
    (navigator.clipboard ? navigator.clipboard.writeText(url) : Promise.reject()).then(() => toast("Link copied"), () => toast(url));
  }
  $$("[data-outline]").forEach((button) => button.addEventListener("click", outline));
  $$("[data-focus]").forEach((button) => button.addEventListener("click", keys.f));

  // a trajectory that is being recorded: the server says that it has grown, the page fetches the new cards
  const part = async (url, headers = { "x-requested-with": "fetch" }) => {
    const response = await fetch(url, { headers });
    return response.ok ? new DOMParser().parseFromString(await response.text(), "text/html") : null;
  };
  async function growTail() {
    const tail = $("[data-tail]"), parsed = await part(tail.dataset.tailCards);
    if (!parsed) return;
    $$("[data-step]", parsed).forEach((card) => {
      const known = document.getElementById(card.id);
      if (known && known === marked) { marked = card; card.classList.add("at"); }
      if (known) known.replaceWith(card); else tail.previousElementSibling.append(card);
      window.htmx.process(card);
    });
    const after = $("[data-tail], .more", parsed);
    if (after) { tail.replaceWith(after); window.htmx.process(after); } else tail.remove();
    outlineNewSteps();
  }
  let following = false;
  function followTail() {
    if (following || !$("[data-tail]")) return;
    following = true;
    const source = new EventSource($("[data-tail]").dataset.tail);
    let growing = Promise.resolve();
    source.onmessage = (message) => {
      const event = JSON.parse(message.data);
      if (event.error) { toast(event.error, true); return; }
      if (event.ended) source.close();
      growing = growing.then(() => $("[data-tail]") && growTail()).then(async () => {
        const parsed = event.ended && await part(location.href, {});
        if (parsed) $(".facts").replaceWith($(".facts", parsed));
      });
    };
    addEventListener("pagehide", () => source.close());
  }
  followTail();

  // steps that are added get their line in the outline
  document.addEventListener("htmx:afterSettle", () => { outlineNewSteps(); followTail(); });
  function outlineNewSteps() {
    listed = null;
    const list = $(".outline ol");
    if (!list) return;
    $$("[data-step]", [...document.getElementsByClassName("window")].at(-1)).forEach((card) => {
      if (outlineLinks.has(card.id)) return;
      const line = document.createElement("li"), link = document.createElement("a"), number = document.createElement("span"), label = document.createElement("span");
      link.href = `#${card.id}`;
      link.className = card.classList.contains("model") ? "model" : "";
      number.className = "num";
      number.textContent = card.id.replace("step-", "");
      label.className = "clip";
      const name = $(".call .name", card);
      label.textContent = name ? name.textContent : ($(".prose, .output", card) || card).textContent.trim().slice(0, 48);
      link.append(number, label);
      outlineLinks.set(card.id, link);
      line.append(link);
      list.append(line);
    });
  }
  document.addEventListener("htmx:responseError", (event) => toast(`The server refused this (${event.detail.xhr.status})`, true));
  document.addEventListener("htmx:sendError", () => toast("The server does not answer", true));

  // picked rows: how many, and the command that exports them
  const picked = $("#picked");
  if (picked) {
    const count = () => {
      const ids = $$("[data-pick]:checked").map((box) => box.value);
      $("[data-picked-count]", picked).textContent = ids.length;
      $("[data-picked-command]", picked).textContent = `hermes export ${ids.map((id) => `--id ${id}`).join(" ")} --output picked.jsonl`;
      $("[formaction='/compare']", picked).disabled = ids.length < 2 || ids.length > 4;
    };
    document.addEventListener("change", (event) => { if (event.target.matches("[data-pick]")) count(); });
    picked.addEventListener("reset", () => setTimeout(count));
    addEventListener("pageshow", count);
  }

  // completion of the query box: fields, then values that occur
  const box = $("[data-fields]");
  if (box) {
    const list = $("#completions"), fields = box.dataset.fields.split(" "), values = JSON.parse(box.dataset.values);
    let chosen = -1, options = [];
    const word = () => { const end = box.selectionStart, begin = box.value.lastIndexOf(" ", end - 1) + 1; return { begin, end, text: box.value.slice(begin, end) }; };
    const hide = () => { list.hidden = true; chosen = -1; box.setAttribute("aria-expanded", "false"); box.removeAttribute("aria-activedescendant"); };
    const show = () => {
      const { text } = word();
      const match = /^([a-z_]+)(=|!=|~)(.*)$/.exec(text);
      if (match && values[match[1]]) options = values[match[1]].filter((value) => value.toLowerCase().includes(match[3].toLowerCase()) && value !== match[3]).map((value) => match[1] + match[2] + (/\s/.test(value) ? `"${value}"` : value));
      else options = text && !match ? fields.filter((field) => field.startsWith(text) && field !== text) : [];
      options = options.slice(0, 8);
      if (!options.length) { hide(); return; }
      list.replaceChildren(...options.map((option, index) => {
        const item = document.createElement("li");
        item.id = `completion-${index}`;
        item.setAttribute("role", "option");
        item.setAttribute("aria-selected", String(index === chosen));
        item.textContent = option;
        item.addEventListener("mousedown", (event) => { event.preventDefault(); take(index); });
        return item;
      }));
      list.hidden = false;
      box.setAttribute("aria-expanded", "true");
      if (chosen >= 0) box.setAttribute("aria-activedescendant", `completion-${chosen}`);
    };
    const take = (index) => {
      const { begin, end } = word();
      box.setRangeText(options[index], begin, end, "end");
      hide();
    };
    box.addEventListener("input", () => { chosen = -1; show(); });
    box.addEventListener("blur", hide);
    box.addEventListener("keydown", (event) => {
      if (list.hidden) return;
      if (event.key === "ArrowDown") chosen = Math.min(options.length - 1, chosen + 1);
      else if (event.key === "ArrowUp") chosen = Math.max(-1, chosen - 1);
      else if (event.key === "Tab" || (event.key === "Enter" && chosen >= 0)) { event.preventDefault(); take(Math.max(0, chosen)); return; }
      else if (event.key === "Escape") { hide(); return; }
      else return;
      event.preventDefault();
      show();
    });
  }
  addEventListener("hashchange", place);
  place();
})();
