// The actions that were run on the job, with their callers; and forms for some actions, for operators.

import { post, query } from "./ask.js";
import { clock, day, duration, figure, fill, grid, h } from "./dom.js";

export const title = "Actions";

const ROWS_MS = [10_000, 60_000]; // after new records of the rank, and otherwise
const WAIT_S = 60;
const SQL = `SELECT action_id, max(t_ns) // 1000000 AS ms, arg_max(step, t_ns) AS step, any_value(action) AS action, any_value(arguments) AS arguments,
  arg_max(state, t_ns) AS state, arg_max(coalesce(what, ''), t_ns) AS what, bool_or(undo IS NOT NULL) AND NOT bool_or(state IN ('undone', 'undoing', 'ended')) AS undoable,
  any_value(caller_role) AS role, any_value(caller_uid) AS uid, any_value(caller_pid) AS pid, string_agg(DISTINCT rank::VARCHAR, ',') AS ranks, max(held_s) AS held_s
FROM probe.actions GROUP BY action_id ORDER BY ms DESC LIMIT 200`;

export async function open(page) {
  let loaded = 0, noted_before;
  const list = h("div", {}), answer = h("div", { role: "status" });
  const several = new Set(page.ranks.map((one) => one.rank)).size;
  const whom = several > 1 ? `all ${several} ranks of ${page.job}` : `${page.job || "the job"} (pid ${page.ranks[0]?.pid})`;
  fill(page.root, page.acts ? forms() : h("p", {}, "This page is read-only: it cannot run actions."), answer, h("h2", {}, "Action log"), list);

  function forms() {
    const factor = h("input", { type: "number", step: "any", min: "0", value: "0.5", "aria-label": "factor" });
    const path = h("input", { type: "text", placeholder: "/path/rescue.pt", "aria-label": "file, or folder for several ranks" });
    const seconds = h("input", { type: "number", min: "1", step: "any", value: "60", "aria-label": "seconds" });
    return h("div", {}, h("p", { class: "dim" }, "Each action needs a confirmation, runs between two steps, and is listed below with its caller."),
      h("div", { class: "row" }, h("span", {}, "learning rate × "), factor, button("Change the rate", () => ({ action: "lr", arguments: { scale: Number(factor.value) } }),
        () => `The learning rates of ${whom} are multiplied by ${figure(Number(factor.value))} after the current step, and their schedule keeps its shape. Training continues. This can be undone.`)),
      h("div", { class: "row" }, h("span", {}, "checkpoint to "), path, button("Save a checkpoint", () => ({ action: "checkpoint", arguments: { path: path.value } }),
        () => `${whom} saves model, optimizer and position to ${path.value} after the current step. Training waits while it is written: seconds, or minutes for a large model. No existing file is overwritten.`,
        () => (path.value.startsWith("/") ? "" : "enter an absolute path"))),
      h("div", { class: "row" }, h("span", {}, "pause for "), seconds, h("span", {}, "seconds"), button("Pause", () => ({ action: "pause", arguments: { for_s: Number(seconds.value) } }),
        () => `${whom} pauses after the current step and continues by itself after ${duration(Number(seconds.value))}, or when somebody resumes it. Its devices stay allocated. Operations that wait for it, such as a collective with a timeout, may fail.`,
        () => (Number(seconds.value) > 0 ? "" : "enter a number of seconds above 0")),
      button("Resume", () => ({ action: "resume", arguments: {} }), () => `${whom} continues at once, if it is paused.`)));
  }

  function button(words, asked, said, wrong = () => "") {
    return h("button", { type: "button", on: { click: () => {
      const problem = wrong();
      if (problem) fill(answer, h("p", { class: "alarm" }, problem)); else confirm(words, said(), () => act("/v1/act", asked()));
    } } }, words);
  }

  /** Show what will happen, and do it only after a confirmation. */
  function confirm(words, said, work) {
    const close = () => { dialog.close(); dialog.remove(); };
    const dialog = h("dialog", { "aria-label": words }, h("h3", {}, words), h("p", {}, said),
      h("div", { class: "row" }, h("button", { type: "button", on: { click: () => { close(); work(); } } }, words), h("button", { type: "button", on: { click: close } }, "Cancel")));
    dialog.addEventListener("cancel", close);
    page.root.append(dialog);
    dialog.showModal();
    dialog.querySelector("button:last-of-type").focus();
  }

  async function act(path, body) {
    fill(answer, h("p", { class: "dim" }, "waiting for the end of the step …"));
    try {
      const done = await post(path, { endpoint: page.job, wait_s: WAIT_S, ...body });
      const each = (done.answers || []).map((one) => h("li", {}, `rank ${one.rank}: ${one.answer?.what ?? one.error?.message ?? "?"}`));
      fill(answer, h("section", { class: "verdict ok" }, h("span", { class: "word ok" }, done.state || "done"), h("b", {}, done.what || `on ${each.length} ranks`), done.step === null || done.step === undefined ? "" : ` (step ${figure(done.step)})`,
        each.length ? h("ul", {}, each) : null, (done.notes || []).concat(done.missing || []).map((note) => h("p", {}, note))));
    } catch (error) {
      fill(answer, h("section", { class: "verdict alarm", role: "alert" }, h("span", { class: "word alarm" }, "not done"), h("b", {}, error.message), h("p", {}, error.hint || "")));
    }
    await page.attempt(load);
  }

  const noted = () => page.ranks.find((one) => one.rank === page.rank)?.noted;

  async function load() {
    loaded = Date.now();
    noted_before = noted();
    const found = await query(page.job, SQL);
    if (page.closed) return;
    fill(list, found.records.length ? grid([["when"], ["step", true], ["action"], ["by"], ["state"], ["result"], ["held", true], ...(several > 1 ? [["ranks"]] : []), [""]],
      found.records.map((one) => [`${day(Number(one.ms))} ${clock(Number(one.ms))}`, figure(one.step), h("code", {}, `${one.action} ${one.arguments ?? ""}`),
        `${one.role ?? "–"}${one.uid === null ? "" : `, user id ${one.uid}`}${one.pid === null ? "" : `, pid ${one.pid}`}`, one.state, one.what, duration(one.held_s), ...(several > 1 ? [one.ranks] : []),
        one.undoable && page.acts && page.ranks.some((rank) => rank.ended_ns === null) ? h("button", { type: "button", on: { click: () => confirm("Undo", `${one.action} ${one.arguments ?? ""} of ${whom} is undone after the current step.`, () => act("/v1/undo", { id: one.action_id })) } }, "Undo") : ""]), "actions")
      : h("p", { class: "dim" }, "no actions were run on this job"));
  }

  await load();
  return { asks: () => ({ rank: page.rank, since: Number.MAX_SAFE_INTEGER }), tick: async () => { if (Date.now() - loaded > ROWS_MS[noted() !== undefined && noted() === noted_before ? 1 : 0] && !document.querySelector("dialog[open]")) await load(); } };
}
