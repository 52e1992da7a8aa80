-- title = "clipping gets no parameters"
-- severity = "notice"
-- symptoms = ["loss", "gradients", "nan"]
-- order = 198
-- scope = "rank"
-- needs = "the job's own clip_grad_norm_"
-- what = "clip_grad_norm_ gets no parameters and clips nothing: {times:.0f} calls so far, from step {step} on"
-- why = [
--   "before that, it did clip in {clipped} steps",
--   "a generator such as model.parameters() that is stored in a variable is empty after its first use: turn it into a list, or call model.parameters() each time",
-- ]
-- next = [
--   "probe {endpoint} clip --max-norm 1.0",
--   "probe {endpoint} query \"SELECT step, grad_norm, clip_norm FROM python.steps ORDER BY step LIMIT 20\"",
-- ]
-- false_positives = "a rank or pipeline stage without parameters of its own"
-- explains = ["no-warm-up", "gradients-exploding", "gradient-exploding-layer", "learning-rate-too-high", "loss-spike", "divergence", "oscillation", "loss-nan", "amp-overflow", "output-constant"]
-- [parameters.least]
-- value = 3
-- unit = "calls"
-- source = "ours"
WITH counted AS (
    SELECT MAX(number) FILTER (name = 'clip.nothing.times') AS times, MIN(number) FILTER (name = 'clip.nothing.from') AS step FROM probe.facts WHERE name LIKE 'clip.nothing.%'
), before AS (
    SELECT NULLIF(COUNT(*), 0) AS clipped FROM python.steps, counted WHERE clip_norm IS NOT NULL AND python.steps.step < counted.step
)
SELECT NULL AS unknown, times, CAST(step AS BIGINT) AS step, clipped FROM counted, before WHERE times >= $least
