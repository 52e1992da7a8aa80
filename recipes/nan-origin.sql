-- title = "a NaN or an infinity, traced to where it began"
-- severity = "alarm"
-- symptoms = ["nan", "loss", "data", "gradients"]
-- order = 400
-- scope = "job"
-- needs = "NaN detection (PROBE_INSTRUMENTS with `nonfinite` and `losses`), and a NaN or infinity"
-- what = "{made} began in {direction_text}{place} in step {step}{micro}{because}"
-- why = [
--   "{evidence}",
--   "operation {op}",
--   "batch of {loader}: samples {indices}",
--   "samples whose input data contain NaN or infinity: {bad_samples}",
--   "noticed by the {seen_by} of step {seen_step}",
--   "learning rate {lr:.3g}",
--   "{outcome}",
-- ]
-- next = [
--   "probe {endpoint} save-batch batch.pt",
--   "probe {endpoint} query \"SELECT step, micro_step, direction, module, param, op, cause, indices, inputs, evidence FROM python.nonfinite ORDER BY t_ns\"",
--   "probe {endpoint} skip-nonfinite on",
--   "probe {endpoint} lr --scale 0.1",
-- ]
-- false_positives = "a program that makes a loss infinite on purpose and skips that step itself"
-- explains = ["loss-nan", "optimizer-state", "amp-overflow"]
-- dated = true
-- [parameters.recent]
-- value = 1000
-- unit = "steps"
-- source = "ours: older events are no longer relevant; python.nonfinite keeps them"
WITH events AS (
    SELECT *, COUNT(*) FILTER (cause IS DISTINCT FROM 'from another rank') OVER (PARTITION BY COALESCE(seen_step, step)) AS own
    FROM python.nonfinite
), known AS (
    SELECT * FROM events WHERE own = 0 OR cause IS DISTINCT FROM 'from another rank'
), after AS (
    SELECT MAX(step) AS last, MAX(step) FILTER (isfinite(loss)) AS good FROM python.losses
), newest AS (
    SELECT known.*, after.last, after.good FROM known, after
    WHERE after.last IS NULL OR known.seen_step IS NULL OR known.seen_step >= after.last - $recent
    ORDER BY known.t_ns LIMIT 3
)
SELECT
    NULL AS unknown, event_id AS subject, step, rank,
    CASE kind WHEN 'nan' THEN 'NaN' ELSE 'an infinity' END AS made,
    CASE direction
        WHEN 'data' THEN 'the data' WHEN 'forward' THEN 'the forward' WHEN 'loss' THEN 'the computation of the loss'
        WHEN 'backward' THEN 'the backward' WHEN 'optimizer' THEN 'the step of the optimizer'
        WHEN 'parameter' THEN 'a weight' ELSE 'a place that is not known'
    END AS direction_text,
    CASE WHEN direction IN ('optimizer', 'parameter') AND param IS NOT NULL THEN ' at ' || param
         WHEN module IS NOT NULL THEN ' of ' || module ELSE '' END AS place,
    CASE WHEN micro_step > 0 THEN ', micro step ' || micro_step ELSE '' END AS micro,
    CASE WHEN cause IS NULL THEN '' WHEN cause = direction THEN '' ELSE ': ' || cause END AS because,
    replace(evidence, chr(10), '; ') AS evidence, op, loader, indices, bad_samples, seen_by, seen_step, lr,
    CASE WHEN last > seen_step AND good > seen_step THEN 'losses have been finite again since'
         WHEN last > seen_step THEN 'no loss has been finite since' END AS outcome,
    CASE WHEN good > seen_step AND good >= last - 3 THEN 'notice' ELSE 'alarm' END AS severity
FROM newest
