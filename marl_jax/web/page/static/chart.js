// Line charts: several lines over the same axes, with optional confidence bands.

import { el, number, shape } from "./dom.js";

const WIDTH = 360, HEIGHT = 190, LEFT = 50, RIGHT = 8, TOP = 8, BOTTOM = 24, POINTS = 300;
export const COLOURS = 6;

/** Draw a chart.
 *  lines: [{name, colour, points: [[x, y, low?, high?], …] sorted by x, smooth}]; `label` formats x.
 *  marks: [{x, kind, title}], vertical lines; of marks of the same kind on the same pixel the last is drawn. */
export function chart(lines, label = number, marks = []) {
  const drawn = lines.map((line) => ({ ...line, points: thinned(line.points.filter(([x, y]) => Number.isFinite(x) && Number.isFinite(y))) }))
    .filter((line) => line.points.length);
  if (!drawn.length) return el("p", { class: "quiet" }, "no points yet");
  for (const line of drawn) line.curve = line.smooth ? smoothed(line.points) : line.points;
  const all = drawn.flatMap((line) => line.curve);
  const xs = all.map((p) => p[0]), left = least(xs), right = -least(xs.map((x) => -x));
  const ticks = niceTicks(least(all.map((p) => p[2] ?? p[1])), -least(all.map((p) => -(p[3] ?? p[1]))));
  const low = ticks[0], high = ticks[ticks.length - 1];
  const px = (x) => LEFT + (WIDTH - LEFT - RIGHT) * (right > left ? (x - left) / (right - left) : 0.5);
  const py = (y) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - (y - low) / (high - low));
  const svg = shape("svg", { class: "curve", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
  for (const tick of ticks) {
    svg.append(shape("line", { class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: py(tick), y2: py(tick) }),
      shape("text", { x: LEFT - 5, y: py(tick) + 4, "text-anchor": "end" }, number(tick)));
  }
  svg.append(shape("text", { x: LEFT, y: HEIGHT - 6 }, label(left)),
    shape("text", { x: WIDTH - RIGHT, y: HEIGHT - 6, "text-anchor": "end" }, right > left ? label(right) : ""));
  const placed = new Map(marks.filter((mark) => Number.isFinite(mark.x)).map((mark) => {
    const x = Math.round(px(Math.min(Math.max(mark.x, left), right)));
    return [`${x} ${mark.kind}`, { ...mark, x }];
  }));
  for (const { x, kind, title } of placed.values()) {
    svg.append(shape("line", { class: `event ${kind}`, x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM }, shape("title", {}, title)));
  }
  for (const line of drawn) svg.append(...drawLine(line, px, py));
  const cursor = shape("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  const readout = el("div", { class: "readout quiet" });
  svg.append(cursor);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = left + ((event.clientX - box.left) / box.width * WIDTH - LEFT) / (WIDTH - LEFT - RIGHT) * (right - left);
    const near = drawn.map((line) => [line, nearest(line.points, x)]);
    const at = near.reduce((best, [, p]) => (Math.abs(p[0] - x) < Math.abs(best - x) ? p[0] : best), Infinity);
    cursor.setAttribute("x1", px(at));
    cursor.setAttribute("x2", px(at));
    cursor.setAttribute("visibility", "visible");
    const events = [...placed.values()].filter((mark) => Math.abs(mark.x - px(at)) < 3).map((mark) => mark.title);
    readout.textContent = `${label(at)}: ` + near.map(([line, p]) =>
      `${drawn.length > 1 ? line.name + " " : ""}${number(p[1])}${p[2] === undefined ? "" : ` [${number(p[2])}, ${number(p[3])}]`}`).concat(events).join(" · ");
  });
  svg.addEventListener("pointerleave", () => { cursor.setAttribute("visibility", "hidden"); readout.textContent = ""; });
  return el("div", {}, svg, readout);
}

function drawLine({ colour, curve }, px, py) {
  const kind = `k${colour % COLOURS}`, path = (points) => points.map(([x, y]) => `${px(x).toFixed(1)} ${py(y).toFixed(1)}`).join("L");
  const banded = curve.filter((p) => Number.isFinite(p[2]) && Number.isFinite(p[3]));
  const parts = [];
  if (banded.length) {
    const around = [...banded.map((p) => [p[0], p[3]]), ...banded.map((p) => [p[0], p[2]]).reverse()];
    parts.push(shape("path", { class: `band ${kind}`, d: `M${path(around)}Z` }));
  }
  if (curve.length === 1 || banded.length) {
    const marks = banded.length ? banded : curve;
    if (marks.length <= 60) parts.push(...marks.map(([x, y]) => shape("circle", { class: kind, cx: px(x), cy: py(y), r: 2 })));
    if (marks.length === 1 && banded.length) {
      const [x, , lo, hi] = marks[0];
      parts.push(shape("line", { class: `s ${kind}`, x1: px(x), x2: px(x), y1: py(lo), y2: py(hi) }));
    }
  }
  parts.push(shape("path", { class: `s ${kind}`, d: `M${path(curve)}` }));
  return parts;
}

/** Return at most POINTS points, each the mean of its neighbors. */
export function thinned(points) {
  if (points.length <= POINTS) return points;
  return Array.from({ length: POINTS }, (_, i) => {
    const part = points.slice(Math.floor(i * points.length / POINTS), Math.floor((i + 1) * points.length / POINTS));
    return part[0].map((_, k) => part.reduce((sum, p) => sum + p[k], 0) / part.length);
  });
}

function smoothed(points) {
  const reach = Math.floor(points.length / 40);
  if (!reach) return points;
  return points.map(([x], i) => {
    const part = points.slice(Math.max(0, i - reach), i + reach + 1);
    return [x, part.reduce((sum, p) => sum + p[1], 0) / part.length];
  });
}

/** Return three to six round values from below `low` to above `high`. */
export function niceTicks(low, high) {
  if (!(high > low)) { const wide = Math.abs(low) * 0.1 || 1; low -= wide; high += wide; }
  const rough = (high - low) / 4, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const first = Math.floor(low / step + 1e-9), last = Math.ceil(high / step - 1e-9);
  return Array.from({ length: last - first + 1 }, (_, i) => (first + i) * step);
}

function nearest(points, x) {
  return points.reduce((best, p) => (Math.abs(p[0] - x) < Math.abs(best[0] - x) ? p : best));
}

function least(values) {
  return values.reduce((a, b) => (b < a ? b : a), Infinity);
}
