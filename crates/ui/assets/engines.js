// The fleet: a row for each engine, and one of them in detail.

import { spark } from "./charts.js";
import { definitions, make, mark, say } from "./dom.js";
import { count, duration, percent, perSecond, plural, whole, words } from "./format.js";
import { Rows, text } from "./rows.js";
import { complaint, health } from "./summary.js";

const lacks = (field) => (items) => items.every((item) => item[field] === undefined);
const number = new Intl.Collator("en", { numeric: true });

/** The word for what an engine does: the router's view where it is the worse one. */
export const condition = (row) => {
  // The same word as in the metrics, the log and the commands.
  if (row.condition) return row.condition.name;
  const isBad = row.up && row.up !== "up";
  const doubt = row.state === "live" ? complaint(row) : null;
  return words(isBad ? row.up : (doubt ?? row.state ?? row.up ?? "unknown"));
};

/** What is not as it should be, in words; the first is the worst. */
export function troubles(row) {
  const counts = row.counts ?? {};
  const all = [];
  if (row.condition) all.push(`${row.condition.name}: ${row.condition.reason}; ${row.condition.advice}`);
  if (row.error && row.error !== row.condition?.reason) all.push(row.error);
  if (row.why) all.push(row.why);
  if (row.limit) all.push(`limit reached: ${words(row.limit)}`);
  if (row.trusted === false && row.state === "live") all.push("not trusted");
  if (row.silence_s >= 10) all.push(`silent for ${duration(row.silence_s * 1000)}`);
  if (counts.lost_batches) all.push(`${whole(counts.lost_batches)} batches lost`);
  if (row.partial) all.push("may hold more than is known");
  if (row.unverified) all.push("not verified since it reconnected");
  if (row.no_salts) all.push("does not tell cache salts");
  const refused = Object.values(row.refused ?? {}).reduce((sum, more) => sum + more, 0);
  if (refused) all.push(`${count(refused)} events refused`);
  if (counts.resets) all.push(`reset ${whole(counts.resets)}×`);
  return all;
}

const transferName = (kind, source) =>
  kind === "pull"
    ? `Pull from ${source ? source.worker + (source.rank > 0 ? ` rank ${source.rank}` : "") : "others"}`
    : kind === "host" ? "Load from host memory" : "Load from disks and pools";

function bar(cell) {
  cell.kvNumber = make("span", "number");
  cell.kvBar = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  cell.kvBar.setAttribute("class", "bar");
  cell.kvBar.setAttribute("aria-hidden", "true");
  cell.kvFill = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  cell.kvFill.setAttribute("height", "100%");
  cell.kvBar.append(cell.kvFill);
  cell.append(make("span", "with-bar", cell.kvNumber, cell.kvBar));
}

function fill(cell, value, most, said) {
  say(cell.kvNumber, said);
  mark(cell.kvFill, "width", `${most > 0 ? Math.min(100, Math.round((100 * value) / most)) : 0}%`);
}

/** The table of engines. */
export class Engines {
  constructor(parts, { open, redraw }) {
    Object.assign(this, parts);
    this.by = 0;
    this.turned = false;
    this.wanted = "";
    this.history = new Map();
    this.most = { blocks: 0, queued: 0 };
    this.columns = this.all();
    this.rows = new Rows(parts.table, this.columns, {
      open,
      label: (row) => `${row.worker}, ${condition(row)}`,
      sort: (at) => {
        this.sort(at);
        redraw();
      },
    });
  }

  all() {
    const most = this.most;
    return [
      { name: "Engine", className: "engine", value: (row) => row.worker,
        cell: (cell) => cell.append((cell.kvName = make("span", "main")), (cell.kvMore = make("span", "more"))),
        show: (cell, row) => {
          say(cell.kvName, row.worker);
          say(cell.kvMore, [row.rank > 0 ? `rank ${row.rank}` : "", this.models > 1 ? row.model : ""].filter(Boolean).join(" · "));
        } },
      { name: "State", className: "state", value: (row) => ["bad", "busy", "off", "good"].indexOf(health(row)),
        cell: (cell) => cell.append(make("span", "dot"), (cell.kvWord = make("span", ""))),
        show: (cell, row) => {
          mark(cell, "data-health", health(row));
          say(cell.kvWord, condition(row));
        } },
      { name: "Lag", className: "right", title: "How far the index is behind the engine", value: (row) => row.lag_ms ?? -1,
        hidden: lacks("lag_ms"), show: text((row) => duration(row.lag_ms)) },
      { name: "In flight", className: "right", title: "Requests sent there and not finished", value: (row) => row.in_flight,
        hidden: lacks("in_flight"), show: text((row) => count(row.in_flight)) },
      { name: "To compute", className: "barred", title: "Prompt tokens sent there that are not cached and not computed yet",
        value: (row) => row.queued_tokens, hidden: lacks("queued_tokens"), cell: bar,
        show: (cell, row) => fill(cell, row.queued_tokens ?? 0, most.queued, count(row.queued_tokens)) },
      { name: "First token", className: "right", title: "Median of the last minute", value: (row) => row.ttft_ms ?? -1,
        hidden: lacks("ttft_ms"), show: text((row) => duration(row.ttft_ms)) },
      { name: "Hit rate", className: "right hits", title: "Share of prompt tokens from the cache: real, and as predicted",
        value: (row) => row.hit_real ?? row.hit_predicted ?? -1, hidden: (items) => lacks("hit_predicted")(items) && lacks("hit_real")(items),
        cell: (cell) => cell.append((cell.kvReal = make("span", "main")), (cell.kvPredicted = make("span", "more"))),
        show: (cell, row) => {
          say(cell.kvReal, percent(row.hit_real));
          say(cell.kvPredicted, row.hit_predicted === undefined ? "" : percent(row.hit_predicted));
        } },
      { name: "Cache", className: "barred", title: "Blocks held, of what its cache has room for or of the fullest",
        value: (row) => (row.blocks ?? 0) + (row.offloaded ?? 0), hidden: lacks("blocks"), cell: bar,
        show: (cell, row) => {
          const held = (row.blocks ?? 0) + (row.offloaded ?? 0);
          fill(cell, held, row.capacity ?? most.blocks, row.blocks === undefined ? count(null) : count(held));
        } },
      { name: "Events", className: "sparked", title: "Events a second, over the last minute", value: (row, key) => this.rate(key) ?? -1,
        cell: (cell) => {
          cell.kvCanvas = make("canvas", "spark");
          cell.kvCanvas.setAttribute("aria-hidden", "true");
          cell.kvNumber = make("span", "number");
          cell.append(make("span", "with-spark", cell.kvCanvas, cell.kvNumber));
        },
        show: (cell, row, key) => say(cell.kvNumber, perSecond(this.rate(key))) },
      { name: "To note", className: "note",
        show: (cell, row) => {
          const all = troubles(row);
          say(cell, all.length > 1 ? `${all[0]} (+${all.length - 1})` : (all[0] ?? ""));
          mark(cell, "title", all.join("\n") || null);
        } },
    ];
  }

  rate(key) {
    return this.history.get(key)?.at(-1);
  }

  /** Points of the last minute: for each engine its events a second. */
  past(points) {
    this.history.clear();
    for (const point of points) {
      for (const [key, [events]] of Object.entries(point)) {
        let past = this.history.get(key);
        if (!past) this.history.set(key, (past = []));
        past.push(events);
      }
    }
  }

  sparks(palette) {
    const at = this.columns.findIndex((column) => column.className === "sparked");
    for (const [key, row] of this.rows.rows) if (row.isSeen) spark(row.cells[at].kvCanvas, this.history.get(key) ?? [], palette);
  }

  sort(at, turn) {
    this.turned = turn ?? (this.by === at ? !this.turned : false);
    this.by = at;
    this.columns.forEach((column, other) => {
      const order = other === at ? (this.turned ? "descending" : "ascending") : null;
      mark(this.rows.heads[other], "aria-sort", order);
    });
  }

  /** Sorts by the next column that is shown. */
  sortNext() {
    do this.by = (this.by + 1) % this.columns.length;
    while (!this.columns[this.by].value || this.columns[this.by].isHidden);
    this.sort(this.by, this.columns[this.by].className !== "engine" && this.columns[this.by].className !== "state");
  }

  show(state) {
    const entries = Object.entries(state.engines ?? {});
    this.models = new Set(entries.map(([, row]) => row.model).filter(Boolean)).size;
    this.most.blocks = Math.max(...entries.map(([, row]) => (row.blocks ?? 0) + (row.offloaded ?? 0)), 0);
    this.most.queued = Math.max(...entries.map(([, row]) => row.queued_tokens ?? 0), 0);
    const wanted = this.wanted.toLowerCase();
    const shown = entries.filter(([key, row]) => `${key} ${row.model ?? ""} ${condition(row)}`.toLowerCase().includes(wanted));
    const { value } = this.columns[this.by];
    const order = (a, b) => (typeof a === "number" || typeof b === "number" ? (a ?? -1) - (b ?? -1) : number.compare(a, b));
    const sign = this.turned ? -1 : 1;
    const sorted = shown.map(([key, row]) => [key, row, value(row, key)]);
    sorted.sort((a, b) => sign * order(a[2], b[2]) || number.compare(a[0], b[0]));
    this.rows.show(sorted);
    say(this.count, entries.length === shown.length ? whole(entries.length) : `${whole(shown.length)} of ${whole(entries.length)}`);
    const none = entries.length
      ? `No engine has “${this.wanted}” in its name, model or state.`
      : state.kind === "router"
        ? "No engines yet. Start the router with --engine URL."
        : "No engines yet. Start the service with --engine URL, or register one: POST /register.";
    say(this.empty, none);
    this.empty.hidden = shown.length > 0;
    this.table.hidden = shown.length === 0;
  }
}

/** One engine, in detail. */
export function detail(key, row) {
  if (!row) return make("p", "empty", "It is no longer registered.");
  const all = troubles(row);
  const flags = [
    row.trusted === false ? "not trusted" : row.trusted ? "trusted" : "",
    row.settled === false ? "first replay not finished" : "",
    row.upper_bound ? "depths are upper bounds" : "",
  ];
  const box = make("div", "detail");
  if (all.length) box.append(make("ul", "troubles", ...all.map((trouble) => make("li", "", trouble))));
  if (row.condition?.runbook) {
    const link = make("a", "", "What to do");
    link.href = row.condition.runbook;
    link.rel = "noreferrer";
    box.append(make("p", "", link));
  }
  const state = make("span", "state", make("span", "dot"), condition(row));
  state.dataset.health = health(row);
  box.append(
    definitions([
      ["State", state],
      ["", flags.filter(Boolean).join(", ")],
      ["Model", row.model],
      ["Routing group", row.routing_group === "default" ? null : row.routing_group],
      ["Block size", row.block_size === undefined ? null : `${row.block_size} tokens`],
      ["URL", row.url],
      ["Events from", row.endpoint],
      ["Replays from", row.replay_endpoint],
    ]),
  );
  if (row.in_flight !== undefined) {
    box.append(
      make("h3", "", "Work"),
      definitions([
        ["In flight", whole(row.in_flight)],
        ["Without a first token", whole(row.waiting)],
        ["Tokens to compute", whole(row.queued_tokens)],
        ["Reported running", row.reported_running === undefined ? null : whole(row.reported_running)],
        ["Reported waiting", row.reported_waiting === undefined ? null : whole(row.reported_waiting)],
        ["KV cache in use", row.reported_kv_usage === undefined ? null : percent(row.reported_kv_usage)],
        ["Prefill, learnt", row.prefill_rate === undefined ? null : `${count(row.prefill_rate)} tokens/s`],
        ["A step, learnt", row.step_ms === undefined ? null : duration(row.step_ms)],
        ["Requests", whole(row.requests)],
        ["Failed", row.failures === undefined ? null : whole(row.failures)],
        ["Weight", row.weight === undefined || row.weight === 1 ? null : String(row.weight)],
      ]),
    );
  }
  if (row.transfers?.length) {
    const rows = row.transfers.map(({ kind, source, floor, seconds_per_token: token, samples, out }) => [
      transferName(kind, source),
      out > 0
        ? `none for ${duration(out * 1000)}: pulls failed`
        : `${duration(floor * 1000)} + ${duration(token * 1e6)} per 1${"\u202f"}000 tokens, ${plural(samples, "sample")}`,
    ]);
    box.append(make("h3", "", "Transfers, learnt"), definitions(rows));
  }
  if (row.blocks !== undefined) {
    box.append(
      make("h3", "", "Cache"),
      definitions([
        ["Blocks on the device", whole(row.blocks)],
        ["Offloaded", row.offloaded ? whole(row.offloaded) : null],
        ["Not linked", row.unlinked ? whole(row.unlinked) : null],
        ["Room for", row.capacity === undefined ? null : whole(row.capacity)],
        ["Lag", duration(row.lag_ms)],
        ["Longest lag", duration(row.lag_max_ms)],
        ["Last batch", row.seq === undefined ? null : `number ${whole(row.seq)}`],
        ["Epoch", row.epoch ? whole(row.epoch) : null],
        ["Buffered batches", row.buffered ? whole(row.buffered) : null],
        ["Error before", row.previous_error],
      ]),
    );
  }
  for (const [title, counts] of [["Counts", row.counts], ["Refused, by reason", row.refused]]) {
    const pairs = Object.entries(counts ?? {});
    if (pairs.length) box.append(make("h3", "", title), definitions(pairs.map(([name, value]) => [words(name), whole(value)])));
  }
  return box;
}
