// Time within steps: phases of the last steps, the slowest steps, the modules.

import { query } from "./ask.js";
import { canvas, colour, ticks } from "./chart.js";
import { duration, figure, fill, grid, h, number } from "./dom.js";
import { nested, tree } from "./tree.js";

export const title = "Step";

const PHASES = ["data", "forward", "backward", "optimizer", "comm", "eval", "checkpoint", "held", "other"];
const COLOURS = ["--c4", "--c0", "--c1", "--c2", "--c3", "--c5", "--c6", "--alarm", "--c7"];
const NAMES = { eval: "evaluation", held: "held by probe" };
const LAST = 120;
const ROWS_MS = 60_000;
const MOST_MODULES = 10_000;
const LEFT = 66;

function steps_sql(rank, within) {
  return `SELECT step, wall_s, ${PHASES.map((name) => `${name}_s`).join(", ")}, loss FROM python.steps WHERE rank = ${rank} AND ${within}`;
}

function modules_sql(rank, within) {
  return `SELECT module, stage, count(DISTINCT step) AS sampled_steps, sum(duration) / sampled_steps AS per_step_s,
  max(duration) AS longest_s, count(*) / sampled_steps AS calls
FROM python.torch_trace WHERE rank = ${rank} AND step IN (SELECT DISTINCT step FROM python.torch_trace WHERE rank = ${rank} AND ${within} ORDER BY step DESC LIMIT 5)
GROUP BY module, stage ORDER BY per_step_s DESC LIMIT ${MOST_MODULES}`;
}

/** The class of the first model, which is the name of its root's recorded calls. */
function root_sql(rank) {
  return `SELECT arg_min(class, t_ns) AS root FROM python.modules WHERE rank = ${rank} AND module = ''`;
}

/** The modules as a tree. A module's time includes its submodules'; one that is never called, such as a list, has their sum. */
function of_modules(calls, root) {
  const times = new Map();
  for (const one of calls) {
    if (!times.has(one.module)) times.set(one.module, {});
    Object.assign(times.get(one.module), { [one.stage]: number(one.per_step_s), calls: Math.max(times.get(one.module).calls ?? 0, number(one.calls) ?? 0) });
  }
  const summed = (node) => {
    node.children.forEach(summed);
    const sum = (stage) => node.children.reduce((found, one) => (one.time[stage] === null ? found : (found ?? 0) + one.time[stage]), null);
    node.time = Object.fromEntries(["forward", "backward", "step"].map((stage) => [stage, node.own ? node.own[stage] ?? null : sum(stage)]));
    node.all = Object.values(node.time).reduce((found, one) => (one === null ? found : (found ?? 0) + one), null);
    node.children.sort((one, other) => (other.all ?? -1) - (one.all ?? -1));
    node.cells = [duration(node.all), duration(node.time.forward), duration(node.time.backward), node.own ? figure(node.own.calls) : "–"];
    return node;
  };
  return nested(times, root).map(summed).sort((one, other) => (other.all ?? -1) - (one.all ?? -1));
}

export async function open(page) {
  const rank = page.rank;
  let rows = [], at = null, loaded = 0, step = null;
  const readout = h("output", { class: "dim" }), slow = h("div", {}), modules = h("div", {});
  const bars = canvas(draw, { class: "tall", role: "img", tabindex: "0", "aria-label": "phases of the last steps", on: {
    pointermove: (event) => point(Math.floor((event.offsetX - LEFT) / ((bars.clientWidth - LEFT) / Math.max(1, rows.length)))),
    pointerleave: () => point(null),
    keydown: (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (by) point(Math.min(rows.length - 1, Math.max(0, (at ?? rows.length) + by)));
    },
  } });
  fill(page.root, h("div", { class: "row" }, page.rank_choice(), page.part()),
    h("figure", {}, h("figcaption", {}, `the last ${LAST} steps`, PHASES.map((name, place) => h("span", { class: `key key${name === "held" ? 8 : COLOURS[place].slice(-1)}` }, NAMES[name] || name)), h("span", { class: "key key9" }, "not timed")), readout, bars),
    h("h2", {}, "Slowest steps"), slow, h("h2", {}, "Modules, over the last sampled steps"), modules);

  function point(place) {
    at = place !== null && place >= 0 && place < rows.length ? place : null;
    const one = at === null ? null : rows[at];
    fill(readout, one ? `step ${figure(one.step)}   ${duration(one.wall_s)}   ${PHASES.filter((name) => number(one[`${name}_s`]) !== null).map((name) => `${NAMES[name] || name} ${duration(one[`${name}_s`])}`).join("   ")}` : "Point at a step to read it.");
    bars.redraw();
  }

  function draw(context, width, height) {
    const most = Math.max(1e-9, ...rows.map((one) => number(one.wall_s) || 0)), bottom = height - 18, wide = (width - LEFT) / Math.max(1, rows.length);
    const up = (value) => bottom - (value / most) * (bottom - 8);
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const value of ticks(0, most, 5)) {
      context.fillStyle = colour("--dim");
      context.fillText(duration(value), LEFT - 5, up(value));
      context.fillStyle = colour("--line");
      context.fillRect(LEFT, Math.round(up(value)), width - LEFT, 1);
    }
    rows.forEach((one, place) => {
      let sum = 0;
      const left = LEFT + place * wide, room = Math.max(1, wide - (wide > 4 ? 1 : 0));
      context.fillStyle = colour("--line"); // time in no phase: a step that was not timed
      context.fillRect(left, up(number(one.wall_s) || 0), room, bottom - up(number(one.wall_s) || 0));
      PHASES.forEach((name, phase) => {
        const value = number(one[`${name}_s`]);
        if (value === null) return;
        context.fillStyle = colour(COLOURS[phase]);
        context.fillRect(left, up(sum + value), room, up(sum) - up(sum + value));
        sum += value;
      });
      if (place === at) {
        context.strokeStyle = colour("--text");
        context.strokeRect(left, up(number(one.wall_s) || 0), room, bottom - up(number(one.wall_s) || 0));
      }
    });
    context.fillStyle = colour("--dim");
    if (rows.length) context.fillText(`step ${rows.at(-1).step}`, width, height - 7);
    context.textAlign = "left";
    if (rows.length) context.fillText(`step ${rows[0].step}`, LEFT, height - 7);
  }

  async function load() {
    loaded = Date.now();
    const last = await query(page.job, `${steps_sql(rank, page.within)} ORDER BY step DESC LIMIT ${LAST}`);
    const slowest = await query(page.job, `${steps_sql(rank, page.within)} ORDER BY wall_s DESC NULLS LAST LIMIT 15`);
    const calls = await query(page.job, modules_sql(rank, page.within)), root = (await query(page.job, root_sql(rank))).records[0]?.root ?? null;
    if (page.closed) return;
    rows = last.records.reverse();
    bars.setAttribute("aria-label", `phases of the last ${rows.length} steps: the table of the slowest steps has the figures of the worst`);
    point(at);
    const phases = PHASES.filter((name) => slowest.records.some((one) => one[`${name}_s`] !== null));
    fill(slow, grid([["step", true], ["total", true], ...phases.map((name) => [NAMES[name] || name, true]), ["loss", true]],
      slowest.records.map((one) => [figure(one.step), duration(one.wall_s), ...phases.map((name) => duration(one[`${name}_s`])), figure(one.loss)]), "slowest steps"));
    fill(modules, calls.records.length ? tree(of_modules(calls.records, root), ["per step", "forward", "backward", "calls"], "modules as a tree") : null,
      calls.records.length ? grid([["module"], ["stage"], ["per step", true], ["longest call", true], ["calls per step", true], ["sampled steps", true]],
      calls.records.slice(0, 60).map((one) => [h("code", {}, one.module), one.stage, duration(one.per_step_s), duration(one.longest_s), figure(one.calls), figure(one.sampled_steps)]), "modules")
      : h("p", { class: "dim" }, "no step with modules was sampled yet"));
  }

  await load();
  return { tick: async () => {
    const now = page.ranks.find((one) => one.rank === rank)?.step;
    if (now !== step && Date.now() - loaded > ROWS_MS) {
      step = now;
      await load();
    }
  } };
}
