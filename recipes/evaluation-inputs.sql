-- title = "evaluation inputs have a different scale"
-- severity = "notice"
-- symptoms = ["loss", "data"]
-- order = 67
-- scope = "rank"
-- needs = "the model's inputs in training and in two evaluations"
-- what = "the model is evaluated on inputs of another scale than it is trained on: {fact}"
-- why = [
--   "input {name} of {module}, of shape {shape}, in {evaluations} evaluations, up to step {step}: mean {mean:.3g}, standard deviation {std:.3g}, values from {lowest:.3g} to {highest:.3g}",
--   "in training, over {n} steps: mean {train_mean:.3g}, standard deviation {train_std:.3g} (at least {least:.3g}, at most {most:.3g}), values from {train_lowest:.3g} to {train_highest:.3g}",
--   "evaluation on such inputs does not measure what the model has learned: normalize both in the same way",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, gradless, name, shape, mean, std, min, max FROM python.model_inputs WHERE module <> 'batch' ORDER BY t_ns DESC LIMIT 20\"",
--   "probe {endpoint} query \"SELECT step, kind, recognised_by, loader FROM python.intervals ORDER BY t_ns DESC LIMIT 10\"",
-- ]
-- false_positives = "validation data that differ on purpose; generative sampling that starts from noise of another scale (`info` without a DataLoader, unless it is tenfold and the mean is not 0); hours and places that the model encodes itself (`info` beside an input that is scaled)"
-- explains = ["validation-rising", "train-validation-gap"]
-- [parameters.least_looks]
-- value = 3
-- unit = "sampled training steps"
-- source = "ours"
-- [parameters.evaluations]
-- value = 2
-- unit = "evaluations"
-- source = "ours: the first batch of one evaluation may be atypical"
-- [parameters.times]
-- value = 2.5
-- unit = "times above the largest training standard deviation, or below the smallest"
-- source = "ours: images of 0..1 and standardized ones differ by 3 to 5, bytes and 0..1 by 255; batches of the same data differ far less"
-- [parameters.apart]
-- value = 1.5
-- unit = "standard deviations outside the range of training means"
-- source = "ours: a mean that was not subtracted"
-- [parameters.far]
-- value = 10.0
-- unit = "times the largest training standard deviation"
-- source = "ours: without a DataLoader the inputs may be noise from which samples are generated, but noise has a mean of 0: inputs this large whose mean is half their standard deviation are data"
-- [parameters.counted]
-- value = 50.0
-- unit = "root mean square"
-- source = "as in inputs-not-scaled"
WITH looked AS (
    SELECT * FROM python.model_inputs
    WHERE module <> 'batch' AND dtype IN ('float32', 'float16', 'bfloat16', 'float64') AND looked_at >= 32 AND len(CAST(shape AS BIGINT[])) >= 2 AND isfinite(std) AND max > min
), training AS (
    SELECT module, name, COUNT(*) AS n, MEDIAN(mean) AS train_mean, MEDIAN(std) AS train_std, MIN(std) AS least, MAX(std) AS most, MIN(mean) AS mean_least, MAX(mean) AS mean_most,
        MIN(min) AS train_lowest, MAX(max) AS train_highest
    FROM (SELECT * FROM looked WHERE NOT gradless QUALIFY ROW_NUMBER() OVER (PARTITION BY module, name ORDER BY step DESC) <= 32) GROUP BY module, name HAVING COUNT(*) >= $least_looks
), held AS (
    SELECT step, BOOL_OR(kind = 'evaluation') AS sure FROM python.intervals WHERE kind IN ('evaluation', 'inference') AND state <> 'failed' GROUP BY step
), evaluated AS (
    SELECT module, name, shape, COUNT(DISTINCT step) AS evaluations, MAX(step) AS step, MEDIAN(mean) AS mean, MEDIAN(std) AS std, MIN(std) AS std_least, MAX(std) AS std_most,
        MIN(mean) AS lower, MAX(mean) AS upper, MIN(min) AS lowest, MAX(max) AS highest, BOOL_OR(sure) AS sure
    FROM (SELECT looked.*, sure FROM looked JOIN held USING (step) WHERE gradless QUALIFY ROW_NUMBER() OVER (PARTITION BY module, name, shape ORDER BY step DESC) <= 8) GROUP BY module, name, shape
), judged AS (
    -- Large numbers beside an input that is scaled may be hours or places: those of an evaluation are later ones.
    SELECT *, sqrt(train_mean * train_mean + train_std * train_std) > $counted AND EXISTS (SELECT 1 FROM training o WHERE o.module = training.module AND o.name <> training.name
            AND sqrt(o.train_mean * o.train_mean + o.train_std * o.train_std) <= $counted) AS beside,
        std_least > $times * most AS larger, std_most < least / $times AS smaller,
        lower > mean_most + $apart * GREATEST(most, std_most) OR upper < mean_least - $apart * GREATEST(most, std_most) AS shifted
    FROM training JOIN evaluated USING (module, name) WHERE evaluations >= $evaluations
)
SELECT NULL AS unknown, module || ' ' || name AS subject, * EXCLUDE (beside), CASE WHEN beside THEN 'info' WHEN sure OR std > $far * most AND (lower > 0.5 * std_most OR upper < -0.5 * std_most) THEN 'notice' ELSE 'info' END AS severity,
    CASE WHEN larger THEN format('their standard deviation is {:.3g}, {:.1f} times that of training', std, std / train_std)
        WHEN smaller THEN format('their standard deviation is {:.3g}, {:.2g} times that of training', std, std / train_std)
        ELSE format('their mean is {:.3g}, that of training {:.3g}', mean, train_mean) END AS fact
FROM judged WHERE larger OR smaller OR shifted QUALIFY ROW_NUMBER() OVER (PARTITION BY module, name ORDER BY step DESC) = 1
UNION ALL BY NAME
SELECT format('{} evaluations with sampled inputs, {} are needed', (SELECT COALESCE(MAX(evaluations), 0) FROM evaluated), $evaluations) AS unknown WHERE NOT EXISTS (SELECT 1 FROM judged)
