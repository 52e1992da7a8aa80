-- title = "input data contain NaN or infinity"
-- severity = "alarm"
-- symptoms = ["nan", "data"]
-- order = 120
-- scope = "rank"
-- needs = "a batch with statistics: of an event, or requested with `watch`"
-- what = "{count} NaNs and infinities in {name} of the batch of step {step}"
-- why = ["{name}: shape {shape}, dtype {dtype}, {nan_count} NaNs, {inf_count} infinities", "samples {indices} of {loader}"]
-- next = [
--   "probe {endpoint} query \"SELECT step, name, nan_count, inf_count, min, max, indices, content_hash FROM python.inputs ORDER BY t_ns DESC LIMIT 10\"",
--   "probe {endpoint} skip-nonfinite on",
-- ]
-- false_positives = "masks and padding written as infinity on purpose"
-- explains = ["nan-origin", "loss-nan", "loss-spike", "gradients-exploding", "amp-overflow", "optimizer-state"]
WITH bad AS (
    SELECT * FROM python.inputs WHERE nan_count + inf_count > 0 ORDER BY t_ns DESC LIMIT 3
)
SELECT NULL AS unknown, step, name, name AS subject, shape, dtype, nan_count, inf_count, nan_count + inf_count AS count, indices, loader FROM bad
UNION ALL BY NAME
SELECT 'no batch has statistics' AS unknown FROM python.inputs HAVING COUNT(*) = 0
