-- title = "learning rate too low"
-- severity = "notice"
-- symptoms = ["gradients", "loss"]
-- order = 320
-- scope = "rank"
-- needs = "update ratios (relative weight change per step) of several steps"
-- deepen = "gradients"
-- what = "each step changes the weights by {ratio:.1e} of their size (median over parameters){verdict}"
-- why = [
--   "update ratio {ratio:.2g} in the last {n} sampled steps, {kind}; usual in {phase} training: {usual}",
--   "the learning rate is at its highest so far, {highest_lr:.3g}: neither warm-up nor the end of a schedule",
--   "loss: {loss_first:.4g} at first, {loss_now:.4g} now",
-- ]
-- next = [
--   "probe {endpoint} lr",
--   "probe {endpoint} lr --scale {scale:.0f}",
--   "probe {endpoint} query \"SELECT param, update_ratio, weight_norm, norm FROM python.gradients WHERE step = (SELECT MAX(step) FROM python.gradients) ORDER BY update_ratio LIMIT 10\"",
-- ]
-- false_positives = "gentle fine-tuning; updates of exactly 0, clipped gradients, and non-adaptive optimizers, whose updates may be small because of the gradient (left out or `info`); a converged model (not reported once the loss has halved)"
-- explains = ["plateau", "slow-decrease"]
-- uses = ["trainings"]
-- [parameters.early]
-- value = 1e-5
-- unit = "update ratio"
-- source = "practice: 1e-3 to 1e-2 in the first 1,000 steps, below 1e-7 alarm (LLM training guides), below 1e-6 or 1e-5 caution (others); ours: a hundredth of the bottom of the range"
-- [parameters.later]
-- value = 1e-6
-- unit = "update ratio"
-- source = "practice: 1e-5 to 1e-4 after 10,000 steps; ours: a tenth of that"
-- [parameters.decayed]
-- value = 0.5
-- unit = "ratio of the highest rate"
-- source = "ours: smaller changes are an ordinary schedule"
-- [parameters.kept]
-- value = 0.5
-- unit = "ratio of the first loss"
-- source = "ours"
-- [parameters.least]
-- value = 3
-- unit = "sampled steps"
-- source = "ours"
WITH steps AS (
    SELECT DISTINCT step FROM python.gradients WHERE update_ratio IS NOT NULL AND step >= (SELECT MAX(begun) FROM trainings) + 10 ORDER BY step DESC LIMIT 5
), now AS (
    SELECT MEDIAN(update_ratio) AS ratio, COUNT(DISTINCT step) AS n, MIN(step) AS step, MAX(step) - (SELECT MAX(begun) FROM trainings) AS last, ANY_VALUE(update_kind) AS kind
    FROM python.gradients JOIN steps USING (step) WHERE isfinite(update_ratio) AND numel >= 16
), rates AS (
    SELECT MAX(lr) AS highest_lr, ARG_MAX(lr, step) AS lr, MIN(lr) FILTER (lr > 0) AS lowest_lr, COUNT(*) AS steps FROM python.steps WHERE lr IS NOT NULL AND step >= (SELECT MAX(begun) FROM trainings)
), losses AS (
    SELECT MEDIAN(loss) FILTER (i <= 20) AS loss_first, MEDIAN(loss) FILTER (i > k - 20) AS loss_now
    FROM (SELECT loss, ROW_NUMBER() OVER (ORDER BY step) AS i, COUNT(*) OVER () AS k FROM python.steps WHERE isfinite(loss) AND step >= (SELECT MAX(begun) FROM trainings))
), warming AS (
    SELECT COALESCE(MAX(lr) > 1.001 * MIN(lr), false) AS up FROM (SELECT lr, step FROM python.steps WHERE lr IS NOT NULL ORDER BY step DESC LIMIT 50)
), otherwise AS (
    -- An update that is cut, taken back, or lost in a short type is small whatever the rate; float32 loses only what is far too small.
    SELECT COALESCE(MEDIAN((at_step IN ('none', 'zero') AND after_backward = 'present' OR after_backward = 'none' OR clip_ratio <= 0.1 OR lost_ratio >= 0.5 AND dtype NOT IN ('float32', 'float64') OR undone_ratio >= 0.5)::INT) > 0, false) AS small
    FROM (SELECT * FROM python.updates WHERE optimizer IS NOT NULL ORDER BY step DESC LIMIT 100)
), optimizer AS (
    SELECT COALESCE(ARG_MAX(optimizer, t_ns) NOT IN ('SGD', 'ASGD', 'Rprop', 'LBFGS'), false) AS adaptive FROM python.optimizers
), clips AS (
    SELECT COALESCE(MEDIAN(clip_norm / NULLIF(grad_norm, 0)) < 0.1 OR BOOL_OR(clip_scaled), false) AS cuts FROM (SELECT * FROM python.steps WHERE clip_norm IS NOT NULL ORDER BY step DESC LIMIT 100)
)
SELECT NULL AS unknown, step, ratio, n, kind, highest_lr, lr, loss_first, loss_now,
    CASE WHEN last < 1000 THEN 'early' WHEN last < 10000 THEN 'middle' ELSE 'late' END AS phase,
    CASE WHEN last < 1000 THEN '1e-3 to 1e-2' WHEN last < 10000 THEN '1e-4 to 1e-3' ELSE '1e-5 to 1e-4' END AS usual,
    CASE WHEN adaptive THEN format(': learning rate {:.3g} is too low for {} training', lr, CASE WHEN last < 1000 THEN 'early' WHEN last < 10000 THEN 'middle' ELSE 'late' END)
        ELSE format('; whether the learning rate {:.3g} or the gradient is too small was not shown', lr) END AS verdict,
    CASE WHEN adaptive THEN 5 END AS scale, CASE WHEN adaptive THEN 'notice' ELSE 'info' END AS severity
FROM now, rates, losses, warming, otherwise, optimizer, clips
WHERE ratio > 0 AND NOT otherwise.small AND NOT (cuts AND NOT adaptive) AND n >= $least AND steps >= 50 AND lr > 0 AND ratio < CASE WHEN last < 1000 THEN $early WHEN last < 10000 THEN ($early * $later) ** 0.5 ELSE $later END
    AND lr >= $decayed * highest_lr AND NOT warming.up AND COALESCE(loss_now > $kept * loss_first OR loss_first <= 0, true)
UNION ALL BY NAME
SELECT format('update ratios of {} steps, {} are needed', COUNT(*), $least) AS unknown FROM steps HAVING COUNT(*) < $least
