// Numbers as people read them. A number that is not there is a dash.

const NONE = "–";
const thin = "\u202f";

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** 950, 1.24k, 12.4k, 3.1M. */
export function count(value) {
  if (!isNumber(value)) return NONE;
  const size = Math.abs(value);
  for (const [unit, name] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (size >= unit * 0.9995) {
      const scaled = value / unit;
      return scaled.toFixed(Math.abs(scaled) >= 99.95 ? 0 : Math.abs(scaled) >= 9.995 ? 1 : 2) + name;
    }
  }
  return Number.isInteger(value) ? String(value) : value.toFixed(size < 10 ? 1 : 0);
}

/** All digits, in groups: 12 345. */
export function whole(value) {
  return isNumber(value) ? Math.round(value).toString().replace(/\B(?=(\d{3})+$)/g, thin) : NONE;
}

/** A rate: with a decimal below 100. */
export const rate = (value) => (isNumber(value) && value > 0 && value < 0.05 ? "<0.1" : count(value));

/** A rate with its unit. */
export const perSecond = (value) => (isNumber(value) ? `${rate(value)}/s` : NONE);

/** Milliseconds in a fitting unit: 40 µs, 0.4 ms, 12 ms, 3.2 s, 4 min. */
export function duration(ms) {
  if (!isNumber(ms)) return NONE;
  if (ms > 0 && ms < 0.0995) return Math.max(1, Math.round(ms * 1e3)) + thin + "µs";
  if (ms < 9.95) return ms.toFixed(1) + thin + "ms";
  if (ms < 999.5) return ms.toFixed(0) + thin + "ms";
  if (ms < 99950) return (ms / 1e3).toFixed(ms < 9950 ? 2 : 1) + thin + "s";
  if (ms < 5.4e6) return (ms / 6e4).toFixed(0) + thin + "min";
  return (ms / 3.6e6).toFixed(1) + thin + "h";
}

/** Bytes: 12.4 MB. */
export function bytes(value) {
  return isNumber(value) ? count(value).replace(/([kMG]?)$/, (_, unit) => `${thin}${unit}B`) : NONE;
}

/** A share of 1: 87.3 %. */
export function percent(value) {
  if (!isNumber(value)) return NONE;
  const whole = value * 100;
  return (whole >= 99.95 || whole === 0 ? whole.toFixed(0) : whole.toFixed(1)) + thin + "%";
}

/** Seconds, for terms of a decision: 0.0123 s as 12.3 ms. */
export const seconds = (value) => (value < 0 ? "−" : "") + duration(isNumber(value) ? Math.abs(value) * 1e3 : value);

/** The time of day of milliseconds since 1970. */
export function clock(ms) {
  if (!isNumber(ms)) return NONE;
  const time = new Date(ms);
  return [time.getHours(), time.getMinutes(), time.getSeconds()].map((part) => String(part).padStart(2, "0")).join(":");
}

/** Words with one number: "1 engine", "3 engines". */
export const plural = (number, word) => `${whole(number)} ${word}${number === 1 ? "" : "s"}`;

/** `lost_batches` as "lost batches". */
export const words = (name) => name.replaceAll("_", " ");
