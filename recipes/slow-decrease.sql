-- title = "loss falls very slowly"
-- severity = "info"
-- symptoms = ["loss"]
-- order = 50
-- scope = "rank"
-- needs = "a loss recorded at backward(), over 500 steps from the start of training"
-- what = "loss fell by {drop_ratio:.1%} in {n} steps: {start:.4g} to {now:.4g}"
-- why = [
--   "{start:.4g} over the first {part} steps since recording began, {now:.4g} over the last {part}; it still falls",
--   "learning rate {lr:.3g}",
--   "update ratio {update_ratio:.2g} (median over parameters; {kind}); while a model learns 1e-4 to 1e-2 is usual",
--   "the job reweighted the terms of its loss meanwhile: the product of their factors is {weights_now:.3g} now, {weights_before:.3g} then",
-- ]
-- next = [
--   "probe {endpoint} diagnose gradients",
--   "probe {endpoint} lr",
-- ]
-- false_positives = "fine-tuning a model that is already good; a recording that started late in training"
-- effect = true
-- uses = ["trainings", "adversarial", "moving", "reweighted"]
-- [parameters.drop]
-- value = 0.05
-- unit = "ratio"
-- source = "practice: an improvement of 1 % to 5 % is marginal, of more than 5 % steady"
-- [parameters.steps]
-- value = 500
-- unit = "steps"
-- source = "ours: guides judge after 10 to 100 steps, but a warm-up may take that long"
-- [parameters.ratio]
-- value = 1e-4
-- unit = "update ratio"
-- source = "practice: 1e-3 to 1e-2 in the first thousand steps; ours: a tenth of that, below which the finding becomes a notice"
WITH seen AS (
    SELECT step, loss, lr, ROW_NUMBER() OVER (ORDER BY step) AS i, COUNT(*) OVER () AS n
    FROM python.steps WHERE isfinite(loss) AND step >= (SELECT MAX(begun) FROM trainings)
), ends AS (
    SELECT ANY_VALUE(n) AS n, GREATEST(ANY_VALUE(n) // 20, 25) AS part, MIN(step) AS first_step FROM seen
), levels AS (
    SELECT MEDIAN(loss) FILTER (i <= part) AS start, MEDIAN(loss) FILTER (i > seen.n - part) AS now,
        MEDIAN(loss) FILTER (i > seen.n - 3 * part AND i <= seen.n - 2 * part) AS lately,
        1.2533 * 1.4826 * MAD(loss) FILTER (i > seen.n - part) / SQRT(ANY_VALUE(part)) AS error,
        ARG_MAX(lr, step) AS lr, MAX(lr) AS highest_lr, ANY_VALUE(part) AS part, ANY_VALUE(seen.n) AS n,
        MIN(step) AS first_step, MAX(step) AS step
    FROM seen, ends
), ratio AS (
    SELECT MEDIAN(update_ratio) AS update_ratio, ANY_VALUE(update_kind) AS kind FROM python.gradients
    WHERE numel >= 64 AND step > (SELECT MAX(step) FROM python.gradients) - 500
), terms AS (
    SELECT ARG_MIN(weights_high, ABS(reweighted.step - first_step)) AS weights_before, ARG_MAX(weights_low, reweighted.step) AS weights_now
    FROM reweighted, levels
)
SELECT NULL AS unknown, first_step AS step, start, now, (start - now) / ABS(start) AS drop_ratio, n, part, lr, update_ratio, kind, CASE WHEN weights_now > 1.25 * weights_before THEN weights_now END AS weights_now, weights_before,
    CASE WHEN update_ratio < $ratio AND lr >= 0.1 * highest_lr AND now > 0 AND NOT moving.yes AND NOT adversarial.contrasted AND NOT COALESCE(weights_now > 1.25 * weights_before, false) THEN 'notice' ELSE 'info' END AS severity
FROM levels, ratio, moving, adversarial, terms
WHERE n >= $steps AND first_step < (SELECT MAX(begun) FROM trainings) + 100 AND start - now BETWEEN 3 * error AND $drop * ABS(start) AND now <= lately + error
UNION ALL BY NAME
SELECT format('{} steps with a loss, {} are needed', COALESCE(n, 0), $steps) AS unknown FROM ends WHERE n < $steps OR n IS NULL
