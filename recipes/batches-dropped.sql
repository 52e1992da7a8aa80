-- title = "batches are dropped"
-- severity = "notice"
-- symptoms = ["data", "loss", "nan"]
-- order = 121
-- scope = "rank"
-- needs = "DataLoader batches in steps whose model calls were recorded"
-- what = "{share:.0%} of the batches are dropped silently: the model is called on them, but no backward follows"
-- why = [
--   "{dropped} of {n} batches of {loader}, from step {step} to {last}; most steps have one batch, {odd:.0%} have more",
--   "a batch dropped at step {bad_step} contains {bad_count} NaNs and infinities in {name}; its samples: {indices}",
--   "the last dropped batch that was examined, at step {good_step}, is finite: the NaN arises after data loading, or batches are dropped for another reason",
--   "the model never learns from dropped batches: find out why their losses are not used",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, name, nan_count, inf_count, min, max, indices FROM python.inputs WHERE reason = 'dropped' ORDER BY t_ns DESC LIMIT 10\"",
--   "probe {endpoint} query \"SELECT step, COUNT(*) AS batches FROM python.batches WHERE state = 'done' GROUP BY step HAVING COUNT(*) > 1 ORDER BY step DESC LIMIT 10\"",
-- ]
-- false_positives = "batches skipped on purpose: no objects, too short, rejected samples"
-- [parameters.least]
-- value = 8
-- unit = "dropped batches"
-- source = "ours"
-- [parameters.share]
-- value = 0.05
-- unit = "ratio of the batches"
-- source = "ours: a guard against rare bad batches drops one in a hundred or fewer"
-- [parameters.odd]
-- value = 0.03
-- unit = "ratio of the steps"
-- source = "ours: if every step takes the same number of batches, their losses are summed"
WITH arrived AS (
    SELECT step, t_ns, loader, dropped_before FROM python.batches WHERE state = 'done' AND dropped_before IS NOT NULL AND step IS NOT NULL
    QUALIFY ROW_NUMBER() OVER (PARTITION BY loader ORDER BY t_ns DESC) <= 1000
), feeding AS (
    SELECT loader FROM arrived GROUP BY loader HAVING COUNT(DISTINCT step) > 0.25 * (MAX(step) - MIN(step) + 1)
), steps AS (
    SELECT loader, step, COUNT(*) AS batches, COUNT(*) FILTER (dropped_before) AS dropped FROM arrived JOIN feeding USING (loader) GROUP BY ALL
), judged AS (
    SELECT loader, SUM(batches) AS n, SUM(dropped) AS dropped, SUM(dropped) / SUM(batches) AS share, MODE(dropped) AS usual, AVG(CAST(dropped > 0 AS INTEGER)) AS odd,
        MIN(step) FILTER (dropped > 0) AS step, MAX(step) AS last FROM steps GROUP BY loader
), looked AS (
    SELECT MAX(step) FILTER (nan_count + inf_count > 0) AS bad_step, ARG_MAX(name, t_ns) FILTER (nan_count + inf_count > 0) AS name, ARG_MAX(nan_count + inf_count, t_ns) FILTER (nan_count + inf_count > 0) AS bad_count,
        ARG_MAX(indices, t_ns) FILTER (nan_count + inf_count > 0) AS indices, MAX(step) AS looked_step FROM python.inputs WHERE reason = 'dropped'
)
SELECT NULL AS unknown, judged.loader AS subject, judged.*, bad_step, name, bad_count, indices, CASE WHEN bad_step IS NULL THEN looked_step END AS good_step
FROM judged, looked WHERE dropped >= $least AND share >= $share AND usual = 0 AND odd >= $odd
UNION ALL BY NAME
SELECT 'no DataLoader whose batches are recorded' AS unknown FROM arrived HAVING COUNT(*) < 16
