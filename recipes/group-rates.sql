-- title = "parameter groups with far apart learning rates"
-- severity = "notice"
-- symptoms = ["loss", "gradients"]
-- order = 322
-- scope = "rank"
-- needs = "the learning rates of two parameter groups of one optimizer"
-- what = "group {param_group} of {optimizer} learns {times:.0f} times slower than group {fastest}: learning rate {lr:.3g} against {highest:.3g}, for {parameters:,} of {whole:,} elements"
-- why = [
--   "it has been so since step {step}, the first one looked at with these rates",
--   "update ratio of its parameters {ratio:.2g} (median), of all others {others:.2g}",
-- ]
-- next = [
--   "probe {endpoint} lr",
--   "probe {endpoint} query \"SELECT param, param_group, requires_grad FROM python.parameters WHERE param_group = {param_group} ORDER BY place LIMIT 20\"",
-- ]
-- false_positives = "a part that is to stay nearly as it is; groups that begin one after the other, by a schedule of their own"
-- explains = ["layer-not-learning"]
-- [parameters.times]
-- value = 1000.0
-- unit = "ratio"
-- source = "practice: a pretrained part gets a tenth to a hundredth of the rate; a slip of the exponent makes a thousand"
-- [parameters.least]
-- value = 2
-- unit = "looks"
-- source = "ours"
WITH looks AS (
    SELECT optimizer, step, param_group, lr, parameters, MAX(lr) OVER (PARTITION BY optimizer, step) AS highest,
        ARG_MAX(param_group, lr) OVER (PARTITION BY optimizer, step) AS fastest, SUM(parameters) OVER (PARTITION BY optimizer, step) AS whole,
        COUNT(*) OVER (PARTITION BY optimizer, step, param_group) AS twins
    FROM python.optimizers WHERE lr IS NOT NULL
), slow AS (
    SELECT optimizer, param_group, COUNT(*) AS n, COUNT(*) FILTER (lr > 0 AND highest / NULLIF(lr, 0) >= $times) AS apart, MIN(step) AS step,
        ARG_MAX(lr, step) AS lr, ARG_MAX(highest, step) AS highest, ARG_MAX(fastest, step) AS fastest, MAX(parameters) AS parameters, MAX(whole) AS whole, MAX(twins) AS twins
    FROM looks GROUP BY ALL
), groups AS (
    SELECT DISTINCT ON (param) param, param_group FROM python.parameters ORDER BY param, t_ns DESC
), ratios AS (
    SELECT param_group, MEDIAN(update_ratio) AS ratio FROM python.gradients JOIN groups USING (param) WHERE update_ratio IS NOT NULL GROUP BY param_group
)
SELECT NULL AS unknown, optimizer, slow.param_group, highest / lr AS times, lr, highest, fastest, parameters, whole, step, format('group {}', slow.param_group) AS subject,
    r.ratio, (SELECT MEDIAN(o.ratio) FROM ratios o WHERE o.param_group <> slow.param_group) AS others
FROM slow LEFT JOIN ratios r ON r.param_group = slow.param_group WHERE n >= $least AND apart = n AND twins = 1 AND lr > 0
UNION ALL BY NAME
SELECT 'the rates of no optimizer were looked at twice' AS unknown WHERE COALESCE((SELECT MAX(n) FROM slow), 0) < $least
