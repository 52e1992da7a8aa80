-- title = "low model FLOPs utilization"
-- severity = "info"
-- symptoms = ["slow"]
-- order = 540
-- scope = "rank"
-- needs = "the tokens of each step, the parameters of the model and the peak rate of the device (PROBE_PEAK_TFLOPS if it is not built in)"
-- what = "MFU {mfu:.1%}: {tflops:.3g} of {peak:.4g} TFLOP/s"
-- why = [
--   "6 x {parameters:,.0f} parameters x {tokens:,.0f} tokens in {wall_ms:.1f} ms (median of the last {n} steps): an estimate without attention and recomputation",
--   "{data_share:.0%} of the step waits for data, {comm_share:.0%} is communication called from Python",
-- ]
-- next = ["probe {endpoint} diagnose slow", "probe {endpoint} profile --steps 3 -o mfu.json"]
-- false_positives = "models for which 6 FLOPs per parameter and token is wrong: mixtures of experts, convolutions, much attention"
-- effect = true
-- [parameters.low]
-- value = 0.3
-- unit = "ratio"
-- source = "practice: below 0.3 is low; PaLM reports 0.46, Megatron-LM 0.3 to 0.5"
-- [parameters.least]
-- value = 50
-- unit = "steps"
-- source = "ours"
WITH peak AS (
    SELECT MAX(number) AS peak FROM probe.facts WHERE kind = 'hardware' AND name = 'peak_tflops'
), size AS (
    SELECT SUM(numel) AS parameters FROM (SELECT param, ARG_MAX(numel, t_ns) AS numel FROM python.parameters GROUP BY param)
), steps AS (
    SELECT MEDIAN(tokens) AS tokens, MEDIAN(wall_s) AS wall_s, MEDIAN(COALESCE(data_s, 0) / wall_s) AS data_share, MEDIAN(comm_s / wall_s) AS comm_share, COUNT(*) AS n
    FROM (SELECT * REPLACE (wall_s - COALESCE(held_s, 0) - COALESCE(eval_s, 0) - COALESCE(checkpoint_s, 0) AS wall_s) FROM python.steps WHERE tokens IS NOT NULL AND wall_s > 0 AND NOT COALESCE(sampled, false) ORDER BY step DESC LIMIT 200)
), rate AS (
    SELECT *, 6 * parameters * tokens / wall_s / 1e12 AS tflops FROM peak, size, steps
)
SELECT NULL AS unknown, tflops / peak AS mfu, tflops, peak, parameters, tokens, 1e3 * wall_s AS wall_ms, n, data_share, comm_share
FROM rate WHERE n >= $least AND tflops < $low * peak
UNION ALL BY NAME
SELECT CASE WHEN peak IS NULL THEN 'the peak rate of the device is not known' WHEN parameters IS NULL THEN 'the parameters are not known'
    ELSE 'the tokens of too few steps are known' END AS unknown
FROM rate WHERE peak IS NULL OR parameters IS NULL OR n < $least
