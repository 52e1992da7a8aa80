-- title = "the loss is detached from the model"
-- severity = "alarm"
-- symptoms = ["gradients", "loss"]
-- order = 203
-- scope = "rank"
-- needs = "the autograd graphs of the losses, from a few sampled steps"
-- what = "backward reaches no parameter: the loss is detached from the model (wrapped in a new tensor, or computed from .item(), .data or numpy), so no parameter gets a gradient"
-- why = [
--   "in the last {n} sampled steps the graph of the loss led to none of the {params} sampled parameters, and none had a gradient after backward",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, param, in_graph, after_backward FROM python.updates ORDER BY step DESC, place LIMIT 24\"",
--   "probe {endpoint} checkpoint before-restart.pt",
--   "probe {endpoint} stop",
-- ]
-- false_positives = "a program that sets the gradients by hand"
-- explains = ["learning-rate-too-low", "layer-not-learning", "plateau", "slow-decrease"]
-- [parameters.least]
-- value = 3
-- unit = "sampled steps"
-- source = "ours"
WITH steps AS (
    SELECT DISTINCT step FROM python.updates ORDER BY step DESC LIMIT 8
), seen AS (
    SELECT u.* FROM python.updates u JOIN steps USING (step)
), counted AS (
    SELECT COUNT(DISTINCT step) AS n, COUNT(DISTINCT COALESCE(param, place::VARCHAR)) AS params, MIN(step) AS step, BOOL_OR(in_graph) AS reached,
        BOOL_OR(after_backward IS DISTINCT FROM 'none') AS gradient, BOOL_OR(at_step = 'present') AS at_step, BOOL_OR(optimizer IS NOT NULL) AS held
    FROM seen WHERE in_graph IS NOT NULL
)
SELECT NULL AS unknown, n, params, step FROM counted WHERE n >= $least AND held AND NOT reached AND NOT gradient AND NOT COALESCE(at_step, false)
UNION ALL BY NAME
SELECT format('updates of {} steps were sampled, {} are needed', COUNT(*), $least) AS unknown FROM steps HAVING COUNT(*) < $least
