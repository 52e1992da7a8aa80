-- title = "weights shrink to nothing"
-- severity = "notice"
-- symptoms = ["loss", "gradients"]
-- order = 146
-- scope = "rank"
-- needs = "weights and gradients of a few matrices, from a few sampled steps"
-- what = "{fact}"
-- why = [
--   "weight norms (median over {params} parameters): {first:.3g} at first, {now:.3g} now",
--   "cosine between the gradients at the step and the weights: {inward:.2f} (median over {matrices} matrices and the last {n} sampled steps); for a data loss alone it is near 0",
--   "the optimizer's own weight decay, {weight_decay:.3g}, is not part of these gradients",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, param, weight_rms, step_rms, inward FROM python.updates ORDER BY step DESC, place LIMIT 24\"",
--   "probe {endpoint} query \"SELECT step, MEDIAN(weight_norm) FROM python.gradients GROUP BY step ORDER BY step\"",
-- ]
-- false_positives = "weights pulled to zero on purpose for pruning; the first steps of a model far from any solution, when smaller outputs are better (left out: the pull must last)"
-- explains = ["output-constant", "learning-rate-too-high", "gradients-vanishing", "gradient-shifted", "dead-units", "plateau", "slow-decrease"]
-- [parameters.shrunk]
-- value = 0.1
-- unit = "ratio of the initial norm"
-- source = "practice: weight norms grow by 10 % to 50 % over a run; ours: a tenth is beyond regularization"
-- [parameters.inward]
-- value = 0.6
-- unit = "cosine"
-- source = "the gradient of an L1 penalty has cosine 0.8 with normally distributed weights, that of an L2 penalty 1; the gradient of a data loss has no preferred direction; before a normalization, its cosine is exactly 0"
-- [parameters.least]
-- value = 4
-- unit = "sampled steps"
-- source = "ours"
WITH sizes AS (
    SELECT param, ARG_MIN(weight_norm, step) AS first, ARG_MAX(weight_norm, step) AS now FROM python.gradients WHERE weight_norm IS NOT NULL AND numel >= 64 GROUP BY param HAVING COUNT(*) >= 2
), norms AS (
    SELECT COUNT(*) AS params, MEDIAN(first) AS first, MEDIAN(now) AS now, MEDIAN(now / first) AS ratio FROM sizes WHERE first > 0
), since AS (
    SELECT MIN(step) AS step FROM (SELECT step, MEDIAN(weight_norm / first) AS ratio FROM python.gradients JOIN sizes USING (param) WHERE first > 0 GROUP BY step) WHERE ratio < $shrunk
), steps AS (
    SELECT DISTINCT step FROM python.updates ORDER BY step DESC LIMIT 8
), matrices AS (
    SELECT param, COUNT(*) AS n, MEDIAN(inward) AS inward, MIN(inward) AS least FROM python.updates JOIN steps USING (step)
    WHERE inward IS NOT NULL AND equal_rows IS NOT NULL AND at_step = 'present' AND looked_at >= 32 GROUP BY param HAVING COUNT(*) >= $least
), pull AS (
    SELECT COUNT(*) AS matrices, MAX(n) AS n, MEDIAN(inward) AS inward, COALESCE(COUNT(*) >= 2 AND MEDIAN(inward) >= $inward AND MEDIAN(least) >= $inward / 2, false) AS pulls FROM matrices
), optimizer AS (
    SELECT NULLIF(MAX(weight_decay), 0) AS weight_decay FROM python.optimizers
), judged AS (
    SELECT *, COALESCE(params >= 3 AND ratio < $shrunk, false) AS shrunk FROM norms, pull, optimizer, since
)
SELECT NULL AS unknown, COALESCE(step, (SELECT MIN(step) FROM steps)) AS step, params, first, now, NULLIF(matrices, 0) AS matrices, n, inward, CASE WHEN pulls THEN weight_decay END AS weight_decay,
    CASE WHEN pulls AND shrunk THEN format('a penalty on the weights outweighs the loss: it has shrunk them to {:.2g} of their size, and nearly all of their gradient is the pull to zero', ratio)
        WHEN pulls THEN 'a penalty on the weights outweighs the loss: nearly all of their gradient is a pull to zero'
        ELSE format('the weights have shrunk to {:.2g} of their initial size (median over parameters)', ratio) END AS fact
FROM judged WHERE pulls OR shrunk
UNION ALL BY NAME
SELECT 'weights and gradients of too few matrices or steps are known' AS unknown FROM norms, pull WHERE params < 3 AND matrices < 2
