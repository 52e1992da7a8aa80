-- title = "parameters in no optimizer"
-- severity = "notice"
-- symptoms = ["gradients", "loss"]
-- order = 210
-- scope = "rank"
-- needs = "the list of parameters, recorded once the model and its optimizer are known"
-- what = "{n} parameters of {module} require a gradient but are in no optimizer: {examples}"
-- why = [
--   "{elements:,} elements, {share:.1%} of all that require a gradient; they keep their initial values",
--   "first: {param}, shape {shape}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT param, shape FROM python.parameters WHERE requires_grad AND optimizer IS NULL ORDER BY place\"",
--   "probe {endpoint} checkpoint before-restart.pt",
--   "probe {endpoint} stop",
-- ]
-- false_positives = "a teacher or a moving average of the weights that was not frozen; parameters of an optimizer created later"
-- explains = ["layer-not-learning", "learning-rate-too-low", "plateau", "slow-decrease"]
-- [parameters.steps]
-- value = 3
-- unit = "steps"
-- source = "ours: sampled steps in which a gradient arrived and nothing moved the parameter"
WITH latest AS (
    SELECT param, ARG_MAX(place, t_ns) AS place, ARG_MAX(module, t_ns) AS module, ARG_MAX(shape, t_ns) AS shape, ARG_MAX(numel, t_ns) AS numel,
        ARG_MAX(requires_grad, t_ns) AS requires_grad, ARG_MAX((optimizer, param_group), t_ns)[1] AS optimizer, BOOL_OR(optimizer IS NOT NULL) AS trained, MAX(step) AS step
    FROM python.parameters GROUP BY param
), written AS (
    SELECT DISTINCT param FROM python.updates WHERE optimizer IS NULL AND outside_ratio > 0
), reached AS (
    -- A gradient to which the graph of the loss does not lead was left there, by a training that is over.
    SELECT DISTINCT param FROM python.updates WHERE optimizer IS NULL AND COALESCE(in_graph, after_backward = 'present')
), released AS (
    -- Known under another name since its first optimizer is gone: the rows of its updates say that it is in none.
    SELECT u.param FROM (SELECT *, MAX(step) FILTER (optimizer IS NOT NULL) OVER (PARTITION BY param) AS held FROM python.updates) u JOIN latest l ON l.param = u.param AND l.optimizer IS NOT NULL
    WHERE u.step > COALESCE(u.held, -1) AND u.step > l.step AND u.optimizer IS NULL AND u.in_graph AND u.after_backward = 'present' AND u.outside_ratio = 0
    GROUP BY u.param HAVING COUNT(DISTINCT u.step) >= $steps
), forgotten AS (
    -- Where the graph of a loss was walked, it must lead there: other models (of a fold that is over, a copy, one that only answers) need no optimizer.
    SELECT *, CASE WHEN module = '' THEN 'the model' ELSE module END AS owner FROM latest
    WHERE requires_grad AND (optimizer IS NULL OR param IN (SELECT param FROM released)) AND param NOT IN (SELECT param FROM written WHERE param IS NOT NULL) AND EXISTS (SELECT 1 FROM latest WHERE optimizer IS NOT NULL)
        AND (param IN (SELECT param FROM reached WHERE param IS NOT NULL) OR NOT trained AND NOT EXISTS (SELECT 1 FROM python.updates WHERE in_graph IS NOT NULL))
)
SELECT NULL AS unknown, ARG_MIN(owner, place) AS subject, ARG_MIN(owner, place) AS module, COUNT(*) AS n, SUM(numel) AS elements,
    SUM(numel) / (SELECT SUM(numel) FROM latest WHERE requires_grad) AS share, ARG_MIN(param, place) AS param,
    ARG_MIN(shape, place) AS shape, array_to_string(list(param ORDER BY place)[:4], ', ') AS examples, MIN(step) AS step
FROM forgotten GROUP BY split_part(owner, '.', 1), split_part(owner, '.', 2)
UNION ALL BY NAME
SELECT 'the parameters are not known yet' AS unknown FROM latest HAVING COUNT(*) = 0
