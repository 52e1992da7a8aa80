-- title = "loss is NaN or infinite"
-- severity = "alarm"
-- symptoms = ["nan", "loss"]
-- order = 15
-- scope = "rank"
-- needs = "a loss recorded at backward()"
-- what = "loss became {kind} at step {step}{or_earlier}, {outcome}"
-- why = [
--   "its origin was {traced}: see nan-origin",
--   "its origin was not found: {untraced}",
--   "loss before it: {before:.4g} (median of {known} steps)",
--   "{bad} of the {since} losses since then are not finite",
--   "gradient norm before it: {norm:.3g}, at most {norm_max:.3g} in the 20 steps before",
--   "learning rate {lr:.3g}; {lr_before:.3g} 20 steps before",
--   "GradScaler loss scale {loss_scale:.6g}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, micro_step, direction, module, param, cause, evidence FROM python.nonfinite ORDER BY t_ns\"",
--   "probe {endpoint} eval \"print([name for name, p in model.named_parameters() if not p.isfinite().all()])\"",
--   "probe {endpoint} query \"SELECT step, loader, shapes FROM python.batches WHERE step = {step}\"",
--   "probe {endpoint} skip-nonfinite on",
-- ]
-- false_positives = "a single infinite loss that a GradScaler skips; a notice if nan-origin explains it"
-- explains = ["optimizer-state", "amp-overflow"]
-- effect = true
-- [parameters.past]
-- value = 1000
-- unit = "steps"
-- source = "ours: losses that have been finite for longer have recovered"
-- [parameters.window]
-- value = 20
-- unit = "steps"
-- source = "ours"
WITH losses AS (
    SELECT step, micro_step, loss, isnan(loss) AS nan, NOT isfinite(loss) AS bad FROM python.losses WHERE loss IS NOT NULL
    UNION ALL
    SELECT step, 0, loss, isnan(loss), NOT isfinite(loss) FROM python.steps
    WHERE loss IS NOT NULL AND NOT EXISTS (SELECT 1 FROM python.losses)
), last AS (
    SELECT MAX(step) AS step, MIN(step) AS oldest, MAX(step) FILTER (NOT bad) AS good, MAX(step) FILTER (bad) AS bad FROM losses
), first AS (
    SELECT losses.step, nan, last.oldest = losses.step AND good IS NULL AND last.oldest > 0 AS cut FROM losses, last
    WHERE losses.bad AND losses.step > LEAST(COALESCE(good, -1), last.bad) - $past ORDER BY losses.step, micro_step LIMIT 1
), since AS (
    SELECT COUNT(*) AS since, COUNT(*) FILTER (losses.bad) AS bad_since, BOOL_AND(losses.bad) FILTER (losses.step > last.step - 3) AS still
    FROM losses, first, last WHERE losses.step >= first.step
), before AS (
    SELECT MEDIAN(loss) FILTER (isfinite(loss)) AS before, COUNT(*) AS known, ARG_MAX(grad_norm, s.step) AS norm, MAX(grad_norm) AS norm_max, ARG_MIN(lr, s.step) AS lr_before
    FROM python.steps s, first WHERE s.step BETWEEN first.step - $window AND first.step - 1
), rates AS (
    SELECT ANY_VALUE(lr) AS lr, ANY_VALUE(loss_scale) AS loss_scale FROM python.steps s, first WHERE s.step = first.step
), events AS (
    SELECT n.*, ROW_NUMBER() OVER (ORDER BY n.t_ns) AS i FROM python.nonfinite n, first
    WHERE n.step BETWEEN first.step - 50 AND first.step + 5 OR first.cut AND n.step <= first.step
), origin AS (
    SELECT COUNT(*) FILTER (direction <> 'unknown') > 0 AS known, ARG_MAX(replace(evidence, chr(10), '; '), i) AS why, MAX(step) AS step FROM events
)
SELECT NULL AS unknown, CASE WHEN cut AND origin.step IS NOT NULL THEN origin.step ELSE first.step END AS step,
    CASE WHEN cut AND origin.step IS NULL THEN ' or earlier' ELSE '' END AS or_earlier,
    CASE WHEN nan THEN 'NaN' ELSE 'infinite' END AS kind, before, NULLIF(before.known, 0) AS known, bad_since AS bad, since,
    norm, norm_max, lr, CASE WHEN lr_before <> lr THEN lr_before END AS lr_before, loss_scale,
    CASE WHEN still THEN 'and has been since' ELSE 'and was finite again later' END AS outcome,
    CASE WHEN still AND NOT origin.known THEN 'alarm' ELSE 'notice' END AS severity, NOT still AND last.bad < last.step - $past AS over,
    CASE WHEN origin.known THEN 'traced' END AS traced,
    CASE WHEN origin.known THEN NULL WHEN origin.why IS NOT NULL THEN origin.why
        WHEN cut THEN 'it was already non-finite in the earliest recorded step'
        ELSE 'no trace of it is recorded: NaN detection was off, the trace had not finished, or the step had no model call to repeat' END AS untraced
FROM first, last, since, before, rates, origin
UNION ALL BY NAME
SELECT 'no loss was seen' AS unknown FROM losses HAVING COUNT(*) = 0
