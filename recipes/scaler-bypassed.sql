-- title = "gradients are never unscaled"
-- severity = "notice"
-- symptoms = ["gradients", "loss", "nan"]
-- order = 212
-- scope = "rank"
-- needs = "a GradScaler, or a job that multiplies its loss by a loss scale itself, and gradients from a few sampled or clipped steps"
-- what = "{fact}"
-- why = [
--   "{grown}",
--   "{clipped}",
--   "{remedy}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, param, gradient_rms, step_rms, clip_scale FROM python.updates ORDER BY step DESC, place LIMIT 12\"",
--   "probe {endpoint} query \"SELECT step, clip_scaled, loss_scale, skipped FROM python.steps ORDER BY step DESC LIMIT 12\"",
--   "probe {endpoint} checkpoint before-restart.pt",
--   "probe {endpoint} stop",
-- ]
-- false_positives = "a program that unscales the gradients itself, but only in steps that were not sampled; a power of two, 256 or more, that is meant as a weight of the loss"
-- explains = ["clipping", "gradients-exploding", "gradient-exploding-layer", "learning-rate-too-high", "loss-spike", "divergence", "oscillation"]
-- [parameters.least]
-- value = 20
-- unit = "steps"
-- source = "ours"
-- [parameters.grown]
-- value = 100.0
-- unit = "times"
-- source = "ours: factors start at 65,536 and settle above a thousand"
-- [parameters.same]
-- value = 1.5
-- unit = "times"
-- source = "ours, as in unscaled-twice: a division is exact up to rounding"
WITH known AS (
    SELECT ARG_MAX(value, t_ns) AS stepped FROM probe.facts WHERE name = 'amp.scaler_stepped' HAVING COUNT(*) > 0
), sampled AS (
    SELECT COUNT(DISTINCT step) AS looks, MEDIAN(step_rms / gradient_rms) AS grown, MIN(step) AS step FROM python.updates
    WHERE optimizer IS NOT NULL AND gradient_rms > 0 AND step_rms IS NOT NULL AND clip_ratio IS NULL
), clips AS (
    SELECT COUNT(*) AS n, COUNT(*) FILTER (clip_scaled) AS scaled, MIN(step) AS first FROM python.steps WHERE clip_scaled IS NOT NULL
), by_hand AS (
    SELECT MEDIAN(loss_scale) FILTER (loss_scale > 1) AS own FROM (SELECT loss_scale FROM python.updates WHERE loss_scale IS NOT NULL ORDER BY step DESC LIMIT 100)
), used AS (
    SELECT COUNT(*) AS steps, MIN(step) AS began FROM python.steps
)
SELECT NULL AS unknown, COALESCE(step, first, began) AS step,
    'the optimizer''s step bypasses the GradScaler: the loss is scaled, but scaler.step() is never called, and each update uses gradients that still contain its factor' AS fact,
    'call scaler.step(optimizer) and scaler.update() instead of optimizer.step(), and scaler.unscale_(optimizer) before clipping' AS remedy,
    CASE WHEN grown > $grown THEN format('gradients at the optimizer step are {:.0f} times larger than those of the unscaled loss', grown) END AS grown,
    CASE WHEN scaled > 0.9 * n AND n > 0 THEN format('{} of {} clip calls got gradients that still contained the factor', scaled, n) END AS clipped
FROM known, sampled, clips, used WHERE stepped = 'False' AND steps >= $least AND (COALESCE(grown > $grown AND looks >= 3, false) OR scaled > 0.9 * n AND n >= $least)
UNION ALL BY NAME
SELECT NULL AS unknown, step, 'the job multiplies its loss by a loss scale, and no gradient is divided by it: each update uses gradients that still contain it' AS fact,
    'divide the gradients by the scale after backward, before they are clipped and used' AS remedy,
    format('gradients at the optimizer step are {:.0f} times larger than those of the unscaled loss; the scale is {:.0f}', grown, own) AS grown, NULL AS clipped
FROM sampled, by_hand WHERE looks >= 3 AND own >= $grown AND grown BETWEEN own / $same AND own * $same AND NOT EXISTS (SELECT 1 FROM known)
UNION ALL BY NAME
SELECT 'no loss scale was seen' AS unknown FROM by_hand WHERE own IS NULL AND NOT EXISTS (SELECT 1 FROM known)
