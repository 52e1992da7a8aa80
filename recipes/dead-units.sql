-- title = "dead units"
-- severity = "notice"
-- symptoms = ["gradients", "loss"]
-- order = 260
-- scope = "rank"
-- needs = "sampled outputs of modules"
-- deepen = "activations"
-- what = "{dead:.0%} of the units of {module} are dead: 0 for every sampled input since step {step} or earlier"
-- why = [
--   "{class}, shape {shape}: in each of the last {n} sampled calls, at least {dead:.0%} of its units were 0 for the whole batch",
--   "output: mean {mean:.2g}, {zero_ratio:.0%} of the elements are 0",
--   "{others} of {modules} such modules are affected too",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, module, dead_ratio, zero_ratio, mean FROM python.activations ORDER BY t_ns DESC LIMIT 20\"",
--   "probe {endpoint} watch --activations --steps 5",
-- ]
-- false_positives = "intentionally sparse activations; a batch so small that a unit is 0 by chance"
-- explains = ["layer-not-learning", "gradients-vanishing", "plateau", "slow-decrease", "output-constant"]
-- effect = true
-- [parameters.share]
-- value = 0.5
-- unit = "ratio of the units"
-- source = "SageMaker Debugger's DeadRelu: half of a layer; practice: any dead row is reported"
-- [parameters.least]
-- value = 3
-- unit = "sampled calls"
-- source = "ours: dead in every sample, not in one batch"
WITH seen AS (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY module ORDER BY t_ns DESC, step DESC) AS ago FROM python.activations
    WHERE dead_ratio IS NOT NULL AND regexp_matches(class, 'ReLU|GELU|SiLU|ELU|Swish|Mish|Softplus|Hardswish|GLU|Act')
), modules AS (
    SELECT module, ANY_VALUE(class) AS class, ARG_MIN(shape, ago) AS shape, COUNT(*) AS n, MIN(dead_ratio) AS dead, MIN(step) AS step,
        MEDIAN(mean) AS mean, MEDIAN(zero_ratio) AS zero_ratio, MIN(place) AS place
    FROM seen WHERE ago <= 5 GROUP BY module
)
SELECT NULL AS unknown, module, module AS subject, step, class, shape, n, dead, mean, zero_ratio, COUNT(*) OVER () - 1 AS others,
    (SELECT COUNT(*) FROM modules) AS modules, CASE WHEN dead = 1 THEN 'alarm' ELSE 'notice' END AS severity
FROM modules WHERE n >= $least AND dead >= $share QUALIFY ROW_NUMBER() OVER (ORDER BY dead DESC, place) <= 3
UNION ALL BY NAME
SELECT 'no sampled outputs of activation modules' AS unknown FROM seen HAVING COUNT(*) < $least
