-- title = "job slower than before"
-- severity = "notice"
-- symptoms = ["slow"]
-- order = 30
-- needs = "three runs of a job with the newest image, commit or driver, and three with the one before"
-- what = "{job} is {drop:.0%} slower since {dimension} {now_value}: {now_rate:.4g} {unit}/s, before {before_rate:.4g}"
-- why = [
--   "medians of {now_runs} runs with {dimension} {now_value} and {before_runs} with {before_value}, on {world_size} ranks of {device}",
--   "their intervals (median +- 1.57 IQR / sqrt(runs)) do not overlap: {now_low:.4g} to {now_high:.4g}, before {before_low:.4g} to {before_high:.4g}",
-- ]
-- next = ["probe fleet URL compare {before_run} {now_run}"]
-- false_positives = "the new runs do more per sample on purpose, such as a larger model under the same job's name"
-- [parameters.least]
-- value = 0.05
-- unit = "ratio"
-- source = "practice: step times vary that much between runs of the same code"
-- [parameters.runs]
-- value = 3
-- unit = "runs"
-- source = "ours: the spread of fewer is not known"
WITH speeds AS (
    SELECT run, attempt, COUNT(samples) > 0 AS counted,
        CASE WHEN COUNT(samples) > 0 THEN AVG(samples) ELSE 1 END
            / NULLIF(MEDIAN(wall_s - COALESCE(held_s, 0) - COALESCE(eval_s, 0) - COALESCE(checkpoint_s, 0)), 0) AS rate
    FROM python.steps WHERE rank = 0 AND step >= 3 AND NOT COALESCE(sampled, false) GROUP BY run, attempt
), runs AS (
    SELECT job, run, attempt, MIN(started_ns) AS started_ns, ANY_VALUE(world_size) AS world_size,
        ANY_VALUE(device) AS device, ANY_VALUE(image) AS image, ANY_VALUE("commit") AS "commit", ANY_VALUE(driver) AS driver
    FROM archive.processes GROUP BY job, run, attempt
), long AS (
    UNPIVOT (SELECT r.*, s.rate, s.counted FROM runs r JOIN speeds s USING (run, attempt) WHERE s.rate IS NOT NULL)
    ON image, "commit", driver INTO NAME dimension VALUE value
), grouped AS (
    SELECT job, world_size, device, dimension, value, MIN(started_ns) AS since_ns, COUNT(*) AS runs,
        MEDIAN(rate) AS rate, 1.57 * (quantile_cont(rate, 0.75) - quantile_cont(rate, 0.25)) / sqrt(COUNT(*)) AS notch,
        arg_max(run, started_ns) AS last_run, bool_and(counted) AS counted
    FROM long GROUP BY job, world_size, device, dimension, value
), numbered AS (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY job, world_size, device, dimension ORDER BY since_ns DESC) AS place FROM grouped
)
SELECT n.job, concat(n.job, ' ', n.dimension) AS subject, n.dimension, n.value AS now_value, b.value AS before_value,
    1 - n.rate / b.rate AS drop, n.rate AS now_rate, b.rate AS before_rate, n.runs AS now_runs, b.runs AS before_runs,
    n.rate - n.notch AS now_low, n.rate + n.notch AS now_high, b.rate - b.notch AS before_low, b.rate + b.notch AS before_high,
    COALESCE(n.world_size, 1) AS world_size, COALESCE(n.device, 'unknown devices') AS device,
    CASE WHEN n.counted AND b.counted THEN 'samples' ELSE 'steps' END AS unit, n.last_run AS now_run, b.last_run AS before_run
FROM numbered n JOIN numbered b ON n.place = 1 AND b.place = 2 AND n.job = b.job AND n.dimension = b.dimension
    AND n.world_size IS NOT DISTINCT FROM b.world_size AND n.device IS NOT DISTINCT FROM b.device AND n.counted = b.counted
WHERE n.runs >= $runs AND b.runs >= $runs AND n.rate <= b.rate * (1 - $least) AND n.rate + n.notch < b.rate - b.notch
UNION ALL BY NAME
SELECT 'no job has so many runs of two images, commits or drivers' AS unknown WHERE NOT EXISTS (
    SELECT 1 FROM numbered n JOIN numbered b ON n.place = 1 AND b.place = 2 AND n.job = b.job AND n.dimension = b.dimension
        AND n.world_size IS NOT DISTINCT FROM b.world_size AND n.runs >= $runs AND b.runs >= $runs)
ORDER BY drop DESC
