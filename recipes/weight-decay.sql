-- title = "weight decay outweighs the training"
-- severity = "notice"
-- symptoms = ["loss", "gradients"]
-- order = 145
-- scope = "rank"
-- needs = "the settings of the optimizer"
-- what = "weight decay {weight_decay:.3g} with learning rate {lr:.3g} shrinks the weights of group {param_group} to a third within {steps:.0f} steps without a gradient"
-- why = [
--   "{optimizer}: each step takes {share:.2g} of each weight away{momentum_too}",
--   "weight norms (median over {params} parameters): {norm_first:.3g} at first, {norm_now:.3g} now",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, optimizer, param_group, lr, weight_decay, momentum FROM python.optimizers ORDER BY t_ns DESC LIMIT 5\"",
--   "probe {endpoint} query \"SELECT step, MEDIAN(weight_norm) FROM python.gradients GROUP BY step ORDER BY step\"",
-- ]
-- false_positives = "weights pulled to zero on purpose, to prune them"
-- explains = ["gradients-vanishing", "plateau"]
-- [parameters.steps]
-- value = 200
-- unit = "steps"
-- source = "practice: 0.0005 with rate 0.1 and momentum 0.9 is 2,000 steps, 0.1 with rate 0.001 (AdamW) 10,000"
-- [parameters.at_all]
-- value = 1.0
-- unit = "weight decay"
-- source = "practice: 0 to 0.3; where it is added to the gradient (Adam), from 1 on it is the larger part of it"
WITH latest AS (
    SELECT * FROM python.optimizers QUALIFY ROW_NUMBER() OVER (PARTITION BY optimizer, param_group ORDER BY t_ns DESC) = 1
), rates AS (
    SELECT optimizer, param_group, MAX(lr) AS lr FROM python.optimizers GROUP BY ALL
), norms AS (
    SELECT MEDIAN(norm_first) AS norm_first, MEDIAN(norm_now) AS norm_now, COUNT(*) AS params FROM (
        SELECT ARG_MIN(weight_norm, step) AS norm_first, ARG_MAX(weight_norm, step) AS norm_now FROM python.gradients WHERE weight_norm IS NOT NULL GROUP BY param HAVING COUNT(*) >= 2)
), judged AS (
    SELECT latest.*, CASE WHEN optimizer = 'SGD' AND momentum < 1 THEN rates.lr * weight_decay / (1 - momentum) ELSE rates.lr * weight_decay END AS share
    FROM latest JOIN rates USING (optimizer, param_group) WHERE latest.weight_decay > 0
)
SELECT NULL AS unknown, step, optimizer, 'group ' || param_group AS subject, param_group, rates.lr, weight_decay, LEAST(share, 1) AS share, GREATEST(1, 1 / share) AS steps,
    CASE WHEN optimizer = 'SGD' AND momentum > 0 THEN ', the momentum included' ELSE '' END AS momentum_too,
    CASE WHEN params > 0 THEN params END AS params, norm_first, norm_now
FROM judged JOIN rates USING (optimizer, param_group), norms
WHERE optimizer IN ('SGD', 'AdamW', 'NAdamW', 'Lion') AND share > 1.0 / $steps OR optimizer IN ('Adam', 'NAdam', 'RAdam', 'RMSprop', 'Adamax') AND weight_decay >= $at_all
UNION ALL BY NAME
SELECT 'the settings of the optimizer are not recorded yet' AS unknown FROM latest HAVING COUNT(*) = 0
