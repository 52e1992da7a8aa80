-- title = "parameters not registered"
-- severity = "alarm"
-- symptoms = ["gradients", "loss"]
-- order = 205
-- scope = "rank"
-- needs = "the autograd graphs of the losses and the gradients, from a few sampled steps"
-- what = "{param}{others} {gets} but {are} in no optimizer: {how}"
-- why = [
--   "parameters() and state_dict() do not include {them}: {keeps} initial values and {are} in no checkpoint",
--   "in the last {n} sampled steps: {examples}",
--   "{remedy}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, param, after_backward, outside_ratio FROM python.updates WHERE NOT registered ORDER BY step DESC LIMIT 24\"",
--   "probe {endpoint} checkpoint before-restart.pt",
--   "probe {endpoint} stop",
-- ]
-- false_positives = "inputs stored in a physics-informed network (`info` if a derivative is part of the loss); a program that updates them itself, but so rarely that no sampled step shows it"
-- explains = ["parameters-forgotten", "plateau", "slow-decrease"]
-- [parameters.least]
-- value = 3
-- unit = "sampled steps"
-- source = "ours"
WITH steps AS (
    SELECT DISTINCT step FROM python.updates ORDER BY step DESC LIMIT 8
), seen AS (
    SELECT u.* FROM python.updates u JOIN steps USING (step)
), hidden AS (
    SELECT *, COALESCE(plain, false) AS is_plain FROM seen WHERE registered = false AND optimizer IS NULL AND after_backward = 'present'
), counted AS (
    SELECT is_plain, COUNT(DISTINCT step) AS n, MIN(step) AS step, MIN(param) AS param, COUNT(DISTINCT param) - 1 AS more,
        array_to_string(list_sort(list(DISTINCT param))[:4], ', ') AS examples, BOOL_AND(COALESCE(outside_ratio = 0, false)) AS still
    FROM hidden GROUP BY is_plain
)
SELECT NULL AS unknown, n, step, param, param AS subject, examples,
    CASE WHEN is_plain AND EXISTS (SELECT 1 FROM python.graphs WHERE derivatives) THEN 'info' ELSE 'alarm' END AS severity,
    CASE WHEN more > 0 THEN format(' and {} other sampled {}', more, CASE WHEN is_plain THEN 'tensors' ELSE 'parameters' END) ELSE '' END AS others,
    CASE WHEN more > 0 THEN 'get gradients' ELSE 'gets a gradient' END AS gets, CASE WHEN more > 0 THEN 'are' ELSE 'is' END AS are,
    CASE WHEN more > 0 THEN 'them' ELSE 'it' END AS them, CASE WHEN more > 0 THEN 'they keep their' ELSE 'it keeps its' END AS keeps,
    CASE WHEN is_plain THEN 'a plain tensor that requires a gradient is not registered as a parameter of its module'
        ELSE 'modules and parameters in a Python list or dictionary are not registered with their module' END AS how,
    CASE WHEN is_plain THEN 'wrap it in nn.Parameter(tensor) before the optimizer is created' ELSE 'use nn.ModuleList, nn.ModuleDict or nn.ParameterList, which register their contents' END AS remedy
FROM counted WHERE n >= $least AND still
UNION ALL BY NAME
SELECT format('updates of {} steps were sampled, {} are needed', COUNT(*), $least) AS unknown FROM steps HAVING COUNT(*) < $least
