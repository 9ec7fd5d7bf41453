// Numbers and times for people.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const UNITS = [["d", 86_400], ["h", 3_600], ["min", 60], ["s", 1]];

/** 12,345; from a million on 1.2M. */
export function count(value) {
  return Math.abs(value) < 1e6 ? whole.format(value) : short.format(value);
}

/** A number per second: small ones with a decimal, so that something is not nothing. */
export function rate(value) {
  if (!Number.isFinite(value)) return "–";
  return value > 0 && value < 100 ? tenth.format(value) : count(value);
}

/** Milliseconds as a span: 340 ms, 2.3 s, 4 min 12 s, 3 h 5 min, 2 d 4 h. */
export function span(ms) {
  if (!Number.isFinite(ms)) return "–";
  const sign = ms < 0 ? "−" : "";
  const size = Math.abs(ms);
  if (size < 1000) return `${sign}${size < 10 && size % 1 ? tenth.format(size) : whole.format(size)} ms`;
  if (size < 60_000) return `${sign}${tenth.format(size / 1000)} s`;
  return sign + pairOf(Math.round(size / 1000));
}

function pairOf(seconds) {
  const first = UNITS.findIndex(([, length]) => seconds >= length);
  const [name, length] = UNITS[first];
  const [lower, part] = UNITS[first + 1] ?? ["", 1];
  const rest = lower ? Math.floor((seconds % length) / part) : 0;
  return `${Math.floor(seconds / length)} ${name}${rest ? ` ${rest} ${lower}` : ""}`;
}

/** How long ago, in its largest unit: 21 s ago, 2 min ago, 3 h ago. */
export function ago(ms, now) {
  const passed = now - ms;
  if (passed < 1000) return "just now";
  const [name, length] = UNITS.find(([, size]) => passed >= size * 1000);
  return `${Math.floor(passed / 1000 / length)} ${name} ago`;
}

const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "2-digit", month: "short" });

/** A time of today as 14:03:22.120, any other with its day. */
export function moment(ms, now = Date.now()) {
  const at = new Date(ms);
  const text = `${clock.format(at)}.${String(at.getMilliseconds()).padStart(3, "0")}`;
  return new Date(now).toDateString() === at.toDateString() ? text : `${day.format(at)} ${text}`;
}

export function hourMinute(ms) {
  return clock.format(new Date(ms)).slice(0, 5);
}

export function dayOf(ms) {
  return day.format(new Date(ms));
}

/** The whole local time, for reading: 2026-01-31 14:03:22.120. */
export function local(ms) {
  const at = new Date(ms);
  const two = (number) => String(number).padStart(2, "0");
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock.format(at)}.${String(at.getMilliseconds()).padStart(3, "0")}`;
}

/** The same instant in UTC, for copying and for tooltips: 2026-01-31T13:03:22.120Z. */
export function exact(ms) {
  return new Date(ms).toISOString();
}

/** The one-line form of a value, cut where nobody reads on. */
export function brief(value, most = 160) {
  const text = typeof value === "string" ? value : JSON.stringify(value);
  if (text === undefined) return "";
  return text.length > most ? `${text.slice(0, most)}…` : text;
}

export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}
