// Healthy zones of the curves, from the thresholds that the installed recipes declare: no number of them is here.

import { get } from "./ask.js";
import { figure } from "./dom.js";

let asked = null; // the recipes do not change while the page is open

/** By panel: {low, high, words}; `low` and `high` take the values that are shown, and give a bound or null. */
export async function zones() {
  asked ??= get("/v1/recipes");
  let recipes;
  try {
    ({ recipes } = await asked);
  } catch (error) {
    asked = null;
    throw error;
  }
  const threshold = (recipe, name) => recipes.find((one) => one.name === recipe)?.parameters.find((one) => one.name === name)?.value;
  const times = threshold("gradients-exploding", "times"), drop = threshold("throughput-drop", "drop");
  const found = {};
  if (typeof times === "number") found.grad_norm = { low: () => null, high: (values) => times * median(values), words: `shaded: up to ${figure(times)} × the median of what is shown (gradients-exploding)` };
  if (typeof drop === "number") found.rate = { low: (values) => (1 - drop) * median(values), high: () => null, words: `shaded: down to ${figure(100 * (1 - drop))} % of the median of what is shown (throughput-drop)` };
  return found;
}

function median(values) {
  const known = values.filter((value) => value !== null && Number.isFinite(value)).sort((one, other) => one - other);
  return known.length ? known[known.length >> 1] : NaN;
}
