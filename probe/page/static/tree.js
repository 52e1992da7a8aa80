// A tree of rows that open and close, by mouse and keyboard; the rows of a branch are created when it opens.

import { h } from "./dom.js";

/**
 * `nodes`: [{name, cells, children}], `headings`: of the cells. All outermost nodes are open, and the first branch of
 * each level below, `depth` levels in total.
 */
export function tree(nodes, headings, label, depth = 3) {
  return h("div", { class: "scroll tree rows", role: "region", tabindex: "0", "aria-label": label },
    h("div", { class: "branch dim", "aria-hidden": "true" }, h("span", {}), headings.map((one) => h("span", { class: "right" }, one))),
    h("ul", {}, nodes.map((node) => h("li", {}, branch(node, headings, depth)))));
}

function branches(nodes, headings, depth) {
  return h("ul", {}, nodes.map((node, place) => h("li", {}, branch(node, headings, place === 0 ? depth : 0))));
}

function branch(node, headings, depth) {
  const row = [h("code", {}, node.name), node.cells.map((cell, place) => h("span", { class: "right", "aria-label": `${headings[place]} ${cell}` }, cell))];
  if (!node.children.length) return h("div", { class: "branch" }, row);
  const made = h("details", { open: depth > 0, on: { toggle: grow } }, h("summary", { class: "branch" }, row));
  function grow() {
    if (made.open && made.childElementCount === 1) made.append(branches(node.children, headings, depth - 1));
  }
  grow();
  return made;
}

/** Rows with dotted names as nodes: `times[name]` are the values of a row; a node without any has `own` null. */
export function nested(times, root) {
  const nodes = new Map(), tops = [];
  const of = (name) => {
    if (nodes.has(name)) return nodes.get(name);
    const cut = name.lastIndexOf("."), made = { path: name, name: cut < 0 ? name : name.slice(cut + 1), own: times.get(name) || null, children: [] };
    nodes.set(name, made);
    if (cut > 0) of(name.slice(0, cut)).children.push(made); else tops.push(made);
    return made;
  };
  for (const name of times.keys()) of(name);
  const first = root === null ? undefined : nodes.get(root);
  if (first && tops.includes(first)) {
    const apart = (one) => one === first || one.own?.step !== undefined; // an optimizer is not in a module
    first.children.push(...tops.filter((one) => !apart(one)));
    tops.splice(0, tops.length, ...tops.filter(apart));
  }
  return tops;
}
