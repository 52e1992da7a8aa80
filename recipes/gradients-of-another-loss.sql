-- title = "gradients of another loss in the step"
-- severity = "notice"
-- symptoms = ["gradients", "loss"]
-- order = 202
-- scope = "rank"
-- needs = "several optimizers that step in turn, and gradients from a few sampled steps"
-- what = "{params} parameters are stepped with the gradient of another loss too: when their own backward began, they still had what the backward of another optimizer's loss had left ({param})"
-- why = [
--   "so in {left:.0%} of the samples of these parameters, from step {step} on; the optimizer steps with the sum of the two",
--   "gradient of {param} that was left behind: {left_rms:.3g}, at the step: {step_rms:.3g} (root mean square)",
--   "zero_grad is called after the step only, and the next loss that runs through these parameters fills their gradients again: call it right before their own backward",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, param, optimizer, left_rms, gradient_rms, step_rms FROM python.updates WHERE left_rms > 0 ORDER BY step DESC, place LIMIT 24\"",
--   "probe {endpoint} checkpoint before-restart.pt",
--   "probe {endpoint} stop",
-- ]
-- false_positives = "two losses whose gradients are summed on purpose, with a step of another optimizer between their backwards"
-- explains = ["gradients-exploding", "gradient-exploding-layer", "gradient-shifted", "learning-rate-too-high", "divergence", "oscillation", "plateau", "slow-decrease", "loss-spike"]
-- [parameters.least]
-- value = 3
-- unit = "samples of a parameter"
-- source = "ours"
-- [parameters.share]
-- value = 0.9
-- unit = "ratio of the samples"
-- source = "ours: something that happens in nearly every step is not an accident"
WITH seen AS (
    SELECT * FROM python.updates WHERE left_rms IS NOT NULL AND at_step IN ('present', 'zero')
    QUALIFY ROW_NUMBER() OVER (PARTITION BY param ORDER BY step DESC) <= 8
), params AS (
    SELECT param, MIN(place) AS place, COUNT(*) AS n, AVG((left_rms > 0)::INT) AS share, MIN(step) FILTER (left_rms > 0) AS step,
        ARG_MAX(left_rms, step) FILTER (left_rms > 0) AS left_rms, ARG_MAX(step_rms, step) FILTER (left_rms > 0) AS step_rms
    FROM seen WHERE param IS NOT NULL GROUP BY param
), found AS (
    SELECT * FROM params WHERE n >= $least AND share >= $share AND step_rms > 0
)
SELECT NULL AS unknown, COUNT(*) AS params, ARG_MIN(param, place) AS param, ARG_MIN(param, place) AS subject, AVG(share) AS "left", MIN(step) AS step,
    ARG_MIN(left_rms, place) AS left_rms, ARG_MIN(step_rms, place) AS step_rms
FROM found HAVING COUNT(*) > 0
UNION ALL BY NAME
SELECT format('{} samples of steps that optimizers make in turn, {} of a parameter are needed', COUNT(*), $least) AS unknown FROM seen HAVING COUNT(*) < $least
