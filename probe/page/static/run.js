// Overview of one run: its verdicts, and its curves over one time axis.

import { get, query } from "./ask.js";
import { Charts } from "./chart.js";
import { clock, duration, figure, fill, grid, h, number, size, span } from "./dom.js";
import { verdicts } from "./verdicts.js";
import { narrowest, said, zones } from "./zones.js";

export const title = "Run";

const BUCKETS = 480;
const ROWS_MS = [60_000, 300_000]; // between two queries, a twentieth of the run: each costs the server as much as thirty rounds, which bring new steps
const ELSEWHERE_MS = [8000, 30_000]; // for a rank on another host, whose rounds bring only its state
const EVENTS_MS = 60_000; // after new records, or when an incident begins or ends
const SHADE_MS = [8000, 60_000]; // a quarter of a young run, in which recipes begin to judge; a sixtieth of a long one: eight buckets
const FOREVER_MS = 9_000_000_000_000;
const INCIDENTS_MS = 8000;
const DIAGNOSE_MS = 15_000; // shortest interval; only when something changed
const KINDS = { action: 4, evaluation: 5, checkpoint: 2, verdict: 1, exception: 1 };
const CURVES = ["loss", "lr", "grad_norm", "rate", "rss", "allocated"];
const LIVE = { loss: "loss", lr: "lr", grad_norm: "grad_norm", rate: "rate", rss: "rss_bytes", allocated: "allocated_bytes" };

function extent_sql(rank) {
  return `SELECT min(t_ns) // 1000000 AS first_ms, max(t_ns) // 1000000 AS last_ms, count(*) AS steps, count(tokens) AS tokens,
  count(samples) AS samples, count(allocated_bytes) AS allocated FROM python.steps WHERE rank = ${rank}`;
}

/** Minimum, mean and maximum of each column in each bucket of time. */
function buckets_sql(rank, amount, from_ms, to_ms, width_ms) {
  const columns = { loss: "loss", lr: "lr", grad_norm: "grad_norm", rate: `${amount} / nullif(wall_s, 0)`, rss: "rss_bytes", allocated: "allocated_bytes" };
  const three = Object.entries(columns).map(([key, column]) =>
    ["min", "avg", "max"].map((part) => `${part}(${column}) FILTER (isfinite(CAST(${column} AS DOUBLE))) AS ${key}_${part}`).join(", "));
  return `SELECT CAST((t_ns // 1000000 - ${from_ms}) // ${width_ms} AS BIGINT) AS bucket, max(step) AS step,
  count(*) FILTER (loss IS NOT NULL AND NOT isfinite(loss) OR grad_norm IS NOT NULL AND NOT isfinite(grad_norm)) AS bad,
  ${three.join(",\n  ")},
  sum(${amount}) / nullif(sum(wall_s) FILTER (${amount} IS NOT NULL), 0) AS rate_all
FROM python.steps WHERE rank = ${rank} AND t_ns >= ${from_ms}000000 AND t_ns < ${to_ms}000000 GROUP BY bucket ORDER BY bucket`;
}

function events_sql(rank) {
  return `SELECT * FROM (
  SELECT t_ns // 1000000 AS ms, step, 'action' AS kind, action || ' ' || arguments || ': ' || state AS what FROM probe.actions WHERE rank = ${rank} AND state NOT IN ('asked', 'undoing')
  UNION ALL SELECT t_ns // 1000000, step, kind, kind || coalesce(' of ' || round(duration_s, 3) || ' s', '') FROM python.intervals WHERE rank = ${rank} AND kind IN ('evaluation', 'checkpoint')
  UNION ALL SELECT t_ns // 1000000, step, 'verdict', state || ': ' || what FROM probe.verdicts WHERE rank = ${rank} AND severity IN ('notice', 'alarm')
  UNION ALL SELECT t_ns // 1000000, step, 'exception', type || ': ' || message FROM python.exceptions WHERE rank = ${rank}
) ORDER BY ms DESC LIMIT 200`;
}

export async function open(page) {
  const rank = page.rank;
  let zoomed = page.zoomed;
  const found = h("div", { "aria-live": "polite" }), events = h("div", {}), note = h("p", { class: "dim" }), ends = h("p", { id: "ends" });
  const again = h("button", { type: "button", on: { click: () => diagnose(true) } }, "Check again");
  let extent = (await query(page.job, extent_sql(rank))).records[0];
  const amount = extent.tokens > 0.5 * extent.steps ? "tokens" : extent.samples ? "samples" : "1";
  const unit = { tokens: "tokens/s", samples: "samples/s", 1: "steps/s" }[amount];
  const charts = new Charts([
    { title: "loss", format: figure, log: false, zone: null, bad: true, tall: true, series: [{ name: "loss", key: "loss", colour: 0 }] },
    { title: "gradient norm", format: figure, log: true, zone: null, series: [{ name: "gradient norm", key: "grad_norm", colour: 3 }] },
    { title: "learning rate", format: figure, zone: null, series: [{ name: "lr", key: "lr", colour: 2 }], zero: true },
    { title: `throughput, ${unit}`, format: figure, zone: null, series: [{ name: unit, key: "rate", colour: 4 }], zero: true },
    { title: "resident memory", format: size, zone: null, series: [{ name: "resident", key: "rss", colour: 0 }], zero: true },
    ...(extent.allocated ? [{ title: "device memory", format: size, zone: null, series: [{ name: "device", key: "allocated", colour: 1 }], zero: true }] : []),
  ], { zoomed: (a, b) => {
    page.zoomed = [a, b];
    zoomed = page.zoomed;
    page.attempt(load);
  } });
  fill(page.root, found, ends, h("div", { class: "row" }, page.rank_choice(), again), charts.element, note, h("h2", {}, "Events"), events);

  let rows = new Map(), first_ms = 0, width_ms = 1, loaded = 0, looked = 0, shaded = 0, judged = 0, watched = 0, judging = false, blank = 0, bad_before = 0, incidents = "", pending = false, tail = [], noted = null, noted_before = null;

  /** All buckets of the range, or since a bucket. */
  async function load(since = null) {
    const whole = [Number(extent.first_ms), Math.max(Number(extent.first_ms) + 1, Number(extent.last_ms) + 1)];
    if (!extent.steps) return;
    const [a, b] = zoomed || whole;
    if (since === null) {
      rows = new Map();
      first_ms = a;
      width_ms = Math.max(1, Math.ceil((b - a) / BUCKETS));
    }
    const start = since === null ? a : first_ms + since * width_ms;
    const answer = await query(page.job, buckets_sql(rank, amount, first_ms, zoomed ? b : FOREVER_MS, width_ms).replace(`t_ns >= ${first_ms}000000`, `t_ns >= ${start}000000`));
    for (const one of answer.records) rows.set(Number(one.bucket), one);
    tail = [];
    loaded = Date.now();
    fill(note, zoomed ? `a part of the run, in buckets of ${duration(width_ms / 1000)}; Escape or a double click shows all of it` : `minimum, mean and maximum in buckets of ${duration(width_ms / 1000)}`, answer.notes.map((one) => `; ${one}`));
    draw();
    if (since === null) page.attempt(shade);
  }

  /** Shade the healthy zones of the part that is shown. */
  async function shade() {
    shaded = Date.now();
    const asked = zoomed, found = await zones(page.job, { rank, from_ms: first_ms, to_ms: zoomed ? zoomed[1] : FOREVER_MS, width_ms });
    if (page.closed || asked !== zoomed) return;
    charts.shade(Object.fromEntries(CURVES.map((key) => [key, { rows: narrowest(found[key]), words: said(found[key]) }])));
  }

  function draw() {
    if (page.closed) return;
    const ordered = [...rows].sort((one, other) => one[0] - other[0]);
    const data = { x: [], step: [], bad: [], series: {} };
    for (const key of CURVES) data.series[key] = { min: [], mid: [], max: [] };
    for (const [bucket, one] of ordered) {
      data.x.push(first_ms + (bucket + 0.5) * width_ms);
      data.step.push(one.step);
      data.bad.push(Number(one.bad));
      for (const [key, parts] of Object.entries(data.series)) {
        parts.min.push(number(one[`${key}_min`]));
        parts.mid.push(number(key === "rate" ? one.rate_all : one[`${key}_avg`]));
        parts.max.push(number(one[`${key}_max`]));
      }
    }
    for (const one of zoomed ? [] : tail) { // newer than the last query: one point for the steps of each round
      data.x.push(one.t_ns / 1e6);
      data.step.push(one.step);
      data.bad.push(one.bad);
      for (const [key, parts] of Object.entries(data.series)) ["min", "mid", "max"].forEach((part, place) => parts[part].push(number(one[LIVE[key]]?.[place])));
    }
    const a = zoomed ? zoomed[0] : data.x[0], b = zoomed ? zoomed[1] : data.x.at(-1);
    charts.set(data, [a, b > a ? b : a + 1]);
    const bad = data.bad.reduce((sum, one) => sum + one, 0);
    if (bad && !bad_before) pending = true;
    bad_before = bad;
  }

  async function diagnose(asked = false) {
    if (judging || (!asked && Date.now() - judged < DIAGNOSE_MS * 2 ** blank)) return;
    judging = true;
    pending = false;
    again.disabled = true;
    fill(again, "checking …");
    await page.attempt(async () => {
      const asked_at = Date.now(); // the findings are from then or later: the checks may take a while
      const answer = await get("/v1/diagnose", { endpoint: page.job, deep: "0" });
      if (!page.closed) verdicts(found, answer, clock(asked_at));
      const nothing = answer.judged && answer.judged.found + answer.judged.clear === 0; // too early, or the machine is too busy
      blank = nothing ? Math.min(blank + 1, 5) : 0;
      pending ||= Boolean(nothing) && running();
    });
    judging = false;
    judged = Date.now();
    again.disabled = false;
    fill(again, "Check again");
  }

  async function look() {
    looked = Date.now();
    noted_before = noted;
    const answer = await query(page.job, events_sql(rank), 200);
    charts.marks = answer.records.map((one) => ({ x: Number(one.ms), colour: KINDS[one.kind] ?? 7, dash: one.kind === "action" ? [6, 3] : one.kind === "verdict" ? [2, 2] : [] }));
    charts.redraw();
    const when = (one) => h("button", { type: "button", title: "show a minute around it", on: { click: () => charts.zoom([Number(one.ms) - 30_000, Number(one.ms) + 30_000]) } }, clock(Number(one.ms)));
    fill(events, answer.records.length ? grid([["when"], ["step", true], ["kind"], ["what"]],
      answer.records.map((one) => [when(one), figure(one.step), h("span", { class: `key key${KINDS[one.kind] ?? 7}` }, one.kind), one.what]), "events")
      : h("p", { class: "dim" }, "no action, evaluation, checkpoint, verdict or exception was recorded"));
  }

  const running = () => page.ranks.some((one) => one.ended_ns === null);
  const own = () => page.ranks.find((one) => one.rank === rank);

  /** Show the progress towards the total steps, with the source of the total. */
  function say_end() {
    const one = own();
    if (!one) return;
    const known = one.total_steps !== null && one.total_steps !== undefined;
    fill(ends, known && one.step !== null ? [`step ${figure(one.step)} of ${figure(one.total_steps)} `, h("span", { class: "dim" }, `(${one.total_source})`), one.left_s === null ? "" : `, ${span(one.left_s)} left at the usual rate`, ", "] : "",
      one.elapsed_s === null || one.elapsed_s === undefined ? "" : one.ended_ns === null ? `${span(one.elapsed_s)} so far` : `took ${span(one.elapsed_s)}`,
      known || one.ended_ns !== null ? "" : h("span", { class: "dim" }, "; its end is unknown: no loop, trainer or schedule has a total (PROBE_TOTAL_STEPS sets one)"));
  }

  /** The last step that is drawn. */
  const last_step = () => tail.at(-1)?.step ?? Math.max(-1, ...[...rows.values()].map((one) => Number(one.step)));

  /** Draw new steps; from time to time query all, in equal buckets. */
  async function follow(one) {
    const now = Date.now(), next = one.since, drawn = last_step();
    const [least, most] = next === undefined ? ELSEWHERE_MS : ROWS_MS;
    const missed = next && next.first_step > drawn + 1; // more steps than the ring has, or the machine slept
    if (now - loaded > (missed ? least / 8 : Math.min(most, Math.max(least, (now - first_ms) / 20))) && one.step !== drawn) {
      extent.last_ms = now;
      if ((now - first_ms) / width_ms > 2 * BUCKETS) await load(); else await load(Math.max(0, ...rows.keys()));
    } else if (next && !missed && next.first_step > drawn) {
      tail.push(next);
      draw();
    }
  }

  async function tick() {
    const one = own();
    if (!one || page.closed) return;
    say_end();
    if (!extent.steps && one.step !== null) {
      extent = (await query(page.job, extent_sql(rank))).records[0];
      await load();
    }
    if (running() && Date.now() - watched > INCIDENTS_MS) {
      watched = Date.now();
      const open = (await get("/v1/monitor", { endpoint: page.job })).incidents.map((incident) => incident.incident).join(" ");
      if (open !== incidents) {
        pending = true;
        looked = 0;
      }
      incidents = open;
    }
    if (extent.steps && running() && !zoomed) await follow(one);
    noted = one.noted ?? null;
    if (pending) diagnose();
    if (Date.now() - looked > EVENTS_MS && running() && (looked === 0 || noted === null || noted !== noted_before)) await look();
    const age_ms = Date.now() - first_ms;
    if (Date.now() - shaded > Math.max(SHADE_MS[0], Math.min(SHADE_MS[1], age_ms / 4), age_ms / 60) && running() && !zoomed) await shade();
  }

  say_end();
  const drawn = load(); // before the diagnosis, which may take all query processes of a viewer's page
  page.attempt(diagnose);
  await drawn;
  await look();
  const asks = () => ({ rank, since: zoomed ? Number.MAX_SAFE_INTEGER : last_step(), amount }); // zoomed: only `noted` is needed
  return { tick, asks, changed: async () => { pending = true; judged = blank = 0; diagnose(); await look(); if (!zoomed) await load(Math.max(0, ...rows.keys())); } };
}
