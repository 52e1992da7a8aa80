-- title = "clipped while scaled"
-- severity = "alarm"
-- symptoms = ["gradients", "loss"]
-- order = 208
-- scope = "rank"
-- needs = "clipping and a GradScaler in a few sampled steps"
-- what = "gradients are clipped before they are unscaled: the clip sees them {scale:.0f} times too large and cuts each step to {cut:.2g} of its size"
-- why = [
--   "in {n} of the last {looked} sampled steps with clipping, the gradients still had the GradScaler's factor when clip_grad_norm_ was called",
--   "the order is scaler.scale(loss).backward(), scaler.unscale_(optimizer), clip_grad_norm_, scaler.step(optimizer)",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT DISTINCT step, clip_scale, clip_ratio FROM python.updates ORDER BY step DESC LIMIT 10\"",
--   "probe {endpoint} checkpoint before-restart.pt",
--   "probe {endpoint} stop",
-- ]
-- false_positives = "a limit that was multiplied with the loss scale on purpose (not reported if it does not cut)"
-- [parameters.least]
-- value = 3
-- unit = "steps looked at"
-- source = "ours"
WITH steps AS (
    SELECT DISTINCT step FROM python.updates ORDER BY step DESC LIMIT 8
), seen AS (
    SELECT u.* FROM python.updates u JOIN steps USING (step)
), clipped AS (
    SELECT step, MAX(clip_scale) AS scale, MIN(clip_ratio) AS cut FROM seen WHERE optimizer IS NOT NULL AND clip_ratio IS NOT NULL GROUP BY step
), counted AS (
    SELECT COUNT(*) AS looked, COUNT(*) FILTER (scale > 1 AND cut < 1) AS n, MEDIAN(scale) AS scale, MEDIAN(cut) FILTER (scale > 1) AS cut, MIN(step) FILTER (scale > 1) AS step FROM clipped
)
SELECT NULL AS unknown, * FROM counted WHERE n >= $least AND n >= 0.5 * looked
UNION ALL BY NAME
SELECT format('updates were looked at in {} steps, {} are needed', COUNT(*), $least) AS unknown FROM steps HAVING COUNT(*) < $least
