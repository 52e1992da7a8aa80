-- title = "zero_grad forgotten"
-- severity = "alarm"
-- symptoms = ["gradients", "loss"]
-- order = 200
-- scope = "rank"
-- needs = "steps on which probe checked for gradients left from the previous step"
-- what = "gradients are never cleared: in {stale} of the last {looked} sampled steps, the gradients of the previous step were still there"
-- why = [
--   "first seen at step {step}; every backward adds to the previous gradients",
--   "gradient norm {norm_now:.3g} now, {norm_first:.3g} at the beginning",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, stale_gradients, grad_norm, loss FROM python.steps ORDER BY step DESC LIMIT 20\"",
--   "probe {endpoint} checkpoint before-restart.pt",
--   "probe {endpoint} stop",
-- ]
-- false_positives = "a loop that accumulates over optimizer steps on purpose"
-- explains = ["gradients-exploding", "gradient-exploding-layer", "gradient-shifted", "learning-rate-too-high", "no-warm-up", "divergence", "oscillation", "plateau", "slow-decrease", "loss-spike", "layer-not-learning", "nan-origin", "loss-nan", "amp-overflow"]
-- uses = ["trainings", "adversarial"]
-- [parameters.share]
-- value = 0.9
-- unit = "ratio of the sampled steps"
-- source = "ours: a GAN leaves some gradients behind, a forgotten zero_grad all of them"
-- [parameters.recent]
-- value = 20
-- unit = "sampled steps"
-- source = "ours: an error that starts mid-run must be found before it covers most of the run"
-- [parameters.least]
-- value = 5
-- unit = "steps"
-- source = "ours"
WITH looked AS (
    SELECT step, stale_gradients AS stale, grad_norm FROM python.steps
    WHERE stale_gradients IS NOT NULL AND step > 0 ORDER BY step DESC LIMIT $recent
), counted AS (
    SELECT COUNT(*) AS looked, COUNT(*) FILTER (stale) AS stale FROM looked
), before AS (
    SELECT COALESCE(MAX(step), 0) AS cleared FROM python.steps WHERE NOT stale_gradients AND step < (SELECT MIN(step) FILTER (stale) FROM looked)
), norms AS (
    SELECT ARG_MAX(grad_norm, step) AS norm_now, ARG_MIN(grad_norm, step) AS norm_first FROM python.steps WHERE grad_norm IS NOT NULL
)
SELECT CASE WHEN adversarial.yes THEN 'several optimizers have their own backward: one leaves gradients for the other' END AS unknown,
    (SELECT MIN(step) FROM python.steps WHERE stale_gradients AND step > cleared) AS step, stale, looked,
    CASE WHEN norm_first IS NOT NULL THEN norm_now END AS norm_now, norm_first
FROM counted, before, norms, adversarial WHERE looked >= $least AND stale >= $share * looked
UNION ALL BY NAME
SELECT 'too few sampled steps' AS unknown FROM counted WHERE looked < $least
