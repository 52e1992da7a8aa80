-- title = "loss without a lower bound"
-- severity = "alarm"
-- symptoms = ["loss", "gradients", "nan"]
-- order = 18
-- scope = "rank"
-- needs = "a loss recorded at backward(), with a single objective, from the start of training"
-- what = "loss falls without a bound, below zero since step {step}: {now:.4g} now, {first:.4g} at first"
-- why = [
--   "{how}; errors, cross-entropies and divergences are never negative: a term with the wrong sign is increased instead of decreased",
--   "halfway it was {middle:.4g}; the largest absolute loss of the first {early} steps was {size:.4g}",
--   "gradient norm: {norm_first:.3g} at first, {norm_now:.3g} now",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step // 20 * 20 AS step, MEDIAN(loss), MEDIAN(grad_norm) FROM python.steps GROUP BY 1 ORDER BY 1\"",
--   "probe {endpoint} checkpoint before-restart.pt",
--   "probe {endpoint} stop",
-- ]
-- false_positives = "log-densities of continuous data, which may be negative but do not fall faster and faster; critics without weight constraints, and energies whose samples have not caught up yet (`info` up to `any`, where the loss is a difference of what a network gives for two inputs); maximized similarities, down to -1 (left out); several optimizers with their own backward (excluded)"
-- explains = ["gradients-exploding", "gradient-exploding-layer", "learning-rate-too-high", "optimizer-state", "layer-not-learning", "loss-spike", "oscillation", "nan-origin", "loss-nan", "amp-overflow"]
-- dated = true
-- uses = ["trainings", "adversarial"]
-- [parameters.times]
-- value = 10.0
-- unit = "times the size of the first losses"
-- source = "ours: a loss with a lower bound near zero could not get there"
-- [parameters.least]
-- value = 1.0
-- unit = "below zero"
-- source = "as losses, maximized cosines, correlations and overlaps (dice, IoU) go from about 0 to their bound -1, falling faster and faster at first"
-- [parameters.faster]
-- value = 3.0
-- unit = "times its depth halfway"
-- source = "ours: a steady fall doubles it"
-- [parameters.any]
-- value = 1000.0
-- unit = "times the size of the first losses"
-- source = "ours: from here on, also if the fall has ended in an overflow"
-- [parameters.early]
-- value = 50
-- unit = "steps"
-- source = "ours: policy losses start near zero"
WITH seen AS (
    SELECT step, loss, grad_norm, ROW_NUMBER() OVER (ORDER BY step) AS i, COUNT(*) OVER () AS n FROM python.steps WHERE isfinite(loss)
), levels AS (
    SELECT MEDIAN(loss) FILTER (i <= 10) AS first, MAX(ABS(loss)) FILTER (i <= $early) AS size, MEDIAN(loss) FILTER (i > n - 20) AS now,
        MEDIAN(loss) FILTER (ABS(i - n // 2) <= 10) AS middle, ARG_MIN(grad_norm, step) FILTER (isfinite(grad_norm)) AS norm_first, ARG_MAX(grad_norm, step) FILTER (isfinite(grad_norm)) AS norm_now,
        MAX(step) FILTER (loss >= 0) AS positive, MIN(step) AS oldest, ANY_VALUE(n) AS n FROM seen
)
SELECT adversarial.compete AS unknown, CASE WHEN adversarial.contrasted AND -now <= $any * size THEN 'info' ELSE 'alarm' END AS severity,
    COALESCE(positive + 1, oldest) AS step, first, now, middle, size, norm_first, norm_now,
    CASE WHEN now < $faster * middle THEN 'it falls faster and faster' ELSE 'it is far below its initial values' END AS how
FROM levels, adversarial
WHERE n >= 2 * $early AND now < -$least AND size > 0 AND -now > $times * size AND (now < $faster * LEAST(middle, 0) OR -now > $any * size)
UNION ALL BY NAME
SELECT format('{} steps with a loss, {} are needed', COALESCE(n, 0), 2 * $early) AS unknown FROM levels WHERE COALESCE(n, 0) < 2 * $early
