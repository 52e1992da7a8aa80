-- title = "gradient size changes with depth"
-- severity = "notice"
-- symptoms = ["gradients", "loss"]
-- order = 245
-- scope = "rank"
-- needs = "per-parameter gradients of at least six layers, from several steps"
-- deepen = "gradients"
-- what = "gradients {direction} towards the first layers: by a factor of {times:.2g} from {last_param} to {first_param}"
-- why = [
--   "root mean square of the gradient: {first:.2g} in {first_param}, {last:.2g} in {last_param} (median of the last {n} sampled steps)",
--   "it changes evenly over {layers} layers, by a factor of {per_layer:.2g} per layer (correlation {r:.2f})",
--   "the optimizer evens it out: a step changes {first_param} by {first_update:.2g} of its size, {last_param} by {last_update:.2g}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT place, param, norm, update_ratio FROM python.gradients WHERE step = (SELECT MAX(step) FROM python.gradients) ORDER BY place\"",
--   "probe {endpoint} watch --gradients --activations --steps 3",
-- ]
-- false_positives = "an optimizer that divides by the size of the gradient, as Adam does: the first layers learn as fast as the last (`info` where their updates were measured); convolutions, whose gradients add up over the places of a larger picture; layers that are not called in the order in which they are listed; networks whose layers have the same names (`pi.0`, `v.0`) stand side by side and are judged apart"
-- explains = ["layer-not-learning", "plateau", "slow-decrease"]
-- effect = true
-- [parameters.times]
-- value = 100.0
-- unit = "times"
-- source = "practice: first layer below 1 % of the last, or a spread of more than a factor of 100 across depth; 2 to 5 times is healthy"
-- [parameters.r]
-- value = 0.8
-- unit = "correlation"
-- source = "ours: a steady change with depth, not a single outlier layer"
-- [parameters.one]
-- value = 0.5
-- unit = "ratio of the whole change"
-- source = "ours: where one pair of layers makes more than half of the change, the path of the gradient is cut or scaled there, and depth is not the cause"
-- [parameters.even]
-- value = 10.0
-- unit = "times"
-- source = "ours: layers that a step changes by shares of their size that differ by less learn side by side"
-- [parameters.steps]
-- value = 100
-- unit = "steps"
-- source = "ours: branches that begin at zero, as the last layer of a residual block does, pass almost no gradient until their weights have grown, within some tens of steps"
-- [parameters.layers]
-- value = 5
-- unit = "layers"
-- source = "ours"
WITH steps AS (
    SELECT DISTINCT step FROM python.gradients ORDER BY step DESC LIMIT 5
), params AS (
    SELECT param, ANY_VALUE(place) AS place, MEDIAN(norm / SQRT(numel)) AS size, MEDIAN(update_ratio) FILTER (update_kind = 'measured') AS moved, COUNT(*) AS n, MIN(step) AS step
    FROM python.gradients JOIN steps USING (step)
    WHERE isfinite(norm) AND norm > 0 AND numel >= 16 AND param LIKE '%weight%' AND NOT regexp_matches(LOWER(param), 'norm|emb|wte|wpe|(^|[.])ln')
    GROUP BY param
), named AS (
    SELECT *, split_part(param, '.', CASE WHEN COUNT(DISTINCT split_part(param, '.', 1)) OVER () = 1 THEN 2 ELSE 1 END) AS part FROM params
), parts AS (
    SELECT * REPLACE (regexp_replace(part, '[0-9]+$', '') AS part), regexp_replace(param, '^.*?' || part || '[.]', '') AS rest FROM named
), side_by_side AS (
    SELECT COUNT(*) >= 2 AS yes FROM (SELECT rest FROM parts WHERE part <> '' GROUP BY rest HAVING COUNT(DISTINCT part) > 1)
), layers AS (
    SELECT *, ROW_NUMBER() OVER one AS depth, COUNT(*) OVER (PARTITION BY path) AS layers, ABS(ln(size) - LAG(ln(size)) OVER one) AS change
    FROM (SELECT parts.*, CASE WHEN yes THEN part ELSE '' END AS path FROM parts, side_by_side)
    WINDOW one AS (PARTITION BY path ORDER BY place)
), fit AS (
    SELECT CORR(ln(size), depth) AS r, EXP(REGR_SLOPE(ln(size), depth)) AS per_layer, ANY_VALUE(layers) AS layers, MAX(n) AS n, MIN(step) AS step, MAX(change) AS largest,
        ARG_MIN(size, depth) AS first, ARG_MAX(size, depth) AS last, ARG_MIN(param, depth) AS first_param, ARG_MAX(param, depth) AS last_param,
        ARG_MIN(moved, depth) AS first_moved, ARG_MAX(moved, depth) AS last_moved
    FROM layers GROUP BY path
)
SELECT CASE WHEN (SELECT MAX(step) FROM steps) < $steps THEN 'the training has made fewer than ' || $steps || ' steps' END AS unknown, first_param AS subject, step, r, per_layer, layers, n, first, last, first_param, last_param,
    CASE WHEN first < last THEN 'vanish' ELSE 'explode' END AS direction, first / last AS times,
    CASE WHEN even THEN first_moved END AS first_update, last_moved AS last_update, CASE WHEN even THEN 'info' ELSE 'notice' END AS severity
FROM (SELECT *, COALESCE(first_moved > 0 AND last_moved > 0 AND GREATEST(first_moved / last_moved, last_moved / first_moved) < $even, false) AS even FROM fit)
WHERE layers >= $layers AND n >= 2 AND ABS(r) >= $r AND GREATEST(POW(per_layer, layers - 1), POW(per_layer, 1 - layers)) >= $times
    AND GREATEST(first / last, last / first) >= $times / 3 AND largest <= $one * ABS(ln(first / last))
UNION ALL BY NAME
SELECT 'no per-parameter gradients from two steps' AS unknown FROM steps HAVING COUNT(*) < 2
