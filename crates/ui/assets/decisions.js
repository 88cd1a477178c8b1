// The last decisions, and one of them with every candidate and its terms.

import { definitions, make, mark, say } from "./dom.js";
import { clock, count, duration, percent, plural, seconds, whole, words } from "./format.js";
import { Rows, text } from "./rows.js";

// So many are kept on the page.
const KEPT = 200;
const SVG = "http://www.w3.org/2000/svg";

const share = (tokens, all) => (all > 0 && tokens !== undefined ? tokens / all : null);

// Why a request went where it went.
const WHY = {
  policy: "chosen by cost",
  session: "its session is there",
  only: "nobody else may take it",
  no_index: "by load: not looked up",
  no_tokens: "by load: no tokens",
  no_trust: "by load: index not trusted",
  policy_failed: "the policy failed",
  idle: "least loaded",
};
const why = (decision) => WHY[decision.why] ?? words(decision.why ?? "");

const outcome = (decision) => decision.error ?? (decision.state === "finished" ? "done" : (decision.state ?? "running"));
const isBad = (decision) => Boolean(decision.error) || decision.state === "failed";

/** The table of decisions. */
export class Decisions {
  constructor(parts, { open }) {
    Object.assign(this, parts);
    this.all = new Map();
    this.isPaused = false;
    this.rows = new Rows(parts.table, this.columns(), {
      open,
      label: (decision) => `${clock(decision.t)}, ${whole(decision.tokens)} tokens to ${decision.worker ?? "nobody"}`,
    });
  }

  columns() {
    return [
      { name: "Time", className: "time", show: text((decision) => clock(decision.t)) },
      { name: "To", className: "engine", show: text((decision) => decision.worker ?? "nobody") },
      { name: "Tokens", className: "right", title: "Of the prompt", show: text((decision) => count(decision.tokens)) },
      { name: "Cached", className: "cachedbar", title: "Prompt tokens from the cache: as the engine reported, and as predicted",
        cell: (cell) => {
          cell.kvNumber = make("span", "number");
          cell.kvBar = document.createElementNS(SVG, "svg");
          cell.kvBar.setAttribute("class", "bar two");
          cell.kvBar.setAttribute("aria-hidden", "true");
          cell.kvReal = document.createElementNS(SVG, "rect");
          cell.kvPredicted = document.createElementNS(SVG, "rect");
          cell.kvPredicted.setAttribute("class", "predicted");
          cell.kvReal.setAttribute("height", "50%");
          cell.kvPredicted.setAttribute("height", "50%");
          cell.kvPredicted.setAttribute("y", "50%");
          cell.kvBar.append(cell.kvReal, cell.kvPredicted);
          cell.append(make("span", "with-bar", cell.kvNumber, cell.kvBar));
        },
        show: (cell, decision) => {
          const { cached, predicted, tokens } = decision;
          const shown = cached ?? predicted;
          say(cell.kvNumber, percent(share(shown, tokens)));
          mark(cell.kvReal, "width", `${Math.round(100 * (share(cached, tokens) ?? 0))}%`);
          mark(cell.kvPredicted, "width", `${Math.round(100 * (share(predicted, tokens) ?? 0))}%`);
          mark(cell, "title", `predicted ${whole(predicted)}, reported ${cached === undefined ? "nothing yet" : whole(cached)}`);
        } },
      { name: "First token", className: "right", show: text((decision) => duration(decision.ttft_ms)) },
      { name: "Why", className: "note", show: text(why) },
      { name: "Outcome", className: "outcome",
        show: (cell, decision) => {
          say(cell, outcome(decision));
          mark(cell, "data-tone", isBad(decision) ? "bad" : null);
        } },
    ];
  }

  /** Decisions as they come; the same number again is the same one, further on. */
  add(items) {
    for (const item of items) this.all.set(item.number, { ...this.all.get(item.number), ...item });
    if (this.all.size > KEPT) {
      const over = [...this.all.keys()].sort((a, b) => a - b).slice(0, this.all.size - KEPT);
      over.forEach((number) => this.all.delete(number));
    }
  }

  start(items) {
    this.all.clear();
    this.add(items);
  }

  pause(isPaused = !this.isPaused) {
    this.isPaused = isPaused;
    mark(this.button, "aria-pressed", String(isPaused));
    say(this.button, isPaused ? "Go on" : "Pause");
  }

  show() {
    if (this.isPaused) return;
    const newest = [...this.all.values()].sort((a, b) => b.number - a.number).slice(0, 100);
    // Not under the finger: while a row has the focus, the list only changes in place.
    this.rows.show(newest.map((decision) => [String(decision.number), decision]));
    say(this.count, newest.length ? whole(newest.length) : "");
    say(this.empty, "No requests yet. Send one to this address, as to an engine: POST /v1/chat/completions.");
    this.empty.hidden = newest.length > 0;
    this.table.hidden = newest.length === 0;
  }
}

/** What is known of a decision or an explanation. */
export function detail(decision) {
  const { tokens, predicted, cached } = decision;
  const box = make("div", "detail");
  if (decision.error) box.append(make("ul", "troubles", make("li", "", decision.error)));
  box.append(
    definitions([
      ["Engine", decision.worker ?? (decision.candidates ? "" : "nobody"), "strong"],
      ["Rank", decision.rank > 0 ? String(decision.rank) : null],
      ["Why", why(decision)],
      ["Policy", decision.policy],
      ["Model", decision.model],
      ["Prompt", tokens === undefined ? null : `${plural(tokens, "token")}${decision.is_estimate ? ", estimated" : ""}`],
      ["Prompt, by the engine", decision.counted ? `${plural(decision.counted, "token")}: template mismatch` : null],
      ["Cached, predicted", predicted === undefined ? null : `${whole(predicted)} (${percent(share(predicted, tokens))})`],
      ["Of these, not announced", decision.not_announced ? whole(decision.not_announced) : null],
      ["Cached, reported", cached === undefined ? null : `${whole(cached)} (${percent(share(cached, tokens))})`],
      ["Decided in", decision.decide_us === undefined ? null : duration(decision.decide_us / 1000)],
      ["Waited here", decision.waited_ms ? duration(decision.waited_ms) : null],
      ["First token", decision.ttft_ms === undefined ? null : duration(decision.ttft_ms)],
      ["Generated", decision.output === undefined ? null : plural(decision.output, "token")],
      ["Took", decision.took_ms === undefined ? null : duration(decision.took_ms)],
      ["Ended", decision.state],
    ]),
  );
  const { candidates } = decision;
  if (candidates?.length) box.append(...table(decision, candidates));
  else if (candidates) box.append(make("p", "empty", "Its candidates were not recorded: no page was open."));
  return box;
}

/** What `POST /explain` answers, as a decision: by the policy's own terms, where the least of them is taken. */
export function explained(answer) {
  const names = answer.terms ?? [];
  const candidates = answer.candidates.map((candidate) => ({
    ...candidate,
    cached: candidate.cached_tokens,
    terms: names.map((name) => candidate.terms[name]),
  }));
  const best = inSeconds(names) ? candidates.reduce((a, b) => (a.terms.at(-1) <= b.terms.at(-1) ? a : b)) : {};
  return { ...answer, worker: best.worker, rank: best.rank, predicted: best.cached, why: undefined, candidates };
}

const inSeconds = (names) => names.length > 0 && names.every((name) => name.endsWith(" (s)"));

/** A row for each candidate. The last of its terms is what was compared. */
function table(decision, candidates) {
  const names = decision.terms ?? [];
  const unit = inSeconds(names) ? "s" : "";
  const titles = names.map((name) => (unit ? name.slice(0, -4) : name));
  const total = names.length - 1;
  const isChosen = (candidate) => candidate.worker === decision.worker && (candidate.rank ?? 0) === (decision.rank ?? 0);
  const cost = (candidate) => candidate.terms?.[total] ?? 0;
  const sorted = [...candidates].sort((a, b) => cost(a) - cost(b) || Number(isChosen(b)) - Number(isChosen(a)));
  const most = Math.max(...sorted.map((candidate) => positive(candidate.terms?.slice(0, total))), 1e-12);
  const rows = sorted.map((candidate) => {
    const terms = names.map((_, at) => candidate.terms?.[at]);
    const row = make(
      "tr",
      isChosen(candidate) ? "chosen" : "",
      make("td", "engine", candidate.worker, candidate.rank > 0 ? make("span", "more", `rank ${candidate.rank}`) : null),
      total > 0 ? make("td", "stack", stack(terms.slice(0, total), most)) : null,
      total >= 0 ? make("td", "right strong", show(terms[total], unit)) : null,
      ...terms.slice(0, Math.max(total, 0)).map((value) => make("td", "right", show(value, unit))),
      make("td", "right", whole(candidate.cached)),
    );
    if (isChosen(candidate)) row.setAttribute("aria-current", "true");
    return row;
  });
  const heads = [make("th", "", "Engine")];
  if (total > 0) heads.push(make("th", "", ""));
  if (total >= 0) heads.push(make("th", "right", titles[total]));
  titles.slice(0, Math.max(total, 0)).forEach((title, at) => heads.push(make("th", "right", key(at), title)));
  heads.push(make("th", "right", "cached"));
  heads.forEach((head) => (head.scope = "col"));
  return [
    make("h3", "", plural(candidates.length, "candidate")),
    total < 0
      ? make("p", "aside", `The policy ${decision.policy ?? ""} has no terms to show.`)
      : unit
        ? make("p", "aside", "Terms are seconds of expected harm. The lowest sum is chosen.")
        : null,
    make("div", "scroll", make("table", "candidates", make("thead", "", make("tr", "", ...heads)), make("tbody", "", ...rows))),
  ].filter(Boolean);
}

const positive = (terms = []) => terms.reduce((sum, term) => sum + Math.max(0, term ?? 0), 0);
const show = (value, unit) => {
  if (value === null || value === undefined) return "–";
  return unit === "s" ? (value === 0 ? "0" : seconds(value)) : Math.abs(value) < 100 ? Number(value.toPrecision(3)).toString() : count(value);
};

function rect(x, width, number) {
  const part = document.createElementNS(SVG, "rect");
  part.setAttribute("x", `${x}%`);
  part.setAttribute("width", `${width}%`);
  part.setAttribute("height", "100%");
  part.setAttribute("class", `term-${number % 6}`);
  return part;
}

/** The terms of a candidate after each other, as long as they are large. */
function stack(terms, most) {
  const bar = document.createElementNS(SVG, "svg");
  bar.setAttribute("class", "bar stacked");
  bar.setAttribute("aria-hidden", "true");
  let at = 0;
  terms.forEach((term, number) => {
    const width = (100 * Math.max(0, term ?? 0)) / most;
    if (width > 0) bar.append(rect(at, width, number));
    at += width;
  });
  return bar;
}

/** The colour of a term, before its name. */
function key(number) {
  const box = document.createElementNS(SVG, "svg");
  box.setAttribute("class", "key");
  box.setAttribute("aria-hidden", "true");
  box.append(rect(0, 100, number));
  return box;
}
