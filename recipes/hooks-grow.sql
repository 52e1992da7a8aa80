-- title = "hooks pile up"
-- severity = "notice"
-- symptoms = ["slow", "memory"]
-- order = 223
-- scope = "rank"
-- needs = "the model's modules, sampled about every ten seconds"
-- what = "the number of hooks on {module} grows: {first} at step {step}, {now} or more at step {last}; every call runs all of them"
-- why = [
--   "{modules} modules accumulate hooks; hooks are registered repeatedly and never removed",
--   "keep the handle that register_forward_hook returns and call its remove(), or register once before the loop",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, module, class, hooks FROM python.modules WHERE hooks > 8 ORDER BY t_ns\"",
--   "probe {endpoint} eval \"print([(name, len(m._forward_hooks)) for name, m in model.named_modules() if len(m._forward_hooks) > 8])\"",
-- ]
-- false_positives = "none known: hooks that are removed after use do not accumulate"
-- explains = ["host-memory-growth", "device-memory-growth", "slow-step", "slow-module", "throughput-drop", "low-mfu"]
-- [parameters.least]
-- value = 32
-- unit = "hooks"
-- source = "practice: a few per module, from frameworks, quantization and profilers"
WITH seen AS (
    SELECT module, ARG_MIN(hooks, t_ns) AS first, MIN(step) AS step, ARG_MAX(hooks, t_ns) AS now, ARG_MAX(step, t_ns) AS last, COUNT(DISTINCT hooks) AS levels FROM python.modules WHERE hooks IS NOT NULL GROUP BY module
), grown AS (
    SELECT * FROM seen WHERE now >= $least AND now >= 4 * GREATEST(first, 1) AND last > step
)
SELECT NULL AS unknown, CASE WHEN module = '' THEN 'the model' ELSE module END AS module, module AS subject, first, step, now, last, (SELECT COUNT(*) FROM grown) AS modules
FROM grown ORDER BY now DESC LIMIT 1
