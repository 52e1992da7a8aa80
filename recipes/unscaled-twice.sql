-- title = "gradients are unscaled twice"
-- severity = "alarm"
-- symptoms = ["gradients", "loss"]
-- order = 213
-- scope = "rank"
-- needs = "the factor of a GradScaler, and gradients after backward and at the optimizer step, from a few sampled steps"
-- what = "the gradients are divided by the loss scale twice: at the optimizer step they are {smaller:.5g} times too small, and the scale is {scale:.5g}"
-- why = [
--   "from the loss without its factor: {made:.3g}; at the step: {taken:.3g} (root mean squares, median over {params} parameters of {n} sampled steps)",
--   "at clipping the factor was already removed, although scaler.unscale_ had not been called: the program divides by scaler.get_scale() itself, and scaler.step() divides once more",
--   "call scaler.unscale_(optimizer) instead: scaler.step() then does not unscale again",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, param, gradient_rms, step_rms, clip_ratio, clip_scale, loss_scale FROM python.updates ORDER BY step DESC, place LIMIT 12\"",
--   "probe {endpoint} checkpoint before-restart.pt",
--   "probe {endpoint} stop",
-- ]
-- false_positives = "a program that divides its gradients by its own number that happens to equal the scaler's factor"
-- explains = ["clipping", "learning-rate-too-low", "layer-not-learning", "gradients-vanishing", "weight-decay", "updates-rounded-away", "output-constant", "plateau", "slow-decrease"]
-- [parameters.least]
-- value = 3
-- unit = "sampled steps"
-- source = "ours"
-- [parameters.scale]
-- value = 64.0
-- unit = "factor"
-- source = "ours: smaller factors could be a number of ranks or of micro-steps; a scaler begins at 65,536 and settles above a thousand"
-- [parameters.same]
-- value = 1.5
-- unit = "times"
-- source = "ours: a division is exact up to rounding, averaging over ranks changes the size slightly"
WITH looked AS (
    SELECT step, gradient_rms AS made, step_rms AS taken, loss_scale, clip_scale, direction, step_rms / gradient_rms / COALESCE(clip_ratio, 1) * loss_scale AS apart FROM python.updates
    WHERE optimizer IS NOT NULL AND after_backward = 'present' AND at_step = 'present' AND gradient_rms > 0 AND step_rms > 0 AND loss_scale IS NOT NULL
), by_step AS (
    SELECT step, MEDIAN(loss_scale) AS scale, MEDIAN(apart) AS apart, MEDIAN(made) AS made, MEDIAN(taken) AS taken, COUNT(*) AS params, MEDIAN(clip_scale) AS clip_scale, COALESCE(MEDIAN(direction), 0) AS direction FROM looked GROUP BY step ORDER BY step DESC LIMIT 8
), counted AS (
    SELECT COUNT(*) AS n, MIN(step) AS step, MEDIAN(scale) AS scale, MAX(scale) AS most, MEDIAN(made) AS made, MEDIAN(taken) AS taken, MAX(params) AS params, MEDIAN(scale / apart) AS smaller, MEDIAN(clip_scale) AS clip_scale,
        COUNT(*) FILTER (scale >= $scale AND direction > 0.9 AND apart BETWEEN 1 / $same AND $same) AS twice FROM by_step
)
SELECT NULL AS unknown, step, scale, made, taken, params, n, smaller, CASE WHEN clip_scale < 2 THEN clip_scale END AS clip_scale FROM counted WHERE n >= $least AND twice >= 0.9 * n
UNION ALL BY NAME
SELECT 'no loss scale was seen' AS unknown FROM counted WHERE COALESCE(most <= 1, true)
