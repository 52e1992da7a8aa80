-- title = "frozen parameters"
-- severity = "info"
-- symptoms = ["gradients", "loss"]
-- order = 215
-- scope = "rank"
-- needs = "the list of parameters, recorded once the model and its optimizer are known"
-- what = "{modules} modules are frozen, {share:.1%} of the model: {examples}"
-- why = [
--   "{n} parameters with {elements:,} elements have requires_grad=False; {trained:,} elements are trained",
--   "frozen between trained modules: {between}",
-- ]
-- next = ["probe {endpoint} query \"SELECT module, SUM(numel) FROM python.parameters WHERE NOT requires_grad GROUP BY module ORDER BY MIN(place)\""]
-- false_positives = "usually intended in fine-tuning, hence `info`; a notice if nothing at all is trained; nothing if all were frozen only for a moment, as while samples are drawn: then gradients were seen since"
-- explains = ["layer-not-learning", "plateau", "slow-decrease"]
WITH latest AS (
    SELECT param, ARG_MAX(place, t_ns) AS place, ARG_MAX(module, t_ns) AS module, ARG_MAX(numel, t_ns) AS numel,
        ARG_MAX(requires_grad, t_ns) AS requires_grad, MAX(step) AS step
    FROM python.parameters GROUP BY param
), modules AS (
    SELECT module, MIN(place) AS place, BOOL_AND(NOT requires_grad) AS frozen FROM latest GROUP BY module
), ends AS (
    SELECT MIN(place) FILTER (NOT frozen) AS first, MAX(place) FILTER (NOT frozen) AS last FROM modules
), listed AS (
    SELECT COUNT(*) AS modules, array_to_string(list(module ORDER BY place)[:4], ', ') AS examples, ARG_MIN(module, place) AS subject,
        NULLIF(array_to_string(list(module ORDER BY place) FILTER (place BETWEEN ends.first AND ends.last)[:4], ', '), '') AS between
    FROM modules, ends WHERE frozen
), noted AS (
    SELECT MAX(step) AS step FROM latest
), moving AS (
    SELECT COALESCE(BOOL_OR(grad_norm > 0), false) AS yes FROM python.steps, noted WHERE python.steps.step > noted.step - 2
)
SELECT NULL AS unknown, ANY_VALUE(subject) AS subject, COUNT(*) FILTER (NOT requires_grad) AS n, ANY_VALUE(modules) AS modules, ANY_VALUE(examples) AS examples, ANY_VALUE(between) AS between,
    COALESCE(SUM(numel) FILTER (NOT requires_grad), 0) AS elements, COALESCE(SUM(numel) FILTER (requires_grad), 0) AS trained,
    SUM(numel) FILTER (NOT requires_grad) / SUM(numel) AS share, MIN(step) AS step,
    CASE WHEN COUNT(*) FILTER (requires_grad) = 0 THEN 'notice' ELSE 'info' END AS severity
FROM latest, listed, moving HAVING COUNT(*) FILTER (NOT requires_grad) > 0 AND ANY_VALUE(modules) > 0 AND (COUNT(*) FILTER (requires_grad) > 0 OR NOT ANY_VALUE(yes))
UNION ALL BY NAME
SELECT 'the parameters are not known yet' AS unknown FROM latest HAVING COUNT(*) = 0
