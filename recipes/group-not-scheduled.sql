-- title = "a parameter group is not scheduled"
-- severity = "notice"
-- symptoms = ["loss", "gradients"]
-- order = 326
-- scope = "rank"
-- needs = "the learning rates of an optimizer's groups in several sampled steps"
-- what = "the schedule does not reach group {param_group}: its rate was {lr:.3g} in all {n} samples, while that of group {led} went from {first:.3g} to {now:.3g}"
-- why = [
--   "from step {step} to {last}; the optimizer has {groups} groups, and {lr:.3g} is {origin}",
--   "group {param_group} holds {numel:,} elements ({examples}); it has neither warm-up nor decay",
--   "code that sets the rate by hand must set it in every group: for group in optimizer.param_groups: group[\"lr\"] = …",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, optimizer, param_group, lr FROM python.optimizers ORDER BY t_ns DESC, param_group LIMIT 12\"",
--   "probe {endpoint} lr",
-- ]
-- false_positives = "a group whose rate is constant on purpose: `info` if it was given its own rate, if a scheduler object sets the rates (as with a list of functions), or if the program's source was read and does not set the first group alone"
-- explains = ["layer-not-learning", "learning-rate-too-high", "group-rate"]
-- [parameters.least]
-- value = 5
-- unit = "samples"
-- source = "ours"
-- [parameters.steps]
-- value = 100
-- unit = "steps"
-- source = "ours: step-wise decay looks like no decay before its first drop, so only rates that change in nearly every sample are compared"
-- [parameters.changes]
-- value = 0.8
-- unit = "ratio of the samples"
-- source = "ours: a warm-up or a cosine has a different rate in each sample"
WITH looks AS (
    SELECT optimizer, param_group, COUNT(*) AS n, MIN(step) AS step, MAX(step) AS last, MIN(lr) AS low, MAX(lr) AS high, COUNT(DISTINCT lr) AS rates, ARG_MIN(lr, t_ns) AS first, ARG_MAX(lr, t_ns) AS now, MAX(parameters) AS numel
    FROM python.optimizers WHERE lr IS NOT NULL GROUP BY ALL
), counted AS (
    SELECT optimizer, COUNT(*) AS groups FROM looks GROUP BY optimizer
), moving AS (
    SELECT optimizer, MIN(param_group) AS led, ARG_MIN(first, param_group) AS first, ARG_MIN(now, param_group) AS now FROM looks WHERE n >= $least AND rates >= $changes * n AND last - step >= $steps GROUP BY optimizer
), members AS (
    SELECT optimizer, param_group, array_to_string(list(param ORDER BY param)[:3], ', ') AS examples FROM (
        SELECT param, ARG_MAX(optimizer, t_ns) AS optimizer, ARG_MAX(param_group, t_ns) AS param_group FROM python.parameters WHERE optimizer IS NOT NULL GROUP BY param) GROUP BY ALL
), given AS (
    SELECT ARG_MAX(number, t_ns) AS default_lr FROM probe.facts WHERE kind = 'hyperparameter' AND name = 'optimizer.default_lr'
), scheduled AS (
    SELECT COUNT(*) > 0 AS by_object FROM python.schedulers WHERE COALESCE(leads, true)
), source AS (
    -- A program that sets the first group alone is told so by its source; one that goes over the groups leaves some out by a condition.
    SELECT COUNT(*) FILTER (rule IS NULL AND state = 'read') > 0 AND COUNT(*) FILTER (rule IS NULL AND state <> 'read') = 0 AND COUNT(*) FILTER (rule = 'first-group-only') = 0 AS on_purpose FROM python.code
)
SELECT NULL AS unknown, 'group ' || l.param_group AS subject, l.param_group, l.n, l.step, l.last, l.now AS lr, m.led, m.first, m.now, groups, l.numel, COALESCE(examples, 'names not known') AS examples,
    CASE WHEN l.now = default_lr THEN 'the rate that the optimizer was created with' ELSE 'a rate of its own' END AS origin,
    CASE WHEN NOT by_object AND NOT on_purpose AND l.now = default_lr THEN 'notice' ELSE 'info' END AS severity
FROM looks l JOIN moving m USING (optimizer) JOIN counted USING (optimizer) LEFT JOIN members b ON b.optimizer = l.optimizer AND b.param_group = l.param_group, given, scheduled, source
WHERE l.n >= $least AND l.low = l.high AND l.high > 0 AND l.last - l.step >= $steps AND l.numel > 0
UNION ALL BY NAME
SELECT 'no optimizer with several groups was sampled often enough' AS unknown WHERE NOT EXISTS (SELECT 1 FROM looks WHERE param_group > 0 AND n >= $least)
