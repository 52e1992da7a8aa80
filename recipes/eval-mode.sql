-- title = "training in eval mode"
-- severity = "notice"
-- symptoms = ["loss", "gradients"]
-- order = 205
-- scope = "rank"
-- needs = "steps in which the model call was recorded"
-- what = "the model has been in eval mode since step {step}: {reason}"
-- why = [
--   "`training` was False in {off} of the last {looked} steps with a backward pass",
--   "it was True until step {last_on}: an evaluation may have called eval() without train() afterwards",
--   "{affected} layers behave differently in train mode: {examples}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT module, class, training, p FROM python.modules WHERE NOT training ORDER BY module\"",
--   "probe {endpoint} eval --at-step \"model.train()\"",
-- ]
-- false_positives = "fine-tuning with frozen batch-norm statistics; `info` if no layer that trains behaves differently in eval mode, and for a fine-tuning of the smaller part of the parameters that was never in train mode"
-- explains = ["divergence", "loss-spike", "gradient-exploding-layer", "validation-rising", "train-validation-gap"]
-- dated = true
-- uses = ["trainings", "modal"]
-- [parameters.least]
-- value = 20
-- unit = "steps"
-- source = "ours"
-- [parameters.again]
-- value = 10
-- unit = "s"
-- source = "ours: the modules' flags are read every ten seconds and when the mode of the steps changes; what was read before that says nothing of it"
WITH looked AS (
    SELECT step, training_mode FROM python.steps WHERE training_mode IS NOT NULL AND micro_steps > 0 ORDER BY step DESC LIMIT 100
), counted AS (
    SELECT COUNT(*) AS looked, COUNT(*) FILTER (NOT training_mode) AS off,
        BOOL_AND(NOT training_mode) FILTER (step > (SELECT MAX(step) FROM looked) - $least) AS now FROM looked
), before AS (
    SELECT MAX(step) FILTER (training_mode) AS last_on, MIN(step) AS first FROM python.steps WHERE training_mode IS NOT NULL
), moments AS (
    SELECT MAX(t_ns) FILTER (training_mode) AS on_ns, MAX(t_ns) AS now_ns FROM python.steps WHERE training_mode IS NOT NULL
), layers AS (
    -- A model that is frozen as a whole judges what is trained, such as the pixels of a picture: its mode is to be eval.
    SELECT COUNT(*) AS known, COUNT(*) FILTER (changes AND NOT trains) AS affected, COUNT(*) FILTER (changes AND trains AND unread) AS unread,
        COALESCE(SUM(parameters) > 0 AND SUM(trainable) = 0, false) AS frozen, COALESCE(SUM(trainable) < 0.5 * SUM(parameters), false) AS adapted,
        array_to_string(list(module ORDER BY module) FILTER (changes AND NOT trains)[:3], ', ') AS examples
    -- A layer that is in train mode itself is as it should be.
    -- A flag that is older than the change of mode counts once there was time to read it again: rows come only with changes.
    FROM (SELECT module, parameters, trainable, COALESCE(training, false) AS trains, COALESCE(read_ns <= on_ns AND now_ns - on_ns < $again * 1e9, false) AS unread, changes FROM modal, moments)
), newest AS (
    -- Where another training began, which may train something else through the model: its steps must give the model gradients.
    SELECT MAX(begun) = 0 OR EXISTS (SELECT 1 FROM python.gradients JOIN python.parameters USING (param) WHERE gradients.step >= (SELECT MAX(begun) FROM trainings)) AS trained,
        -- A fine-tuning of a few parameters that was never in train mode: what is frozen is to stay as it was.
        MAX(begun) > 0 AND NOT EXISTS (SELECT 1 FROM python.steps WHERE training_mode AND micro_steps > 0 AND step > (SELECT MAX(begun) FROM trainings)) AS never_on FROM trainings
)
SELECT NULL AS unknown, COALESCE(last_on + 1, first) AS step, last_on, off, looked,
    CASE WHEN affected > 0 THEN affected END AS affected, examples,
    CASE WHEN known = 0 THEN 'dropout is off and batch-norm statistics are not updated, if there are any'
        WHEN affected = 0 THEN 'none of its layers that train behaves differently in train mode'
        ELSE 'dropout is off and batch-norm statistics are not updated' END AS reason,
    CASE WHEN known > 0 AND affected = 0 OR adapted AND never_on THEN 'info' ELSE 'notice' END AS severity
FROM counted, before, layers, newest WHERE looked >= $least AND now AND trained AND NOT frozen AND NOT (affected = 0 AND unread > 0)
UNION ALL BY NAME
SELECT 'the mode of the layers has not been read since step ' || last_on || ', when that of the model changed' AS unknown
FROM counted, before, layers, newest WHERE looked >= $least AND now AND trained AND NOT frozen AND affected = 0 AND unread > 0
UNION ALL BY NAME
SELECT 'too few model calls were recorded' AS unknown FROM counted WHERE looked < $least
