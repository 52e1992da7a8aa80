-- title = "training in eval mode for part of each epoch"
-- severity = "notice"
-- symptoms = ["loss", "gradients"]
-- order = 205
-- scope = "rank"
-- needs = "steps in which the model call was recorded"
-- what = "the model trains in eval mode in {off} of the last {looked} steps: it goes into eval mode between two steps, and stays there until it is put back"
-- why = [
--   "`training` became False {times} times between steps with a backward pass, and stayed False for {length} steps on average; first from step {step} on: evaluations may have called eval() without train() afterwards",
--   "{affected} layers behave differently in train mode: {examples}",
-- ]
-- next = [
--   "call train() at the end of each evaluation, or restore the mode that it found",
--   "probe {endpoint} query \"SELECT step, training_mode FROM python.steps WHERE training_mode IS NOT NULL ORDER BY step DESC LIMIT 200\"",
-- ]
-- false_positives = "epochs that are meant to train in eval mode, such as a phase with frozen batch-norm statistics in each cycle"
-- explains = ["divergence", "loss-spike", "gradient-exploding-layer", "validation-rising", "train-validation-gap"]
-- dated = true
-- uses = ["trainings", "modal"]
-- [parameters.least_times]
-- value = 3
-- unit = "changes to eval mode"
-- source = "ours: one or two may be phases of the training"
-- [parameters.least_length]
-- value = 5
-- unit = "steps"
-- source = "ours: a single step in eval mode now and then may be meant, as for adversarial samples"
-- [parameters.least_ratio]
-- value = 0.1
-- unit = "ratio"
-- source = "ours"
WITH looked AS (
    SELECT step, training_mode, LAG(training_mode) OVER (ORDER BY step) AS before
    FROM (SELECT step, training_mode FROM python.steps WHERE training_mode IS NOT NULL AND micro_steps > 0 AND step >= (SELECT MAX(begun) FROM trainings) ORDER BY step DESC LIMIT 4000)
), counted AS (
    SELECT COUNT(*) AS looked, COUNT(*) FILTER (NOT training_mode) AS off, COUNT(*) FILTER (before AND NOT training_mode) AS times,
        MIN(step) FILTER (before AND NOT training_mode) AS step FROM looked
), layers AS (
    SELECT COUNT(*) FILTER (changes) AS affected, array_to_string(list(module ORDER BY module) FILTER (changes)[:3], ', ') AS examples, COALESCE(SUM(parameters) > 0 AND SUM(trainable) = 0, false) AS frozen FROM modal
)
SELECT NULL AS unknown, step, off, looked, times, ROUND(off / times) AS length, affected, examples
FROM counted, layers WHERE times >= $least_times AND off >= $least_length * times AND off >= $least_ratio * looked AND affected > 0 AND NOT frozen
UNION ALL BY NAME
SELECT 'too few model calls were recorded' AS unknown FROM counted WHERE looked < 20
