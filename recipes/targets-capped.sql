-- title = "many targets are one extreme value"
-- severity = "notice"
-- symptoms = ["loss", "data"]
-- order = 129
-- scope = "rank"
-- needs = "regression targets from ten sampled steps: those saved by the loss function, or one label per sample from the loader"
-- what = "{share:.0%} of the targets are exactly the {which} one, {value:.4g}: they were cut off (clamped) there"
-- why = [
--   "the {which} target is {value:.6g} in all {looks} sampled batches, from step {step} to {last}, and at least {least:.0%} of each; at the other end, batches range from {other_least:.4g} to {other_most:.4g}",
--   "measured values do not pile up at one end like this: what lay beyond is lost, and the model learns to predict {value:.4g} for all of it",
--   "{source}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, name, min, max, high_ratio, ends_ratio FROM python.model_inputs WHERE module = 'batch' ORDER BY step DESC LIMIT 10\"",
--   "probe {endpoint} query \"SELECT step, function, target_min, target_max, low_ratio, high_ratio FROM python.loss_functions ORDER BY step DESC LIMIT 10\"",
-- ]
-- false_positives = "naturally bounded quantities: censored times, scores with a maximum, amounts that are often zero (`info` at 0, 1, -1, 10 and 100); prices capped by their publisher (still reported)"
-- explains = ["plateau"]
-- [parameters.looks]
-- value = 10
-- unit = "batches"
-- source = "ours"
-- [parameters.share]
-- value = 0.03
-- unit = "ratio of the targets"
-- source = "ours: in the California housing data, 5 % of the prices are capped at 500,001"
-- [parameters.targets]
-- value = 500
-- unit = "targets"
-- source = "ours"
WITH regression AS (
    SELECT step, function, LEAST(targets, 4096) AS n, target_min, target_max, low_ratio, high_ratio FROM python.loss_functions
    WHERE (function LIKE 'mse_loss%' OR function LIKE 'l1_loss%' OR function IN ('smooth_l1_loss', 'huber_loss')) QUALIFY ROW_NUMBER() OVER (ORDER BY step DESC) <= 64
), looked AS (
    SELECT step, 'they are the targets of ' || function AS source, n, target_min AS low, target_max AS high, low_ratio, high_ratio FROM regression WHERE low_ratio IS NOT NULL
    UNION ALL BY NAME
    SELECT step, 'they are the loader''s values per sample, ' || name || ' of the batch' AS source, looked_at AS n, min AS low, max AS high, ends_ratio - high_ratio AS low_ratio, high_ratio FROM python.model_inputs
    WHERE module = 'batch' AND dtype LIKE '%float%' AND high_ratio IS NOT NULL AND max > min AND (SELECT COUNT(*) FROM regression WHERE low_ratio IS NULL) > 0 AND (SELECT COUNT(*) FROM regression WHERE low_ratio IS NOT NULL) = 0
    QUALIFY DENSE_RANK() OVER (ORDER BY step DESC) <= 64
), ends AS (
    SELECT source, COUNT(*) AS looks, SUM(n) AS n, MIN(step) AS step, MAX(step) AS last, SUM(n * low_ratio) / SUM(n) AS low_share, SUM(n * high_ratio) / SUM(n) AS high_share,
        MIN(low_ratio) AS low_least, MIN(high_ratio) AS high_least, MIN(low) AS low_low, MAX(low) AS low_high, MIN(high) AS high_low, MAX(high) AS high_high, COUNT(DISTINCT low) AS lows, COUNT(DISTINCT high) AS highs
    FROM looked WHERE high > low GROUP BY source HAVING COUNT(*) >= $looks AND SUM(n) >= $targets
), capped AS (
    -- The other end differs from batch to batch, as of what is measured: ratings and classes have two fixed ends.
    SELECT *, 'largest' AS which, high_high AS value, high_share AS share, high_least AS least, low_low AS other_least, low_high AS other_most FROM ends WHERE highs = 1 AND lows > 0.5 * looks AND high_share >= $share AND high_least > 0
    UNION ALL BY NAME
    SELECT *, 'smallest' AS which, low_low AS value, low_share AS share, low_least AS least, high_low AS other_least, high_high AS other_most FROM ends WHERE lows = 1 AND highs > 0.5 * looks AND low_share >= $share AND low_least > 0
)
SELECT NULL AS unknown, 'targets' AS subject, step, last, looks, which, value, share, least, other_least, other_most, source,
    CASE WHEN value IN (0, 1, -1, 10, 100) THEN 'info' ELSE 'notice' END AS severity
FROM capped
UNION ALL BY NAME
SELECT format('targets of a regression were sampled in {} steps, {} are needed', (SELECT COUNT(DISTINCT step) FROM looked), $looks) AS unknown WHERE (SELECT COUNT(DISTINCT step) FROM looked) < $looks
