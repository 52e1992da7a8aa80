-- title = "evaluation in train mode"
-- severity = "notice"
-- symptoms = ["loss"]
-- order = 65
-- scope = "rank"
-- needs = "evaluations with recorded module calls, and the modules of the model"
-- what = "the model is evaluated in train mode: model.eval() was not called before {trained} of {n} evaluations ({active})"
-- why = [
--   "recognised as an evaluation by: {by}; the first one before step {step}{each}",
--   "dropout is active, and batch norms use batch statistics and update their running ones: loss and accuracy are not those of the model in eval mode",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, kind, recognised_by, batches, loader FROM python.intervals ORDER BY t_ns DESC LIMIT 10\"",
--   "probe {endpoint} query \"SELECT module, class, training, p FROM python.modules WHERE p > 0 OR class LIKE '%BatchNorm%'\"",
-- ]
-- false_positives = "dropout kept active on purpose to estimate uncertainty (`info` if the model is called repeatedly on the same input); batch statistics recomputed on purpose (update_bn); rollouts of reinforcement learning (`info` without a DataLoader and without classes)"
-- explains = ["validation-rising", "train-validation-gap"]
-- [parameters.least]
-- value = 2
-- unit = "evaluations"
-- source = "ours: a single pass may recompute batch statistics"
WITH judged AS (
    SELECT *, recognised_by LIKE '%in train mode%' AS trained, recognised_by LIKE '%same input' AS again FROM python.intervals
    WHERE kind IN ('evaluation', 'inference') AND recognised_by LIKE '%no gradients%' AND state <> 'failed'
), counted AS (
    SELECT COUNT(*) AS n, COUNT(*) FILTER (trained) AS trained, COALESCE(AVG(again::INT) FILTER (trained), 0) >= 0.5 AS again, MIN(step) FILTER (trained) AS step, MEDIAN(batches) FILTER (trained) AS batches,
        ARG_MAX(loader, t_ns) AS loader, ARG_MAX(recognised_by, t_ns) FILTER (trained) AS "by" FROM judged
), modules AS (
    SELECT DISTINCT ON (module) module, class, p FROM python.modules ORDER BY module, t_ns DESC
), behave AS (
    SELECT COUNT(*) FILTER (class LIKE '%Dropout%' AND p > 0) AS dropouts, COUNT(*) FILTER (class LIKE '%BatchNorm%') AS norms, COUNT(*) AS known FROM modules
), policy AS (
    SELECT COUNT(*) > 0 AND COUNT(*) FILTER (function = 'cross_entropy') = 0 AND NOT EXISTS (SELECT 1 FROM python.batches WHERE state = 'done') AS yes FROM python.loss_functions
)
SELECT NULL AS unknown, n, trained, step, COALESCE(format(', {:.0f} batches each of {}', batches, loader), '') AS each, "by", CASE WHEN yes OR again THEN 'info' ELSE 'notice' END AS severity,
    concat_ws(' and ', CASE WHEN dropouts > 0 THEN format('{} dropout layers are active', dropouts) END, CASE WHEN norms > 0 THEN format('{} batch norms change', norms) END) AS active
FROM counted, behave, policy WHERE trained >= $least AND trained >= 0.9 * n AND dropouts + norms > 0
UNION ALL BY NAME
SELECT CASE WHEN known = 0 THEN 'the modules of the model are not known' ELSE format('{} evaluations are known whose module calls were seen without gradients, {} are needed', n, $least) END AS unknown
FROM counted, behave WHERE n < $least OR known = 0
