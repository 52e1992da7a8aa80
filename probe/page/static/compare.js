// Two runs side by side: their figures, and their losses and speed over steps.

import { get, query } from "./ask.js";
import { Charts } from "./chart.js";
import { duration, figure, fill, grid, h, number, size } from "./dom.js";

export const title = "Compare";

const BUCKETS = 400;
const ZOOMED = ["from_step", "to_step"]; // in the address; in steps, because the runs have different times
const FIGURES = [
  ["state", (one) => one.state], ["last step", (one) => figure(one.steps.last)],
  ["loss now", (one) => figure(one.learning.loss_now?.median ?? one.learning.loss)], ["best loss", (one) => figure(one.learning.best_loss)], ["at step", (one) => figure(one.learning.best_step)],
  ["gradient norm", (one) => figure(one.learning.grad_norm)], ["learning rate", (one) => figure(one.learning.lr)],
  ["median step", (one) => duration(one.speed.step_s?.median)], ["tokens/s", (one) => figure(one.speed.tokens_per_s)], ["samples/s", (one) => figure(one.speed.samples_per_s)],
  ["resident memory", (one) => size(one.memory.rss_bytes)], ["device memory", (one) => size(one.memory.allocated_bytes)],
];

function curve_sql(low, high, width) {
  return `SELECT (step - ${low}) // ${width} AS bucket, min(loss) FILTER (isfinite(loss)) AS loss_min, avg(loss) FILTER (isfinite(loss)) AS loss_mid, max(loss) FILTER (isfinite(loss)) AS loss_max,
  min(wall_s) AS wall_min, avg(wall_s) AS wall_mid, max(wall_s) AS wall_max
FROM python.steps WHERE rank = (SELECT min(rank) FROM python.steps) AND step BETWEEN ${low} AND ${high} GROUP BY bucket ORDER BY bucket`;
}

export async function open(page) {
  const listed = (await get("/v1/processes", { all: "1" })).processes;
  const runs = new Map();
  for (const one of listed) if (!runs.has(one.run)) runs.set(one.run, one);
  const other = page.parameters.get("with") || "";
  const shown = h("div", {});
  const choice = h("select", { "aria-label": "the other run", on: { change: (event) => { page.remember({ with: event.target.value, from_step: null, to_step: null }); page.attempt(load); } } },
    h("option", { value: "" }, "choose a run …"), [...runs.values()].map((one) => h("option", { value: String(one.pid), selected: String(one.pid) === other }, `${one.name}, pid ${one.pid}, ${one.state}, started ${new Date(one.started_ns / 1e6).toLocaleString("sv-SE")}`)));
  fill(page.root, h("div", { class: "row" }, h("label", {}, "compare with ", choice)), shown);

  async function load() {
    const second = page.parameters.get("with");
    if (!second) return;
    const jobs = [page.job, second], names = ["this run", "the other"];
    const found = await Promise.all(jobs.map((job) => get("/v1/summary", { endpoint: job })));
    const last = Math.max(1, ...found.map((one) => number(one.steps.last) ?? 0));
    const charts = new Charts(["loss", "wall"].map((key) => ({
      title: key === "loss" ? "loss" : "time of a step", format: key === "loss" ? figure : duration, log: false, tall: key === "loss", zero: key === "wall",
      series: names.map((name, place) => ({ name, key: `${key}${place}`, colour: place })),
    })), { is_time: false, zoomed: (a, b) => {
      page.remember_range(ZOOMED, a, b);
      page.attempt(draw);
    } });

    /** Draw the part in the address, in buckets as fine as possible. */
    async function draw() {
      const [low, high] = page.range(ZOOMED) ?? [0, last], width = Math.max(1, Math.ceil((high - low + 1) / BUCKETS));
      const curves = await Promise.all(jobs.map((job) => query(job, curve_sql(low, high, width))));
      if (page.closed) return;
      const buckets = [...new Set(curves.flatMap((one) => one.records.map((row) => Number(row.bucket))))].sort((a, b) => a - b);
      const data = { x: buckets.map((one) => low + (width === 1 ? one : (one + 0.5) * width)), step: [], bad: [], series: {} };
      curves.forEach((one, place) => {
        const rows = new Map(one.records.map((row) => [Number(row.bucket), row]));
        for (const key of ["loss", "wall"]) data.series[`${key}${place}`] = Object.fromEntries(["min", "mid", "max"].map((part) => [part, buckets.map((bucket) => number(rows.get(bucket)?.[`${key}_${part}`]))]));
      });
      charts.set(data, [low, high]);
    }

    await draw();
    if (page.closed) return;
    fill(shown, grid([[""], [`${names[0]}: ${page.job}`, true], [`${names[1]}: ${found[1].name}, pid ${second}`, true]], FIGURES.map(([words, of]) => [words, of(found[0]), of(found[1])]), "figures"), charts.element,
      h("p", { class: "dim" }, "Configuration, environment and code are compared by ", h("code", {}, `probe ${page.job} compare ${second}`), "."));
  }

  await page.attempt(load);
}
