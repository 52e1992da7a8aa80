-- title = "parameters not registered"
-- severity = "alarm"
-- symptoms = ["gradients", "loss"]
-- order = 205
-- scope = "rank"
-- needs = "the graphs of the losses and the gradients of a few sampled steps"
-- what = "{param} and {more} other parameters looked at get gradients but are in no optimizer: their modules are kept in a Python list or dictionary, which does not register them"
-- why = [
--   "parameters() and state_dict() do not have them: they keep their first values and are in no checkpoint",
--   "in the last {n} sampled steps: {examples}",
--   "nn.ModuleList and nn.ModuleDict register what they hold",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, param, after_backward, outside_ratio FROM python.updates WHERE NOT registered ORDER BY step DESC LIMIT 24\"",
--   "probe {endpoint} checkpoint before-restart.pt",
--   "probe {endpoint} stop",
-- ]
-- false_positives = "a program that updates them itself in longer intervals than those looked at"
-- explains = ["parameters-forgotten", "plateau", "slow-decrease"]
-- [parameters.least]
-- value = 3
-- unit = "steps looked at"
-- source = "ours"
WITH steps AS (
    SELECT DISTINCT step FROM python.updates ORDER BY step DESC LIMIT 8
), seen AS (
    SELECT u.* FROM python.updates u JOIN steps USING (step)
), hidden AS (
    SELECT * FROM seen WHERE registered = false AND optimizer IS NULL AND after_backward = 'present'
), counted AS (
    SELECT COUNT(DISTINCT step) AS n, MIN(step) AS step, MIN(param) AS param, COUNT(DISTINCT param) - 1 AS more,
        array_to_string(list_sort(list(DISTINCT param))[:4], ', ') AS examples, BOOL_AND(COALESCE(outside_ratio = 0, false)) AS still
    FROM hidden
)
SELECT NULL AS unknown, n, step, param, param AS subject, more, examples FROM counted WHERE n >= $least AND still
UNION ALL BY NAME
SELECT format('updates were looked at in {} steps, {} are needed', COUNT(*), $least) AS unknown FROM steps HAVING COUNT(*) < $least
