-- title = "no warm-up"
-- severity = "notice"
-- symptoms = ["loss", "nan"]
-- order = 360
-- scope = "rank"
-- needs = "loss and learning rate from the first training step on, and fixed targets: DataLoader batches, or classes"
-- what = "training began with its highest learning rate, {lr:.3g}, without a warm-up, and the loss rose to {worst:.4g} in its first {window} steps{doubt}"
-- why = [
--   "learning rate {lr_first:.3g} in step {step} and {highest:.3g} at most afterwards",
--   "loss: {loss_first:.4g} at first, {worst:.4g} at its worst around step {worst_step}, {loss_after:.4g} after {window} steps",
--   "highest gradient norm in these steps: {norm:.3g}",
--   "a step changed the weights by up to {first_ratio:.2g} of their size (median over parameters)",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, lr, loss, grad_norm FROM python.steps ORDER BY step LIMIT 50\"",
-- ]
-- false_positives = "a wrong learning rate or gradient scale, with or without a warm-up (`info` if the updates were not measured, if the loss has not come down again at the same rate, or if it was below its first value within the window: then the start cost fewer steps than a warm-up); a loss that is negative at times, or contrastive (`info`); moving targets, as in reinforcement learning (unknown without a DataLoader or classes); training resumed without its optimizer state, which also needs a warm-up"
-- explains = ["loss-spike", "divergence", "learning-rate-too-high", "gradients-exploding", "gradient-exploding-layer", "dead-units", "saturated-units", "plateau", "slow-decrease", "loss-nan", "output-constant"]
-- uses = ["trainings", "adversarial"]
-- [parameters.window]
-- value = 100
-- unit = "steps"
-- source = "practice: warm-up over 3 % to 10 % of the steps, or 100 to 2,000"
-- [parameters.rise]
-- value = 0.2
-- unit = "ratio of the first loss"
-- source = "ours: without a rise the missing warm-up did no harm, and many runs need none"
-- [parameters.ratio]
-- value = 0.01
-- unit = "update ratio"
-- source = "practice: 1e-3 to 1e-2 in the first 1,000 steps; a loss that rises under smaller updates rises for another reason"
WITH seen AS (
    SELECT step, loss, lr, grad_norm FROM python.steps WHERE step < 3 * $window
), rates AS (
    SELECT ARG_MIN(lr, step) AS lr_first, MIN(step) AS step, MAX(lr) AS highest, COUNT(*) AS n FROM seen WHERE lr IS NOT NULL
), blocks AS (
    SELECT step // 5 AS block, MIN(step) AS step, MEDIAN(loss) AS level, COUNT(*) AS n FROM seen
    WHERE isfinite(loss) AND step < $window GROUP BY block
), levels AS (
    SELECT (SELECT MEDIAN(loss) FROM (SELECT loss FROM seen WHERE isfinite(loss) ORDER BY step LIMIT 2)) AS loss_first,
        MAX(level) AS worst, ARG_MAX(step, level) AS worst_step, ARG_MAX(level, step) AS loss_after FROM blocks
), later AS (
    -- With the same rate the training goes well later on: only its start was too fast.
    SELECT COALESCE(MEDIAN(loss) < ANY_VALUE(loss_first) AND COUNT(*) >= 10, false) AS recovered FROM (
        SELECT loss, loss_first FROM python.steps, rates, levels WHERE isfinite(loss) AND python.steps.step >= $window // 2 AND lr >= 0.5 * highest ORDER BY python.steps.step DESC LIMIT 20)
), norms AS (
    SELECT MAX(grad_norm) FILTER (isfinite(grad_norm)) AS norm FROM seen WHERE step < $window
), signs AS (
    -- A loss that is negative at times has no scale of its own: a multiple of its first value means nothing.
    SELECT COALESCE(MIN(loss) >= 0, true) AS one FROM python.steps WHERE isfinite(loss)
), negatives AS (
    -- A contrastive loss (one target for all rows, or a column for each) compares with samples that move with the model.
    SELECT COALESCE(BOOL_AND(occurring = 1 OR copies_ratio IS NOT NULL), false) AS move FROM python.loss_functions WHERE function = 'cross_entropy' AND occurring IS NOT NULL
), updates AS (
    SELECT MAX(ratio) AS ratio FROM (SELECT step, MEDIAN(update_ratio) AS ratio FROM python.gradients WHERE step < $window AND isfinite(update_ratio) GROUP BY step)
)
SELECT COALESCE((SELECT compete FROM adversarial),
        CASE WHEN NOT EXISTS (SELECT 1 FROM python.batches WHERE state = 'done') AND NOT EXISTS (SELECT 1 FROM python.loss_functions WHERE function = 'cross_entropy')
        THEN 'the loss rose at first, but without a DataLoader or classes its targets may move with the model (reinforcement learning)' END) AS unknown,
    rates.step, lr_first, lr_first AS lr, highest, loss_first, worst, worst_step, loss_after, norm, ratio AS first_ratio,
    CASE WHEN NOT recovered THEN '; whether that is the reason was not shown: the loss has not come down again' WHEN ratio IS NULL THEN '; whether that is the reason was not shown: the size of these steps was not measured' WHEN negatives.move THEN '; whether that is the reason was not shown: the negatives of a contrastive loss move with the model' ELSE '' END AS doubt,
    CASE WHEN recovered AND ratio IS NOT NULL AND loss_after >= loss_first AND signs.one AND NOT negatives.move THEN 'notice' ELSE 'info' END AS severity
FROM rates, levels, norms, updates, later, signs, negatives
WHERE COALESCE(ratio >= $ratio, true) AND n >= 20 AND rates.step <= 2 AND lr_first > 0 AND lr_first >= 0.9 * highest AND worst - loss_first > $rise * ABS(loss_first)
UNION ALL BY NAME
SELECT 'the first training steps are not recorded' AS unknown FROM rates WHERE COALESCE(n < 20 OR step > 2, true)
