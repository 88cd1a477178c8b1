// Puts it together: what the server says is kept, and drawn when the browser draws next.

import { colours } from "./charts.js";
import { Decisions, detail as decisionDetail, explained } from "./decisions.js";
import { byId, make, mark, say } from "./dom.js";
import { Engines, detail as engineDetail } from "./engines.js";
import { ask, follow, keep, refusal } from "./feed.js";
import { plural } from "./format.js";
import { Charts, Summary, isEmergency } from "./summary.js";

const POINTS = 600;
const ENGINE_POINTS = 60;
const THEME = "kvatlas-theme";
const THEMES = { auto: "Auto", light: "Light", dark: "Dark" };

const known = { state: null, history: [], engines: [] };
const due = { state: false, points: false, decisions: false };
let palette = colours();
let drawn = null;
let opened = null;

const summary = new Summary(byId("summary"));
const charts = new Charts(byId("charts"));
const engines = new Engines(
  { table: byId("engines-table"), count: byId("engines-count"), empty: byId("engines-empty") },
  { open: openEngine, redraw: () => draw("state") },
);
const decisions = new Decisions(
  { table: byId("decisions-table"), count: byId("decisions-count"), empty: byId("decisions-empty"), button: byId("pause") },
  { open: openDecision },
);

// Drawing: with the browser's own frames, so not at all while nobody sees it; and not oftener than people can read, while
// everything that comes is kept.
const EVERY = 200;
let drawnAt = -Infinity;

function draw(...parts) {
  for (const part of parts) due[part] = true;
  drawn ??= setTimeout(() => requestAnimationFrame(paint), Math.max(0, drawnAt + EVERY - performance.now()));
}

function paint() {
  drawn = null;
  drawnAt = performance.now();
  const { state } = known;
  if (!state) return;
  const last = known.history.at(-1) ?? {};
  const rows = Object.values(state.engines ?? {});
  const hasPoints = due.points;
  charts.of(state.kind);
  if (due.points) engines.past(known.engines);
  if (due.state || due.points) {
    summary.show(state, rows, last);
    engines.show(state);
    showStatus();
    byId("decisions").hidden = state.kind !== "router";
    byId("explain-open").hidden = state.kind !== "router";
    if (opened?.show && byId("drawer").open) opened.show();
  }
  if (due.decisions || due.state) decisions.show();
  due.state = due.points = due.decisions = false;
  if (hasPoints) {
    charts.show(known.history, palette);
    engines.sparks(palette);
  }
}

// The connection.

function tell(kind, text) {
  mark(byId("dot"), "data-health", kind);
  say(byId("status-text"), text);
}

function showStatus() {
  const { state } = known;
  document.title = `kvatlas ${state.kind}`;
  mark(document.body, "data-kind", state.kind);
  say(byId("kind"), state.kind);
  // What is drawn last may have come before the connection was lost.
  if (counting !== null) return;
  if (state.policy) mark(byId("kind"), "title", `policy ${state.policy}`);
  const rows = Object.values(state.engines ?? {});
  const emergency = isEmergency(rows);
  document.body.classList.toggle("emergency", emergency);
  if (emergency) {
    const why = rows.find((row) => row.condition?.reason ?? row.why);
    return tell("bad", `Every engine is down: ${why?.condition?.reason ?? why?.why ?? "none of them answers"}`);
  }
  if (!state.ready) return tell("busy", state.waiting?.draining ? "Stopping" : waitingFor(state.waiting));
  const what = [`Live`, state.policy ? `policy ${state.policy}` : "", `version ${state.version}`];
  tell("good", what.filter(Boolean).join(" · "));
}

function waitingFor(waiting) {
  const { streams = [], holds = [] } = waiting ?? {};
  if (streams.length) return `Not ready: ${plural(streams.length, "stream")} to be read`;
  if (holds.length) return `Not ready: waits for ${holds.join(", ")}`;
  return "Not ready: no engine can be followed";
}

function notice(text) {
  byId("notice").hidden = !text;
  say(byId("notice"), text ?? "");
  document.body.classList.toggle("lost", Boolean(text));
}

// While the connection is lost: what says when it is tried again.
let counting = null;
let lostAt = "";

follow("ui/events", {
  open() {
    clearInterval(counting);
    counting = null;
    notice(null);
  },
  whole({ state, lists }) {
    known.state = state;
    known.history = lists.history ?? [];
    known.engines = lists.engines ?? [];
    decisions.start(lists.decisions ?? []);
    document.body.classList.add("known");
    draw("state", "points", "decisions");
  },
  state(state) {
    known.state = state;
    draw("state");
  },
  more({ list, items }) {
    if (list === "decisions") {
      decisions.add(items);
      draw("decisions");
      return;
    }
    known[list].push(...items);
    known[list].splice(0, known[list].length - (list === "history" ? POINTS : ENGINE_POINTS));
    // The engines' point follows the fleet's at once.
    if (list === "engines") draw("state", "points");
  },
  lost(why, wait) {
    const until = Date.now() + wait;
    const since = new Date().toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
    if (counting === null) lostAt = since;
    const show = () => {
      const left = Math.ceil((until - Date.now()) / 1000);
      const next = left > 0 ? `next try in ${left} s` : "trying again";
      notice(`Connection lost: ${why}. What is shown is from ${lostAt}; ${next}.`);
      tell("bad", "Not connected");
    };
    clearInterval(counting);
    counting = setInterval(show, 250);
    show();
  },
  key: askForKey,
});

// The key.

function askForKey(wasWrong) {
  if (wasWrong) say(byId("key-why"), "That key is wrong. A key stays in this tab and is forgotten when the tab is closed.");
  keep(null);
  tell("off", "A key is needed");
  const dialog = byId("key");
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.oncancel = (event) => event.preventDefault();
    byId("key-form").onsubmit = (event) => {
      event.preventDefault();
      keep(byId("key-value").value.trim());
      byId("key-value").value = "";
      dialog.close();
      resolve();
    };
  });
}

// What is opened.

function openDrawer(title, show) {
  opened = { show };
  say(byId("drawer-title"), title);
  if (!byId("drawer").open) byId("drawer").showModal();
  byId("drawer").scrollTop = 0;
  show?.();
}

function fill(content) {
  byId("drawer-body").replaceChildren(content);
}

function openEngine(key) {
  let before = "";
  openDrawer(key.replace(/\/0$/, "").replace(/\/(\d+)$/, ", rank $1"), () => {
    const row = known.state.engines?.[key];
    const now = JSON.stringify(row);
    if (now === before) return;
    before = now;
    fill(engineDetail(key, row));
  });
}

async function openDecision(key, shown) {
  openDrawer(`Decision ${key}`);
  fill(decisionDetail(shown));
  const mine = opened;
  const answer = await ask(`ui/decision?number=${encodeURIComponent(key)}`).catch(() => null);
  if (opened !== mine) return;
  if (!answer?.ok) {
    fill(decisionDetail({ ...shown, error: answer ? await refusal(answer) : "the server cannot be reached" }));
    return;
  }
  fill(decisionDetail({ ...shown, ...(await answer.json()) }));
}

byId("explain-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const fault = byId("explain-error");
  fault.hidden = true;
  const body = JSON.stringify({ model: byId("explain-model").value, prompt: byId("explain-prompt").value });
  const options = { method: "POST", body, headers: { "Content-Type": "application/json" } };
  const answer = await ask("explain", options).catch(() => null);
  if (answer?.ok) {
    const decision = explained(await answer.json());
    byId("explain").close();
    openDrawer("Explained, not sent");
    fill(decisionDetail(decision));
    return;
  }
  say(fault, answer ? await refusal(answer) : "the server cannot be reached");
  fault.hidden = false;
});

function openExplain() {
  if (known.state?.kind !== "router") return;
  const models = Object.values(known.state.engines ?? {}).map((row) => row.model);
  byId("explain-model").value ||= models.find(Boolean) ?? "";
  byId("explain").showModal();
  byId("explain-prompt").focus();
}

// Colours.

function theme(name) {
  localStorage.setItem(THEME, name);
  mark(document.documentElement, "data-theme", name === "auto" ? null : name);
  say(byId("theme"), THEMES[name]);
  mark(byId("theme"), "aria-label", `Colours: ${name === "auto" ? "as the system has them" : name}`);
  recolour();
}

function nextTheme() {
  const names = Object.keys(THEMES);
  theme(names[(names.indexOf(localStorage.getItem(THEME)) + 1) % names.length]);
}

function recolour() {
  palette = colours();
  draw("points");
}

// Keys.

const current = () => (decisions.rows.hasFocus ? decisions.rows : engines.rows);

const KEYS = {
  j: () => current().move(1),
  k: () => current().move(-1),
  ArrowDown: () => current().hasFocus && current().move(1),
  ArrowUp: () => current().hasFocus && current().move(-1),
  g: () => engines.rows.move(0),
  d: () => !byId("decisions").hidden && decisions.rows.move(0),
  "/": () => byId("filter").focus(),
  s: () => (engines.sortNext(), draw("state")),
  S: () => (engines.sort(engines.by), draw("state")),
  p: () => (decisions.pause(), draw("decisions")),
  e: openExplain,
  t: nextTheme,
  "?": () => byId("help").showModal(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, textarea, select")) {
    if (event.key === "Escape" && event.target === byId("filter")) event.target.blur();
    return;
  }
  const drawer = byId("drawer");
  // In what is opened, j and k go on to the next row.
  if (drawer.open && (event.key === "j" || event.key === "k") && opened?.rows) {
    event.preventDefault();
    step(event.key === "j" ? 1 : -1);
    return;
  }
  if (document.querySelector("dialog[open]")) return;
  const act = KEYS[event.key];
  if (act && act() !== false) event.preventDefault();
});

/** Opens the row after the one that is open. */
function step(by) {
  const { rows, key } = opened;
  const row = rows.rows.get(key);
  const next = by > 0 ? row?.nextElementSibling : row?.previousElementSibling;
  if (!next) return;
  rows.open(next.key, next.item);
}

for (const rows of [engines.rows, decisions.rows]) {
  const { open } = rows;
  rows.open = (key, item) => {
    open(key, item);
    Object.assign(opened, { rows, key });
  };
}

for (const dialog of document.querySelectorAll("dialog")) {
  dialog.querySelector(".close")?.addEventListener("click", () => dialog.close());
  if (dialog.id !== "key") {
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  }
}
byId("drawer").addEventListener("close", () => {
  const row = opened?.rows?.rows.get(opened.key);
  opened = null;
  byId("drawer-body").replaceChildren();
  // The browser has put the focus where it was before: j and k may have gone on from there.
  row?.focus();
});
byId("theme").addEventListener("click", nextTheme);
byId("help-open").addEventListener("click", KEYS["?"]);
byId("explain-open").addEventListener("click", openExplain);
byId("pause").addEventListener("click", KEYS.p);
byId("filter").addEventListener("input", (event) => {
  engines.wanted = event.target.value.trim();
  draw("state");
});
byId("filter").addEventListener("keydown", (event) => event.key === "Enter" && engines.rows.move(0));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
window.addEventListener("resize", () => draw("points"));
theme(localStorage.getItem(THEME) in THEMES ? localStorage.getItem(THEME) : "auto");
engines.sort(0, false);
