// Curves and bars, drawn as SVG.

import { drawn, made, short } from "./dom.js";

const WIDTH = 320;
const HEIGHT = 120;
const LEFT = 40;
const RIGHT = 8;
const TOP = 8;
const BOTTOM = 20;
const ACROSS = WIDTH - LEFT - RIGHT;
const DOWN = HEIGHT - TOP - BOTTOM;

/** A titled drawing, redrawn by `lines` or `bars`. */
export class Chart {
  constructor(parent, id, title) {
    this._title = title;
    this.figure = made("figure");
    this.figure.id = id;
    this._value = made("strong");
    this._key = made("p", "key");
    const caption = made("figcaption");
    caption.append(made("span", "", title), this._value);
    this._svg = drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
    this.figure.append(caption, this._svg, this._key);
    parent.append(this.figure);
  }

  /**
   * Draw lines. series: each {name, points: [[x, y or null], ...]}; ends: the names of both ends
   * of the axis; range: its first and last x; unit: of y, beside each of its numbers.
   */
  lines(value, series, { ends, range, unit = "" }) {
    const shown = series.filter(({ points }) => points.some(([, y]) => y !== null));
    const values = shown.flatMap(({ points }) => points.map(([, y]) => y ?? 0));
    const without = shown.length > 0 ? "none now" : "nothing yet";
    const top = this._begin(value || without, values, (y) => `${short(y)}${unit}`);
    const [first, last] = range;
    const scale = ACROSS / Math.max(last - first, 1e-9);
    shown.forEach(({ points, mark }, number) => {
      const at = ([x, y]) => [LEFT + (x - first) * scale, TOP + DOWN * (1 - y / top)];
      const d = pathOf(points, at);
      this._svg.append(drawn("path", { d, class: `line line-${mark ?? number}` }));
    });
    this._label(LEFT, "start", ends[0]);
    this._label(WIDTH - RIGHT, "end", ends[1]);
    this._names(shown);
  }

  /** Draw shares as bars. bars: each {name, share}. */
  bars(value, bars) {
    this._begin(value, [1], (share) => `${100 * share} %`);
    const step = ACROSS / Math.max(bars.length, 1);
    bars.forEach(({ name, share }, number) => {
      const height = DOWN * share;
      const x = LEFT + number * step + step * 0.15;
      const width = Math.min(step * 0.7, 48);
      const y = TOP + DOWN - height;
      this._svg.append(drawn("rect", { x, y, width, height, class: "bar" }));
      this._label(x + width / 2, "middle", name);
    });
    this._key.textContent = "";
  }

  /** Empty the drawing, draw its axis; return the value at its top. */
  _begin(value, values, name) {
    const top = roundAbove(Math.max(...values, 0));
    this._value.textContent = value;
    this._svg.setAttribute("aria-label", `${this._title}: ${value}`);
    this._svg.replaceChildren();
    for (const share of [0, 0.5, 1]) {
      const y = TOP + DOWN * (1 - share);
      this._svg.append(drawn("path", { d: `M${LEFT} ${y}H${WIDTH - RIGHT}`, class: "grid" }));
      const place = { x: LEFT - 4, y: y + 3, "text-anchor": "end" };
      this._svg.append(drawn("text", place, name(top * share)));
    }
    return top;
  }

  _label(x, anchor, text) {
    this._svg.append(drawn("text", { x, y: HEIGHT - 6, "text-anchor": anchor }, text));
  }

  _names(series) {
    const named = series.filter(({ name }) => name);
    const keys = named.map(({ name, mark }, number) =>
      made("span", `line-name line-${mark ?? number}`, name));
    this._key.replaceChildren(...keys);
  }
}

/** Return the path through points; where one is null, the line is broken. */
function pathOf(points, at) {
  let path = "";
  let next = "M";
  for (const point of points) {
    if (point[1] === null) {
      next = "M";
      continue;
    }
    const [x, y] = at(point);
    path += `${next}${x.toFixed(1)} ${y.toFixed(1)}`;
    if (next === "M") {
      path += "h0.1";  // a single point is seen too
    }
    next = "L";
  }
  return path;
}

/** Return the next of 1, 2, 5, 10, 20, ... that is not below a value. */
function roundAbove(value) {
  if (value <= 0) {
    return 1;
  }
  const power = 10 ** Math.floor(Math.log10(value));
  const factor = [1, 2, 5, 10].find((candidate) => candidate * power >= value * 0.999);
  return factor * power;
}
