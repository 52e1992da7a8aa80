-- title = "loss plateau"
-- severity = "notice"
-- symptoms = ["loss"]
-- order = 30
-- scope = "rank"
-- needs = "a loss recorded at backward(), with a single objective, over a thousand steps"
-- what = "loss has not fallen since step {step}: {level_then:.4g} then, {now:.4g} now{at_chance}"
-- why = [
--   "{level_then:.4g} around step {step}, {now:.4g} over the last {part} steps; the fall in between is {gain_ratio:.2%} (negative: a rise), within the noise",
--   "that covers {flat_steps} of {seen_steps} steps{known}",
--   "the loss started at {start:.4g}",
--   "learning rate {lr:.3g}, at most {highest_lr:.3g} in this run",
--   "update ratio {update_ratio:.2g} (median over parameters; 1e-4 to 1e-2 is usual while a model learns)",
--   "{chance}",
--   "checked: {checked}",
--   "the job reweighted the terms of its loss meanwhile: the product of their factors is {weights_now:.3g} now, {weights_before:.3g} then",
-- ]
-- next = [
--   "probe {endpoint} diagnose gradients",
--   "probe {endpoint} lr",
--   "probe {endpoint} query \"SELECT step // 100 * 100 AS step, MEDIAN(loss) AS loss, MEDIAN(lr) AS lr FROM python.steps GROUP BY 1 ORDER BY 1\"",
--   "probe {endpoint} checkpoint plateau.pt",
-- ]
-- false_positives = "a converged model (only `info` when the loss has fallen by a tenth before, the learning rate has decayed, four fifths of the model are frozen, noise would hide a slow fall, the targets are the model's own as in reinforcement learning, or the first steps of a long run are no longer kept)"
-- effect = true
-- uses = ["trainings", "adversarial", "moving", "reweighted"]
-- [parameters.window]
-- value = 1000
-- unit = "steps"
-- source = "practice: no improvement over 1,000 steps (LLM training guides), or over 10,000; the shorter was chosen, plus a share of the run"
-- [parameters.share]
-- value = 0.3
-- unit = "ratio of the run"
-- source = "ours: a long run improves little in any 1,000 steps"
-- [parameters.improvement]
-- value = 0.01
-- unit = "ratio"
-- source = "practice: mean of 100 steps at least 0.99 times that of 100 steps before"
-- [parameters.frozen]
-- value = 0.8
-- unit = "ratio of the model's elements"
-- source = "ours: a small part that trains on frozen features soon learns what it can"
-- [parameters.learned]
-- value = 0.1
-- unit = "ratio of the first loss"
-- source = "ours: a loss that has fallen by more has learned something, and healthy trainings level off"
WITH seen AS (
    SELECT step, loss, lr, ROW_NUMBER() OVER (ORDER BY step) - 1 AS i, COUNT(*) OVER () AS n
    FROM python.steps WHERE isfinite(loss) AND step >= (SELECT MAX(begun) FROM trainings)
), shape AS (
    SELECT ANY_VALUE(n) AS n, GREATEST(ANY_VALUE(n) // 40, 25) AS part, MAX(lr) AS highest_lr, ARG_MAX(lr, step) AS lr
    FROM seen
), blocks AS (
    SELECT (seen.n - 1 - i) // part AS ago, MIN(step) AS step, MEDIAN(loss) AS level,
        1.2533 * 1.4826 * MAD(loss) / SQRT(COUNT(*)) AS error, COUNT(*) AS steps
    FROM seen, shape GROUP BY ago HAVING COUNT(*) >= 10
), ends AS (
    SELECT AVG(level) FILTER (ago < 4) AS now, ARG_MAX(level, ago) AS start, MEDIAN(error) AS error FROM blocks
), fallen AS (
    SELECT COALESCE(MIN(ago), 1000) AS ago FROM blocks, ends
    WHERE level - now > GREATEST($improvement * ABS(now), 3 * ends.error)
), flat AS (
    SELECT MIN(step) AS step, SUM(steps) AS flat_steps, COUNT(*) AS parts, MAX(blocks.ago) AS oldest
    FROM blocks, fallen WHERE blocks.ago < fallen.ago
), kept AS (
    -- Of a long run the first steps are not kept: what the loss began at, and fell by, is not known then.
    SELECT MIN(step) > (SELECT MAX(begun) FROM trainings) + $window AS from_the_middle FROM seen
), trend AS (
    SELECT ANY_VALUE(flat.step) AS step, ANY_VALUE(flat_steps) AS flat_steps, ANY_VALUE(parts) AS parts,
        AVG(level) FILTER (2 * ago > oldest) AS level_then, AVG(level) FILTER (2 * ago <= oldest) AS level_since
    FROM blocks, flat WHERE ago <= oldest
), ratio AS (
    SELECT MEDIAN(update_ratio) AS update_ratio FROM python.gradients
    WHERE numel >= 64 AND step > (SELECT MAX(step) FROM python.gradients) - 500
), compared AS (
    SELECT * FROM python.loss_functions QUALIFY ROW_NUMBER() OVER (ORDER BY step DESC) <= 12
), levels AS (
    -- A loss of several terms has no level of chance that is known here: neither one that shows another function,
    -- nor one that is not the square of its errors.
    SELECT ANY_VALUE(function) AS function, COUNT(DISTINCT function || COALESCE(layer, '')) = 1 AND ANY_VALUE(function) IN ('cross_entropy', 'mse_loss') AND COALESCE(MEDIAN(error_rms * error_rms) BETWEEN 0.8 * ANY_VALUE(ends.now) AND 1.25 * ANY_VALUE(ends.now), true) AND COALESCE(MAX(smoothing), 0) = 0 AND COUNT(weights_ratio) = 0 AND BOOL_AND(reduction = 'mean') AS alone,
        MEDIAN(CASE WHEN function = 'cross_entropy' THEN entropy ELSE target_std * target_std END) AS chance, MEDIAN(LN(classes)) AS uniform, MEDIAN(spread_ratio) AS spread, COUNT(*) AS looks FROM compared, ends
), held AS (
    SELECT COUNT(*) FILTER (needs) AS trainable, COUNT(optimizer) FILTER (needs) AS held, SUM(numel) FILTER (NOT needs) / SUM(numel) AS frozen_ratio
    FROM (SELECT ARG_MAX(requires_grad, t_ns) AS needs, ARG_MAX(optimizer, t_ns) AS optimizer, ARG_MAX(numel, t_ns) AS numel FROM python.parameters GROUP BY param)
), reached AS (
    SELECT COUNT(*) AS measured, COUNT(*) FILTER (norm > 0) AS reached FROM (SELECT MAX(norm) AS norm FROM python.gradients WHERE step > (SELECT MAX(step) FROM python.gradients) - 500 GROUP BY param)
), checked AS (
    SELECT *, NULLIF(concat_ws('; ',
        CASE WHEN trainable > 0 THEN format('{} of {} trainable parameters are in an optimizer', held, trainable) END,
        CASE WHEN measured > 0 THEN format('{} of {} get a gradient', reached, measured) END,
        CASE WHEN spread IS NOT NULL THEN format('the output differs between samples by {:.2g} of its size', spread) END), '') AS checked,
        CASE WHEN looks >= 3 AND alone AND function = 'cross_entropy' THEN format('chance: {:.4g} for a model that knows only the class frequencies, {:.4g} (ln of the number of classes) for one that knows nothing', chance, uniform)
            WHEN looks >= 3 AND alone THEN format('chance: {:.4g}, the variance of the targets, for a model that always predicts their mean', chance) END AS chance_said
    FROM levels, held, reached
), terms AS (
    SELECT ARG_MIN(weights_high, ABS(reweighted.step - trend.step)) AS weights_before, ARG_MAX(weights_low, reweighted.step) AS weights_now
    FROM reweighted, trend
)
SELECT COALESCE(adversarial.compete, CASE WHEN adversarial.contrasted THEN 'the loss is the difference of what a network gives for two inputs: its level means nothing' END) AS unknown,
    trend.step, now, level_then, (level_then - level_since) / NULLIF(ABS(now), 0) AS gain_ratio, flat_steps, n AS seen_steps,
    part * 4 AS part, CASE WHEN from_the_middle THEN ' that are kept, and the first ones are not' ELSE '' END AS known, CASE WHEN NOT from_the_middle THEN start END AS start, lr, highest_lr, update_ratio, checked, chance_said AS chance, CASE WHEN weights_now > 1.25 * weights_before THEN weights_now END AS weights_now, weights_before,
    CASE WHEN chance_said IS NULL THEN '' WHEN spread < 1e-4 THEN '; the output does not depend on the input'
        WHEN now >= 0.97 * chance AND now <= 1.03 * GREATEST(chance, COALESCE(CASE WHEN function = 'cross_entropy' THEN uniform END, 0)) THEN '; that is the level of chance' ELSE '' END AS at_chance,
    CASE WHEN spread < 1e-4 OR COALESCE(now >= 0.97 * chance AND alone AND looks >= 3, false) THEN 'notice'
        -- A loss whose targets the model itself makes says nothing by its level.
        WHEN from_the_middle OR moving.yes THEN 'info'
        -- What has learned something levels off some day: without a mechanism that is a question, and no fault.
        WHEN start - now > $learned * ABS(start) THEN 'info'
        WHEN COALESCE(weights_now > 1.25 * weights_before, false) OR lr < 0.1 * highest_lr OR (frozen_ratio > $frozen AND start - now > $improvement * ABS(start))
        OR 2.5 * error / SQRT(parts / 2) > 2 * $improvement * ABS(now) THEN 'info' ELSE 'notice' END AS severity
FROM trend, ends, shape, ratio, adversarial, moving, checked, terms, kept
WHERE flat_steps >= $window AND flat_steps >= $share * n
    AND ABS(level_then - level_since) <= GREATEST(2.5 * error / SQRT(parts / 2), 0.001 * ABS(now))
UNION ALL BY NAME
SELECT format('{} steps with a loss, {} are needed', COALESCE(n, 0), $window) AS unknown FROM shape WHERE n < $window OR n IS NULL
