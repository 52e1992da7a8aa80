-- title = "inefficient DistributedDataParallel settings"
-- severity = "notice"
-- symptoms = ["slow"]
-- order = 521
-- scope = "rank"
-- needs = "the DistributedDataParallel settings and the parameter sizes"
-- what = "{fact}"
-- why = [
--   "{evidence}",
--   "{hint}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT name, value FROM probe.facts WHERE name LIKE 'ddp%'\"",
--   "probe {endpoint} query \"SELECT step, COUNT(*) AS calls, SUM(bytes) AS bytes FROM python.collectives WHERE op LIKE 'all_reduce%' GROUP BY step ORDER BY step DESC LIMIT 5\"",
-- ]
-- false_positives = "parameters without a gradient in steps that were not sampled (rarely taken branches, as in a mixture of experts), which do need find_unused_parameters (`info`)"
-- explains = ["low-mfu", "throughput-drop"]
-- [parameters.bucket_bytes]
-- value = 262144
-- unit = "bytes"
-- source = "practice: 1 MiB for the first bucket and 25 MiB for the others by default, 5 to 500 MiB when tuned"
-- [parameters.buckets]
-- value = 4.0
-- unit = "buckets"
-- source = "ours: a model that fits into a few small buckets loses little"
-- [parameters.looks]
-- value = 3
-- unit = "sampled steps"
-- source = "ours"
WITH told AS (
    SELECT regexp_extract(name, '^(ddp[0-9]*)[.]', 1) AS ddp, regexp_extract(name, '[.](.*)$', 1) AS what, ARG_MAX(value, t_ns) AS value, ARG_MAX(COALESCE(number, TRY_CAST(value AS DOUBLE)), t_ns) AS number FROM probe.facts WHERE name LIKE 'ddp%' GROUP BY ALL
), wrapped AS (
    SELECT ddp, MAX(number) FILTER (what = 'bucket_bytes') AS cap, COALESCE(BOOL_OR(value = 'True') FILTER (what = 'find_unused_parameters'), false) AS search, COALESCE(BOOL_OR(value = 'True') FILTER (what = 'static_graph'), false) AS static FROM told GROUP BY ddp
), held AS (
    SELECT param, ARG_MAX(numel, t_ns) * CASE WHEN ARG_MAX(dtype, t_ns) LIKE '%16%' THEN 2 WHEN ARG_MAX(dtype, t_ns) LIKE '%64%' THEN 8 ELSE 4 END AS size, ARG_MAX(requires_grad, t_ns) AS trained FROM python.parameters GROUP BY param
), sizes AS (
    -- A bucket is closed by the gradient that fills it: those as large as a bucket close one each.
    SELECT COUNT(*) AS n, SUM(size) AS total, COUNT(*) FILTER (size >= cap) + COALESCE(SUM(size) FILTER (size < cap), 0) / (2 * ANY_VALUE(cap)) AS buckets, ANY_VALUE(cap) AS cap FROM held, wrapped WHERE trained AND ddp = 'ddp' AND cap > 0
), looks AS (
    SELECT COUNT(DISTINCT step) AS steps, COUNT(*) AS n, COUNT(DISTINCT param) AS params, COUNT(*) FILTER (at_step <> 'present') AS without FROM python.updates WHERE at_step IS NOT NULL
)
SELECT NULL AS unknown, 'buckets' AS subject, (SELECT MIN(step) FROM python.steps) AS step, 'notice' AS severity, format('gradients are reduced nearly one by one: a DistributedDataParallel bucket holds {:,.0f} bytes, so about {:.0f} buckets are reduced for {} parameters', cap, buckets, n) AS fact,
    format('bucket_cap_mb is {:.4g} MiB, the gradients take {:,.2f} MiB together', cap / 1048576, total / 1048576) AS evidence, 'each bucket is a separate all-reduce, and a small one takes as long as one with a hundred times the data: leave bucket_cap_mb at 25 (the unit is MiB)' AS hint
FROM sizes WHERE cap <= $bucket_bytes AND buckets >= $buckets AND total >= $buckets * cap
UNION ALL BY NAME
SELECT NULL AS unknown, 'find_unused_parameters' AS subject, (SELECT MIN(step) FROM python.steps) AS step, 'info' AS severity, 'DistributedDataParallel searches for unused parameters in each step (find_unused_parameters=True), but none was found to be unused' AS fact,
    format('all {} checked parameters had a gradient in all {} sampled steps', params, steps) AS evidence, 'the search walks the whole graph after each forward: it is needed only if some steps leave parameters out' AS hint
FROM wrapped, looks WHERE ddp = 'ddp' AND search AND NOT static AND steps >= $looks AND without = 0
UNION ALL BY NAME
SELECT 'no model is wrapped by DistributedDataParallel, or none is known yet' AS unknown FROM wrapped HAVING COUNT(*) = 0
