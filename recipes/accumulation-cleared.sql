-- title = "accumulated gradients are cleared"
-- severity = "alarm"
-- symptoms = ["gradients", "loss"]
-- order = 202
-- scope = "rank"
-- needs = "gradients before and after each backward, from a few sampled steps"
-- what = "zero_grad is called between the micro-steps: only the last of the {micro_steps:.0f} backwards in each step counts, the gradients of the others are cleared"
-- why = [
--   "in {lost:.0%} of the gradients from the last {n} sampled steps, the gradient of one backward was gone when the next one began, with no optimizer step in between",
--   "the optimizer step then used the gradient of the last backward alone (cosine {direction:.3f})",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, param, after_backward, at_step, cleared, changed_ratio FROM python.updates ORDER BY step DESC, place LIMIT 24\"",
--   "probe {endpoint} checkpoint before-restart.pt",
--   "probe {endpoint} stop",
-- ]
-- false_positives = "code that stores the gradients of each backward elsewhere and sums them itself"
-- explains = ["slow-decrease", "plateau"]
-- [parameters.least]
-- value = 3
-- unit = "sampled steps"
-- source = "ours"
-- [parameters.share]
-- value = 0.9
-- unit = "ratio of the sampled gradients"
-- source = "ours: something that happens in nearly every step is not an accident"
WITH steps AS (
    SELECT DISTINCT step FROM python.updates ORDER BY step DESC LIMIT 8
), seen AS (
    SELECT u.* FROM python.updates u JOIN steps USING (step)
), looked AS (
    SELECT *, COALESCE(cleared > 0 AND at_step = 'present' AND direction > 0.999, false) AS lost FROM seen
    WHERE optimizer IS NOT NULL AND after_backward = 'present'
), counted AS (
    SELECT COUNT(DISTINCT step) AS n, AVG(lost::INT) AS lost, MIN(step) AS step, MEDIAN(direction) AS direction, MEDIAN(cleared) + 1 AS micro_steps
    FROM looked
)
SELECT NULL AS unknown, * FROM counted WHERE n >= $least AND lost >= $share
UNION ALL BY NAME
SELECT format('updates of {} steps were sampled, {} are needed', COUNT(*), $least) AS unknown FROM steps HAVING COUNT(*) < $least
