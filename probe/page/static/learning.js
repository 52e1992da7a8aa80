// Gradients and updates of each parameter over the sampled steps.

import { query } from "./ask.js";
import { figure, fill, h, number } from "./dom.js";
import { Heat } from "./heat.js";
import { Histograms } from "./histograms.js";

export const title = "Learning";

const COLUMNS = 120;
const PARAMETERS = 120;
const ROWS_MS = 60_000;
const SHOWN = { norm: "norm of the gradient", update_ratio: "update / weight", zero_ratio: "share of zeros" };

function sql(rank, within) {
  return `WITH g AS (SELECT place, param, step, norm, update_ratio, zero_ratio, coalesce(nan_count, 0) + coalesce(inf_count, 0) AS bad FROM python.gradients WHERE rank = ${rank} AND ${within}),
  s AS (SELECT DISTINCT step FROM g ORDER BY step DESC LIMIT ${COLUMNS}), p AS (SELECT param, min(place) AS place FROM g GROUP BY param ORDER BY place LIMIT ${PARAMETERS})
SELECT p.param, g.step, avg(norm) AS norm, avg(update_ratio) AS update_ratio, avg(zero_ratio) AS zero_ratio, max(bad) AS bad
FROM g JOIN s USING (step) JOIN p ON g.param = p.param GROUP BY p.param, g.step, p.place ORDER BY p.place, g.step`;
}

export async function open(page) {
  let column = Object.hasOwn(SHOWN, page.parameters.get("show")) ? page.parameters.get("show") : "norm", loaded = 0, records = [];
  const heat = new Heat("parameters over steps", figure), note = h("p", { class: "dim" });
  const histograms = new Histograms(page);
  const choice = h("select", { "aria-label": "colour by", on: { change: (event) => { column = event.target.value; page.remember({ show: column }); draw(); } } },
    Object.entries(SHOWN).map(([name, words]) => h("option", { value: name, selected: name === column }, words)));
  fill(page.root, h("div", { class: "row" }, page.rank_choice(), h("label", {}, "colour by ", choice), page.part()), heat.element, note, histograms.element);

  function draw() {
    const names = [...new Set(records.map((one) => one.param))], steps = [...new Set(records.map((one) => one.step))].sort((a, b) => a - b);
    const places = new Map(records.map((one) => [`${one.step} ${one.param}`, column === "norm" && Number(one.bad) ? NaN : number(one[column])]));
    heat.set(names, steps, names.map((name) => steps.map((step) => places.get(`${step} ${name}`) ?? null)), column !== "zero_ratio");
    fill(note, names.length ? `${names.length} parameters in the order of the model${names.length === PARAMETERS ? " (the first ones; python.gradients has all)" : ""}, at the ${steps.length} steps at which they were measured`
      : page.zoomed ? "no gradients were measured in this part" : "no gradients were measured: `probe JOB watch --gradients --steps 3` measures them");
  }

  async function load() {
    loaded = Date.now();
    records = (await query(page.job, sql(page.rank, page.within), 100_000)).records;
    if (!page.closed) draw();
  }

  await load();
  await histograms.load();
  return { tick: async () => {
    if (histograms.awaited) await histograms.load();
    if (Date.now() - loaded > ROWS_MS && page.ranks.some((one) => one.ended_ns === null)) await load();
  } };
}
