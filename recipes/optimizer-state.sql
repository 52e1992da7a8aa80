-- title = "bad optimizer state"
-- severity = "notice"
-- symptoms = ["nan", "gradients"]
-- order = 440
-- scope = "rank"
-- needs = "statistics of the optimizer's state"
-- deepen = "gradients"
-- what = "{optimizer}, group {param_group}: {problem}"
-- why = [
--   "{looked_at:,} elements of its state examined at step {step}, after {state_steps} steps",
--   "{nonfinite} of them NaN or infinite",
--   "{floor:.0%} of the second moments are below eps {eps:.1e}: there eps, not the gradient, sets the size of the update",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, param_group, eps, second_min, second_max, eps_floor_ratio, nonfinite_count FROM python.optimizers ORDER BY t_ns DESC LIMIT 10\"",
-- ]
-- false_positives = "embeddings of which few rows are used: the other rows' second moments are 0"
-- [parameters.floor]
-- value = 0.9
-- unit = "ratio of the second moments"
-- source = "ours: half of an embedding's rows may never be used; Adam's eps is 1e-8 by default"
WITH latest AS (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY optimizer, param_group ORDER BY t_ns DESC, step DESC) AS ago FROM python.optimizers WHERE looked_at > 0
), judged AS (
    SELECT optimizer, param_group, MIN(step) AS step, MAX(looked_at) AS looked_at, MAX(state_steps) AS state_steps, MAX(nonfinite_count) AS nonfinite,
        MIN(eps_floor_ratio) AS floor, MIN(eps) AS eps, COUNT(*) AS n FROM latest WHERE ago <= 3 GROUP BY ALL
)
SELECT NULL AS unknown, format('{} {}', optimizer, param_group) AS subject, optimizer, param_group, step, looked_at, state_steps,
    NULLIF(nonfinite, 0) AS nonfinite, CASE WHEN floor >= $floor THEN floor END AS floor, eps,
    CASE WHEN nonfinite > 0 THEN format('{} NaNs and infinities in its state, which stay there', nonfinite)
        ELSE format('eps sets the update of {:.0f} % of the elements', 100 * floor) END AS problem,
    CASE WHEN nonfinite > 0 THEN 'alarm' ELSE 'info' END AS severity
FROM judged WHERE nonfinite > 0 OR (floor >= $floor AND n >= 3)
UNION ALL BY NAME
SELECT 'no statistics of the optimizer state' AS unknown FROM latest HAVING COUNT(*) = 0
