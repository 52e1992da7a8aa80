-- title = "weights in double precision"
-- severity = "info"
-- symptoms = ["slow", "memory"]
-- order = 545
-- scope = "rank"
-- needs = "the list of parameters, recorded once the model is known"
-- what = "{share:.0%} of the weights are float64: each step takes about twice the memory of float32 and at least twice the time, on most GPUs far more"
-- why = [
--   "{n} parameters, the first is {param}; {elements:,} elements",
--   "the model's input is {dtype}",
--   "NumPy defaults to float64: convert the data with .float() instead of the model with .double()",
-- ]
-- next = ["probe {endpoint} query \"SELECT dtype, COUNT(*), SUM(numel) FROM python.parameters GROUP BY dtype\""]
-- false_positives = "simulations, physics and optimization that need the precision"
-- explains = ["low-mfu"]
-- [parameters.share]
-- value = 0.5
-- unit = "ratio of the elements"
-- source = "ours"
WITH latest AS (
    SELECT param, ARG_MAX(place, t_ns) AS place, ARG_MAX(numel, t_ns) AS numel, ARG_MAX(dtype, t_ns) AS dtype, MAX(step) AS step FROM python.parameters GROUP BY param
), input AS (
    SELECT ANY_VALUE(dtype) AS dtype FROM python.model_inputs WHERE module <> 'batch' AND dtype LIKE '%float%'
), counted AS (
    SELECT COUNT(*) AS n, SUM(numel) AS elements, SUM(numel) / (SELECT SUM(numel) FROM latest) AS share, ARG_MIN(param, place) AS param, MIN(step) AS step FROM latest WHERE dtype = 'float64'
)
SELECT NULL AS unknown, counted.*, dtype FROM counted, input WHERE share >= $share
UNION ALL BY NAME
SELECT 'the parameters are not known yet' AS unknown FROM latest HAVING COUNT(*) = 0
