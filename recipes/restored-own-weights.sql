-- title = "restoring weights has no effect"
-- severity = "notice"
-- symptoms = ["loss"]
-- order = 219
-- scope = "rank"
-- needs = "a load_state_dict of a model during the training"
-- what = "load_state_dict of {model} got the model's own tensors at step {step}: nothing was restored"
-- why = [
--   "seen in {times} of {later} loads during the training: the tensors that were given lie where the weights themselves lie",
--   "state_dict() gives the weights themselves, not copies: each step changes a snapshot that was made of it; copy.deepcopy(model.state_dict()) keeps it; where another network is to follow this one, such as a target network, both are one object: copy.deepcopy(model) makes a second one",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT name, value FROM probe.facts WHERE kind = 'resumption'\"",
-- ]
-- false_positives = "a load that another part of the program ends with, to call the hooks of load_state_dict alone"
WITH facts AS (
    SELECT MAX(number) FILTER (name = 'loaded.later') AS later, MAX(value) FILTER (name = 'loaded.own.model') AS model,
        MAX(number) FILTER (name = 'loaded.own.step') AS step, MAX(number) FILTER (name = 'loaded.own.times') AS times
    FROM probe.facts WHERE kind = 'resumption'
)
SELECT NULL AS unknown, model, step, CAST(times AS BIGINT) AS times, CAST(later AS BIGINT) AS later FROM facts WHERE times > 0
UNION ALL BY NAME
SELECT 'no state was loaded into a model during the training' AS unknown FROM facts WHERE later IS NULL
