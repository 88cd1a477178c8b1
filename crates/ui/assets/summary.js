// The figures at the top, and the charts over time.

import { Chart } from "./charts.js";
import { make, mark, say } from "./dom.js";
import { bytes, count, duration, percent, perSecond, rate, whole } from "./format.js";

/** What is wrong with a row: `bad`, `busy` (it will pass), `off` or `good`. */
export function health(row) {
  if (["down", "failing", "silent"].includes(row.up)) return "bad";
  if (row.up === "asleep") return "off";
  if (row.condition) return ["busy", "refusing", "denying", "slow", "overdue", "partial"].includes(row.condition.name) ? "busy" : "bad";
  if (row.up === "draining" || row.state === "stopped") return "off";
  if (["stale", "limited", "unreadable", "unreachable", "unusable", "refused", "no_events", "conflict"].includes(row.state)) {
    return "bad";
  }
  if (["connecting", "replaying", "gap", "asking"].includes(row.state) || row.up === "busy") return "busy";
  if (complaint(row) === "misconfigured") return "bad";
  return row.trusted === false || complaint(row) ? "busy" : "good";
}

/** What is wrong with the events of a stream that is read, in a word; none if nothing is. */
export function complaint(row) {
  // A block that is not full cannot be used, and need not be.
  const { partial_block: partial, ...refused } = row.refused ?? {};
  if ((refused.block_size || partial) && !row.blocks) return "misconfigured";
  if (Object.values(refused).some((count) => count > 0)) return "refusing";
  return row.partial ? "partial" : null;
}

/** True if there are engines, and every one of them is down. */
export const isEmergency = (rows) =>
  rows.length > 0 && rows.every((row) => (row.up ? row.up === "down" : ["stale", "unreachable"].includes(row.state)));

const sum = (rows, field) => rows.reduce((total, row) => total + (row[field] ?? 0), 0);

function figures(state, rows, last) {
  const isRouter = state.kind === "router";
  // An engine of several ranks has several rows, and is well if all of them are.
  const engines = new Set(rows.map((row) => row.worker));
  const sick = new Set(rows.filter((row) => health(row) !== "good").map((row) => row.worker));
  const good = engines.size - sick.size;
  const lags = rows.map((row) => row.lag_ms).filter((lag) => typeof lag === "number");
  const indexes = Object.values(state.indexes ?? {});
  const all = [];
  if (isRouter) {
    all.push(
      ["Requests", perSecond(last.requests), `${count(state.requests)} in all`],
      ["In flight", whole(state.in_flight), state.waiting_here ? `${whole(state.waiting_here)} wait for an engine` : "none waits"],
      ["Hit rate", percent(last.hit_real), `predicted ${percent(last.hit_predicted)}, possible ${percent(last.hit_possible)}`],
      ["First token", duration(last.ttft), `p99 ${duration(last.ttft_p99)}`],
      ["Decision", duration(last.decision), "body to engine"],
      ["Errors", count(state.errors ?? 0), `${count(state.retries ?? 0)} tried again`, state.errors > 0 ? "warn" : ""],
    );
  }
  const refused = Object.entries(state.refused ?? {}).sort(([, one], [, other]) => other - one);
  if (refused.length) {
    const reasons = refused.map(([code, number]) => `${count(number)} ${code}`).join(", ");
    all.push(["Refused", count(refused.reduce((total, [, number]) => total + number, 0)), reasons, "warn"]);
  }
  const changing = state.changing_prompts;
  if (changing) {
    const where = `differ from token ${whole(changing.differs_at_token)} of ${whole(changing.tokens)} on`;
    all.push(["Changing prompts", whole(changing.sessions), `of sessions without use of a cache: ${where}`, "warn"]);
  }
  all.push(
    ["Engines", `${good}/${engines.size}`, engines.size === 0 ? "none yet" : sick.size === 0 ? "all well" : `${sick.size} not well`,
      sick.size === 0 ? "" : isEmergency(rows) ? "bad" : "warn"],
    ["Blocks held", count(sum(rows, "blocks") + sum(rows, "offloaded")),
      indexes.length ? `${count(sum(indexes, "prefixes"))} different` : ""],
    ["Index", bytes(indexes.length ? sum(indexes, "bytes") : null), indexes.length > 1 ? `${indexes.length} models` : "memory"],
    ["Events", perSecond(last.events), `${count(rows.reduce((total, row) => total + (row.counts?.events ?? 0), 0))} in all`],
    ["Worst lag", duration(lags.length ? Math.max(...lags) : null), "engine to index"],
  );
  if (!isRouter) {
    all.push(["Queries", perSecond(last.queries), `${count(state.queries)} in all`]);
    const share = state.queries > 0 ? state.queries_matched / state.queries : null;
    all.push(["Matched", percent(last.matched ?? null), `${percent(share)} in all`]);
  }
  return all;
}

/** The figures. */
export class Summary {
  constructor(element) {
    this.element = element;
    this.boxes = new Map();
  }

  show(state, rows, last) {
    const all = figures(state, rows, last);
    for (const [name, box] of this.boxes) box.element.hidden = !all.some((figure) => figure[0] === name);
    for (const [name, value, note, tone] of all) {
      let box = this.boxes.get(name);
      if (!box) {
        box = { value: make("span", "value"), note: make("span", "note") };
        box.element = make("div", "figure", make("span", "name", name), box.value, box.note);
        this.boxes.set(name, box);
        this.element.append(box.element);
      }
      say(box.value, value);
      say(box.note, note);
      mark(box.note, "title", note || null);
      mark(box.element, "data-tone", tone || null);
    }
  }
}

const SHARED = [
  { title: "Events a second", lines: [{ name: "events", field: "events" }], format: rate },
  { title: "Worst lag", lines: [{ name: "lag", field: "lag" }], format: duration,
    note: "From the engine's timestamp until the batch was visible to queries" },
];

const CHARTS = {
  service: [
    ...SHARED,
    { title: "Queries a second", lines: [{ name: "queries", field: "queries" }], format: rate },
    { title: "Prompts matched", lines: [{ name: "matched", field: "matched" }], format: percent, top: 1,
      note: "Share of prompts of which an engine held at least one block" },
  ],
  router: [
    { title: "Hit rate", lines: [{ name: "real", field: "hit_real" }, { name: "predicted", field: "hit_predicted" },
        { name: "possible", field: "hit_possible" }],
      format: percent, top: 1, note: "Share of prompt tokens taken from a cache: as engines report it, as decisions said, and as one cache as large as all the engines' could have held over the last hour" },
    { title: "First token", lines: [{ name: "p50", field: "ttft" }, { name: "p99", field: "ttft_p99" }], format: duration },
    { title: "Requests a second", lines: [{ name: "requests", field: "requests" }], format: rate },
    { title: "In flight", lines: [{ name: "at engines", field: "in_flight" }, { name: "waiting here", field: "waiting_here" }],
      format: count },
    ...SHARED,
  ],
};

/** The charts, of as many minutes as there are points. */
export class Charts {
  constructor(element) {
    this.element = element;
    this.charts = [];
  }

  /** Makes those of a service or of a router. */
  of(kind) {
    if (this.kind === kind) return;
    this.kind = kind;
    this.charts = (CHARTS[kind] ?? CHARTS.service).map((chart) => new Chart(chart));
    mark(this.element, "data-count", String(this.charts.length));
    this.element.replaceChildren(...this.charts.map((chart) => chart.element));
  }

  show(points, palette) {
    const past = points.length ? points[points.length - 1].t - points[0].t : 0;
    const span = [60, 120, 300, 600].map((seconds) => seconds * 1000).find((span) => past <= span * 1.02) ?? 600000;
    const shown = points.filter((point) => point.t >= points[points.length - 1].t - span);
    for (const chart of this.charts) chart.show(shown, palette, span);
  }

  redraw() {
    for (const chart of this.charts) chart.draw();
  }
}
