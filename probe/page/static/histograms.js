// Recorded histograms of one parameter or module; a button that records new ones, for operators.

import { post, query } from "./ask.js";
import { canvas, colour } from "./chart.js";
import { figure, fill, grid, h, number } from "./dom.js";

const NAMES = 2000;
const KINDS = ["gradient", "weight", "activation"];
const STEPS = 1;
const AWAITED_MS = 60_000;

const names_sql = (rank) => `SELECT name, max(step) AS step FROM python.histograms WHERE rank = ${rank} GROUP BY name ORDER BY min(t_ns), name LIMIT ${NAMES}`;
const newest_sql = (rank, name) => `SELECT kind, step, numel, min, p5, p50, p95, max, skewness, kurtosis, counts, edges FROM python.histograms
WHERE rank = ${rank} AND name = '${name.replaceAll("'", "''")}' QUALIFY row_number() OVER (PARTITION BY kind ORDER BY t_ns DESC) = 1`;

export class Histograms {
  constructor(page) {
    this.page = page;
    this.awaited = 0; // until when to check for the rows that were requested
    this.newest = -1;
    this.shown = h("div", {});
    this.answer = h("p", { role: "status" });
    this.choice = h("select", { "aria-label": "parameter or module", on: { change: (event) => { page.remember({ param: event.target.value }); page.attempt(() => this.draw()); } } });
    this.ask = h("button", { type: "button", on: { click: () => this.#watch() } }, "Record histograms of the next step");
    this.element = h("section", {}, h("h2", {}, "Histograms"), h("div", { class: "row" }, this.choice, page.acts && page.ranks.some((one) => one.ended_ns === null) ? this.ask : null), this.answer, this.shown);
  }

  async load() {
    const { records } = await query(this.page.job, names_sql(this.page.rank), NAMES);
    if (this.page.closed) return;
    const newest = Math.max(-1, ...records.map((one) => one.step));
    if (newest !== this.newest || Date.now() > this.awaited) this.awaited = 0;
    this.newest = newest;
    const wanted = this.page.parameters.get("param"), names = records.map((one) => one.name);
    this.choice.hidden = !names.length;
    fill(this.choice, names.map((name) => h("option", { value: name, selected: name === wanted }, name)));
    if (names.length) await this.draw();
    else fill(this.shown, h("p", { class: "dim" }, "no histograms were recorded; this command records them: ", h("code", {}, "probe JOB watch --histograms --steps 1")));
  }

  async draw() {
    const { records } = await query(this.page.job, newest_sql(this.page.rank, this.choice.value));
    if (this.page.closed) return;
    const found = KINDS.map((kind) => records.find((one) => one.kind === kind)).filter(Boolean);
    fill(this.shown, h("div", { class: "three" }, found.map(bars)),
      grid([["of"], ["step", true], ["values", true], ["minimum", true], ["5 %", true], ["median", true], ["95 %", true], ["maximum", true], ["skewness", true], ["kurtosis", true]],
        found.map((one) => [one.kind, figure(one.step), figure(one.numel), ...["min", "p5", "p50", "p95", "max", "skewness", "kurtosis"].map((name) => figure(one[name]))]), "histograms"));
  }

  async #watch() {
    this.ask.disabled = true;
    fill(this.answer, "waiting for the end of the step …");
    try {
      const done = await post("/v1/act", { endpoint: this.page.job, wait_s: 60, action: "watch", arguments: { histograms: true, steps: STEPS } });
      fill(this.answer, done.what || "the next step is recorded", "; the histograms appear here after the step");
      this.awaited = Date.now() + AWAITED_MS;
    } catch (error) {
      fill(this.answer, `not done: ${error.message} ${error.hint || ""}`);
    }
    this.ask.disabled = false;
  }
}

function bars(one) {
  const counts = listed(one.counts), edges = listed(one.edges), most = Math.max(1, ...counts);
  const drawn = canvas((context, width, height) => {
    const wide = width / Math.max(1, counts.length);
    context.fillStyle = colour("--c0");
    counts.forEach((count, place) => { const high = (count / most) * (height - 18); context.fillRect(place * wide, height - 16 - high, Math.max(1, wide - 1), high); });
    context.fillStyle = colour("--dim");
    context.textBaseline = "bottom";
    context.fillText(figure(edges[0]), 0, height);
    context.textAlign = "right";
    context.fillText(figure(edges.at(-1)), width, height);
  }, { class: "panel", role: "img", "aria-label": `${one.kind} at step ${figure(one.step)}: half of the values are below ${figure(one.p50)}, nine in ten between ${figure(one.p5)} and ${figure(one.p95)}` });
  return h("figure", {}, h("figcaption", {}, `${one.kind}, step ${figure(one.step)}`), drawn);
}

function listed(text) {
  try {
    return JSON.parse(text).map((value) => number(value) ?? 0);
  } catch {
    return []; // a damaged recording
  }
}
