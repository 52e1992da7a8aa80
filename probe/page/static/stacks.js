// Stacks of the job: those of one process, or of all ranks merged into a tree.

import { get } from "./ask.js";
import { clock, figure, fill, grid, h } from "./dom.js";
import { Flame } from "./flame.js";

export const title = "Stacks";

const AGAIN_MS = 5000;

export async function open(page) {
  let taken = 0;
  const shown = h("div", {}), when = h("span", { class: "dim" });
  const repeat = h("input", { type: "checkbox", id: "repeat" });
  const every = h("input", { type: "checkbox", id: "threads", on: { change: () => page.attempt(take) } });
  fill(page.root, h("div", { class: "row" }, h("button", { type: "button", on: { click: () => page.attempt(take) } }, "Take again"),
    h("span", {}, repeat, h("label", { for: "repeat" }, " every five seconds")), h("span", {}, every, h("label", { for: "threads" }, " all threads")), when), shown, page.ranks.some((one) => one.ended_ns === null) ? new Flame(page).element : null);

  async function take() {
    taken = Date.now();
    const answer = await get("/v1/backtrace", { endpoint: page.job, all_threads: every.checked ? "1" : "" });
    if (page.closed) return;
    fill(when, `taken at ${clock(Date.now())}`, answer.source ? `, from ${answer.source}` : "");
    fill(shown, answer.tree ? of_ranks(answer) : of_one(answer), (answer.notes || []).concat(answer.missing || []).map((note) => h("p", { class: "dim" }, note)));
  }

  await take();
  return { tick: async () => { if (repeat.checked && Date.now() - taken > AGAIN_MS) await take(); }, changed: take };
}

function place_of(frame) {
  return [h("b", {}, frame.func), h("span", { class: "dim" }, `  ${frame.file ?? "?"}${frame.lineno === null ? "" : `:${frame.lineno}`}`)];
}

function of_one(answer) {
  return [h("p", {}, answer.step === null || answer.step === undefined ? "" : `step ${figure(answer.step)}`, answer.phase ? `, in ${answer.phase}` : ""),
    (answer.threads || []).map((thread) => h("details", { open: thread.training !== false },
      h("summary", {}, thread.thread_name ?? "thread", h("span", { class: "dim" }, ` ${thread.thread_id ?? ""}${thread.training ? ", training" : ""}; innermost frame first`)),
      h("ol", { class: "mono" }, thread.frames.map((frame) => h("li", { class: frame.is_user ? "split" : null }, place_of(frame), frame.module ? h("span", { class: "dim" }, `  ${frame.module}`) : null)))))];
}

function of_ranks(answer) {
  const children = new Map();
  for (const node of answer.tree) {
    if (!children.has(node.parent)) children.set(node.parent, []);
    children.get(node.parent).push(node);
  }
  const all = Math.max(1, ...answer.tree.map((node) => node.rank_count));
  // A chain of frames without a fork stays on one level, so that depth on screen shows differences.
  const branch = (parent) => {
    const items = [];
    let nodes = children.get(parent) || [];
    while (nodes.length === 1 && nodes[0].rank_count === (items.at(-1)?.count ?? nodes[0].rank_count)) {
      items.push({ count: nodes[0].rank_count, element: h("li", {}, place_of(nodes[0]), ranks_of(nodes[0], all)) });
      nodes = children.get(nodes[0].node) || [];
    }
    const forks = nodes.map((node) => h("li", { class: "split" }, place_of(node), ranks_of(node, all), branch(node.node)));
    const list = [...items.map((one) => one.element), ...forks];
    return list.length ? h("ul", {}, list) : null;
  };
  return [h("h2", {}, "Where the ranks are, the smallest group first"),
    grid([["ranks"], ["number", true], ["state"], ["phase"], ["step", true], ["stack, innermost first"]],
      [...(answer.classes || [])].sort((one, other) => one.rank_count - other.rank_count).map((one) => [one.ranks, figure(one.rank_count), one.state, one.phase ?? "–", figure(one.step), h("code", {}, one.stack)]), "classes"),
    h("h2", {}, "All stacks, outermost frame first"), h("div", { class: "tree", role: "region", "aria-label": "merged stacks" }, branch(null))];
}

function ranks_of(node, all) {
  return h("span", { class: node.rank_count < all ? "notice word" : "dim" }, `  rank${node.rank_count > 1 ? "s" : ""} ${node.ranks}${node.ends ? " end here" : ""}`);
}
