// The frame of the page: the session, the views and their addresses, the state of the job every two seconds.
//
// An address is `#/view?job=…&…`. A view is a module with `title` and `open(page)`, which fills `page.root` and may
// return {tick(), changed(), close(), asks()}; asks() returns more parameters for each request of /v1/ranks. No
// requests are sent while the tab is hidden.

import * as actions from "./actions.js";
import { get, has_session, leave, open_session } from "./ask.js";
import * as compare from "./compare.js";
import { clock, day, duration, figure, fill, h, span } from "./dom.js";
import * as learning from "./learning.js";
import * as ranks from "./ranks.js";
import * as run from "./run.js";
import * as sql from "./sql.js";
import * as stacks from "./stacks.js";
import * as step from "./step.js";

const VIEWS = { run, step, ranks, stacks, learning, sql, actions, compare };
const ROUND_MS = 2000;
const HOSTS_ROUND_MS = 10_000; // each round sends a request to every host of the job
const PROBLEM_MS = 15_000; // how long a refused request is shown while others succeed
const SLOWEST_ROUND_MS = 30_000;
const ZOOMED = ["from", "to"]; // in links to all views of steps
const BAD = new Set(["stalled", "failed", "killed", "dead", "lost", "stopped"]);

const root = document.getElementById("view");
let page = null; // the view on screen
let role = "";
let timer = 0;
let failures = 0;
let shown_at = 0; // when a problem was shown last

function address() {
  const [name, text] = location.hash.replace(/^#\/?/, "").split("?");
  return { name: Object.hasOwn(VIEWS, name) ? name : "run", parameters: new URLSearchParams(text || "") };
}

export function link(name, parameters) {
  return `#/${name}?${parameters}`;
}

function show_problem(error) {
  const place = document.getElementById("problem");
  place.hidden = !error;
  shown_at = Date.now();
  if (error) fill(place, error.message, error.hint ? `\n${error.hint}` : "");
}

/** The page as a view sees it: its address, the job and its ranks. */
class Page {
  constructor(name, parameters) {
    this.name = name;
    this.parameters = parameters;
    this.job = parameters.get("job") || "";
    this.root = h("div", {});
    this.ranks = [];
    this.closed = false;
    this.state = "";
    this.started = false;
    this.under_way = false;
  }

  get acts() {
    return role !== "viewer";
  }

  /** The rank that single-rank views are about: the one in the address, else the lowest. */
  get rank() {
    const wanted = this.parameters.get("rank");
    return wanted !== null && /^\d+$/.test(wanted) ? Number(wanted) : Math.min(...this.ranks.map((one) => one.rank));
  }

  /** A range of whole numbers in the address, or null; `names`: of its ends. */
  range(names) {
    const [low, high] = names.map((name) => (this.parameters.has(name) ? Number(this.parameters.get(name)) : NaN));
    return Number.isSafeInteger(low) && Number.isSafeInteger(high) && low >= 0 && low < high ? [low, high] : null;
  }

  remember_range(names, low, high) {
    this.remember({ [names[0]]: low === null ? null : Math.max(0, Math.floor(low)), [names[1]]: high === null ? null : Math.ceil(high) });
  }

  /** The part of time that was zoomed to in Run, [from_ms, to_ms], or null; all views of steps show only this part. */
  get zoomed() {
    return this.range(ZOOMED);
  }

  set zoomed([from, to]) {
    this.remember_range(ZOOMED, from, to);
  }

  /** A condition that selects rows with a t_ns in the part that is shown. */
  get within() {
    return this.zoomed ? `t_ns >= ${this.zoomed[0]}000000 AND t_ns < ${this.zoomed[1]}000000` : "true";
  }

  /** Text that names the part that is shown, and a button that shows all; null when all is shown. */
  part() {
    if (!this.zoomed) return null;
    return h("span", {}, `${day(this.zoomed[0])} ${clock(this.zoomed[0])} to ${clock(this.zoomed[1])} only `, h("button", { type: "button", on: { click: () => { this.zoomed = [null, null]; show(); } } }, "Show all"));
  }

  /** Change the address without leaving the view. */
  remember(changes) {
    for (const [name, value] of Object.entries(changes)) if (value === null || value === "") this.parameters.delete(name); else this.parameters.set(name, value);
    history.replaceState(null, "", link(this.name, this.parameters));
    show_links();
  }

  /** Run something that sends requests; shows its error, unless the view was left. */
  async attempt(work) {
    try {
      return await work();
    } catch (error) {
      if (!this.closed) show_problem(error);
      return undefined;
    }
  }

  /** A choice of the rank, for multi-rank jobs. */
  rank_choice() {
    const all = [...new Set(this.ranks.map((one) => one.rank))].sort((a, b) => a - b);
    if (all.length < 2) return null;
    return h("label", {}, "rank ", h("select", { on: { change: (event) => { this.remember({ rank: event.target.value }); show(); } } },
      all.map((one) => h("option", { value: one, selected: one === this.rank }, one))));
  }
}

function show_links() {
  const kept = new URLSearchParams();
  if (page.job) kept.set("job", page.job);
  for (const one of ["rank", ...ZOOMED]) if (page.parameters.has(one)) kept.set(one, page.parameters.get(one));
  fill(document.getElementById("views"), Object.entries(VIEWS).map(([name, view], place) =>
    h("a", { href: link(name, name === page.name ? page.parameters : kept), "aria-current": name === page.name ? "page" : null, title: `key ${place + 1}` }, view.title)));
}

/** The total steps of the run, from the first rank that knows them, and the time left; empty if unknown. */
function left(found) {
  const one = found.find((rank) => rank.total_steps !== null && rank.total_steps !== undefined);
  if (!one) return "";
  return h("span", { title: one.total_source }, ` of ${figure(one.total_steps)}`, one.left_s === null ? "" : `, ${span(one.left_s)} left`);
}

function show_state(found) {
  const counts = new Map();
  for (const one of found) counts.set(one.state || "unknown", (counts.get(one.state || "unknown") || 0) + 1);
  const steps = found.map((one) => one.step).filter((one) => one !== null);
  const ages = found.map((one) => one.last_step_s).filter((one) => one !== null);
  const states = [...counts].map(([state, count]) => (found.length > 1 ? `${count} ${state}` : [state, found[0].how].filter(Boolean).join(": "))).join(", ");
  const bad = [...counts.keys()].some((state) => BAD.has(state));
  fill(document.getElementById("status"),
    h("span", { class: `word ${bad ? "alarm" : "ok"}` }, states),
    steps.length ? `step ${figure(Math.max(...steps))}` : "no step yet", left(found),
    ages.length && found.some((one) => one.ended_ns === null) ? `, the last one ended ${duration(Math.min(...ages))} ago` : "",
    found.length > 1 ? `, ${found.length} ranks` : "",
    role === "viewer" ? "  ·  read-only" : "");
  const names = [...new Set(found.map((one) => one.job))].join(", ");
  const name = found.length === 1 ? `${names}, pid ${found[0].pid}` : names;
  fill(document.getElementById("job"), name);
  document.title = `${states} · ${name}`;
  return states.replace(/: \w+ for [\d.]+ s/, ""); // an evaluation and its duration are not a change of state
}

async function round() {
  clearTimeout(timer);
  if (document.hidden || page === null || page.under_way) return;
  const own = page;
  let next = ROUND_MS;
  own.under_way = true;
  try {
    const asked = [get("/v1/ranks", { endpoint: own.job, ...own.shown?.asks?.() }), role ? null : get("/v1/health")];
    const [answer, health] = await Promise.all(asked);
    role = role || health.role;
    if (own.closed) return;
    own.ranks = answer.ranks;
    own.missing = answer.missing;
    own.hosts = answer.hosts;
    const state = show_state(answer.ranks);
    if (!own.started) {
      own.state = state;
      own.shown = (await VIEWS[own.name].open(own)) || {};
      own.started = true; // not set if a request was refused: the next round opens the view again
    } else if (state !== own.state) {
      own.state = state;
      await own.shown.changed?.();
    }
    await own.shown.tick?.();
    if (failures || Date.now() - shown_at > PROBLEM_MS) show_problem(null);
    failures = 0;
    if (answer.hosts.length > 1) next = HOSTS_ROUND_MS;
  } catch (error) {
    if (own.closed) return;
    failures += 1;
    next = Math.min(SLOWEST_ROUND_MS, ROUND_MS * 2 ** failures);
    show_problem(error);
  } finally {
    own.under_way = false;
    if (!own.closed) {
      clearTimeout(timer);
      timer = setTimeout(round, next);
    }
  }
}

function show() {
  if (page !== null) {
    page.closed = true;
    page.shown?.close?.();
    leave();
  }
  const { name, parameters } = address();
  page = new Page(name, parameters);
  show_problem(null);
  fill(document.getElementById("job"), page.job || "probe");
  show_links();
  fill(root, page.root);
  fill(page.root, h("p", { class: "dim" }, "loading …"));
  failures = 0;
  round();
}

addEventListener("hashchange", show);
document.addEventListener("visibilitychange", () => { if (!document.hidden) round(); });
addEventListener("keydown", (event) => {
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) || document.querySelector("dialog[open]");
  const name = Object.keys(VIEWS)[Number(event.key) - 1];
  if (typing || event.ctrlKey || event.metaKey || event.altKey || !name) return;
  location.hash = document.getElementById("views").children[Number(event.key) - 1].getAttribute("href");
});

async function start() {
  const { name, parameters } = address();
  const key = parameters.get("key");
  try {
    if (key) {
      parameters.delete("key");
      history.replaceState(null, "", link(name, parameters));
      await open_session(key);
    }
  } catch (error) {
    if (!has_session()) {
      show_problem(error);
      return;
    }
  }
  if (!has_session()) {
    show_problem({ message: "this browser has no session", hint: "Open the link that `probe web` prints; Enter prints a new one." });
    return;
  }
  show();
}

start();
