-- title = "evaluation uses a copy that never changes"
-- severity = "notice"
-- symptoms = ["loss"]
-- order = 63
-- scope = "rank"
-- needs = "three evaluations of a model on the CPU"
-- what = "evaluation runs on a copy of {model} that is never updated: its weights were the same in {n} sampled evaluations, while the trained {model} changed by {trained:.2g} of its size"
-- why = [
--   "another model of the same class and size was called without gradients at steps {step} to {last}; no sampled evaluation called the trained model itself",
--   "a copy made before training (copy.deepcopy, another instance) keeps its initial weights: evaluate the trained model, or load its weights into the copy before each evaluation",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, module, copy_moved FROM python.model_inputs WHERE gradless ORDER BY step DESC LIMIT 12\"",
--   "probe {endpoint} query \"SELECT step, model, number, optimizer, moved_ratio, writes FROM python.weights ORDER BY step DESC, number LIMIT 8\"",
-- ]
-- false_positives = "an initial or pretrained model that is evaluated repeatedly as a baseline while the trained one is never evaluated; a teacher or reference model that is called in training steps is not reported"
-- explains = ["train-validation-gap", "validation-rising", "evaluation-inputs"]
-- [parameters.least]
-- value = 3
-- unit = "evaluations"
-- source = "ours"
-- [parameters.share]
-- value = 0.7
-- unit = "ratio of the samples"
-- source = "ours: the newest sample may belong to a running evaluation"
-- [parameters.steps]
-- value = 50
-- unit = "steps"
-- source = "ours: a normal copy is recreated for each evaluation, or updated within an epoch"
-- [parameters.moved]
-- value = 1e-3
-- unit = "ratio"
-- source = "ours: the trained network has clearly moved away from its initial weights"
WITH looks AS (
    SELECT step, module, BOOL_OR(copy_moved) AS moved, BOOL_OR(copy_moved IS NULL) AS own FROM python.model_inputs WHERE gradless AND module <> 'batch' GROUP BY ALL
), evaluations AS (
    SELECT DISTINCT step FROM python.intervals WHERE kind = 'evaluation' AND state = 'done'
), counted AS (
    SELECT module AS model, COUNT(*) AS n, MIN(step) AS step, MAX(step) AS last, BOOL_OR(COALESCE(moved, false)) AS moved, BOOL_OR(own) AS own, COUNT(*) FILTER (step IN (SELECT step FROM evaluations)) AS evaluated FROM looks GROUP BY module
), trained AS (
    SELECT MAX(moved_ratio) AS trained FROM python.weights WHERE optimizer IS NOT NULL
)
SELECT NULL AS unknown, model AS subject, counted.*, trained FROM counted, trained
WHERE evaluated >= $least AND evaluated >= $share * n AND NOT moved AND NOT own AND last - step >= $steps AND trained > $moved
UNION ALL BY NAME
SELECT format('{} evaluations were sampled, {} are needed', COALESCE(MAX(n), 0), $least) AS unknown FROM counted HAVING COALESCE(MAX(n), 0) < $least
