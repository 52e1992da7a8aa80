-- title = "evaluation on samples of the training set"
-- severity = "info"
-- symptoms = ["loss", "data"]
-- order = 69
-- scope = "rank"
-- needs = "the model's inputs, on the CPU, in training and in two evaluations"
-- what = "the model is evaluated on samples that it is trained on: {again} of {compared} samples checked in {evaluations} evaluations had been trained on"
-- why = [
--   "input {name} of {module}, up to step {step}; {known} training samples had been checked by then, so the true share is this or higher",
--   "{evidence}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, gradless, name, compared, again FROM python.model_inputs WHERE compared IS NOT NULL ORDER BY t_ns DESC LIMIT 20\"",
--   "probe {endpoint} query \"SELECT step, kind, loader, batches FROM python.intervals ORDER BY t_ns DESC LIMIT 10\"",
-- ]
-- false_positives = "evaluating training data on purpose, without augmentation (`info` if it is the training loader, or if some evaluations contain new samples)"
-- [parameters.evaluations]
-- value = 2
-- unit = "evaluations"
-- source = "ours"
-- [parameters.least]
-- value = 12
-- unit = "samples"
-- source = "ours"
-- [parameters.share]
-- value = 0.1
-- unit = "ratio of the samples"
-- source = "ours: only part of the training data was checked, and most data sets contain a few duplicates"
-- [parameters.duplicates]
-- value = 0.02
-- unit = "ratio of repeated samples in the first epoch"
-- source = "ours: a data set with duplicates has them in every split"
WITH training AS (
    SELECT module, name, SUM(compared) AS known FROM python.model_inputs WHERE NOT gradless AND compared IS NOT NULL GROUP BY module, name
), epochs AS (
    SELECT step, MAX(epoch) AS epoch, MIN(loader) AS loader FROM python.batches WHERE state = 'done' GROUP BY step
), first_epoch AS (
    SELECT SUM(again) / SUM(compared) AS duplicates FROM python.model_inputs JOIN epochs USING (step) WHERE NOT gradless AND epoch = 0
), held AS (
    SELECT step, ARG_MAX(loader, t_ns) AS loader FROM python.intervals WHERE kind IN ('evaluation', 'inference') AND state <> 'failed' GROUP BY step
), evaluated AS (
    SELECT module, name, COUNT(DISTINCT step) AS evaluations, MAX(step) AS step, SUM(compared) AS compared, SUM(again) AS again, MIN(again / compared) AS least_share,
        BOOL_AND(loader IS NOT NULL AND loader NOT IN (SELECT COALESCE(e.loader, '') FROM epochs e JOIN python.model_inputs m USING (step) WHERE NOT m.gradless)) AS other
    FROM (SELECT m.*, held.loader FROM python.model_inputs m JOIN held USING (step) WHERE m.gradless AND m.compared IS NOT NULL QUALIFY ROW_NUMBER() OVER (PARTITION BY module, name ORDER BY step DESC) <= 8)
    GROUP BY module, name
)
SELECT NULL AS unknown, module || ' ' || name AS subject, * EXCLUDE (duplicates), CASE WHEN other AND duplicates < $duplicates AND least_share >= $share THEN 'notice' ELSE 'info' END AS severity,
    CASE WHEN other THEN 'they come from another data set object than the training samples: check how the data are split' ELSE 'it measures how well the model fits the training data, not how it generalizes' END AS evidence
FROM evaluated JOIN training USING (module, name), first_epoch
WHERE evaluations >= $evaluations AND again >= $least AND again >= $share * compared AND COALESCE(duplicates, 0) < 0.5 * again / compared
UNION ALL BY NAME
SELECT format('{} evaluations whose samples were compared with training samples, {} are needed', (SELECT COALESCE(MAX(evaluations), 0) FROM evaluated), $evaluations) AS unknown
WHERE (SELECT COALESCE(MAX(evaluations), 0) FROM evaluated) < $evaluations
