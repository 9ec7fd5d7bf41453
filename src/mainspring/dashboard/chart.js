// Line charts on a canvas: a few series over time, hairlines, a readable scale, values under the pointer.
// A canvas draws a thousand points in a fraction of a millisecond and costs the page one element.

import { h, colour, fill } from "./dom.js";
import { dayOf, hourMinute, moment } from "./format.js";

const LEFT = 44;
const BOTTOM = 20;
const TOP = 8;
const SHORTEST_MS = 120_000; // a young node shows two minutes, not a quarter of an hour of nothing
const CHOSEN = "mainspring.range";
const AT_LEAST_MS = 2_000; // between two questions for the same chart
const TICKS = [30, 60, 120, 180, 300, 600, 3_600, 7_200, 14_400, 28_800, 86_400, 172_800, 259_200].map((seconds) => seconds * 1000);
const DAY_MS = 86_400_000;
const RANGES = [["15m", "15 min", 900_000], ["6h", "6 h", 21_600_000], ["24h", "24 h", DAY_MS], ["7d", "7 d", 7 * DAY_MS]];

/** A chart of `series`: [{name, token, pick(point), format}]. Give it points with `draw`. */
export class Chart {
  constructor({ label, series, height = 190 }) {
    this.series = series;
    this.height = height;
    this.windowMs = SHORTEST_MS;
    this.points = [];
    this.canvas = h("canvas", { role: "img", aria: { label } });
    this.label = label;
    this.canvas.style.height = `${height}px`;
    this.tip = h("div", { class: "tip", hidden: true });
    this.legend = h("div", { class: "legend" });
    this.element = h("div", { class: "stack" }, this.legend, h("div", { class: "chart" }, this.canvas, this.tip));
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => this.leave());
    this.sizes = new ResizeObserver(() => this.paint());
    this.sizes.observe(this.canvas);
    this.themed = () => this.paint();
    document.addEventListener("themechange", this.themed);
  }

  close() {
    this.sizes.disconnect();
    document.removeEventListener("themechange", this.themed);
  }

  /** Draw what was measured in the last `windowMs`, or as much of it as a young node knows. */
  draw(points, now, windowMs) {
    const known = points.length ? now - points[0].t : 0;
    this.windowMs = windowMs > RANGES[0][2] ? windowMs : Math.min(windowMs, Math.max(SHORTEST_MS, Math.ceil(known / 30_000) * 30_000));
    const from = now - this.windowMs;
    const first = points.findIndex((point) => point.t >= from);
    this.points = first < 0 ? [] : points.slice(Math.max(0, first - 1));
    this.now = now;
    const newest = this.points.at(-1);
    fill(this.legend, this.series.map((line) => h(
      "span",
      {},
      h("i", { css: { color: `var(--${line.token})` } }),
      line.name,
      h("b", { text: newest && line.pick(newest) !== undefined ? line.format(line.pick(newest)) : "–" }),
    )));
    this.canvas.setAttribute("aria-label", this.inWords(newest));
    this.paint();
  }

  /** What the lines show, for those who do not see them. */
  inWords(newest) {
    const told = (line, values) => `${line.name} ${values.length ? line.format(Math.max(...values)) : "unknown"}`;
    const known = (points, line) => points.map(line.pick).filter((value) => value !== undefined);
    const now = this.series.map((line) => told(line, known(newest ? [newest] : [], line)));
    const highest = this.series.map((line) => told(line, known(this.points, line)));
    return `${this.label}. Now: ${now.join(", ")}. Highest: ${highest.join(", ")}.`;
  }

  paint(at = null) {
    const width = this.canvas.clientWidth;
    if (!width || !this.now) return;
    const pen = prepare(this.canvas, width, this.height);
    const top = niceTop(Math.max(1, ...this.points.flatMap((point) => this.series.map((line) => line.pick(point) ?? 0))));
    const x = (t) => LEFT + ((t - (this.now - this.windowMs)) / this.windowMs) * (width - LEFT - 6);
    const y = (value) => this.height - BOTTOM - (value / top) * (this.height - BOTTOM - TOP);
    this.scale = { x, y, top };
    this.frame(pen, width, top, x, y);
    pen.save();
    pen.beginPath();
    pen.rect(LEFT, 0, width - LEFT, this.height);
    pen.clip();
    for (const line of this.series) this.line(pen, line, x, y);
    if (at) this.cross(pen, at, x, y);
    pen.restore();
  }

  frame(pen, width, top, x, y) {
    const ink = colour("ink-3");
    pen.strokeStyle = colour("line");
    pen.fillStyle = ink;
    pen.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    for (const part of [0, 0.5, 1]) {
      const height = Math.round(y(top * part)) + 0.5;
      pen.beginPath();
      pen.moveTo(LEFT, height);
      pen.lineTo(width, height);
      pen.stroke();
      pen.fillText(this.series[0].format(top * part), LEFT - 8, height);
    }
    pen.textAlign = "center";
    const step = TICKS.find((ms) => this.windowMs / ms <= (width < 520 ? 3 : 7)) ?? TICKS.at(-1);
    const zone = new Date(this.now).getTimezoneOffset() * 60_000; // days begin at midnight here
    for (let t = Math.ceil((this.now - this.windowMs - zone) / step) * step + zone; t < this.now; t += step) {
      if (x(t) > LEFT + 16 && x(t) < width - 16) pen.fillText(step < 60_000 ? moment(t, t).slice(0, 8) : step < DAY_MS ? hourMinute(t) : dayOf(t), x(t), this.height - 7);
    }
  }

  line(pen, line, x, y) {
    pen.strokeStyle = pen.fillStyle = colour(line.token);
    pen.lineWidth = 1.5;
    pen.lineJoin = "round";
    for (const seen of strokes(this.points, line.pick)) {
      pen.beginPath();
      seen.forEach((point, at) => (at ? pen.lineTo(x(point.t), y(line.pick(point))) : pen.moveTo(x(point.t), y(line.pick(point)))));
      pen.stroke();
      if (line.fill === false) continue;
      pen.lineTo(x(seen.at(-1).t), y(0));
      pen.lineTo(x(seen[0].t), y(0));
      pen.globalAlpha = 0.07;
      pen.fill();
      pen.globalAlpha = 1;
    }
  }

  cross(pen, point, x, y) {
    pen.strokeStyle = colour("line-strong");
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(Math.round(x(point.t)) + 0.5, TOP);
    pen.lineTo(Math.round(x(point.t)) + 0.5, this.height - BOTTOM);
    pen.stroke();
    for (const line of this.series) {
      if (line.pick(point) === undefined) continue;
      pen.fillStyle = colour(line.token);
      pen.beginPath();
      pen.arc(x(point.t), y(line.pick(point)), 3, 0, 7);
      pen.fill();
    }
  }

  point(event) {
    if (!this.points.length || !this.scale) return;
    const at = event.offsetX;
    const near = this.points.reduce((best, point) => (Math.abs(this.scale.x(point.t) - at) < Math.abs(this.scale.x(best.t) - at) ? point : best));
    this.paint(near);
    fill(this.tip, h("div", { class: "dim", text: moment(near.t).replace(/\.\d+$/, "") }), this.series.map((line) => h("div", { text: `${line.name} ${line.pick(near) === undefined ? "–" : line.format(line.pick(near))}` })));
    this.tip.hidden = false;
    const room = this.canvas.clientWidth - this.tip.offsetWidth - 12;
    this.tip.style.left = `${Math.max(LEFT, Math.min(this.scale.x(near.t) + 12, room))}px`;
  }

  leave() {
    this.tip.hidden = true;
    this.paint();
  }
}

/**
 * Charts of the node's own history with a choice of how far back, which stays chosen in other views. `charts` are
 * [{label, series, height}]; `choice` goes where there is room for four buttons.
 */
export class History {
  constructor({ ctx, path, charts }) {
    Object.assign(this, { ctx, path });
    this.points = [];
    this.charts = charts.map((chart) => new Chart(chart));
    this.element = h("div", { class: "stack" }, this.charts.map((chart) => chart.element));
    this.buttons = RANGES.map(([name, text]) => h("button", { type: "button", class: "plain", data: { name }, text, on: { click: () => this.choose(name) } }));
    this.choice = h("span", { class: "ranges", role: "group", aria: { label: "How far back" } }, this.buttons);
    this.choose(localStorage.getItem(CHOSEN) ?? "15m");
  }

  choose(name) {
    this.range = RANGES.find(([known]) => known === name) ?? RANGES[0];
    localStorage.setItem(CHOSEN, this.range[0]);
    for (const button of this.buttons) button.setAttribute("aria-pressed", String(button.dataset.name === this.range[0]));
    this.asked = 0;
    this.update();
  }

  /** Ask again when there can be a new point. */
  async update() {
    if (Date.now() - this.asked < Math.max(AT_LEAST_MS, Math.min(this.stepMs ?? 0, 10_000))) return;
    this.asked = Date.now();
    const [name, , windowMs] = this.range;
    try {
      const { points, now, stepMs } = await this.ctx.api.get(`${this.path}?range=${name}`, { signal: this.ctx.signal });
      if (name !== this.range[0]) return; // another was chosen meanwhile
      this.stepMs = stepMs;
      this.points = points;
      for (const chart of this.charts) chart.draw(withGaps(points, stepMs), now, windowMs);
    } catch (problem) {
      if (problem.name !== "AbortError" && problem.status === 0) this.asked = 0; // the node was away
    }
  }

  close() {
    for (const chart of this.charts) chart.close();
  }
}

/** While the node was away nothing was measured: no line is drawn over that. */
function withGaps(points, stepMs) {
  return points.flatMap((point, at) => (at && point.t - points[at - 1].t > 2.5 * stepMs ? [{ t: points[at - 1].t + 1 }, point] : [point]));
}

/** Points that belong to one line: where a value is not known the pen is lifted. */
function strokes(points, pick) {
  const found = [[]];
  for (const point of points) {
    if (pick(point) !== undefined) found.at(-1).push(point);
    else if (found.at(-1).length) found.push([]);
  }
  return found.filter((stroke) => stroke.length);
}

/** A few values as one small line, without a scale; for tables and figures. */
export function spark(canvas, values, token = "blue", width = canvas.clientWidth || 90, height = canvas.clientHeight || 22) {
  const pen = prepare(canvas, width, height);
  if (values.length < 3) return; // two points look like a trend and are none
  const top = Math.max(...values, 1e-9);
  const step = width / Math.max(values.length - 1, 1);
  pen.strokeStyle = colour(token);
  pen.lineWidth = 1.25;
  pen.lineJoin = "round";
  pen.beginPath();
  values.forEach((value, at) => {
    const y = height - 2 - (value / top) * (height - 4);
    if (at) pen.lineTo(at * step, y);
    else pen.moveTo(0, y);
  });
  pen.stroke();
}

function prepare(canvas, width, height) {
  const density = window.devicePixelRatio || 1;
  const [wide, high] = [Math.round(width * density), Math.round(height * density)];
  if (canvas.width !== wide) canvas.width = wide;
  if (canvas.height !== high) canvas.height = high;
  const pen = canvas.getContext("2d");
  pen.setTransform(density, 0, 0, density, 0, 0);
  pen.clearRect(0, 0, width, height);
  return pen;
}

/** The next number of the form 1, 2, 4, 5 or 10 times a power of ten: its half is readable, too. */
function niceTop(most) {
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 4, 5, 6, 8, 10].map((step) => step * power).find((step) => step >= most) ?? most;
}
