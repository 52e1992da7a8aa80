-- title = "autograd graph grows"
-- severity = "notice"
-- symptoms = ["memory", "slow", "loss"]
-- order = 222
-- scope = "rank"
-- needs = "the autograd graphs of the losses, from a few sampled steps"
-- what = "the graph of the loss grows with every step: {first:.0f} nodes at step {step}, {newest:.0f} at step {last}, {slope:.2g} more each step"
-- why = [
--   "it grew between all of {n} samples, in proportion to the steps (correlation {r:.3f})",
--   "something kept across steps (a hidden state, a running sum of losses) still carries its graph: detach it",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, nodes, held FROM python.graphs ORDER BY step\"",
--   "probe {endpoint} checkpoint before-restart.pt",
--   "probe {endpoint} stop",
-- ]
-- false_positives = "a curriculum of longer sequences in an unrolled recurrent network"
-- explains = ["host-memory-growth", "device-memory-growth", "slow-step", "throughput-drop"]
-- [parameters.least]
-- value = 4
-- unit = "samples"
-- source = "ours"
-- [parameters.r]
-- value = 0.99
-- unit = "correlation"
-- source = "ours: data that is kept grows by the same amount in each step"
WITH looks AS (
    SELECT step, MAX(nodes) AS nodes, LAG(MAX(nodes)) OVER (ORDER BY step) AS before FROM python.graphs GROUP BY step
), counted AS (
    SELECT COUNT(*) AS n, MIN(step) AS step, MAX(step) AS last, ARG_MIN(nodes, step) AS first, ARG_MAX(nodes, step) AS newest, CORR(nodes, step) AS r,
        REGR_SLOPE(nodes, step) AS slope, BOOL_AND(nodes > before) FILTER (before IS NOT NULL) AS always FROM looks
)
SELECT NULL AS unknown, * FROM counted WHERE n >= $least AND always AND r >= $r AND newest >= 2 * first AND slope >= 1
UNION ALL BY NAME
SELECT format('graphs of the loss were sampled in {} steps, {} are needed', n, $least) AS unknown FROM counted WHERE n < $least
