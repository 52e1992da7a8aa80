-- title = "target or average network never changes"
-- severity = "notice"
-- symptoms = ["loss"]
-- order = 216
-- scope = "rank"
-- needs = "weights of models other than the trained one, over a few hundred steps"
-- what = "{model}, a second network (target or average) in no optimizer, never changed although it was written to {writes:.0f} times: it is updated from itself"
-- why = [
--   "it changed by {moved:.1e} of its size from step {step} to {last}; rounding alone changes it by up to {rounding:.1e}",
--   "meanwhile the trained {trained} changed by {trained_moved:.2g} of its size",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, model, number, optimizer, moved_ratio, writes FROM python.weights ORDER BY step DESC, number LIMIT 12\"",
--   "probe {endpoint} checkpoint before-restart.pt",
--   "probe {endpoint} stop",
-- ]
-- false_positives = "a fixed teacher that is occasionally reloaded from the same file"
-- [parameters.least]
-- value = 3
-- unit = "writes"
-- source = "ours: one or two can come from program start"
-- [parameters.moved]
-- value = 1e-3
-- unit = "ratio"
-- source = "ours: the trained network has clearly moved away from its initial weights"
WITH spans AS (
    SELECT number, ANY_VALUE(model) AS model, ANY_VALUE(optimizer) AS optimizer, COUNT(*) AS n, MIN(step) AS step, MAX(step) AS last, ARG_MAX(moved_ratio, step) AS moved,
        MAX(moved_ratio) AS most, MAX(writes) AS writes, ARG_MAX(rounding, step) AS rounding
    FROM python.weights GROUP BY number
), trained AS (
    SELECT ARG_MAX(model, most) AS trained, MAX(most) AS trained_moved FROM spans WHERE optimizer IS NOT NULL
)
SELECT NULL AS unknown, model, model AS subject, number, step, last, most AS moved, writes, rounding, trained, trained_moved
FROM spans, trained WHERE optimizer IS NULL AND n >= 3 AND writes >= $least AND most <= rounding AND trained_moved > $moved
UNION ALL BY NAME
SELECT 'weights were sampled in fewer than three steps' AS unknown FROM spans HAVING COALESCE(MAX(n) < 3, true)
