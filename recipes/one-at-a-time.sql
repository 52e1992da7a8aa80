-- title = "one call per item instead of one per batch"
-- severity = "info"
-- symptoms = ["slow"]
-- order = 535
-- scope = "rank"
-- needs = "module calls of a few sampled steps, and the shape of the model's input"
-- what = "{module} is called {n} times in each forward, once for each entry of {what} of the model's input ({shape}): many small calls instead of one large one"
-- why = [
--   "seen in {looks} forwards; the calls together take {ms:.1f} ms, {each:.3g} ms each",
--   "{modules} modules are called this often",
-- ]
-- next = ["probe {endpoint} query \"SELECT step, micro_step, module, COUNT(*) AS calls, SUM(duration) AS total FROM python.torch_trace WHERE stage = 'forward' GROUP BY ALL ORDER BY step DESC, total DESC LIMIT 20\""]
-- false_positives = "a recurrence that needs the result of the previous call; weight-sharing layers whose number equals the dimension by chance"
-- explains = ["low-mfu"]
-- [parameters.least]
-- value = 8
-- unit = "calls"
-- source = "ours: fewer can be weight-sharing layers"
WITH calls AS (
    SELECT step, micro_step, module, COUNT(*) AS n, SUM(duration) AS seconds FROM python.torch_trace WHERE stage = 'forward' AND NOT COALESCE(recompute, false) GROUP BY ALL
), modules AS (
    SELECT module, MEDIAN(n) AS n, COUNT(*) AS looks, MEDIAN(seconds) AS seconds, MIN(step) AS step FROM calls GROUP BY module HAVING COUNT(*) >= 2 AND MIN(n) = MAX(n) AND MIN(n) >= $least
), input AS (
    SELECT shape, TRY_CAST(shape AS BIGINT[]) AS sizes FROM python.model_inputs WHERE module <> 'batch' ORDER BY step DESC LIMIT 1
), fits AS (
    SELECT modules.*, shape, CASE WHEN n = sizes[1] THEN 'the first dimension' ELSE 'the second dimension' END AS what FROM modules, input WHERE n = sizes[1] OR len(sizes) <= 3 AND n = sizes[2]
)
SELECT NULL AS unknown, module, module AS subject, CAST(n AS BIGINT) AS n, looks, step, shape, what, 1000 * seconds AS ms, 1000 * seconds / n AS each, (SELECT COUNT(*) FROM fits) AS modules
FROM fits QUALIFY ROW_NUMBER() OVER (ORDER BY seconds DESC) = 1
UNION ALL BY NAME
SELECT 'no module calls, or no input, have been recorded yet' AS unknown WHERE NOT EXISTS (SELECT 1 FROM calls) OR NOT EXISTS (SELECT 1 FROM input)
