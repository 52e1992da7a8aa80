-- title = "input-bound"
-- severity = "notice"
-- symptoms = ["slow", "data"]
-- order = 110
-- scope = "rank"
-- needs = "batches from a DataLoader"
-- what = "{share:.0%} of the step time is spent waiting for data: {data_ms:.1f} of {wall_ms:.1f} ms"
-- why = [
--   "median of the last {n} steps: waiting {data_ms:.1f} ms, step {wall_ms:.1f} ms",
--   "it started around step {since}; before that, {share_before:.0%} of the time was waiting",
--   "slowest loader: {loader}, {fetch_ms:.1f} ms a batch",
--   "the training thread waited for a CPU {waited:.0%} of this time",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT loader, COUNT(*), MEDIAN(fetch_s), MAX(fetch_s) FROM python.batches GROUP BY ALL\"",
--   "probe {endpoint} backtrace --workers",
--   "probe {endpoint} eval \"print(train_loader.num_workers, train_loader.prefetch_factor, train_loader.pin_memory)\"",
-- ]
-- false_positives = "a model so small that any DataLoader is slower"
-- explains = ["slow-step", "throughput-drop", "low-mfu"]
-- [parameters.share]
-- value = 0.3
-- unit = "ratio of the step"
-- source = "ours: no document gives a number; in practice, a device that is busy less than half of the time counts as starved"
-- [parameters.least]
-- value = 0.002
-- unit = "s"
-- source = "ours: `info` for steps so short that collating a batch dominates; less the share of the time that the thread waited for a CPU"
-- [parameters.recent]
-- value = 100
-- unit = "steps"
-- source = "practice: throughput is judged over 100 steps"
WITH seen AS (
    SELECT step, data_s, wall_s - COALESCE(held_s, 0) - COALESCE(eval_s, 0) - COALESCE(checkpoint_s, 0) AS wall_s FROM python.steps
    WHERE data_s IS NOT NULL
), recent AS (
    SELECT * FROM seen ORDER BY step DESC LIMIT $recent
), now AS (
    SELECT COUNT(*) AS n, MEDIAN(data_s) AS data_s, MEDIAN(wall_s) AS wall_s,
        LEAST(MEDIAN(data_s / NULLIF(wall_s, 0)), MEDIAN(data_s) / NULLIF(MEDIAN(wall_s), 0)) AS share FROM recent
), starved AS (
    SELECT (MAX(cpu_wait_ns) - MIN(cpu_wait_ns)) / NULLIF(MAX(t_ns) - MIN(t_ns), 0) AS waited
    FROM process.memory WHERE step >= (SELECT MIN(step) FROM recent)
), blocks AS (
    SELECT step // 25 AS block, MIN(step) AS step, MEDIAN(data_s / NULLIF(wall_s, 0)) AS share FROM seen GROUP BY block
), since AS (
    SELECT MAX(step) AS last_good, AVG(share) AS share_before FROM blocks WHERE share < $share / 2
), loaders AS (
    SELECT loader, MEDIAN(fetch_s) AS fetch_s FROM python.batches
    WHERE step IN (SELECT step FROM recent) GROUP BY loader
    ORDER BY loader IN (SELECT i.loader FROM python.intervals i WHERE i.loader IS NOT NULL), fetch_s DESC LIMIT 1
)
SELECT NULL AS unknown, COALESCE(last_good + 25, (SELECT MIN(step) FROM seen)) AS step, share, n,
    1e3 * now.data_s AS data_ms, 1e3 * now.wall_s AS wall_ms, last_good + 25 AS since, share_before, loader, 1e3 * fetch_s AS fetch_ms, waited,
    CASE WHEN now.data_s * (1 - COALESCE(waited, 0)) < $least THEN 'info' ELSE 'notice' END AS severity
FROM now, starved, since LEFT JOIN loaders ON true
WHERE n >= 30 AND share >= $share
UNION ALL BY NAME
SELECT 'fewer than 30 steps waited for a DataLoader' AS unknown FROM now WHERE n < 30
