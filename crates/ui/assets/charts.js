// Lines over time, on canvas: one drawing a second, whatever else happens.

import { make, say } from "./dom.js";
import { clock } from "./format.js";

/** Colours of the style sheet, read again when the theme changes. */
export function colours() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(
    ["ink", "soft", "line", "one", "two", "fill", "ground"].map((name) => [name, style.getPropertyValue(`--${name}`).trim()]),
  );
}

/** Makes a canvas fit its box. Returns its context, scaled to CSS pixels, or null if it is not shown. */
function prepare(canvas) {
  const { clientWidth: width, clientHeight: height } = canvas;
  if (!width || !height) return null;
  const scale = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

/** A line without axes, from the last `room` values. */
export function spark(canvas, values, palette, room = 60) {
  const ready = prepare(canvas);
  if (!ready) return;
  const { context, width, height } = ready;
  const top = Math.max(...values, 1e-9);
  const x = (at) => width - 1 - ((values.length - 1 - at) * (width - 2)) / (room - 1);
  const y = (value) => height - 1.5 - (value / top) * (height - 3);
  context.beginPath();
  values.forEach((value, at) => (at ? context.lineTo(x(at), y(value)) : context.moveTo(x(at), y(value))));
  context.strokeStyle = palette.one;
  context.lineWidth = 1.25;
  context.lineJoin = "round";
  context.stroke();
  if (values.length > 1) {
    context.lineTo(x(values.length - 1), height);
    context.lineTo(x(0), height);
    context.fillStyle = palette.fill;
    context.fill();
  }
}

/** Round numbers above the highest value. */
function ceiling(value) {
  if (!(value > 0)) return 1;
  const unit = 10 ** Math.floor(Math.log10(value));
  return unit * [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((times) => times * unit >= value * 0.999);
}

/**
 * A chart of one or two lines with a title, a legend with the last values, and a reading under the pointer.
 * `lines`: `{ name, field }`; `format` for values; `top`: a fixed upper end.
 */
export class Chart {
  constructor({ title, lines, format, top, note }) {
    Object.assign(this, { title, lines, format, top });
    this.canvas = make("canvas");
    this.canvas.setAttribute("role", "img");
    this.values = lines.map((line, at) => {
      const value = make("b", "");
      const name = make("span", `name line-${at + 1}`, line.name);
      return { box: make("span", "legend", name, value), value };
    });
    this.when = make("span", "when");
    const head = make("figcaption", "", make("span", "title", title), this.when, ...this.values.map((value) => value.box));
    if (note) head.firstChild.title = note;
    this.element = make("figure", "chart", head, this.canvas);
    this.hover = null;
    this.points = [];
    const move = (event) => {
      this.hover = event.offsetX;
      this.draw();
    };
    this.canvas.addEventListener("pointermove", move);
    this.canvas.addEventListener("pointerdown", move);
    this.canvas.addEventListener("pointerleave", () => {
      this.hover = null;
      this.draw();
    });
  }

  /** Draws the points of the last `span` milliseconds. */
  show(points, palette, span) {
    Object.assign(this, { points, palette, span });
    this.draw();
  }

  draw() {
    const { points, palette, lines, span } = this;
    const ready = palette && prepare(this.canvas);
    if (!ready) return;
    const { context, width, height } = ready;
    const end = points.length ? points[points.length - 1].t : 0;
    let highest = 0;
    for (const point of points) for (const line of lines) highest = Math.max(highest, point[line.field] ?? 0);
    const top = this.top ?? ceiling(highest);
    const foot = 15;
    const x = (t) => width - 1 - ((end - t) / span) * (width - 2);
    const y = (value) => height - foot - (Math.min(value, top) / top) * (height - foot - 12);
    context.font = `10.5px ${getComputedStyle(this.canvas).fontFamily}`;
    context.fillStyle = palette.soft;
    context.strokeStyle = palette.line;
    context.lineWidth = 1;
    const isEmpty = !points.some((point) => lines.some((line) => typeof point[line.field] === "number"));
    if (isEmpty) {
      context.textAlign = "center";
      context.fillText("nothing yet", width / 2, y(top / 2) + 4);
      context.textAlign = "left";
    }
    context.beginPath();
    for (const share of isEmpty ? [0] : [0, 0.5, 1]) {
      const at = Math.round(y(top * share)) + 0.5;
      context.moveTo(0, at);
      context.lineTo(width, at);
    }
    context.stroke();
    context.textBaseline = "bottom";
    // 1.50k as 1.5k: the end of an axis is a round number.
    if (!isEmpty) context.fillText(this.format(top).replace(/(\.\d*?)0+(?=\D|$)/, "$1").replace(/\.(?=\D|$)/, ""), 0, y(top) - 1);
    context.textBaseline = "alphabetic";
    const minutes = Math.round(span / 60000);
    context.fillText(`${minutes} min ago`, 0, height - 2);
    context.textAlign = "right";
    context.fillText("now", width, height - 2);
    context.textAlign = "left";
    // The first line last, so that it is on top.
    for (let at = lines.length - 1; at >= 0; at--) this.line(context, lines[at].field, x, y, at, height - foot);
    const chosen = this.hover === null ? points[points.length - 1] : nearest(points, this.hover, x);
    if (chosen && this.hover !== null) {
      context.strokeStyle = palette.soft;
      context.beginPath();
      context.moveTo(Math.round(x(chosen.t)) + 0.5, 10);
      context.lineTo(Math.round(x(chosen.t)) + 0.5, height - foot);
      context.stroke();
    }
    say(this.when, this.hover !== null && chosen ? clock(chosen.t) : "");
    lines.forEach((line, at) => say(this.values[at].value, this.format(chosen?.[line.field])));
    const said = lines.map((line) => `${line.name} ${this.format(points[points.length - 1]?.[line.field])}`);
    this.canvas.setAttribute("aria-label", `${this.title}: ${said.join(", ")}`);
  }

  line(context, field, x, y, number, floor) {
    const { points, palette } = this;
    const colour = number === 0 ? palette.one : palette.two;
    context.strokeStyle = colour;
    context.lineWidth = 1.5;
    context.lineJoin = "round";
    context.beginPath();
    let from = null;
    let last = null;
    const pieces = [];
    for (const point of points) {
      const value = point[field];
      // Where there is no value, or nothing came for a while, there is no line.
      if (typeof value !== "number" || (last && point.t - last.t > 5000)) {
        if (from && last) pieces.push([from, last]);
        from = last = null;
        if (typeof value !== "number") continue;
      }
      if (last) context.lineTo(x(point.t), y(value));
      else {
        context.moveTo(x(point.t), y(value));
        context.lineTo(x(point.t) + 0.1, y(value));
        from = point;
      }
      last = point;
    }
    if (from && last) pieces.push([from, last]);
    context.stroke();
    if (this.lines.length > 1 || number > 0) return;
    context.fillStyle = palette.fill;
    for (const [first, end] of pieces) {
      context.beginPath();
      context.moveTo(x(first.t), floor);
      for (const point of points) if (point.t >= first.t && point.t <= end.t) context.lineTo(x(point.t), y(point[field]));
      context.lineTo(x(end.t), floor);
      context.fill();
    }
  }
}

function nearest(points, at, x) {
  let best = null;
  for (const point of points) if (!best || Math.abs(x(point.t) - at) < Math.abs(x(best.t) - at)) best = point;
  return best;
}
