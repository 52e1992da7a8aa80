-- title = "validation loss rises while training loss falls"
-- severity = "notice"
-- symptoms = ["loss"]
-- order = 60
-- scope = "rank"
-- needs = "a validation loss logged with probe.log, TensorBoard, W&B or MLflow, under a name with val, valid, eval, dev or test and loss, nll or perplexity"
-- what = "{name} has been rising since step {step}: {best:.4g} then, {now:.4g} now ({rise_ratio:.0%}), while the training loss fell"
-- why = [
--   "best of {evaluations} evaluations: {best:.4g} at step {step}; all {after} later ones were worse, the last {now:.4g} at step {last}",
--   "training loss: {train_then:.4g} around step {step}, {train_now:.4g} around step {last}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, name, value FROM python.scalars WHERE name = '{name}' ORDER BY step\"",
--   "probe {endpoint} checkpoint now.pt",
--   "probe {endpoint} stop --checkpoint last.pt",
-- ]
-- false_positives = "an evaluation on few samples; a validation set from another source"
-- explains = ["train-validation-gap"]
-- effect = true
-- uses = ["trainings"]
-- [parameters.rise]
-- value = 0.1
-- unit = "ratio"
-- source = "practice: 10 % above the best (LLM training guides)"
-- [parameters.evaluations]
-- value = 3
-- unit = "evaluations after the best"
-- source = "practice: a patience of 3 in early stopping; one or two may be chance"
WITH scalars AS (
    SELECT step, name, value, ROW_NUMBER() OVER (PARTITION BY name ORDER BY step, t_ns) AS i FROM python.scalars
    WHERE isfinite(value) AND COALESCE(step >= (SELECT MAX(begun) FROM trainings), true) AND regexp_matches(LOWER(name), '(^|[^a-z])(val|valid|validation|eval|evaluation|dev|test)([^a-z]|$)')
        AND regexp_matches(LOWER(name), 'loss|nll|perplexity|ppl|cross_?entropy')
), best AS (
    SELECT name, MIN(value) AS best, ARG_MIN(step, (value, i)) AS step, ARG_MIN(i, (value, i)) AS best_i, MAX(i) AS evaluations,
        ARG_MAX(value, i) AS now, MAX(step) AS last
    FROM scalars GROUP BY name
), after AS (
    SELECT best.*, MEDIAN(value) AS later, COUNT(*) AS after, MIN(value) AS least
    FROM best JOIN scalars USING (name) WHERE i > best_i GROUP BY ALL
), train AS (
    SELECT after.*, (SELECT MEDIAN(loss) FROM python.steps s WHERE isfinite(loss) AND s.step BETWEEN after.step - 25 AND after.step + 25) AS train_then,
        (SELECT MEDIAN(loss) FROM python.steps s WHERE isfinite(loss) AND s.step BETWEEN after.last - 50 AND after.last) AS train_now
    FROM after
)
SELECT NULL AS unknown, name, name AS subject, step, best, now, evaluations, after, last, train_then, train_now, (now - best) / ABS(best) AS rise_ratio
FROM train WHERE after >= $evaluations AND LEAST(now, later) - best >= 0.5 * $rise * ABS(best) AND now - best >= $rise * ABS(best)
    AND COALESCE(train_now < train_then, true)
UNION ALL BY NAME
SELECT CASE WHEN COUNT(*) = 0 THEN 'no validation loss was logged' ELSE 'too few evaluations were logged' END AS unknown
FROM scalars HAVING COUNT(*) <= $evaluations
