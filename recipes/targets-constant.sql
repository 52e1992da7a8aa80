-- title = "all targets are the same"
-- severity = "notice"
-- symptoms = ["loss", "data"]
-- order = 129
-- scope = "rank"
-- needs = "targets with one value per position of a sample (masks, tags), from ten sampled steps, with a single objective"
-- what = "every target is the same, {value:.4g}, at every position of every sample checked: all targets are of one class, and a constant output is enough"
-- why = [
--   "{targets:,.0f} targets of {samples:.0f} samples in {looks} sampled steps, from step {step} to {last}: {function} of {shape}",
--   "loss: {first:.4g} at first, {now:.4g} now",
--   "a label conversion probably maps all labels to the same value: a comparison with a value that they never reach, a dictionary lookup with missing keys",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, function, shape, targets, top_ratio, target_mean, target_std FROM python.loss_functions ORDER BY step DESC LIMIT 10\"",
--   "probe {endpoint} checkpoint before-restart.pt",
--   "probe {endpoint} stop",
-- ]
-- false_positives = "classes so rare that they do not occur in 40,000 positions; patch discriminators (left out with several optimizers that have their own backward); anomaly detection trained on normal data only"
-- explains = ["plateau", "output-constant", "gradients-vanishing", "learning-rate-too-low", "dead-units", "layer-not-learning"]
-- uses = ["trainings", "adversarial"]
-- [parameters.looks]
-- value = 10
-- unit = "sampled steps"
-- source = "ours"
-- [parameters.targets]
-- value = 10000
-- unit = "targets checked"
-- source = "ours: enough for a class with one position in a thousand to occur"
-- [parameters.samples]
-- value = 64
-- unit = "samples"
-- source = "ours: positions within one sample are similar"
WITH dense AS (
    SELECT *, CAST(shape AS BIGINT[]) AS sizes FROM python.loss_functions WHERE targets IS NOT NULL AND shape IS NOT NULL AND len(CAST(shape AS BIGINT[])) >= 3
), calls AS (
    SELECT function, behind, layer, COUNT(*) AS looks, MIN(step) AS step, MAX(step) AS last, ARG_MAX(shape, step) AS shape, SUM(LEAST(targets, 4096)) AS targets,
        SUM(sizes[1]) AS samples, MIN(target_mean) AS value, MAX(target_mean) AS most, MAX(target_std) AS std, MAX(ignored_ratio) AS ignored, MAX(classes) AS classes,
        ANY_VALUE(target_mean IS NULL OR target_std IS NULL) AS unread
    FROM dense GROUP BY ALL HAVING COUNT(*) >= $looks
), losses AS (
    SELECT MEDIAN(loss) FILTER (i <= 20) AS first, MEDIAN(loss) FILTER (i > k - 20) AS now
    FROM (SELECT loss, ROW_NUMBER() OVER (ORDER BY step) AS i, COUNT(*) OVER () AS k FROM python.steps WHERE isfinite(loss))
)
SELECT NULL AS unknown, 'targets' AS subject, step, last, looks, function, shape, targets, samples, value, first, now
FROM calls, losses, adversarial
WHERE NOT adversarial.yes AND NOT unread AND value = most AND std = 0 AND COALESCE(ignored, 0) = 0 AND targets >= $targets AND samples >= $samples AND COALESCE(behind, '') NOT LIKE '%Cat%'
    AND ((function IN ('cross_entropy', 'nll_loss') AND classes > 1) OR function LIKE 'binary_cross_entropy%')
UNION ALL BY NAME
SELECT CASE WHEN (SELECT yes FROM adversarial) THEN 'several optimizers have their own backward: targets of discriminators are constant' ELSE format('targets with one value per position were sampled in {} steps, {} are needed', COUNT(*), $looks) END AS unknown
FROM dense HAVING COUNT(*) < $looks OR (SELECT yes FROM adversarial)
