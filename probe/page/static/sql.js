// An editor for read-only SQL, with a list of the tables, and the recipes' statements as starting points.

import { get, query, rows_file, with_values } from "./ask.js";
import { Charts } from "./chart.js";
import { figure, fill, grid, h, number, save } from "./dom.js";

export const title = "SQL";

const SHOWN = 500;
const LIMIT = 10_000;
const FIRST = "SELECT step, loss, lr, wall_s\nFROM python.steps\nORDER BY step DESC\nLIMIT 200";

export async function open(page) {
  const [{ tables }, { recipes }] = await Promise.all([get("/v1/tables", { endpoint: page.job }), get("/v1/recipes")]);
  const text = h("textarea", { rows: "9", spellcheck: "false", autocomplete: "off", "aria-label": "SQL; Control and Enter runs it", on: { keydown: (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run();
  } } });
  text.value = page.parameters.get("sql") || FIRST;
  const result = h("div", { "aria-live": "polite" }), plot = h("div", {});
  const button = h("button", { type: "button", on: { click: run } }, "Run");
  const files = ["csv", "parquet"].map((form) => h("button", { type: "button", on: { click: () => keep(form) } }, form.toUpperCase()));
  const starts = h("select", { "aria-label": "start from", on: { change: (event) => {
    const chosen = recipes.find((one) => one.name === event.target.value);
    if (chosen) set(`-- ${chosen.title}\n${with_values(chosen.sql, chosen.parameters)}`);
    event.target.value = "";
  } } }, h("option", { value: "" }, "start from a recipe …"), recipes.map((one) => h("option", { value: one.name }, `${one.name}: ${one.title}`)));

  function set(sql) {
    text.value = sql;
    text.focus();
  }

  async function run() {
    page.remember({ sql: text.value });
    button.disabled = true;
    fill(button, "running …");
    try {
      const answer = await query(page.job, text.value, LIMIT);
      if (page.closed) return;
      const numbers = answer.columns.map((_, place) => answer.rows.some((row) => typeof row[place] === "number"));
      fill(result,
        h("p", { class: "dim" }, `${figure(answer.rows.length)} rows in ${figure(answer.elapsed_ms)} ms`,
          answer.truncated ? `; there are more: the files have up to a million` : "", answer.rows.length > SHOWN ? `; the first ${SHOWN} are shown` : "", answer.notes.map((note) => `; ${note}`)),
        grid(answer.columns.map((column, place) => [column.name, numbers[place]]), answer.rows.slice(0, SHOWN).map((row) => row.map(shown)), "result"));
      fill(plot, drawn(answer, numbers));
    } catch (error) {
      fill(result, h("section", { class: "verdict alarm", role: "alert" }, h("span", { class: "word alarm" }, "not run"), h("pre", {}, error.message), h("p", {}, error.hint || "")));
      fill(plot);
    } finally {
      button.disabled = false;
      fill(button, "Run");
    }
  }

  async function keep(form) {
    await page.attempt(async () => {
      const { blob, truncated } = await rows_file(page.job, text.value, form);
      save(blob, `rows.${form}`);
      if (truncated) fill(result, h("p", {}, "The file has the first million rows; there are more."));
    });
  }

  fill(page.root, h("div", { class: "columns" },
    h("div", {}, text, h("div", { class: "row" }, button, h("span", { class: "dim" }, "Ctrl + Enter"), starts, h("span", {}, "save as"), files), plot, result),
    h("aside", { "aria-label": "tables" }, h("p", { class: "dim" }, "NULL means not measured."), tables.map((table) => h("details", {},
      h("summary", { title: table.doc }, table.name),
      h("p", { class: "dim" }, `One row per ${table.doc}.`),
      table.example ? h("button", { type: "button", on: { click: () => set(table.example) } }, "example") : null,
      h("ul", {}, table.columns.map((column) => h("li", { title: column.doc }, h("code", {}, column.name), h("span", { class: "dim" }, ` ${column.type}${column.unit ? `, ${column.unit}` : ""}`)))))))));
}

function shown(value) {
  if (value === null) return h("span", { class: "dim" }, "NULL");
  if (typeof value === "number") return String(value);
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/** Charts of all other numbers of a row over its first number, or over its place. */
function drawn(answer, numbers) {
  const places = numbers.map((is, place) => (is ? place : -1)).filter((place) => place >= 0);
  if (!places.length || answer.rows.length < 2) return null;
  const [x, ...rest] = places.length > 1 ? places : [-1, ...places];
  const rows = [...answer.rows].map((row, place) => [x < 0 ? place : number(row[x]), row]).filter(([at]) => at !== null && Number.isFinite(at)).sort((one, other) => one[0] - other[0]);
  const series = rest.slice(0, 6).map((place, index) => ({ name: answer.names[place], key: `c${place}`, colour: index }));
  const charts = new Charts(series.map((one) => ({ title: one.name, format: figure, log: false, series: [one] })), { is_time: false, label: x < 0 ? "row" : answer.names[x] });
  const data = { x: rows.map(([at]) => at), step: [], bad: [], series: Object.fromEntries(rest.slice(0, 6).map((place) => [`c${place}`, { mid: rows.map(([, row]) => number(row[place])) }])) };
  charts.set(data, [data.x[0], data.x.at(-1) > data.x[0] ? data.x.at(-1) : data.x[0] + 1]);
  charts.zoomed = (a, b) => charts.set(data, a === null ? [data.x[0], data.x.at(-1)] : [a, b]);
  return h("details", { open: true }, h("summary", {}, `over ${charts.label}`), charts.element);
}
