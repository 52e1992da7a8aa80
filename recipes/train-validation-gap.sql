-- title = "gap between training and validation loss"
-- severity = "info"
-- symptoms = ["loss"]
-- order = 70
-- scope = "rank"
-- needs = "a validation loss logged with probe.log, TensorBoard, W&B or MLflow, under a name with val, valid, eval, dev or test and loss or nll"
-- what = "{name} is {ratio:.2f} times the training loss: {now:.4g} against {train:.4g}"
-- why = [
--   "step {step}: {name} {now:.4g}, training loss {train:.4g} (median of the 50 steps before)",
--   "{evaluations} evaluations; in the first it was {first_ratio:.2f} times the training loss",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, value FROM python.scalars WHERE name = '{name}' ORDER BY step\"",
--   "probe {endpoint} query \"SELECT module, p FROM python.modules WHERE p IS NOT NULL\"",
-- ]
-- false_positives = "a validation loss with other terms or another reduction than the training loss; validation data from another source"
-- effect = true
-- uses = ["trainings"]
-- [parameters.ratio]
-- value = 1.3
-- unit = "ratio"
-- source = "practice: `much higher`, no document gives a number; ours: 1.3 is worth knowing"
-- [parameters.wide]
-- value = 2.0
-- unit = "ratio"
-- source = "ours: a notice from here on"
-- [parameters.evaluations]
-- value = 3
-- unit = "evaluations"
-- source = "ours"
WITH scalars AS (
    SELECT step, name, value, ROW_NUMBER() OVER (PARTITION BY name ORDER BY step, t_ns) AS i, COUNT(*) OVER (PARTITION BY name) AS n
    FROM python.scalars
    WHERE isfinite(value) AND COALESCE(step >= (SELECT MAX(begun) FROM trainings), true) AND regexp_matches(LOWER(name), '(^|[^a-z])(val|valid|validation|eval|evaluation|dev|test)([^a-z]|$)')
        AND regexp_matches(LOWER(name), 'loss|nll|cross_?entropy')
), compared AS (
    SELECT name, i, n, step, value,
        (SELECT MEDIAN(loss) FROM python.steps s WHERE isfinite(loss) AND s.step BETWEEN scalars.step - 50 AND scalars.step) AS train
    FROM scalars WHERE i = 1 OR i > n - 3
), judged AS (
    SELECT name, ANY_VALUE(n) AS evaluations, ARG_MAX(step, i) AS step, ARG_MAX(value, i) AS now, ARG_MAX(train, i) AS train,
        MIN(value / train) FILTER (i > n - 3) AS least, ARG_MAX(value / train, i) AS ratio, ARG_MIN(value / train, i) AS first_ratio
    FROM compared WHERE train > 0 AND value > 0 GROUP BY name
)
SELECT NULL AS unknown, name, name AS subject, step, now, train, ratio, first_ratio, evaluations,
    CASE WHEN least >= $wide THEN 'notice' ELSE 'info' END AS severity
FROM judged WHERE evaluations >= $evaluations AND least >= $ratio
UNION ALL BY NAME
SELECT 'no validation loss was logged' AS unknown FROM scalars HAVING COUNT(*) = 0
