-- title = "in-batch negatives that are positives, or positives that are the anchor"
-- severity = "notice"
-- symptoms = ["loss", "data"]
-- order = 132
-- scope = "rank"
-- needs = "a cross-entropy in which each row has a target column of its own (InfoNCE, NT-Xent, CLIP, two towers), from a few steps"
-- what = "{fact}"
-- why = [
--   "{evidence}",
--   "on average over the last {n} sampled steps, from step {step} to {last}; scores {shape}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, function, shape, copies_ratio, alike_inputs_ratio, one_view_ratio FROM python.loss_functions WHERE copies_ratio IS NOT NULL ORDER BY step DESC LIMIT 10\"",
-- ]
-- false_positives = "a loss that gives copies less weight in another way than by a mask; samples that are the same on purpose, with different positives"
-- explains = ["plateau", "slow-decrease"]
-- [parameters.least]
-- value = 3
-- unit = "sampled steps"
-- source = "ours"
-- [parameters.copies]
-- value = 0.2
-- unit = "ratio of the rows"
-- source = "ours: with one copy each, a fifth of the rows cannot get below ln 2"
-- [parameters.view]
-- value = 0.95
-- unit = "ratio of the rows"
-- source = "ours: nearly all; by chance none is"
WITH seen AS (
    SELECT * FROM python.loss_functions WHERE copies_ratio IS NOT NULL QUALIFY ROW_NUMBER() OVER (PARTITION BY function, layer ORDER BY step DESC) <= 8
), judged AS (
    SELECT function, layer, COUNT(*) AS n, MIN(step) AS step, MAX(step) AS last, AVG(copies_ratio) AS copies, AVG(alike_inputs_ratio) AS alike, AVG(one_view_ratio) AS one_view, ARG_MAX(shape, step) AS shape
    FROM seen GROUP BY ALL HAVING COUNT(*) >= $least
), facts AS (
    SELECT 'view' AS subject, 'each positive is its anchor itself: both embeddings of a pair come from the same view' AS fact,
        format('the scores of {:.0f} % of the rows are those of one set of embeddings with itself; nothing is learned of what the views share', 100 * one_view) AS evidence, * FROM judged WHERE one_view >= $view
    UNION ALL BY NAME
    SELECT 'copies' AS subject,
        CASE WHEN copies >= $copies THEN 'copies of the positive are among the in-batch negatives' ELSE 'batches hold equal samples, and each counts as a negative of the other' END AS fact,
        CASE WHEN copies >= $copies THEN format('{:.0f} % of the rows have another column with the same scores as their target''s', 100 * copies)
             ELSE format('{:.0f} % of the samples of an input of the model, or of a tensor of the loader''s batch, equal another sample', 100 * alike) END
        || ', which the loss pushes away as if it were wrong: mask equal samples, or draw each at most once per batch' AS evidence, *
    FROM judged WHERE GREATEST(copies, COALESCE(alike, 0)) >= $copies AND NOT COALESCE(one_view >= $view, false)
)
SELECT NULL AS unknown, * FROM facts
UNION ALL BY NAME
SELECT format('in-batch negatives were sampled on {} steps, {} are needed', COUNT(DISTINCT step), $least) AS unknown FROM seen HAVING COUNT(DISTINCT step) < $least
