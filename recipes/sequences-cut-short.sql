-- title = "every sequence is cut to a few tokens"
-- severity = "notice"
-- symptoms = ["loss", "data"]
-- order = 128
-- scope = "rank"
-- needs = "token-id inputs [N, T] of the model, and gradients of its position embedding, from a few sampled steps"
-- what = "every sequence is exactly {length} tokens long, and the model has {rows} positions: sequences are cut off after {length}"
-- why = [
--   "input {name} of {module}: the length is {length} in all {looks} sampled batches, from step {step} to {last}",
--   "of the {rows} rows of {param} only the first {length} get a gradient, in all {grads} of the sampled steps: the others are never read",
--   "{evidence}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, name, shape, padding_ratio FROM python.model_inputs WHERE module <> 'batch' ORDER BY step DESC LIMIT 10\"",
--   "probe {endpoint} query \"SELECT step, param, zero_ratio FROM python.gradients WHERE param = '{param}' ORDER BY step DESC LIMIT 6\"",
-- ]
-- false_positives = "short blocks on purpose, for a first training phase or to save memory (`info` above `few` tokens)"
-- explains = ["layer-not-learning", "gradients-vanishing"]
-- [parameters.looks]
-- value = 10
-- unit = "batches"
-- source = "ours"
-- [parameters.grads]
-- value = 3
-- unit = "sampled steps"
-- source = "ours"
-- [parameters.share]
-- value = 0.2
-- unit = "ratio of the positions"
-- source = "practice: the first phase of BERT uses 128 of 512"
-- [parameters.few]
-- value = 16
-- unit = "tokens"
-- source = "ours: barely a sentence"
WITH given AS (
    SELECT module, name, step, CAST(shape AS BIGINT[]) AS sizes FROM python.model_inputs
    WHERE module <> 'batch' AND NOT COALESCE(gradless, false) AND dtype IN ('int64', 'int32') AND shape IS NOT NULL AND len(CAST(shape AS BIGINT[])) = 2 AND max > 1
    QUALIFY ROW_NUMBER() OVER (PARTITION BY module, name ORDER BY step DESC) <= 64
), inputs AS (
    SELECT module, name, COUNT(*) AS looks, MIN(step) AS step, MAX(step) AS last, MAX(sizes[2]) AS length FROM given GROUP BY module, name HAVING COUNT(*) >= $looks AND MIN(sizes[2]) = MAX(sizes[2])
), tables AS (
    SELECT param, CAST(shape AS BIGINT[])[1] AS rows FROM (SELECT param, ARG_MAX(shape, t_ns) AS shape FROM python.parameters GROUP BY param) WHERE shape IS NOT NULL AND len(CAST(shape AS BIGINT[])) = 2
), used AS (
    SELECT param, COUNT(*) AS grads, MIN(zero_ratio) AS least, MAX(zero_ratio) AS most FROM python.gradients WHERE zero_ratio IS NOT NULL AND norm > 0 GROUP BY param
)
SELECT NULL AS unknown, param AS subject, module, name, looks, step, last, length, param, rows, grads, CASE WHEN length <= $few THEN 'notice' ELSE 'info' END AS severity,
    format('text does not naturally have one fixed length, and none of these batches was shorter: look for a slice, a max_length or truncation with {}', length) AS evidence
FROM inputs, tables JOIN used USING (param)
-- A table whose gradient is zero in all rows but as many as a sequence has places, each time, is one of positions.
WHERE length > 1 AND length <= $share * rows AND grads >= $grads AND abs(least - (1 - length / rows)) < 0.5 / rows AND abs(most - (1 - length / rows)) < 0.5 / rows
QUALIFY ROW_NUMBER() OVER (ORDER BY rows) = 1
UNION ALL BY NAME
SELECT format('token ids were sampled in {} steps, {} are needed', COUNT(DISTINCT step), $looks) AS unknown FROM given HAVING COUNT(DISTINCT step) < $looks
