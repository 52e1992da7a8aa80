-- title = "computed several times over"
-- severity = "notice"
-- symptoms = ["slow"]
-- order = 527
-- scope = "rank"
-- needs = "module calls of two forwards and their backwards on sampled steps, with an activation checkpoint"
-- what = "backward computes {modules} of {all_modules} modules {times:.0f} times again: activation checkpoints are nested, one inside the other"
-- why = [
--   "{example} runs once in a forward and {times:.0f} times in its backward, each time that was looked at ({passes})",
--   "an activation checkpoint computes its part once more; inside another one it does so in each of their passes",
--   "checkpoint the blocks or the whole, and not both (a setting of the model and one of the trainer, or of the framework)",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT module, recompute, COUNT(*) AS calls, COUNT(DISTINCT step) AS steps, SUM(duration) AS seconds FROM python.torch_trace WHERE stage = 'forward' GROUP BY ALL ORDER BY calls DESC LIMIT 20\"",
--   "probe {endpoint} backtrace",
-- ]
-- false_positives = "checkpoints within checkpoints on purpose, where even the inputs of all blocks do not fit into the memory"
-- explains = ["low-mfu", "slow-module"]
-- [parameters.passes]
-- value = 2
-- unit = "backwards looked at"
-- source = "ours: every step has the same structure"
-- [parameters.times]
-- value = 2
-- unit = "recomputations for each call"
-- source = "ours: a checkpoint makes one, and one inside another makes two"
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
