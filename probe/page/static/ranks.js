// All ranks of a job: who is slow, who waits, who is missing.

import { get, query } from "./ask.js";
import { clock, duration, figure, fill, grid, h, number } from "./dom.js";
import { Heat } from "./heat.js";
import { verdict } from "./verdicts.js";

export const title = "Ranks";

const STEPS = 400;
const COLUMNS = 100;
const ROWS_MS = 60_000;
const SHOWN = { wall_s: "time of a step", comm_s: "waiting in collectives", data_s: "waiting for data" };

function grid_sql(column, within) {
  return `WITH s AS (SELECT rank, step, ${column} AS value FROM python.steps WHERE ${within} AND step > (SELECT max(step) - ${STEPS} FROM python.steps WHERE ${within})),
  e AS (SELECT min(step) AS low, greatest(1, (max(step) - min(step)) // ${COLUMNS} + 1) AS width FROM s)
SELECT rank, low + (step - low) // width * width AS step, avg(value) AS value FROM s, e GROUP BY ALL ORDER BY rank, step`;
}

/** How long each rank waits in collectives in a usual step: the others wait for the rank that waits least. */
function waits_sql(within) {
  return `SELECT rank, median(comm_s) AS waits_s FROM python.steps WHERE ${within} AND step > (SELECT max(step) - ${COLUMNS} FROM python.steps WHERE ${within}) GROUP BY rank`;
}

export async function open(page) {
  let column = Object.hasOwn(SHOWN, page.parameters.get("show")) ? page.parameters.get("show") : "wall_s", loaded = 0, state = "", waits = new Map();
  const heat = new Heat("ranks over steps", duration), table = h("div", {}), said = h("div", { "aria-live": "polite" }), hosts = h("div", {});
  const choice = h("select", { "aria-label": "colour by", on: { change: (event) => { column = event.target.value; page.remember({ show: column }); page.attempt(load); } } },
    Object.entries(SHOWN).map(([name, words]) => h("option", { value: name, selected: name === column }, words)));
  fill(page.root, said, h("div", { class: "row" }, h("label", {}, "colour by ", choice), page.part()), heat.element, h("h2", {}, "Ranks"), table, h("h2", {}, "Hosts"), hosts);

  async function load() {
    loaded = Date.now();
    const answer = await query(page.job, grid_sql(column, page.within), 100_000);
    waits = new Map((await query(page.job, waits_sql(page.within), 100_000)).records.map((one) => [one.rank, one.waits_s]));
    if (page.closed) return;
    list();
    const ranks = [...new Set(answer.records.map((one) => one.rank))].sort((a, b) => a - b), steps = [...new Set(answer.records.map((one) => one.step))].sort((a, b) => a - b);
    const places = new Map(answer.records.map((one) => [`${one.rank} ${one.step}`, number(one.value)]));
    heat.set(ranks.map((one) => `rank ${one}`), steps, ranks.map((one) => steps.map((step) => places.get(`${one} ${step}`) ?? null)), false);
  }

  async function judge() {
    const answer = await get("/v1/diagnose", { endpoint: page.job, part: "state" });
    if (!page.closed) fill(said, verdict(answer), h("p", { class: "dim" }, `as of ${clock(Date.now())}`), (answer.missing || []).map((one) => h("p", {}, one)));
  }

  function list() {
    fill(table, grid([["rank", true], ["host"], ["pid", true], ["step", true], ["behind", true], ["last step", true], ["waits for others, per step", true], ["state"]],
      page.ranks.map((one) => [h("a", { href: `#/step?${new URLSearchParams({ job: page.job, rank: one.rank })}` }, one.rank), one.host ?? "–", figure(one.pid).replaceAll(",", ""), figure(one.step), figure(one.lag_steps),
        one.last_step_s === null ? "–" : `${duration(one.last_step_s)} ago`, duration(waits.get(one.rank) ?? null), [one.state, one.how].filter(Boolean).join(": ")]), "ranks"),
      (page.missing || []).map((one) => h("p", { class: "alarm" }, `missing: ${one}`)));
    fill(hosts, grid([["host"], ["address"], ["state"], ["error"]], (page.hosts || []).map((one) => [one.host, one.url ?? "here", one.state, one.error ?? ""]), "hosts"));
  }

  list();
  await load();
  page.attempt(judge);
  return {
    tick: async () => {
      list();
      const now = page.ranks.map((one) => one.step).join();
      if (now !== state && Date.now() - loaded > ROWS_MS) {
        state = now;
        await load();
        await judge();
      }
    },
    changed: judge,
  };
}
