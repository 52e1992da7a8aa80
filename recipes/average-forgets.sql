-- title = "target or average network forgets immediately"
-- severity = "notice"
-- symptoms = ["loss"]
-- order = 217
-- scope = "rank"
-- needs = "weights of models other than the trained one, over a few hundred steps"
-- what = "{model}, a second network (target or average) in no optimizer, forgets immediately: after each write it equals the trained {trained} to within {rest:.2g} of one step's change, so it does not lag behind at all"
-- why = [
--   "in all of the last {n} samples, from step {step} to {last}, it was {lag:.2g} of one step's change away from the trained weights; it was written to {writes:,} times in that period",
--   "an average over the last 10 steps would be about 9 steps' changes away, one over 1000 (decay 0.999) hundreds: decay (or tau) is used as the share of the new weights (about {share:.3g} of the old ones is left)",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, model, number, optimizer, writes, lag FROM python.weights ORDER BY step DESC, number LIMIT 12\"",
--   "probe {endpoint} checkpoint before-restart.pt",
-- ]
-- false_positives = "an average whose decay is still warming up (hence `least` samples over a few hundred steps); an intentional exact copy made in each step, for acting or evaluation, is not reported (its lag is exactly 0)"
-- explains = ["train-validation-gap", "divergence", "oscillation"]
-- [parameters.least]
-- value = 3
-- unit = "samples"
-- source = "ours"
-- [parameters.after]
-- value = 200
-- unit = "steps"
-- source = "practice: by then, averages that warm up as min(decay, (1 + n) / (10 + n)) lag by several steps"
-- [parameters.lag]
-- value = 0.1
-- unit = "steps"
-- source = "practice: averages span 20 steps (a tau of 0.05, reinforcement learning) to 10,000"
WITH looks AS (
    SELECT * FROM python.weights WHERE optimizer IS NULL AND lag IS NOT NULL AND step >= $after QUALIFY ROW_NUMBER() OVER (PARTITION BY number ORDER BY step DESC) <= 8
), judged AS (
    SELECT number, ANY_VALUE(model) AS model, COUNT(*) AS n, MIN(step) AS step, MAX(step) AS last, MEDIAN(lag) AS lag, MIN(lag) AS least_lag, MAX(lag) AS most_lag, MAX(writes) - MIN(writes) AS writes FROM looks GROUP BY number
), trained AS (
    SELECT ANY_VALUE(model) AS trained FROM python.weights WHERE optimizer IS NOT NULL
)
SELECT NULL AS unknown, model AS subject, judged.*, lag AS rest, lag / (1 + lag) AS share, trained FROM judged, trained
WHERE n >= $least AND least_lag > 0 AND most_lag < $lag AND writes >= 0.5 * (last - step)
UNION ALL BY NAME
SELECT 'no model other than the trained one was sampled often enough' AS unknown FROM judged HAVING COALESCE(MAX(n) < $least, true)
