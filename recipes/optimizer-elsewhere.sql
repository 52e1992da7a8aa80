-- title = "optimizer holds parameters of another model"
-- severity = "alarm"
-- symptoms = ["gradients", "loss"]
-- order = 204
-- scope = "rank"
-- needs = "the autograd graphs of the losses and the gradients, from a few sampled steps"
-- what = "the optimizer holds the parameters of another instance of the model: the loss leads to none of them, and those that it leads to ({examples}) are in no optimizer"
-- why = [
--   "in the last {n} sampled steps, {held} parameters of the optimizer were sampled; none was in the graph of a loss or had a gradient",
--   "{unheld} sampled parameters that are in no optimizer had a gradient and did not change",
--   "the model was recreated, copied or moved after the optimizer was created: create the optimizer from the parameters of the model that runs",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, param, optimizer, in_graph, after_backward, outside_ratio FROM python.updates ORDER BY step DESC LIMIT 24\"",
--   "probe {endpoint} checkpoint before-restart.pt",
--   "probe {endpoint} stop",
-- ]
-- false_positives = "a program that updates these parameters itself, but so rarely that no sampled step shows it"
-- explains = ["learning-rate-too-low", "layer-not-learning", "plateau", "slow-decrease", "parameters-forgotten"]
-- [parameters.least]
-- value = 3
-- unit = "sampled steps"
-- source = "ours"
WITH steps AS (
    SELECT DISTINCT step FROM python.updates ORDER BY step DESC LIMIT 8
), seen AS (
    SELECT u.* FROM python.updates u JOIN steps USING (step)
), counted AS (
    SELECT COUNT(DISTINCT step) AS n, MIN(step) AS step,
        COUNT(DISTINCT (param, place, numel)) FILTER (optimizer IS NOT NULL) AS held, COUNT(DISTINCT (param, place, numel)) FILTER (optimizer IS NULL) AS unheld,
        BOOL_OR(in_graph OR after_backward IN ('present', 'zero') OR at_step = 'present') FILTER (optimizer IS NOT NULL) AS used,
        BOOL_AND(in_graph AND after_backward = 'present' AND COALESCE(outside_ratio = 0, false)) FILTER (optimizer IS NULL AND in_graph) AS still,
        COUNT(DISTINCT step) FILTER (optimizer IS NULL AND in_graph) AS looked,
        array_to_string(list(DISTINCT param) FILTER (optimizer IS NULL AND in_graph AND param IS NOT NULL)[:4], ', ') AS examples
    FROM seen WHERE in_graph IS NOT NULL
)
SELECT NULL AS unknown, n, step, held, unheld, COALESCE(NULLIF(examples, ''), 'parameters of no known model') AS examples
FROM counted WHERE looked >= $least AND held > 0 AND NOT used AND still
UNION ALL BY NAME
SELECT format('updates of {} steps were sampled, {} are needed', COUNT(*), $least) AS unknown FROM steps HAVING COUNT(*) < $least
