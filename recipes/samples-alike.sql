-- title = "samples are alike"
-- severity = "notice"
-- symptoms = ["loss", "data"]
-- order = 129
-- scope = "rank"
-- needs = "the model's inputs from a few sampled steps"
-- what = "{fact}"
-- why = [
--   "{evidence}",
--   "input {name} of {module}, {shape} ({dtype}), in all of the last {n} sampled steps, from step {step} to {last}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, module, name, shape, mean, alike_ratio, middle, middle_ratio FROM python.model_inputs WHERE module <> 'batch' ORDER BY step DESC LIMIT 10\"",
--   "probe {endpoint} query \"SELECT step, function, classes, top_ratio, entropy FROM python.loss_functions ORDER BY step DESC LIMIT 10\"",
-- ]
-- false_positives = "overfitting one sample on purpose; simulations that all start from the same state (`info` without a DataLoader: only the first call of the model in a step is sampled); sequences that naturally consist almost entirely of one value, such as sparse pixels"
-- explains = ["plateau", "oscillation", "loss-function"]
-- [parameters.least]
-- value = 5
-- unit = "sampled steps"
-- source = "ours"
-- [parameters.one]
-- value = 0.9
-- unit = "ratio of the tokens"
-- source = "ours: the most frequent token of a text (a space, a full stop) makes up a tenth to a third of it"
-- [parameters.classes]
-- value = 24
-- unit = "classes"
-- source = "ours: two or three classes are often imbalanced (background, no entity); a vocabulary is larger"
-- [parameters.elsewhere]
-- value = 24
-- unit = "samples"
-- source = "ours"
-- [parameters.share]
-- value = 0.3
-- unit = "ratio of the repeated inputs"
-- source = "ours: known data sets have less than 3 % duplicates with other labels"
WITH newest AS (
    SELECT *, DENSE_RANK() OVER (PARTITION BY module ORDER BY step DESC) AS ago FROM python.model_inputs WHERE module <> 'batch' AND NOT COALESCE(gradless, false)
), alike AS (
    SELECT module, COUNT(DISTINCT step) AS n, MIN(step) AS step, MAX(step) AS last, ARG_MAX(name, looked_at) AS name, ARG_MAX(shape, looked_at) AS shape, ARG_MAX(dtype, looked_at) AS dtype
    FROM newest WHERE ago <= 6 GROUP BY module
    HAVING COUNT(DISTINCT step) >= $least AND COUNT(alike_ratio) = COUNT(*) AND MIN(alike_ratio) = 1 AND MAX(max - min) > 0 AND MIN(CAST(shape AS BIGINT[])[1]) >= 4
        AND NOT BOOL_AND(dtype LIKE 'int%' AND max - min + 1 = CAST(shape AS BIGINT[])[2] AND mean = (max + min) / 2)
), tokens AS (
    SELECT module, name, COUNT(*) AS n, MIN(step) AS step, MAX(step) AS last, ARG_MAX(shape, step) AS shape, ANY_VALUE(dtype) AS dtype, MIN(middle_ratio) AS least_ratio, MEDIAN(middle_ratio) AS ratio, MIN(middle) AS token
    FROM newest WHERE ago <= 6 AND middle_ratio IS NOT NULL AND looked_at >= 64 AND len(CAST(shape AS BIGINT[])) = 2
    GROUP BY module, name HAVING COUNT(*) >= $least AND MIN(middle) = MAX(middle) AND MIN(min) < MAX(max)
), same AS (
    SELECT module, name, SUM(again) AS again, SUM(elsewhere) AS elsewhere, COUNT(*) AS n, MIN(step) FILTER (elsewhere > 0) AS step, MAX(step) AS last, ARG_MAX(shape, step) AS shape, ANY_VALUE(dtype) AS dtype, MAX(len(CAST(shape AS BIGINT[]))) >= 3 AS pictures
    FROM python.model_inputs WHERE NOT gradless AND elsewhere IS NOT NULL GROUP BY module, name
), targets AS (
    SELECT MIN(top_ratio) AS top, MAX(classes) AS classes FROM (SELECT * FROM python.loss_functions WHERE function IN ('cross_entropy', 'nll_loss') ORDER BY step DESC LIMIT 6) HAVING COUNT(*) >= 3
)
SELECT NULL AS unknown, module AS subject, alike.*, CASE WHEN EXISTS (SELECT 1 FROM python.batches WHERE state = 'done') THEN 'notice' ELSE 'info' END AS severity,
    'all samples of a batch are the same: each batch repeats one sample' AS fact,
    'nothing tells the samples apart, so the model can only learn what their targets have in common: check how the data set looks up a sample by index, and how the batch is collated' AS evidence
FROM alike
UNION ALL BY NAME
SELECT NULL AS unknown, module || ' ' || name AS subject, tokens.*, format('nearly all tokens are the same: {:.0f} % of the input are {:.0f}, and {:.0f} % of the targets are of one class', 100 * ratio, token, 100 * top) AS fact,
    format('the model has {} classes; a vocabulary that does not fit the text maps nearly all of it to the unknown token', classes) AS evidence
FROM tokens, targets WHERE least_ratio >= $one AND top >= $one AND classes >= $classes
UNION ALL BY NAME
SELECT NULL AS unknown, module || ' ' || name AS subject, same.*, CASE WHEN pictures THEN 'notice' ELSE 'info' END AS severity,
    format('different samples reach the model as the same input: {:.0f} % of {} repeated inputs were another sample of the data set, with another label', 100 * elsewhere / again, again) AS fact,
    'inputs are compared bitwise, samples by index: what tells them apart is lost in preprocessing (rounded, clipped, masked), or the data set contains them twice with different labels' AS evidence
FROM same WHERE elsewhere >= $elsewhere AND elsewhere >= $share * again
UNION ALL BY NAME
SELECT format('the inputs were sampled in {} steps, {} are needed', COUNT(DISTINCT step), $least) AS unknown FROM newest HAVING COUNT(DISTINCT step) < $least
