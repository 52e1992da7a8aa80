-- title = "gradient distribution shifted or collapsed"
-- severity = "notice"
-- symptoms = ["gradients"]
-- order = 250
-- scope = "rank"
-- needs = "per-parameter gradients from several steps"
-- deepen = "histograms"
-- what = "gradient of {param} is {kind}: mean {mean:.2g}, deviation {std:.2g}"
-- why = [
--   "in the last {n} sampled steps (from step {step}) its mean was {shift:.1f} times its standard deviation; 1.6 means 95 % on one side of 0",
--   "before: {shift_before:.2f} times",
--   "median {p50:.2g}, 5 % and 95 %: {p5:.2g} and {p95:.2g}",
-- ]
-- next = [
--   "probe {endpoint} watch --histograms --steps 3",
--   "probe {endpoint} query \"SELECT step, mean, std, abs_max, zero_ratio FROM python.gradients WHERE param = '{param}' ORDER BY step DESC LIMIT 10\"",
-- ]
-- false_positives = "a parameter whose elements all have the same effect, such as the scale of a normalization, the weights of a single output, or a bias, where all outputs are too large at once (`info`)"
-- effect = true
-- uses = ["trainings", "adversarial"]
-- [parameters.shift]
-- value = 1.64
-- unit = "mean / deviation"
-- source = "practice: a healthy histogram is centred on 0 (no number given); ours: 1.64, where 95 % of a normal distribution is on one side"
-- [parameters.least]
-- value = 3
-- unit = "sampled steps"
-- source = "ours"
-- [parameters.numel]
-- value = 64
-- unit = "elements"
-- source = "ours: fewer elements do not form a distribution"
WITH steps AS (
    SELECT step, ROW_NUMBER() OVER (ORDER BY step DESC) AS ago FROM (SELECT DISTINCT step FROM python.gradients WHERE mean IS NOT NULL ORDER BY step DESC LIMIT 40)
), params AS (
    SELECT param, MIN(place) AS place, COUNT(*) FILTER (ago <= 5) AS n, MIN(step) FILTER (ago <= 5) AS step,
        MEDIAN(mean) FILTER (ago <= 5) AS mean, MEDIAN(std) FILTER (ago <= 5) AS std,
        MIN(ABS(mean) / GREATEST(std, 1e-30)) FILTER (ago <= 5) AS shift,
        MEDIAN(ABS(mean) / GREATEST(std, 1e-30)) FILTER (ago > 5) AS shift_before,
        ABS(SUM(SIGN(mean)) FILTER (ago <= 5)) AS same, MAX(abs_max) FILTER (ago <= 5) AS largest
    FROM python.gradients JOIN steps USING (step) WHERE numel >= $numel AND isfinite(mean) AND isfinite(std) GROUP BY param
), histograms AS (
    SELECT name AS param, ARG_MAX(p5, t_ns) AS p5, ARG_MAX(p50, t_ns) AS p50, ARG_MAX(p95, t_ns) AS p95 FROM python.histograms WHERE kind = 'gradient' GROUP BY name
)
SELECT NULL AS unknown, param, param AS subject, step, n, mean, std, shift, shift_before, p5, p50, p95,
    CASE WHEN std <= 1e-6 * ABS(mean) THEN 'collapsed to one value' ELSE 'shifted to one side of 0' END AS kind,
    -- All inputs of a single output have one sign after a ReLU, a bias falls as a whole where all outputs are too large, and a
    -- generator is pushed one way by its critic.
    CASE WHEN std > 1e-6 * ABS(mean) AND (EXISTS (SELECT 1 FROM python.modules WHERE class LIKE '%Norm%' AND module = regexp_replace(param, '\.[^.]*$', ''))
        OR EXISTS (SELECT 1 FROM python.parameters p WHERE p.param = params.param AND (p.shape LIKE '[1,%' OR p.shape NOT LIKE '%,%')) OR (SELECT yes FROM adversarial)) THEN 'info' ELSE 'notice' END AS severity
FROM params LEFT JOIN histograms USING (param) WHERE n >= $least AND same = n AND largest > 0 AND shift >= $shift
QUALIFY ROW_NUMBER() OVER (ORDER BY shift DESC) <= 3
UNION ALL BY NAME
SELECT format('gradient means of {} steps were sampled, {} are needed', COUNT(*), $least) AS unknown FROM steps HAVING COUNT(*) < $least
