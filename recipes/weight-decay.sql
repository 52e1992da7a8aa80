-- title = "weight decay outweighs the gradient"
-- severity = "notice"
-- symptoms = ["loss", "gradients"]
-- order = 145
-- scope = "rank"
-- needs = "the settings of the optimizer, or weights and updates of a few sampled steps where decay acts on the weights (SGD, AdamW)"
-- what = "weight decay {weight_decay:.3g} with learning rate {lr:.3g} outweighs {against}: it takes {share:.2g} of each weight in each step, so a weight is forgotten within {steps:.0f} steps"
-- why = [
--   "measured in the last {n} sampled steps: the decay is {of_change:.2g} times the whole change of the step (median over {matrices} matrices)",
--   "{optimizer}: each step takes {share:.2g} of each weight away{momentum_too}",
--   "weight norms (median over {params} parameters): {norm_first:.3g} at first, {norm_now:.3g} now",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, optimizer, param_group, lr, weight_decay, momentum FROM python.optimizers ORDER BY t_ns DESC LIMIT 5\"",
--   "probe {endpoint} query \"SELECT step, param, weight_rms, update_rms, decay_rms FROM python.updates ORDER BY step DESC, place LIMIT 24\"",
--   "probe {endpoint} query \"SELECT step, MEDIAN(weight_norm) FROM python.gradients GROUP BY step ORDER BY step\"",
-- ]
-- false_positives = "weights pulled to zero on purpose for pruning; strong regularization on purpose"
-- explains = ["weights-shrink", "output-constant", "learning-rate-too-high", "gradients-vanishing", "plateau", "slow-decrease"]
-- [parameters.steps]
-- value = 200
-- unit = "steps"
-- source = "practice: 2,000 steps with decay 0.0005, rate 0.1 and momentum 0.9; 10,000 with decay 0.1 and rate 0.001 (AdamW)"
-- [parameters.at_all]
-- value = 1.0
-- unit = "weight decay"
-- source = "practice: 0 to 0.3; if it is added to the gradient (Adam), it dominates the gradient from 1 on"
-- [parameters.least]
-- value = 3
-- unit = "sampled steps"
-- source = "ours"
-- [parameters.change]
-- value = 0.5
-- unit = "ratio of the step's change"
-- source = "ours: in equilibrium, decay is a small part of the change, about the square root of learning rate x decay"
-- [parameters.part]
-- value = 1e-3
-- unit = "ratio of the weight per step"
-- source = "practice: learning rate x decay of 1e-6 to 1e-4; ours: ten times the top of that range, if it is also measured to outweigh the updates"
WITH latest AS (
    SELECT * FROM python.optimizers QUALIFY ROW_NUMBER() OVER (PARTITION BY optimizer, param_group ORDER BY t_ns DESC) = 1
), rates AS (
    -- Not the highest one: a test of the range of rates goes through rates that no training keeps.
    SELECT optimizer, param_group, quantile_disc(lr, 0.75) AS lr FROM python.optimizers GROUP BY ALL
), norms AS (
    SELECT MEDIAN(norm_first) AS norm_first, MEDIAN(norm_now) AS norm_now, NULLIF(COUNT(*), 0) AS params FROM (
        SELECT ARG_MIN(weight_norm, step) AS norm_first, ARG_MAX(weight_norm, step) AS norm_now FROM python.gradients WHERE weight_norm IS NOT NULL GROUP BY param HAVING COUNT(*) >= 2)
), set_ AS (
    -- SGD's momentum m makes of a decay d = lr * weight_decay an oscillation z^2 - (1 + m - d) z + m: it forgets by 1 - |z| each step,
    -- about d / (1 - m) while that is small, and at most by 1 - sqrt(m), however large d is.
    SELECT *, CASE WHEN optimizer <> 'SGD' OR momentum IS NULL OR momentum >= 1 THEN decay
        WHEN POW(1 + momentum - decay, 2) < 4 * momentum THEN 1 - SQRT(momentum)
        ELSE 1 - (1 + momentum - decay + SQRT(POW(1 + momentum - decay, 2) - 4 * momentum)) / 2 END AS share
    FROM (SELECT latest.* EXCLUDE (lr), rates.lr, rates.lr * weight_decay AS decay FROM latest JOIN rates USING (optimizer, param_group) WHERE latest.weight_decay > 0)
), steps AS (
    SELECT DISTINCT step FROM python.updates ORDER BY step DESC LIMIT 8
), matrices AS (
    SELECT param, COUNT(*) AS n, MEDIAN(decay_rms / update_rms) AS of_change, MEDIAN(decay_rms / weight_rms) AS part, MIN(step) AS step FROM python.updates JOIN steps USING (step)
    WHERE decay_rms > 0 AND update_rms > 0 AND weight_rms > 0 AND equal_rows IS NOT NULL AND at_step = 'present' GROUP BY param HAVING COUNT(*) >= $least
), measured AS (
    SELECT COUNT(*) AS matrices, MAX(n) AS n, MEDIAN(of_change) AS of_change, MEDIAN(part) AS part, MIN(step) AS step FROM matrices
), outweighs AS (
    SELECT * FROM measured WHERE matrices > 0 AND of_change >= $change AND part >= $part
), found AS (
    SELECT 'group ' || param_group AS subject, 'the training' AS against, set_.step, optimizer, weight_decay, lr, share, momentum, n, of_change, matrices
    FROM set_ LEFT JOIN outweighs ON true
    WHERE optimizer IN ('SGD', 'AdamW', 'NAdamW', 'Lion') AND share > 1.0 / $steps OR optimizer IN ('Adam', 'NAdam', 'RAdam', 'RMSprop', 'Adamax') AND weight_decay >= $at_all
)
SELECT NULL AS unknown, found.* EXCLUDE (share, momentum), LEAST(share, 1) AS share, GREATEST(1, 1 / share) AS steps,
    CASE WHEN optimizer = 'SGD' AND momentum > 0 THEN ', the momentum included' ELSE '' END AS momentum_too, norms.* FROM found, norms
UNION ALL BY NAME
SELECT NULL AS unknown, 'updates' AS subject, 'the updates' AS against, o.step, o.n, of_change, matrices, weight_decay, lr, LEAST(part, 1) AS share, GREATEST(1, 1 / part) AS steps, norms.*
FROM outweighs o, norms, (SELECT ARG_MAX(weight_decay, share) AS weight_decay, ARG_MAX(lr, share) AS lr FROM set_) WHERE NOT EXISTS (SELECT 1 FROM found)
UNION ALL BY NAME
SELECT 'the settings of the optimizer are not recorded yet' AS unknown FROM latest HAVING COUNT(*) = 0 AND (SELECT COUNT(*) FROM steps) < $least
