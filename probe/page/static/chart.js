// Line charts over one shared axis, drawn on canvas: a band from the minimum to the maximum of each bucket, and its
// mean as a line, so that a spike of one step is visible in an hour. Hover, zoom and keys move all panels together.

import { clock, day, figure, fill, h } from "./dom.js";

const LEFT = 66, RIGHT = 10, TOP = 6, BOTTOM = 18;
const dark = matchMedia("(prefers-color-scheme: dark)");

/** A colour of the style sheet: `--c0` … */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim() || "#888";
}

/** A canvas that is drawn again when its size or the colours change. `draw` receives the context and the size. */
export function canvas(draw, attributes) {
  const made = h("canvas", attributes);
  let waiting = false;
  made.redraw = () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      const width = made.clientWidth, height = made.clientHeight, ratio = devicePixelRatio || 1;
      if (!width || !height) return;
      if (made.width !== Math.round(width * ratio) || made.height !== Math.round(height * ratio)) {
        made.width = Math.round(width * ratio);
        made.height = Math.round(height * ratio);
      }
      const context = made.getContext("2d");
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.clearRect(0, 0, width, height);
      context.font = "11px system-ui, sans-serif";
      draw(context, width, height);
    });
  };
  new ResizeObserver(made.redraw).observe(made);
  dark.addEventListener("change", made.redraw);
  return made;
}

/** Round values between two bounds, about `wanted` of them. */
export function ticks(least, most, wanted) {
  const span = most - least;
  if (!(span > 0)) return [least];
  const rough = span / Math.max(1, wanted), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= rough);
  const found = [];
  for (let value = Math.ceil(least / step) * step; value <= most + step * 1e-9; value += step) found.push(Math.abs(value) < step * 1e-9 ? 0 : value);
  return found;
}

/** Moments between two, at round seconds, minutes or hours. */
function moments(from, to, wanted) {
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400].map((s) => s * 1000);
  const step = steps.find((one) => one >= (to - from) / wanted) || Math.ceil((to - from) / wanted / 86400e3) * 86400e3;
  const shift = new Date(from).getTimezoneOffset() * 60e3, found = [];
  for (let value = Math.ceil((from - shift) / step) * step + shift; value <= to; value += step) found.push(value);
  return found;
}

/**
 * Panels over one axis. `panels`: [{title, format, log, series: [{name, key, colour}]}]. `is_time`: the axis shows
 * milliseconds, else plain numbers. `zoomed(from, to)` is called when the user selects a part, with nulls for all.
 */
export class Charts {
  constructor(panels, { is_time = true, zoomed = () => {}, label = "step" } = {}) {
    this.panels = panels;
    this.is_time = is_time;
    this.zoomed = zoomed;
    this.label = label;
    this.data = { x: [], step: [], series: {}, bad: [] };
    this.marks = [];
    this.range = null;
    this.hover = null;
    this.drag = null;
    this.readout = h("output", { "aria-live": "off", class: "dim" });
    this.canvases = panels.map((panel, place) => this.#canvas(panel, place));
    this.element = h("div", {}, this.readout, panels.map((panel, place) => h("figure", {}, this.#caption(panel), this.canvases[place])));
    this.#say();
  }

  #caption(panel) {
    const scale = panel.log === undefined ? null : h("button", { type: "button", "aria-pressed": String(Boolean(panel.log)), on: { click: (event) => {
      panel.log = !panel.log;
      event.currentTarget.setAttribute("aria-pressed", String(panel.log));
      this.redraw();
    } } }, "log");
    const keys = panel.series.length > 1 ? panel.series.map((one) => h("span", { class: `key key${one.colour}` }, one.name)) : [];
    panel.said = panel.zone === undefined ? null : h("span", { class: "dim" });
    return h("figcaption", {}, panel.title, keys, scale, panel.said);
  }

  #canvas(panel, place) {
    const last = place === this.panels.length - 1;
    const made = canvas((context, width, height) => this.#draw(panel, last, context, width, height), {
      class: panel.tall ? "tall" : "panel", role: "img", tabindex: "0", "aria-label": panel.title,
      on: {
        pointermove: (event) => this.#move(event), pointerdown: (event) => this.#press(event), pointerup: (event) => this.#release(event),
        pointerleave: () => { if (!this.drag) { this.hover = null; this.redraw(); } }, dblclick: () => this.zoom(null),
        keydown: (event) => this.#key(event),
      },
    });
    return made;
  }

  /** New values. `series`: by key {min, mid, max}; `bad`: how many values of a bucket are not finite. */
  set(data, range) {
    this.data = data;
    this.range = range || this.range;
    this.panels.forEach((panel, place) => {
      const said = panel.series.map((one) => `${one.name} ${panel.format(last_known(data.series[one.key]?.mid))}`).join(", ");
      this.canvases[place].setAttribute("aria-label", `${panel.title} over ${this.is_time ? "time" : this.label}: last ${said}. Arrow keys read values, plus and minus zoom.`);
    });
    this.redraw();
  }

  /** Zones to shade, by the key of a panel's series: {rows: [{ms, low, high}], words}. */
  shade(zones) {
    for (const panel of this.panels) {
      const zone = zones[panel.series[0].key];
      if (!panel.said || !zone) continue;
      panel.zone = zone.rows;
      fill(panel.said, zone.words);
    }
    this.redraw();
  }

  redraw() {
    this.#say();
    for (const one of this.canvases) one.redraw();
  }

  zoom(range) {
    this.hover = null;
    this.zoomed(range ? range[0] : null, range ? range[1] : null);
  }

  #scale(width) {
    const [from, to] = this.range || [0, 1], room = Math.max(1, width - LEFT - RIGHT);
    return { at: (x) => LEFT + ((x - from) / (to - from || 1)) * room, back: (pixel) => from + ((pixel - LEFT) / room) * (to - from) };
  }

  #draw(panel, last, context, width, height) {
    const { x, series, bad } = this.data, { at } = this.#scale(width);
    const bottom = height - (last ? BOTTOM : 4), dim = colour("--dim"), line = colour("--line");
    const shown = panel.series.map((one) => ({ ...one, values: series[one.key] })).filter((one) => one.values);
    const [least, most] = bounds(shown, x, this.range, panel.log, panel.zero);
    const scaled = (value) => (panel.log ? Math.log10(value) : value);
    const up = (value) => bottom - ((scaled(value) - least) / (most - least || 1)) * (bottom - TOP);
    if (panel.zone?.length && Number.isFinite(least)) this.#shaded(panel.zone, at, up, context, width, bottom);
    context.strokeStyle = line;
    context.fillStyle = dim;
    context.lineWidth = 1;
    context.textAlign = "right";
    context.textBaseline = "middle";
    if (shown.length && Number.isFinite(least)) {
      for (const value of ticks(least, most, 4)) {
        const real = panel.log ? 10 ** value : value, y = Math.round(bottom - ((value - least) / (most - least || 1)) * (bottom - TOP)) + 0.5;
        rule(context, LEFT, y, width - RIGHT, y);
        context.fillText(panel.format(real), LEFT - 5, y, LEFT - 8);
      }
    } else {
      context.textAlign = "left";
      context.fillText("not measured", LEFT + 6, (TOP + bottom) / 2);
    }
    this.#axis(context, last, at, bottom, width);
    context.save();
    context.beginPath();
    context.rect(LEFT, 0, width - LEFT - RIGHT, bottom + 1);
    context.clip();
    for (const mark of this.marks) {
      context.strokeStyle = colour(`--c${mark.colour}`);
      context.setLineDash(mark.dash || []);
      rule(context, Math.round(at(mark.x)) + 0.5, TOP, Math.round(at(mark.x)) + 0.5, bottom);
    }
    context.setLineDash([]);
    for (const one of shown) curve(context, x, one.values, at, up, colour(`--c${one.colour}`), panel.log);
    if (panel.bad) triangles(context, x, bad, at, bottom, colour("--alarm"));
    if (this.drag) {
      context.fillStyle = "#8883";
      context.fillRect(at(this.drag[0]), 0, at(this.drag[1]) - at(this.drag[0]), bottom);
    }
    if (this.hover !== null) {
      context.strokeStyle = dim;
      rule(context, Math.round(at(this.hover)) + 0.5, 0, Math.round(at(this.hover)) + 0.5, bottom);
    }
    context.restore();
  }

  /** The visible part of the zone, with a line at its bounds; each bound holds until the next one. */
  #shaded(rows, at, up, context, width, bottom) {
    const right = width - RIGHT, pixel = (value, otherwise) => (value === null || !Number.isFinite(up(value)) ? otherwise : Math.min(bottom, Math.max(TOP, up(value))));
    const parts = rows.map((row, place) => ({ from: Math.max(LEFT, at(row.ms)), to: Math.min(right, place + 1 < rows.length ? at(rows[place + 1].ms) : right), top: pixel(row.high, TOP), low: pixel(row.low, bottom) }))
      .filter((one) => one.to > one.from);
    context.fillStyle = context.strokeStyle = colour("--ok");
    context.globalAlpha = 0.1;
    context.beginPath(); // one path: parts that touch have no seam
    for (const { from, to, top, low } of parts) context.rect(from, top, to - from, Math.max(0, low - top));
    context.fill();
    context.globalAlpha = 0.6;
    context.setLineDash([4, 4]);
    for (const side of ["top", "low"]) {
      context.beginPath();
      for (const { from, to, [side]: y } of parts) {
        if (y <= TOP || y >= bottom) continue;
        context.moveTo(from, y);
        context.lineTo(to, y);
      }
      context.stroke();
    }
    context.setLineDash([]);
    context.globalAlpha = 1;
  }

  #axis(context, last, at, bottom, width) {
    if (!this.range) return;
    const [from, to] = this.range, wanted = Math.max(2, Math.floor(width / 130));
    context.textAlign = "center";
    context.textBaseline = "top";
    for (const value of this.is_time ? moments(from, to, wanted) : ticks(from, to, wanted)) {
      context.strokeStyle = colour("--line");
      rule(context, Math.round(at(value)) + 0.5, TOP, Math.round(at(value)) + 0.5, bottom);
      if (last) context.fillText(this.is_time ? clock(value) : figure(value), Math.min(width - 30, Math.max(LEFT, at(value))), bottom + 4);
    }
  }

  #move(event) {
    const at = this.#scale(event.currentTarget.clientWidth).back(event.offsetX);
    this.hover = this.#near(at);
    if (this.drag) this.drag[1] = at;
    this.redraw();
  }

  #press(event) {
    if (event.button !== 0) return;
    const at = this.#scale(event.currentTarget.clientWidth).back(event.offsetX);
    this.drag = [at, at];
    event.currentTarget.setPointerCapture(event.pointerId);
  }

  #release(event) {
    const chosen = this.drag;
    this.drag = null;
    if (!chosen || !this.range) return;
    const width = Math.abs(chosen[1] - chosen[0]);
    if (width > (this.range[1] - this.range[0]) / 200) this.zoom([Math.min(...chosen), Math.max(...chosen)]);
    else this.redraw();
  }

  #key(event) {
    if (!this.range || event.ctrlKey || event.metaKey || event.altKey) return;
    const { x } = this.data, [from, to] = this.range, centre = this.hover ?? (from + to) / 2, place = x.indexOf(this.#near(centre));
    const acts = {
      ArrowLeft: () => { this.hover = x[Math.max(0, place - (event.shiftKey ? 20 : 1))] ?? null; },
      ArrowRight: () => { this.hover = x[Math.min(x.length - 1, place + (event.shiftKey ? 20 : 1))] ?? null; },
      Home: () => { this.hover = x[0] ?? null; }, End: () => { this.hover = x.at(-1) ?? null; },
      "+": () => this.zoom([centre - (to - from) / 4, centre + (to - from) / 4]),
      "-": () => this.zoom(null), Escape: () => this.zoom(null),
    };
    if (!acts[event.key]) return;
    event.preventDefault();
    acts[event.key]();
    this.readout.setAttribute("aria-live", "polite");
    this.redraw();
  }

  #near(at) {
    const { x } = this.data;
    let low = 0, high = x.length - 1;
    if (high < 0) return null;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (x[middle] < at) low = middle; else high = middle;
    }
    return at - x[low] < x[high] - at ? x[low] : x[high];
  }

  /** Show the values at the pointer as text. */
  #say() {
    const place = this.hover === null ? -1 : this.data.x.indexOf(this.hover);
    if (place < 0) {
      fill(this.readout, "Point at a curve to read it; drag to zoom, double-click for all.");
      return;
    }
    const x = this.data.x[place], parts = [this.is_time ? `${day(x)} ${clock(x)}` : `${this.label} ${figure(x)}`];
    if (this.is_time && this.data.step[place] !== undefined) parts.push(`step ${figure(this.data.step[place])}`);
    for (const panel of this.panels) {
      for (const one of panel.series) {
        const values = this.data.series[one.key];
        if (!values || values.mid[place] === null || values.mid[place] === undefined) continue;
        const least = values.min?.[place], most = values.max?.[place], wide = least !== undefined && least !== null && least !== most;
        parts.push(`${one.name} ${panel.format(values.mid[place])}${wide ? ` (${panel.format(least)} to ${panel.format(most)})` : ""}`);
      }
    }
    if (this.data.bad?.[place]) parts.push(`${this.data.bad[place]} × NaN or infinite`);
    fill(this.readout, parts.join("   "));
  }
}

function rule(context, x0, y0, x1, y1) {
  context.beginPath();
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
  context.stroke();
}

function last_known(values) {
  for (let place = (values?.length || 0) - 1; place >= 0; place -= 1) if (values[place] !== null && values[place] !== undefined) return values[place];
  return null;
}

function known(value, log) {
  return value !== null && value !== undefined && Number.isFinite(value) && (!log || value > 0);
}

/** The smallest and the largest value in the range, with some margin. */
function bounds(shown, x, range, log, zero) {
  let least = Infinity, most = -Infinity;
  for (const { values } of shown) {
    for (let place = 0; place < x.length; place += 1) {
      if (range && (x[place] < range[0] || x[place] > range[1])) continue;
      for (const part of [values.min, values.mid, values.max]) {
        const value = part?.[place];
        if (!known(value, log)) continue;
        least = Math.min(least, value);
        most = Math.max(most, value);
      }
    }
  }
  if (!Number.isFinite(least)) return [NaN, NaN];
  if (log) [least, most] = [Math.log10(least), Math.log10(most)];
  else if (zero) [least, most] = [Math.min(0, least), Math.max(0, most)];
  const room = (most - least) * 0.05 || Math.abs(most) * 0.05 || 1;
  return [zero && !log && least === 0 ? 0 : least - room, most + room];
}

function curve(context, x, values, at, up, stroke, log) {
  context.fillStyle = stroke;
  context.strokeStyle = stroke;
  if (values.min && values.max) {
    context.globalAlpha = 0.25;
    for (let from = 0; from < x.length; from += 1) {
      if (!known(values.min[from], log) || !known(values.max[from], log)) continue;
      let to = from;
      while (to + 1 < x.length && known(values.min[to + 1], log) && known(values.max[to + 1], log)) to += 1;
      context.beginPath();
      for (let place = from; place <= to; place += 1) context.lineTo(at(x[place]), up(values.max[place]));
      for (let place = to; place >= from; place -= 1) context.lineTo(at(x[place]), up(values.min[place]));
      context.fill();
      from = to;
    }
    context.globalAlpha = 1;
  }
  context.lineWidth = 1.4;
  context.beginPath();
  let drawing = false;
  for (let place = 0; place < x.length; place += 1) {
    const value = values.mid[place];
    if (value === null || value === undefined) { // a bucket without a value: not measured in every step
      continue;
    }
    if (!known(value, log)) {
      drawing = false;
      continue;
    }
    const px = at(x[place]), py = up(value);
    if (drawing) context.lineTo(px, py); else context.moveTo(px, py);
    if (!drawing) context.lineTo(px + 0.5, py);
    drawing = true;
  }
  context.stroke();
  context.lineWidth = 1;
}

function triangles(context, x, counts, at, bottom, fillStyle) {
  context.fillStyle = fillStyle;
  for (let place = 0; place < x.length; place += 1) {
    if (!counts?.[place]) continue;
    const px = at(x[place]);
    context.beginPath();
    context.moveTo(px - 5, bottom);
    context.lineTo(px + 5, bottom);
    context.lineTo(px, bottom - 9);
    context.fill();
  }
}
