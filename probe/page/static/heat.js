// A heat map: one row per item, one column per step, brighter is more. The colour scale is viridis, which is readable
// with any colour vision and in grey.

import { canvas, colour } from "./chart.js";
import { fill, h } from "./dom.js";

const STOPS = [[68, 1, 84], [71, 44, 122], [59, 81, 139], [44, 113, 142], [33, 144, 141], [39, 173, 129], [92, 200, 99], [170, 220, 50], [253, 231, 37]];
const LABELS = 190;

function shade(share) {
  const place = Math.min(1, Math.max(0, share)) * (STOPS.length - 1), low = Math.floor(place), high = Math.min(STOPS.length - 1, low + 1);
  const [r, g, b] = STOPS[low].map((value, part) => Math.round(value + (STOPS[high][part] - value) * (place - low)));
  return `rgb(${r},${g},${b})`;
}

export class Heat {
  /** `format` writes a value; `label`: what the grid shows. */
  constructor(label, format) {
    this.format = format;
    this.label = label;
    this.rows = [];
    this.columns = [];
    this.values = [];
    this.at = null;
    this.readout = h("output", { "aria-live": "polite", class: "dim" });
    this.legend = h("p", { class: "dim" });
    this.canvas = canvas((context, width, height) => this.#draw(context, width, height), {
      class: "tall", role: "img", tabindex: "0", "aria-label": label,
      on: { pointermove: (event) => this.#point(event), pointerleave: () => this.#move(null), keydown: (event) => this.#key(event) },
    });
    this.element = h("figure", {}, h("figcaption", {}, label), this.readout, this.canvas, this.legend);
  }

  /** `values[row][column]`: a number, null where nothing was measured, NaN where it was not finite. `log`: logarithmic colours. */
  set(rows, columns, values, log, unit = "step") {
    Object.assign(this, { rows, columns, values, log, unit });
    const all = values.flat().filter((value) => value !== null && Number.isFinite(value) && (!log || value > 0)).map((value) => (log ? Math.log10(value) : value)).sort((a, b) => a - b);
    // Outliers do not determine the colours of all other values.
    this.least = all[Math.floor(all.length * 0.01)];
    this.most = all[Math.min(all.length - 1, Math.floor(all.length * 0.99))];
    const back = (value) => this.format(log ? 10 ** value : value);
    fill(this.legend, all.length ? `dark ${back(this.least)}, bright ${back(this.most)}; red: NaN or infinite; empty: not measured` : "not measured");
    this.canvas.setAttribute("aria-label", `${this.label}: ${rows.length} rows, ${columns.length} columns of ${unit}. Arrow keys read values.`);
    this.canvas.redraw();
  }

  #size(width, height) {
    return [(width - LABELS) / Math.max(1, this.columns.length), (height - 16) / Math.max(1, this.rows.length)];
  }

  #draw(context, width, height) {
    const [wide, high] = this.#size(width, height);
    context.textBaseline = "middle";
    const every = Math.ceil(11 / Math.max(high, 0.1));
    this.rows.forEach((row, place) => {
      if (place % every === 0) {
        context.fillStyle = colour("--dim");
        context.textAlign = "right";
        const name = String(row);
        context.fillText(name.length > 32 ? `…${name.slice(-31)}` : name, LABELS - 6, high * (place + 0.5), LABELS - 8);
      }
      this.columns.forEach((_, column) => {
        const value = this.values[place][column];
        if (value === null || value === undefined) return;
        const scaled = this.log ? Math.log10(value) : value;
        context.fillStyle = Number.isFinite(value) ? shade(this.most > this.least ? (scaled - this.least) / (this.most - this.least) : 0.5) : colour("--alarm");
        context.fillRect(LABELS + column * wide, place * high, Math.ceil(wide), Math.ceil(high));
      });
    });
    context.fillStyle = colour("--dim");
    context.textAlign = "left";
    if (this.columns.length) context.fillText(`${this.unit} ${this.columns[0]}`, LABELS, height - 7);
    context.textAlign = "right";
    if (this.columns.length > 1) context.fillText(String(this.columns.at(-1)), width, height - 7);
    if (this.at) {
      context.strokeStyle = colour("--text");
      context.strokeRect(LABELS + this.at[1] * wide, this.at[0] * high, wide, high);
    }
  }

  #point(event) {
    const [wide, high] = this.#size(this.canvas.clientWidth, this.canvas.clientHeight);
    const row = Math.floor(event.offsetY / high), column = Math.floor((event.offsetX - LABELS) / wide);
    this.#move(row < this.rows.length && column >= 0 && column < this.columns.length ? [row, column] : null);
  }

  #key(event) {
    const by = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!by || !this.rows.length) return;
    event.preventDefault();
    const [row, column] = this.at || [0, this.columns.length - 1];
    const within = (value, most) => Math.min(most - 1, Math.max(0, value));
    this.#move(this.at ? [within(row + by[0], this.rows.length), within(column + by[1], this.columns.length)] : [row, column]);
  }

  #move(at) {
    this.at = at;
    const value = at && this.values[at[0]][at[1]];
    fill(this.readout, at ? `${this.rows[at[0]]}   ${this.unit} ${this.columns[at[1]]}   ${value === null || value === undefined ? "not measured" : this.format(value)}` : "");
    this.canvas.redraw();
  }
}
