-- title = "weights are reset after the step"
-- severity = "alarm"
-- symptoms = ["loss", "gradients"]
-- order = 207
-- scope = "rank"
-- needs = "sampled weight values before and after the optimizer step, from a few sampled steps"
-- what = "what the optimizer's step wrote is overwritten with earlier weights: {how}"
-- why = [
--   "in the last {n} sampled steps, {undone:.1%} of the step's change was gone at the next backward (median over parameters), and code other than the optimizer had written {outside:.0%} of the elements",
--   "{param} had its values from before step {as_of} again at steps {times}",
--   "updates of {lost} steps are gone",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, param, changed_ratio, undone_ratio, outside_ratio FROM python.updates ORDER BY step DESC, place LIMIT 24\"",
--   "probe {endpoint} query \"SELECT step, param, as_of_step, lost_steps FROM python.put_back ORDER BY step\"",
--   "probe {endpoint} checkpoint before-restart.pt",
--   "probe {endpoint} stop",
-- ]
-- false_positives = "a rollback to the best state on purpose"
-- explains = ["learning-rate-too-low", "layer-not-learning", "plateau", "slow-decrease"]
-- [parameters.least]
-- value = 3
-- unit = "sampled steps"
-- source = "ours"
-- [parameters.share]
-- value = 0.9
-- unit = "ratio of the sampled steps"
-- source = "ours: something that happens in nearly every step is not an accident"
-- [parameters.undone]
-- value = 0.9
-- unit = "ratio of the step's change"
-- source = "ours: Lookahead and averaging over ranks undo at most half, and not after every step"
WITH steps AS (
    SELECT DISTINCT step FROM python.updates ORDER BY step DESC LIMIT 8
), seen AS (
    SELECT u.* FROM python.updates u JOIN steps USING (step)
), by_step AS (
    SELECT step, MEDIAN(undone_ratio) AS undone, MEDIAN(outside_ratio) AS outside FROM seen
    WHERE optimizer IS NOT NULL AND undone_ratio IS NOT NULL AND changed_ratio > 0 GROUP BY step
), each AS (
    SELECT COUNT(*) AS n, MIN(step) AS step, MEDIAN(undone) AS undone, MEDIAN(outside) AS outside, AVG((undone >= $undone)::INT) AS share FROM by_step
), kept AS (
    SELECT COUNT(*) AS found, MIN(step) AS first, ANY_VALUE(param) AS param, ARG_MAX(as_of_step, step) AS as_of, SUM(lost_steps) AS lost,
        array_to_string(list(step ORDER BY step DESC)[:5], ', ') AS times
    FROM python.put_back
)
SELECT NULL AS unknown, 'nearly all of each step is overwritten before the next backward' AS how, n, step, undone, outside FROM each WHERE n >= $least AND share >= $share
UNION ALL BY NAME
SELECT NULL AS unknown, format('earlier weights (from before step {}) were restored {} times', as_of, found) AS how, param, as_of, times, lost, first AS step,
    CASE WHEN found < 2 THEN 'info' ELSE 'notice' END AS severity
FROM kept, each WHERE found > 0 AND NOT COALESCE(n >= $least AND share >= $share, false)
UNION ALL BY NAME
SELECT format('updates of {} steps were sampled, {} are needed', COUNT(*), $least) AS unknown FROM steps HAVING COUNT(*) < $least
