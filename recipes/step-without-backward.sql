-- title = "step without a backward"
-- severity = "notice"
-- symptoms = ["gradients", "loss"]
-- order = 208
-- scope = "rank"
-- needs = "steps that an optimizer ended, and the backward calls in them"
-- what = "the optimizer steps more often than backward is called: {empty} of the last {n} steps had no backward, {times:.3g} steps for each backward"
-- why = [
--   "such a step applies gradients a second time, or finds none",
--   "in {present:.0%} of what was looked at in such steps the gradients were still there",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, micro_steps, loss, lr, boundary FROM python.steps ORDER BY step DESC LIMIT 20\"",
--   "probe {endpoint} backtrace --locals",
--   "probe {endpoint} checkpoint before-restart.pt",
-- ]
-- false_positives = "an algorithm that steps several times on one gradient on purpose"
-- explains = ["learning-rate-too-high", "divergence", "oscillation", "loss-spike"]
-- [parameters.recent]
-- value = 200
-- unit = "steps"
-- source = "ours"
-- [parameters.least]
-- value = 40
-- unit = "steps"
-- source = "ours"
-- [parameters.share]
-- value = 0.3
-- unit = "ratio of the steps"
-- source = "ours: two steps for each backward are a half; a step now and then, as with skipped batches, is far less"
WITH recent AS (
    SELECT step, micro_steps FROM python.steps WHERE boundary = 'optimizer' AND step > 0 ORDER BY step DESC LIMIT $recent
), counted AS (
    SELECT COUNT(*) AS n, COUNT(*) FILTER (micro_steps = 0) AS empty, MIN(step) AS oldest,
        MIN(step) FILTER (micro_steps = 0) AS step FROM recent
), looked AS (
    SELECT AVG((u.at_step = 'present')::INT) AS present FROM python.updates u
    JOIN recent USING (step) WHERE recent.micro_steps = 0 AND u.at_step IS NOT NULL
)
SELECT NULL AS unknown, step, n, empty, n / (n - empty) AS times, present
FROM counted, looked WHERE n >= $least AND empty >= $share * n AND empty <= 0.9 * n
UNION ALL BY NAME
SELECT format('{} steps, {} are needed', n, $least) AS unknown FROM counted WHERE n < $least
