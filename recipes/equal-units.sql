-- title = "all units have equal weights"
-- severity = "alarm"
-- symptoms = ["loss", "gradients"]
-- order = 213
-- scope = "rank"
-- needs = "sampled weight values, from a few sampled steps"
-- what = "all units of {param} hold the same weights: they started at the same constant value and training cannot make them differ"
-- why = [
--   "all sampled rows are equal in each of the last {n} sampled steps, most recently at step {last}; root mean square {weight:.3g}",
--   "{more} other matrices show the same: {examples}",
--   "units with equal weights get equal gradients; initialize the weights randomly",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, param, equal_rows, weight_rms, changed_ratio FROM python.updates ORDER BY step DESC, place LIMIT 24\"",
--   "probe {endpoint} checkpoint before-restart.pt",
--   "probe {endpoint} stop",
-- ]
-- false_positives = "a zero-initialized layer behind a closed gate (`info` where most other matrices differ)"
-- explains = ["layer-not-learning", "plateau", "slow-decrease"]
-- [parameters.least]
-- value = 3
-- unit = "sampled steps"
-- source = "ours"
-- [parameters.after]
-- value = 20
-- unit = "steps"
-- source = "ours: units of layers that start at zero on purpose (adapters, residual branches) differ after the first update"
WITH steps AS (
    SELECT DISTINCT step FROM python.updates ORDER BY step DESC LIMIT 8
), seen AS (
    SELECT u.* FROM python.updates u JOIN steps USING (step)
), embeddings AS (
    SELECT DISTINCT module FROM python.modules WHERE class LIKE '%Embedding%'
), params AS (
    SELECT param, ANY_VALUE(place) AS place, COUNT(*) AS n, BOOL_AND(equal_rows) AS alike, MIN(step) AS step, MAX(step) AS last, MAX(weight_rms) AS weight, BOOL_OR(optimizer IS NOT NULL) AS held FROM seen
    WHERE equal_rows IS NOT NULL AND param IS NOT NULL AND step >= $after GROUP BY param
), alike AS (
    SELECT * FROM params WHERE n >= $least AND alike AND held AND regexp_replace(param, '\.[^.]*$', '') NOT IN (SELECT module FROM embeddings)
)
-- `info` where few of the matrices are zero throughout, and no others alike: a layer that starts at zero behind a gate.
SELECT NULL AS unknown, CASE WHEN MAX(weight) = 0 AND 2 * COUNT(*) < (SELECT COUNT(*) FROM params WHERE held AND n >= $least) THEN 'info' ELSE 'alarm' END AS severity, ARG_MIN(param, place) AS param, ARG_MIN(param, place) AS subject, NULLIF(COUNT(*) - 1, 0) AS more, MAX(n) AS n, MIN(step) AS step, MAX(last) AS last, ARG_MIN(weight, place) AS weight,
    array_to_string(list(param ORDER BY place)[2:5], ', ') AS examples
FROM alike HAVING COUNT(*) > 0
UNION ALL BY NAME
SELECT format('updates of {} steps were sampled, {} are needed', COUNT(*), $least) AS unknown FROM steps HAVING COUNT(*) < $least
