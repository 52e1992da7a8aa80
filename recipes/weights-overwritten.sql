-- title = "weights are overwritten"
-- severity = "notice"
-- symptoms = ["loss"]
-- order = 207
-- scope = "rank"
-- needs = "a parameter of the main optimizer that other code writes to"
-- what = "weights are overwritten outside of any optimizer step, by values unrelated to the trained ones: {times} times, last at step {last}"
-- why = [
--   "{param} at steps {steps}: cosine with its values before {cosine:.2f} (1 if training continued from them), and of the same size",
--   "reset_parameters, an initialization or loading another model's weights has this effect: what was learned until then is lost",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, param, before_step, cosine, size_ratio FROM python.overwritten ORDER BY step\"",
--   "probe {endpoint} checkpoint before-restart.pt",
--   "probe {endpoint} stop",
-- ]
-- false_positives = "layers reset periodically on purpose (reinforcement learning), members of a population that copy each other's weights; a single time is `info`"
-- explains = ["loss-spike", "oscillation", "plateau", "slow-decrease", "layer-not-learning", "gradients-exploding", "gradient-exploding-layer"]
WITH found AS (
    SELECT COUNT(*) AS times, MIN(step) AS step, MAX(step) AS last, ANY_VALUE(param) AS param, MEDIAN(ABS(cosine)) AS cosine, array_to_string(list(step ORDER BY step DESC)[:6], ', ') AS steps FROM python.overwritten
)
SELECT NULL AS unknown, found.*, CASE WHEN times >= 2 THEN 'notice' ELSE 'info' END AS severity FROM found WHERE times > 0
