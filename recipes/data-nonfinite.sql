-- title = "input data contain NaN or infinity"
-- severity = "alarm"
-- symptoms = ["nan", "data"]
-- order = 120
-- scope = "rank"
-- needs = "a batch with statistics, from an event or requested with `watch`"
-- what = "{count} NaNs and infinities in {name} of the batch at step {step}"
-- why = ["{name}: shape {shape}, dtype {dtype}, {nan_count} NaNs, {inf_count} infinities", "samples {indices} of {loader}"]
-- next = [
--   "probe {endpoint} query \"SELECT step, name, nan_count, inf_count, min, max, indices, content_hash FROM python.inputs ORDER BY t_ns DESC LIMIT 10\"",
--   "probe {endpoint} skip-nonfinite on",
-- ]
-- false_positives = "masks and padding that use infinity on purpose (`info` if a NaN of that step was traced to another place)"
-- explains = ["nan-origin", "loss-nan", "loss-spike", "gradients-exploding", "amp-overflow", "optimizer-state"]
-- [parameters.past]
-- value = 1000
-- unit = "steps"
-- source = "ours: after this many finite losses the batch no longer matters"
WITH bad AS (
    SELECT * FROM python.inputs WHERE nan_count + inf_count > 0 ORDER BY t_ns DESC LIMIT 3
)
SELECT NULL AS unknown, bad.step, name, name AS subject, shape, dtype, nan_count, inf_count, nan_count + inf_count AS count, indices, loader,
    COALESCE(bad.step < last - $past AND good >= last - 3, false) AS over,
    CASE WHEN EXISTS (SELECT 1 FROM python.nonfinite n WHERE n.step = bad.step AND n.direction NOT IN ('data', 'unknown')) THEN 'info' ELSE 'alarm' END AS severity
FROM bad, (SELECT MAX(step) AS last, MAX(step) FILTER (isfinite(loss)) AS good FROM python.losses) ends
UNION ALL BY NAME
SELECT 'no batch has statistics' AS unknown FROM python.inputs HAVING COUNT(*) = 0
