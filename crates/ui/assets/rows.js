// A table whose rows are kept: a row for each key, changed in place, moved only when the order changes.

import { make, say, mark } from "./dom.js";

/**
 * `columns`: `{ name, title, className, hidden(items), cell(td), show(td, item) }`. `open(key, item)` when a row is chosen
 * by a click or Enter. `label(item)` names a row.
 */
export class Rows {
  constructor(table, columns, { open, label, sort }) {
    Object.assign(this, { table, columns, open, label, sort });
    this.body = table.tBodies[0];
    this.rows = new Map();
    this.order = "";
    this.chosen = null;
    // What is out of sight is brought up to date when it comes into sight.
    this.sight = new IntersectionObserver((seen) => this.seen(seen), { rootMargin: "150px" });
    this.heads = columns.map((column, at) => {
      const head = make("th", column.className ?? "");
      head.scope = "col";
      if (sort && column.value) {
        const button = make("button", "", column.name);
        button.type = "button";
        button.addEventListener("click", () => sort(at));
        head.append(button);
      } else head.append(column.name);
      if (column.title) head.title = column.title;
      return head;
    });
    table.tHead.rows[0].append(...this.heads);
    this.body.addEventListener("click", (event) => {
      const row = event.target.closest("tr");
      if (row) this.activate(row);
    });
    this.body.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        this.activate(event.target.closest("tr"));
      }
    });
    this.body.addEventListener("focusin", (event) => this.focused(event.target.closest("tr")));
  }

  /** Shows these `[key, item]`, in this order. `only`: columns that are shown. */
  show(entries) {
    const items = entries.map(([, item]) => item);
    this.columns.forEach((column, at) => {
      column.isHidden = column.hidden?.(items) ?? false;
      mark(this.heads[at], "hidden", column.isHidden ? "" : null);
    });
    const keys = entries.map(([key]) => key);
    const wanted = new Set(keys);
    for (const [key, row] of this.rows) {
      if (!wanted.has(key)) {
        row.remove();
        this.sight.unobserve(row);
        this.rows.delete(key);
      }
    }
    for (const [key, item] of entries) {
      const row = this.rows.get(key) ?? this.add(key);
      row.item = item;
      if (row.isSeen !== false) this.fill(row);
    }
    const order = keys.join("\n");
    if (order !== this.order) {
      this.order = order;
      let place = this.body.firstElementChild;
      for (const key of keys) {
        const row = this.rows.get(key);
        if (row === place) place = place.nextElementSibling;
        else this.body.insertBefore(row, place);
      }
    }
    if (!this.rows.has(this.chosen)) this.chosen = keys[0] ?? null;
    // One row can be reached by Tab, the others from it.
    for (const [key, row] of this.rows) mark(row, "tabindex", key === this.chosen ? "0" : "-1");
  }

  fill(row) {
    mark(row, "aria-label", this.label?.(row.item) ?? null);
    this.columns.forEach((column, at) => {
      const cell = row.cells[at];
      mark(cell, "hidden", column.isHidden ? "" : null);
      if (!column.isHidden) column.show(cell, row.item, row.key);
    });
  }

  seen(entries) {
    for (const { target, isIntersecting } of entries) {
      target.isSeen = isIntersecting;
      if (isIntersecting) this.fill(target);
    }
  }

  add(key) {
    const row = make("tr", "");
    row.key = key;
    for (const column of this.columns) {
      const cell = make("td", column.className ?? "");
      cell.dataset.name = column.name;
      column.cell?.(cell);
      row.append(cell);
    }
    this.rows.set(key, row);
    this.sight.observe(row);
    return row;
  }

  activate(row) {
    if (!row) return;
    row.focus();
    this.open?.(row.key, row.item);
  }

  focused(row) {
    if (row && row.key !== this.chosen) {
      const before = this.rows.get(this.chosen);
      if (before) mark(before, "tabindex", "-1");
      this.chosen = row.key;
      mark(row, "tabindex", "0");
    }
  }

  /** Moves the focus by so many rows, or to the chosen one. */
  move(by) {
    const row = this.rows.get(this.chosen);
    if (!row) return null;
    const isHere = document.activeElement === row;
    const next = by > 0 ? row.nextElementSibling : row.previousElementSibling;
    const target = isHere && by !== 0 ? (next ?? row) : row;
    target.focus();
    target.scrollIntoView({ block: "nearest" });
    return target;
  }

  get hasFocus() {
    return this.body.contains(document.activeElement);
  }
}

/** A cell with a text. */
export const text = (read) => (cell, item) => say(cell, read(item));
