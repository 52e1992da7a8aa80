-- title = "gradients cleared before the optimizer step"
-- severity = "alarm"
-- symptoms = ["gradients", "loss"]
-- order = 201
-- scope = "rank"
-- needs = "gradients after backward and at the optimizer step, from a few sampled steps"
-- what = "the optimizer's step finds no gradient: those of every backward are cleared (zero_grad) between backward and step"
-- why = [
--   "for {gone:.0%} of the gradients sampled in the last {n} sampled steps, there was a gradient after backward and {how} when the optimizer step began",
--   "gradient of {param} after backward: {gradient:.3g} (root mean square); the step changed {changed:.0%} of its elements",
--   "zero_grad is called after backward, or step is called before backward; the correct order is zero_grad, backward, step",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, param, after_backward, at_step, cleared, changed_ratio FROM python.updates ORDER BY step DESC, place LIMIT 24\"",
--   "probe {endpoint} checkpoint before-restart.pt",
--   "probe {endpoint} stop",
-- ]
-- false_positives = "a loop that removes the gradients and applies them itself"
-- explains = ["learning-rate-too-low", "layer-not-learning", "plateau", "slow-decrease"]
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
), gone AS (
    SELECT *, at_step IN ('none', 'zero') AS gone FROM seen
    WHERE optimizer IS NOT NULL AND after_backward = 'present' AND at_step IS NOT NULL
), counted AS (
    SELECT COUNT(DISTINCT step) AS n, AVG(gone::INT) AS gone, MIN(step) AS step, ARG_MAX(param, gradient_rms) FILTER (gone) AS param,
        MAX(gradient_rms) FILTER (gone) AS gradient, ARG_MAX(changed_ratio, gradient_rms) FILTER (gone) AS changed,
        CASE WHEN BOOL_OR(at_step = 'none') THEN 'none' ELSE 'one of exactly 0' END AS how
    FROM gone
)
SELECT NULL AS unknown, * FROM counted WHERE n >= $least AND gone >= $share
UNION ALL BY NAME
SELECT format('updates of {} steps were sampled, {} are needed', COUNT(*), $least) AS unknown FROM steps HAVING COUNT(*) < $least
