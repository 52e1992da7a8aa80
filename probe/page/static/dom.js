// Elements made of text and of listed attributes, and figures in readable form. Nothing here parses HTML: names from
// a job stay text.

const ATTRIBUTES = new Set([
  "id", "class", "href", "type", "value", "name", "title", "for", "role", "tabindex", "colspan", "scope", "rows", "list",
  "placeholder", "min", "max", "step", "spellcheck", "autocomplete", "disabled", "checked", "selected", "open", "hidden", "download",
]);

/** Make an element. `on` has listeners; children are nodes or text, null and false are left out. */
export function h(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) made.addEventListener(event, listener);
    } else if (value === null || value === undefined || value === false) {
      continue;
    } else if (ATTRIBUTES.has(name) || name.startsWith("aria-")) {
      if (name === "href" && !/^(#|blob:)/.test(value)) throw new Error("a link leaves the page");
      made.setAttribute(name, value === true ? "" : String(value));
    } else {
      throw new Error(`attribute ${name}`);
    }
  }
  made.append(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false).map(asNode));
  return made;
}

function asNode(child) {
  return child instanceof Node ? child : document.createTextNode(visible(String(child)));
}

/** Text without hidden parts: control characters and changes of direction are shown as codes. */
export function visible(text) {
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g,
    (found) => `\\u${found.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

export function fill(element, ...children) {
  element.replaceChildren(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false).map(asNode));
  return element;
}

/** A table. `headings`: [text, is it a number]; a cell is text or a node. */
export function grid(headings, rows, label) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
    h("table", {},
      h("thead", {}, h("tr", {}, headings.map(([text, number]) => h("th", { scope: "col", class: number ? "number" : null }, text)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, place) => h("td", { class: headings[place]?.[1] ? "number" : null }, cell)))))));
}

/** A value of an answer as a number; NaN and infinities come as text. null if it was not measured. */
export function number(value) {
  if (value === null || value === undefined) return null;
  if (typeof value === "number") return value;
  const found = { NaN: NaN, Infinity: Infinity, "-Infinity": -Infinity }[value];
  if (found !== undefined) return found;
  const parsed = typeof value === "string" && value.trim() !== "" ? Number(value) : NaN;
  return Number.isNaN(parsed) ? null : parsed;
}

export const UNKNOWN = "–";

export function figure(value) {
  const found = number(value);
  if (found === null) return UNKNOWN;
  if (!Number.isFinite(found)) return String(found);
  const size = Math.abs(found);
  if (found === 0) return "0";
  if (size >= 1e15 || size < 1e-4) return found.toExponential(2);
  if (Number.isInteger(found)) return found.toLocaleString("en-US");
  return size >= 1000 ? Math.round(found).toLocaleString("en-US") : String(Number(found.toPrecision(4)));
}

export function duration(value) {
  const found = number(value);
  if (found === null || !Number.isFinite(found)) return figure(found);
  const [factor, unit] = found < 1e-3 ? [1e6, "µs"] : found < 1 ? [1e3, "ms"] : found < 120 ? [1, "s"] : found < 7200 ? [1 / 60, "min"] : [1 / 3600, "h"];
  return `${Number((found * factor).toPrecision(3))} ${unit}`;
}

/** A long time in two units: `48 s`, `12 min`, `2 h 10 min`, `3 d 4 h`. */
export function span(value) {
  const found = number(value);
  if (found === null) return UNKNOWN;
  const minutes = Math.round(found / 60), hours = Math.round(found / 3600);
  if (found < 120) return `${Math.round(found)} s`;
  if (minutes < 120) return `${minutes} min`;
  return hours < 48 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export function size(value) {
  const found = number(value);
  if (found === null || !Number.isFinite(found)) return figure(found);
  let left = found;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (Math.abs(left) < 1024) return `${Number(left.toPrecision(3))} ${unit}`;
    left /= 1024;
  }
  return `${Number(left.toPrecision(3))} TiB`;
}

export function clock(milliseconds) {
  const found = new Date(milliseconds);
  const two = (part) => String(part).padStart(2, "0");
  return `${two(found.getHours())}:${two(found.getMinutes())}:${two(found.getSeconds())}`;
}

export function day(milliseconds) {
  return new Date(milliseconds).toLocaleDateString("sv-SE");
}

/** Download a file from bytes that are here already. */
export function save(blob, name) {
  const address = URL.createObjectURL(blob);
  const link = h("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
