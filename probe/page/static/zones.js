// Healthy zones of the curves: values that the installed recipes do not report. Each recipe has the SQL of its zone
// next to its thresholds; this file has no numbers or rules of recipes.

import { get, query, with_values } from "./ask.js";
import { number } from "./dom.js";

let asked = null; // the recipes do not change while the page is open

/** By curve, the zones of all recipes that judge it: {words, rows: [{ms, low, high}]}. `shown`: parameters of the zones' SQL. */
export async function zones(job, shown) {
  asked ??= get("/v1/recipes");
  let recipes;
  try {
    recipes = (await asked).recipes.filter((one) => one.zone);
  } catch (error) {
    asked = null;
    throw error;
  }
  const found = {};
  for (const one of recipes) (found[one.zone.of] ??= []).push({ recipe: one.name, words: one.zone.words, needs: one.needs, rows: [] });
  const parts = recipes.map((one) => `SELECT '${one.name}' AS recipe, ms, CAST(low AS DOUBLE) AS low, CAST(high AS DOUBLE) AS high FROM (\n${with_values(one.zone.sql, one.parameters, shown)})`);
  const { records } = await query(job, `${parts.join("\nUNION ALL\n")}\nORDER BY ms`);
  const by_recipe = new Map(Object.values(found).flat().map((one) => [one.recipe, one.rows]));
  for (const { recipe, ms, low, high } of records) by_recipe.get(recipe).push({ ms: number(ms), low: number(low), high: number(high) });
  return found;
}

/** The reason why a curve is shaded, or why it is not. */
export function said(zones_of_curve = []) {
  if (!zones_of_curve.length) return "not shaded: no recipe has limits for it";
  const known = zones_of_curve.filter((one) => one.rows.length);
  if (!known.length) return zones_of_curve.map((one) => `not shaded: ${one.recipe} needs ${one.needs}`).join("; ");
  return `shaded: ${known.map((one) => `${one.words} (${one.recipe})`).join(", ")}`;
}

/** The narrowest bounds, from each time at which one of them changes: [{ms, low, high}]. */
export function narrowest(zones_of_curve = []) {
  const moments = [...new Set(zones_of_curve.flatMap((one) => one.rows.map((row) => row.ms)))].sort((a, b) => a - b);
  const places = zones_of_curve.map(() => -1);
  return moments.map((ms) => {
    const holding = zones_of_curve.map(({ rows }, which) => {
      while (places[which] + 1 < rows.length && rows[places[which] + 1].ms <= ms) places[which] += 1;
      return rows[places[which]];
    }).filter(Boolean);
    const of = (name, pick) => { const all = holding.map((one) => one[name]).filter((one) => one !== null); return all.length ? pick(...all) : null; };
    return { ms, low: of("low", Math.max), high: of("high", Math.min) };
  });
}
