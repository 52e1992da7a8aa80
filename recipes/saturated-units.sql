-- title = "saturated units"
-- severity = "notice"
-- symptoms = ["gradients", "loss"]
-- order = 265
-- scope = "rank"
-- needs = "sampled outputs of sigmoid or tanh modules"
-- deepen = "activations"
-- what = "{saturated:.0%} of {module}'s outputs are saturated: within 1 % of their bounds, where the gradient vanishes"
-- why = [
--   "{class}, shape {shape}: at least {saturated:.0%} in each of the last {n} sampled calls (from step {step})",
--   "output: mean {mean:.2g}, deviation {std:.2g}, from {min:.3g} to {max:.3g}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, module, saturated_ratio, mean, std FROM python.activations WHERE saturated_ratio IS NOT NULL ORDER BY t_ns DESC LIMIT 20\"",
--   "probe {endpoint} watch --activations --steps 5",
-- ]
-- false_positives = "gates and attention weights, which saturate by design; the last module of a confident classifier (excluded)"
-- explains = ["gradient-depth", "gradients-vanishing", "layer-not-learning", "plateau", "slow-decrease"]
-- effect = true
-- [parameters.share]
-- value = 0.5
-- unit = "ratio of the outputs"
-- source = "SageMaker Debugger's SaturatedActivation: half of a layer"
-- [parameters.least]
-- value = 3
-- unit = "sampled calls"
-- source = "ours"
WITH seen AS (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY module ORDER BY t_ns DESC, step DESC) AS ago, MAX(place) OVER (PARTITION BY step, micro_step) AS last_place
    FROM python.activations
), modules AS (
    SELECT module, ANY_VALUE(class) AS class, ARG_MIN(shape, ago) AS shape, COUNT(*) AS n, MIN(saturated_ratio) AS saturated, MIN(step) AS step,
        MEDIAN(mean) AS mean, MEDIAN(std) AS std, MIN(min) AS min, MAX(max) AS max, MIN(place) AS place
    FROM seen WHERE ago <= 5 AND saturated_ratio IS NOT NULL AND NOT regexp_matches(class, 'Softmax') AND place < last_place - 1 GROUP BY module
)
SELECT NULL AS unknown, module, module AS subject, step, class, shape, n, saturated, mean, std, min, max
FROM modules WHERE n >= $least AND saturated >= $share QUALIFY ROW_NUMBER() OVER (ORDER BY saturated DESC, place) <= 3
UNION ALL BY NAME
SELECT 'no sampled outputs of modules' AS unknown FROM seen HAVING COUNT(*) < $least
