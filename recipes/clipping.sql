-- title = "clipping removes most of the gradient"
-- severity = "notice"
-- symptoms = ["loss", "gradients"]
-- order = 225
-- scope = "rank"
-- needs = "the gradient norm and max_norm of the job's own clip_grad_norm_ calls in a few steps"
-- what = "{fact}"
-- why = [
--   "{evidence}",
--   "in {cut} of the last {n} steps that clipped, from step {step} on",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, grad_norm, clip_norm, clip_scaled, loss_scale FROM python.steps WHERE clip_norm IS NOT NULL ORDER BY step DESC LIMIT 20\"",
-- ]
-- false_positives = "gradients normalized on purpose; an optimizer that divides by the gradient magnitude, such as Adam, for which a small limit matters little (`info`)"
-- explains = ["learning-rate-too-low", "slow-decrease", "plateau", "output-constant"]
-- [parameters.least]
-- value = 20
-- unit = "steps"
-- source = "ours"
-- [parameters.cut]
-- value = 0.1
-- unit = "ratio left after clipping"
-- source = "ours: scaled gradients are clipped as intended if max_norm is multiplied by the loss scale too"
-- [parameters.left]
-- value = 0.005
-- unit = "ratio of the gradient's norm"
-- source = "practice: the limit is near the usual norm, so that only a few steps are clipped; reinforcement learning clips norms of 10 to 50 to 0.5"
WITH clipped AS (
    SELECT step, grad_norm, clip_norm, clip_scaled, loss_scale, clip_norm / NULLIF(grad_norm, 0) AS left_ FROM python.steps
    WHERE clip_norm IS NOT NULL AND clip_norm > 0 ORDER BY step DESC LIMIT 200
), counted AS (
    SELECT COUNT(*) AS n, MIN(step) AS step, MEDIAN(clip_norm) AS clip_norm, COUNT(*) FILTER (clip_scaled) AS scaled, COUNT(clip_scaled) AS told, MEDIAN(loss_scale) AS loss_scale, MEDIAN(left_ / loss_scale) AS left_scaled,
        COUNT(*) FILTER (left_ < 1) AS cut, MEDIAN(left_) AS left_, MEDIAN(grad_norm) AS norm, COUNT(left_) AS known FROM clipped WHERE grad_norm IS NULL OR isfinite(grad_norm)
), cuts AS (
    SELECT MEDIAN(clip_ratio) AS ratio FROM (SELECT clip_ratio FROM python.updates WHERE clip_scale > 1 AND clip_ratio IS NOT NULL ORDER BY step DESC LIMIT 100)
), optimizer AS (
    SELECT ARG_MAX(optimizer, t_ns) AS optimizer FROM python.optimizers
)
SELECT NULL AS unknown, 'scaled' AS subject, 'notice' AS severity, n, scaled AS cut, step,
    'gradients are clipped before they are unscaled: the limit is applied to scaled gradients, and cuts each step to next to nothing' AS fact,
    format('clip_grad_norm_(…, {:.3g}) runs while the gradients still contain the loss scale{}: divide them by it first (with a GradScaler: scaler.unscale_(optimizer))', clip_norm, COALESCE(format(' {:.0f}', loss_scale), '')) AS evidence
FROM counted, cuts WHERE told >= $least AND scaled > 0.9 * told AND COALESCE(ratio, left_scaled) < $cut
UNION ALL BY NAME
SELECT NULL AS unknown, 'limit' AS subject, CASE WHEN optimizer = 'SGD' THEN 'notice' ELSE 'info' END AS severity, n, cut, step,
    format('clipping cuts nearly every step to a tiny part: {:.2g} of the gradient is left', left_) AS fact,
    format('max_norm is {:.3g}, and the gradients'' norm is {:.3g} (median)', clip_norm, norm) AS evidence
FROM counted, optimizer WHERE known >= $least AND cut > 0.9 * known AND left_ < $left AND NOT scaled > 0.9 * told
UNION ALL BY NAME
SELECT 'the job does not call clip_grad_norm_, or has called it in too few steps' AS unknown FROM counted WHERE n < $least
UNION ALL BY NAME
SELECT 'whether the clipped gradients still contain the loss scale has not been measured yet' AS unknown FROM counted WHERE n >= $least AND told < $least
