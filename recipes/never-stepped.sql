-- title = "no optimizer makes a step"
-- severity = "alarm"
-- symptoms = ["gradients", "loss"]
-- order = 199
-- scope = "rank"
-- needs = "an optimizer that the job has created, and its backward calls"
-- what = "backward was called {n} times and no optimizer has made a step: {optimizer} exists, but its step() is never reached, and no weight changes"
-- why = [
--   "{passes}",
--   "loss: {loss_first:.4g} at first, {loss_now:.4g} now (medians of 20)",
--   "optimizer.step without parentheses does nothing, nor does a step behind a condition that is never true",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, micro_step, loss FROM python.losses ORDER BY step DESC, micro_step DESC LIMIT 10\"",
--   "probe {endpoint} backtrace",
--   "probe {endpoint} stop",
-- ]
-- false_positives = "a loop that updates the weights itself although it has an optimizer; full-batch accumulation, with one step per pass over the data (left out until the second pass starts, or until 1,000 backward calls without a DataLoader)"
-- explains = ["learning-rate-too-low", "layer-not-learning", "zero-grad-forgotten", "output-constant", "plateau", "slow-decrease"]
-- [parameters.least]
-- value = 50
-- unit = "backward calls"
-- source = "ours: gradients are accumulated over 2 to 64 batches, and never past the end of the data"
-- [parameters.many]
-- value = 1000
-- unit = "backward calls"
-- source = "ours: used if no DataLoader shows when a new pass starts"
WITH made AS (
    SELECT ARG_MAX(value, t_ns) AS optimizer FROM probe.facts WHERE kind = 'hyperparameter' AND name = 'optimizer'
), losses AS (
    SELECT COUNT(*) AS n, MIN(step) AS step, MEDIAN(loss) FILTER (i <= 20) AS loss_first, MEDIAN(loss) FILTER (i > k - 20) AS loss_now, MAX(micro_step) AS last
    FROM (SELECT *, ROW_NUMBER() OVER (ORDER BY step, micro_step) AS i, COUNT(*) OVER () AS k FROM python.losses)
), pass AS (
    SELECT MAX(epoch) AS epoch, COUNT(*) AS batches FROM python.batches WHERE state = 'done'
), steps AS (
    SELECT COUNT(*) AS steps FROM python.steps
)
SELECT NULL AS unknown, step, GREATEST(n, last + 1) AS n, optimizer, loss_first, loss_now,
    CASE WHEN epoch >= 1 THEN format('{} passes over the data have ended', epoch) END AS passes
FROM made, losses, pass, steps
WHERE optimizer IS NOT NULL AND steps = 0 AND n >= $least AND (epoch >= 1 OR batches = 0 AND GREATEST(n, last + 1) >= $many)
UNION ALL BY NAME
SELECT 'no optimizer is known yet' AS unknown FROM made, steps WHERE optimizer IS NULL AND steps = 0
