-- title = "AMP overflows"
-- severity = "notice"
-- symptoms = ["nan", "gradients"]
-- order = 420
-- scope = "rank"
-- needs = "a GradScaler"
-- what = "the GradScaler skipped {skipped} of the last {n} steps, since step {step}: their gradients overflowed"
-- why = [
--   "loss scale {scale:.6g} now, {scale_before:.6g} before",
--   "the last {row} steps were all skipped: no weight changes",
--   "one skipped step in 2,000 is normal: the scaler tries a higher loss scale",
-- ]
-- next = [
--   "probe {endpoint} loss-scale",
--   "probe {endpoint} query \"SELECT param, inf_count, nan_count, abs_max FROM python.gradients WHERE inf_count + nan_count > 0 ORDER BY step, place LIMIT 10\"",
--   "probe {endpoint} checkpoint overflow.pt",
-- ]
-- false_positives = "the first steps, while the loss scale settles (the first 50 are excluded)"
-- explains = ["layer-not-learning", "learning-rate-too-low", "plateau", "slow-decrease"]
-- [parameters.share]
-- value = 0.1
-- unit = "ratio of the steps"
-- source = "torch: a growth interval of 2,000 causes about one skip in 2,000 steps; ours: 200 times that"
-- [parameters.window]
-- value = 100
-- unit = "steps"
-- source = "ours"
-- [parameters.first]
-- value = 50
-- unit = "steps"
-- source = "torch: the scale starts at 65,536 and is halved at each overflow: about 20 skips at most"
WITH seen AS (
    SELECT step, skipped, loss_scale FROM python.steps WHERE skipped IS NOT NULL AND loss_scale IS NOT NULL OR skipped
), recent AS (
    SELECT * FROM seen WHERE step >= $first ORDER BY step DESC LIMIT $window
), counted AS (
    SELECT COUNT(*) AS n, COUNT(*) FILTER (skipped) AS skipped, MIN(step) FILTER (skipped) AS step, ARG_MAX(loss_scale, step) AS scale,
        MAX(step) - COALESCE(MAX(step) FILTER (NOT skipped), MIN(step) - 1) AS row FROM recent
), starts AS (
    SELECT MAX(step) AS began FROM (SELECT step, step - LAG(step) OVER (ORDER BY step) AS gap FROM seen WHERE skipped AND step >= $first)
    WHERE gap IS NULL OR gap > $window
), before AS (
    SELECT MAX(loss_scale) AS scale_before FROM seen
)
SELECT NULL AS unknown, COALESCE(began, step) AS step, n, skipped, scale, CASE WHEN scale_before > scale THEN scale_before END AS scale_before,
    CASE WHEN row >= 3 THEN row END AS row, CASE WHEN row >= 10 OR scale < 1 OR skipped >= 0.5 * n THEN 'alarm' ELSE 'notice' END AS severity
FROM counted, before, starts WHERE n >= 20 AND skipped >= 5 AND skipped >= $share * n
UNION ALL BY NAME
SELECT 'no GradScaler was seen' AS unknown FROM seen HAVING COUNT(*) = 0
