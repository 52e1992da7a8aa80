-- title = "the model is called again on the same batch"
-- severity = "notice"
-- symptoms = ["slow", "loss"]
-- order = 524
-- scope = "rank"
-- needs = "a step sampled with its module calls"
-- what = "{fact}"
-- why = [
--   "{evidence}",
--   "this was so in {n} of {sampled} sampled steps, from step {step} to {last}; the input was the same tensor, unchanged in between",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, module, calls, unused, outputs, apart FROM python.repeated_calls ORDER BY step DESC LIMIT 10\"",
--   "probe {endpoint} query \"SELECT module, stage, count(*) / count(DISTINCT step) AS calls, avg(duration) FROM python.torch_trace GROUP BY ALL ORDER BY 4 DESC LIMIT 10\"",
-- ]
-- false_positives = "two passes with different dropout on purpose, whose outputs are compared (left out if both reach the loss through the same output); a target computed with gradients and then detached, where no_grad would save the graph"
-- explains = ["low-mfu", "slow-module"]
-- [parameters.least]
-- value = 2
-- unit = "sampled steps"
-- source = "ours: every step has the same structure; a single one may be an exception, and is `info`"
-- [parameters.share]
-- value = 0.5
-- unit = "ratio of the sampled steps"
-- source = "ours: a check of the data every hundred steps is not part of each step"
WITH calls AS (
    SELECT module, calls, unused, outputs, apart, COUNT(DISTINCT step) AS n, MIN(step) AS step, MAX(step) AS last FROM python.repeated_calls GROUP BY ALL
), sampled AS (
    SELECT COUNT(*) AS sampled FROM python.steps WHERE sampled AND step >= (SELECT MIN(step) FROM python.repeated_calls)
), usual AS (
    SELECT * FROM calls, sampled WHERE n >= $share * sampled QUALIFY ROW_NUMBER() OVER (PARTITION BY module ORDER BY n DESC) = 1
)
SELECT NULL AS unknown, module AS subject, usual.*, CASE WHEN n >= $least THEN 'notice' ELSE 'info' END AS severity,
    CASE WHEN apart THEN format('{} is called {} times on the same batch in each step, once for each of its outputs', module, calls)
        ELSE format('{} is called {} times on the same batch in each step, and {} of these forward passes {} for nothing: no gradient flows from their output', module, calls, unused, CASE WHEN unused = 1 THEN 'is' ELSE 'are' END) END AS fact,
    CASE WHEN apart THEN 'each call is used for different outputs: one call returns them all. With dropout or noise inside, the combined outputs now come from different passes'
        ELSE 'it is computed with its graph, but the loss does not depend on it: use the (detached) output of the other call, or compute it under torch.no_grad()' END AS evidence
FROM usual WHERE apart OR unused > 0 AND unused < calls
UNION ALL BY NAME
SELECT 'no step was sampled with its module calls' AS unknown WHERE NOT EXISTS (SELECT 1 FROM python.torch_trace WHERE stage = 'forward')
