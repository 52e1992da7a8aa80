// Verdicts of /v1/diagnose: the state of the process or job, the findings of the checks, reasons and next steps.

import { fill, h } from "./dom.js";

const WORDS = { alarm: "alarm", notice: "notice", info: "info", ok: "ok" };

/** One verdict; `open`: whether its evidence and next steps are unfolded. */
export function verdict(one, open = true) {
  const kind = Object.hasOwn(WORDS, one.severity) ? one.severity : "info";
  return h("details", { class: `verdict ${kind}${one.explained_by ? " hence" : ""}`, open },
    h("summary", {}, h("span", { class: `word ${kind}` }, one.explained_by ? "hence" : WORDS[kind]), h("b", {}, one.what)),
    (one.why || []).length ? h("ul", { "aria-label": "why" }, one.why.map((line) => h("li", {}, line))) : null,
    (one.next || []).length ? h("p", {}, h("span", { class: "dim" }, "next  "), one.next.map((line) => [h("code", {}, line), h("br")])) : null);
}

/** A whole answer of /v1/diagnose, the worst first, in the order of the answer. */
export function verdicts(element, answer, when) {
  const found = (answer.findings || []).filter((one) => one.severity !== "info");
  const state = { severity: answer.severity, what: answer.what, why: answer.why, next: answer.next };
  const ordered = [...found];
  ordered.splice(answer.position ?? 0, 0, state);
  const judged = answer.judged;
  const unknown = answer.unknown || [], notes = answer.notes || [];
  fill(element, ordered.map((one, place) => verdict(one, place === 0)),
    h("p", { class: "dim" }, judged ? `${judged.found} checks found something, ${judged.clear} are clear, ${judged.unknown} could not be judged` : "no checks ran", `; as of ${when}`),
    unknown.length || notes.length ? h("details", {}, h("summary", {}, "what could not be judged, and notes"),
      notes.map((note) => h("p", {}, note)), h("ul", {}, unknown.map((one) => h("li", {}, `${one.title}: ${one.reason}`)))) : null,
    (answer.missing || []).map((one) => h("p", {}, one)));
}
