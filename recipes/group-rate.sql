-- title = "a parameter group hardly learns"
-- severity = "notice"
-- symptoms = ["loss", "gradients"]
-- order = 322
-- scope = "rank"
-- needs = "the settings of the optimizer's groups, and update ratios of the parameters of two groups"
-- what = "group {param_group} has a learning rate of {lr:.3g}, {part:.1g} of the {highest:.3g} of group {highest_group}: a step changes its {params} parameters ({examples}) by {ratio:.1e} of their size, the others by {others:.1e}"
-- why = [
--   "rates from the last {n} sampled steps, as stored in the optimizer",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, optimizer, param_group, lr FROM python.optimizers ORDER BY t_ns DESC, param_group LIMIT 8\"",
--   "probe {endpoint} lr",
-- ]
-- false_positives = "rates that decrease with layer depth or width by more than three orders of magnitude on purpose"
-- explains = ["layer-not-learning", "slow-decrease", "plateau"]
-- [parameters.part]
-- value = 0.0011
-- unit = "ratio of the highest rate"
-- source = "practice: a pretrained part gets a tenth to a hundredth of the rate of new layers"
-- [parameters.behind]
-- value = 0.01
-- unit = "ratio of the others' update ratio"
-- source = "ours: rules out a small rate that compensates for large gradients"
-- [parameters.least]
-- value = 3
-- unit = "sampled steps"
-- source = "ours"
WITH latest AS (
    SELECT optimizer, param_group, lr FROM python.optimizers WHERE lr > 0 QUALIFY ROW_NUMBER() OVER (PARTITION BY optimizer, param_group ORDER BY t_ns DESC) = 1
), highest AS (
    SELECT optimizer, MAX(lr) AS highest, ARG_MAX(param_group, lr) AS highest_group FROM latest GROUP BY optimizer HAVING COUNT(*) > 1
), members AS (
    SELECT param, ARG_MAX(optimizer, t_ns) AS optimizer, ARG_MAX(param_group, t_ns) AS param_group, ARG_MAX(place, t_ns) AS place FROM python.parameters WHERE optimizer IS NOT NULL GROUP BY param
), moved AS (
    SELECT m.optimizer, m.param_group, MEDIAN(g.update_ratio) AS ratio, COUNT(DISTINCT g.step) AS n, COUNT(DISTINCT param) AS params, MIN(g.step) AS step,
        array_to_string(list(DISTINCT param)[:3], ', ') AS examples
    FROM python.gradients g JOIN members m USING (param) WHERE isfinite(g.update_ratio) AND g.numel >= 16 AND g.step >= 10 GROUP BY ALL
)
SELECT NULL AS unknown, 'group ' || l.param_group AS subject, l.param_group, l.lr, l.lr / highest AS part, highest, highest_group, a.params, a.examples, a.ratio, b.ratio AS others, a.n, a.step
FROM latest l JOIN highest USING (optimizer) JOIN moved a ON a.optimizer = l.optimizer AND a.param_group = l.param_group
    JOIN moved b ON b.optimizer = l.optimizer AND b.param_group = highest_group
WHERE l.lr <= $part * highest AND a.ratio < $behind * b.ratio AND a.n >= $least AND b.n >= $least
UNION ALL BY NAME
SELECT 'no optimizer with several groups was sampled' AS unknown WHERE NOT EXISTS (SELECT 1 FROM highest)
