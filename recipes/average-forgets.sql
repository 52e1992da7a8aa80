-- title = "target or average network forgets at once"
-- severity = "notice"
-- symptoms = ["loss"]
-- order = 217
-- scope = "rank"
-- needs = "weights of the models beside the trained one, over some hundred steps"
-- what = "{model}, a second network (target or average) in no optimizer, forgets at once: after each write it is the trained {trained} but for {rest:.2g} of one step's change, so it lags behind by no step at all"
-- why = [
--   "on all of the last {n} looks, from step {step} to {last}, it was {lag:.2g} of one step's change away from the trained weights; it was written to {writes:,} times meanwhile",
--   "an average of the last 10 steps would be about 9 steps' changes away, one of 1000 (decay 0.999) hundreds: the decay, or tau, is taken for the share of the new weights (about {share:.3g} of the old ones are left)",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, model, number, optimizer, writes, lag FROM python.weights ORDER BY step DESC, number LIMIT 12\"",
--   "probe {endpoint} checkpoint before-restart.pt",
-- ]
-- false_positives = "a copy that is made equal in each step on purpose, bit by bit, to act or to be evaluated, is not reported (its lag is exactly 0); an average whose decay is still warming up (`least` looks, over some hundred steps)"
-- explains = ["train-validation-gap", "divergence", "oscillation"]
-- [parameters.least]
-- value = 3
-- unit = "looks"
-- source = "ours"
-- [parameters.after]
-- value = 200
-- unit = "steps"
-- source = "practice: averages that warm up, min(decay, (1 + n) / (10 + n)), lag by several steps from then on"
-- [parameters.lag]
-- value = 0.1
-- unit = "steps"
-- source = "practice: averages are of 20 steps (a tau of 0.05, reinforcement learning) to 10,000"
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
SELECT 'no model beside the trained one was looked at often enough' AS unknown FROM judged HAVING COALESCE(MAX(n) < $least, true)
