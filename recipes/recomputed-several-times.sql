-- title = "modules are recomputed several times"
-- severity = "notice"
-- symptoms = ["slow"]
-- order = 527
-- scope = "rank"
-- needs = "module calls of two forwards and their backwards, from sampled steps, with activation checkpointing"
-- what = "backward recomputes {modules} of {all_modules} modules {times:.0f} times: activation checkpoints are nested"
-- why = [
--   "{example} runs once in a forward and {times:.0f} times in its backward, in all {passes} sampled passes",
--   "an activation checkpoint recomputes its part once; inside another checkpoint, that happens in each recomputation",
--   "checkpoint either the blocks or the whole model, not both (look for one setting in the model and one in the trainer or framework)",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT module, recompute, COUNT(*) AS calls, COUNT(DISTINCT step) AS steps, SUM(duration) AS seconds FROM python.torch_trace WHERE stage = 'forward' GROUP BY ALL ORDER BY calls DESC LIMIT 20\"",
--   "probe {endpoint} backtrace",
-- ]
-- false_positives = "nested checkpoints on purpose, when even the inputs of all blocks do not fit into memory"
-- explains = ["low-mfu", "slow-module"]
-- [parameters.passes]
-- value = 2
-- unit = "sampled backwards"
-- source = "ours: every step has the same structure"
-- [parameters.times]
-- value = 2
-- unit = "recomputations per call"
-- source = "ours: one checkpoint causes one recomputation, a nested one causes two"
WITH calls AS (
    SELECT step, micro_step, module, COUNT(*) FILTER (NOT recompute) AS forwards, COUNT(*) FILTER (recompute) AS again FROM python.torch_trace WHERE stage = 'forward' AND module IS NOT NULL GROUP BY ALL
), modules AS (
    SELECT COUNT(DISTINCT module) AS all_modules FROM calls
), each AS (
    -- In the least of the passes, and only where the forward itself was seen: a second backward through the same graph is a pass of its own.
    SELECT module, MIN(again // forwards) AS times, COUNT(*) AS passes, MIN(step) AS step FROM calls WHERE forwards > 0 GROUP BY module HAVING COUNT(*) >= $passes
), found AS (
    SELECT COUNT(*) AS modules, MAX(times) AS times, ARG_MAX(module, times) AS example, MAX(passes) AS passes, MIN(step) AS step FROM each WHERE times >= $times
)
SELECT NULL AS unknown, example AS subject, found.*, all_modules FROM found, modules WHERE modules > 0
UNION ALL BY NAME
SELECT 'modules of fewer than two forwards were recorded' AS unknown FROM (SELECT COUNT(DISTINCT (step, micro_step)) AS n FROM calls) WHERE n < $passes
