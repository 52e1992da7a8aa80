-- title = "clipping after the optimizer step"
-- severity = "alarm"
-- symptoms = ["gradients", "loss"]
-- order = 224
-- scope = "rank"
-- needs = "gradients after backward and at the optimizer step, from a few sampled steps in which the job's own clip_grad_norm_ reduced them"
-- what = "clip_grad_norm_ runs after the optimizer's step, so the step never sees the clipped gradients: clipping by {ratio:.2g} had no effect on the step ({steps} of {looked} sampled steps)"
-- why = [
--   "in step {seen} clip_grad_norm_ multiplied the gradients by {ratio:.3g}, but the step used the unclipped ones: {entered:.4g} times their size after backward (median over {n} parameters)",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, param, gradient_rms, step_rms, clip_ratio FROM python.updates WHERE clip_ratio < 1 ORDER BY step DESC, place LIMIT 20\"",
--   "probe {endpoint} checkpoint before-restart.pt",
-- ]
-- false_positives = "gradients that the job copies elsewhere and clips there"
-- explains = ["gradients-exploding", "gradient-exploding-layer", "loss-spike", "divergence", "no-warm-up", "learning-rate-too-high", "loss-nan", "clipping"]
-- [parameters.least]
-- value = 2
-- unit = "sampled steps"
-- source = "ours: each step compares about two dozen parameters before and after"
-- [parameters.cut]
-- value = 0.9
-- unit = "ratio left after clipping"
-- source = "ours: below this, the effect of clipping is far larger than rounding"
-- [parameters.same]
-- value = 0.01
-- unit = "ratio"
-- source = "ours: an untouched gradient is bitwise equal; hooks and loss scaling cause rounding"
WITH looked AS (
    SELECT step, clip_ratio, step_rms / gradient_rms AS entered FROM python.updates
    WHERE optimizer IS NOT NULL AND after_backward = 'present' AND at_step = 'present' AND gradient_rms > 0 AND clip_ratio < $cut AND clip_ratio > 0
        AND abs(direction - 1) < 0.001
), by_step AS (
    SELECT step, MEDIAN(clip_ratio) AS ratio, MEDIAN(entered) AS entered, COUNT(*) AS n, abs(MEDIAN(entered) - 1) < $same AS untouched
    FROM looked GROUP BY step ORDER BY step DESC LIMIT 8
), counted AS (
    SELECT COUNT(*) AS looked, COUNT(*) FILTER (untouched) AS steps, MIN(step) AS step, MAX(step) AS seen, ARG_MAX(ratio, step) AS ratio,
        ARG_MAX(entered, step) AS entered, ARG_MAX(n, step) AS n FROM by_step
)
SELECT NULL AS unknown, * FROM counted WHERE looked >= $least AND steps >= 0.9 * looked
UNION ALL BY NAME
SELECT format('clipping reduced the gradients in {} sampled steps, {} are needed', looked, $least) AS unknown FROM counted WHERE looked < $least
