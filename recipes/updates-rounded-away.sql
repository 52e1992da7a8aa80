-- title = "updates rounded away"
-- severity = "notice"
-- symptoms = ["loss", "gradients"]
-- order = 212
-- scope = "rank"
-- needs = "sampled weight values before and after the optimizer step, from a few sampled steps"
-- what = "{dtype} weights round most updates away: {lost:.0%} of the weights with a gradient are unchanged by the step (median over parameters)"
-- why = [
--   "an update is lost if it is below half of the weight's rounding step, in {dtype} about {place:.1%} of its value; the remaining updates are {ratio:.2g} of the weights",
--   "in the last {n} sampled steps; torch's own optimizers keep no other copy of the weights",
--   "keep the weights in float32 (autocast computes in {dtype}), or use an optimizer with stochastic rounding or compensated sums",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, param, dtype, lost_ratio, update_rms, weight_rms FROM python.updates ORDER BY step DESC, place LIMIT 24\"",
--   "probe {endpoint} checkpoint before-restart.pt",
--   "probe {endpoint} stop",
-- ]
-- false_positives = "fine-tuning in which only a few percent of the weights are meant to move"
-- explains = ["learning-rate-too-low", "layer-not-learning", "plateau", "slow-decrease"]
-- [parameters.least]
-- value = 3
-- unit = "sampled steps"
-- source = "ours"
-- [parameters.lost]
-- value = 0.5
-- unit = "ratio of the elements with a gradient"
-- source = "ours: most of them"
WITH steps AS (
    SELECT DISTINCT step FROM python.updates ORDER BY step DESC LIMIT 8
), seen AS (
    SELECT u.* FROM python.updates u JOIN steps USING (step)
), params AS (
    SELECT param, dtype, COUNT(*) AS n, MEDIAN(lost_ratio) AS lost, MEDIAN(update_rms / NULLIF(weight_rms, 0)) AS ratio, MIN(step) AS step, MIN(COALESCE(clip_ratio, 1)) AS clip FROM seen
    WHERE lost_ratio IS NOT NULL AND dtype IN ('bfloat16', 'float16') AND at_step = 'present' GROUP BY param, dtype
), counted AS (
    SELECT ANY_VALUE(dtype) AS dtype, COUNT(*) AS params, MAX(n) AS n, MEDIAN(lost) AS lost, MEDIAN(ratio) AS ratio, MIN(step) AS step, MIN(clip) AS clip FROM params WHERE n >= $least
)
SELECT NULL AS unknown, *, CASE dtype WHEN 'bfloat16' THEN 0.004 ELSE 0.0005 END / 2 AS place FROM counted WHERE params >= 2 AND lost >= $lost AND clip > 0.01
UNION ALL BY NAME
SELECT format('updates of {} steps were sampled, {} are needed', COUNT(*), $least) AS unknown FROM steps HAVING COUNT(*) < $least
