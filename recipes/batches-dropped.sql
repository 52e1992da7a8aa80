-- title = "batches without a backward"
-- severity = "notice"
-- symptoms = ["data", "loss", "nan"]
-- order = 127
-- scope = "rank"
-- needs = "batches of a DataLoader that feeds the training"
-- what = "batches are dropped: {dropped} of {batches} batches of {loader} were fetched, but no backward followed ({ratio:.0%}), as when a loss that is not finite is skipped"
-- why = [
--   "{uneven:.0%} of the steps fetched other numbers of batches than they had backwards, from {least_batches} to {most_batches} batches for one step",
--   "{inputs}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, COUNT(*) AS batches FROM python.batches GROUP BY step HAVING COUNT(*) > 1 ORDER BY step DESC LIMIT 12\"",
--   "probe {endpoint} query \"SELECT step, name, shape, mean, min, max FROM python.model_inputs WHERE mean IS NULL ORDER BY step DESC LIMIT 12\"",
-- ]
-- false_positives = "batches that are filtered on purpose (too long, too easy): `info` below a tenth; several batches for each step, always the same number"
-- explains = ["throughput-drop"]
-- [parameters.least]
-- value = 60
-- unit = "steps"
-- source = "ours"
-- [parameters.ratio]
-- value = 0.03
-- unit = "ratio of the batches"
-- source = "ours: the last batch of each epoch may be too short"
-- [parameters.many]
-- value = 0.1
-- unit = "ratio of the batches"
-- source = "ours: from here on it is a notice"
WITH fed AS (
    SELECT loader FROM python.batches WHERE state = 'done' GROUP BY loader HAVING COUNT(DISTINCT step) > 0.5 * (MAX(step) - MIN(step) + 1)
), loaders AS (
    SELECT COUNT(*) AS n, MIN(loader) AS loader FROM fed
), counts AS (
    SELECT s.step, s.micro_steps, COUNT(b.step) AS batches FROM python.steps s JOIN python.batches b ON b.step = s.step AND b.state = 'done' AND b.loader = (SELECT loader FROM loaders)
    WHERE s.micro_steps > 0 AND s.eval_s IS NULL AND s.step > 0 GROUP BY s.step, s.micro_steps
), usual AS (
    SELECT QUANTILE_DISC(batches * 1.0 / micro_steps, 0.05) AS each FROM counts
), counted AS (
    SELECT COUNT(*) AS n, SUM(batches) AS batches, SUM(GREATEST(0, batches - each * micro_steps)) AS dropped, AVG((batches > each * micro_steps)::INT) AS uneven, MIN(step) FILTER (batches > each * micro_steps) AS step,
        MIN(batches) AS least_batches, MAX(batches) AS most_batches, COUNT(DISTINCT batches) AS kinds FROM counts, usual
), given AS (
    SELECT COUNT(*) AS looked, COUNT(*) FILTER (mean IS NULL) AS bad FROM python.model_inputs WHERE module <> 'batch' AND regexp_matches(dtype, 'float')
)
SELECT NULL AS unknown, c.n, CAST(c.dropped AS BIGINT) AS dropped, CAST(c.batches AS BIGINT) AS batches, c.dropped / c.batches AS ratio, c.uneven, c.step, least_batches, most_batches, loaders.loader, loaders.loader AS subject,
    CASE WHEN c.dropped >= $many * c.batches THEN 'notice' ELSE 'info' END AS severity,
    CASE WHEN bad > 0 THEN format('{} of {} inputs of the model that were looked at held NaN or infinity', bad, looked) END AS inputs
FROM counted c, loaders, given WHERE c.n >= $least AND loaders.n = 1 AND c.dropped >= $ratio * c.batches AND kinds >= 2
UNION ALL BY NAME
SELECT 'no single loader feeds the training' AS unknown FROM loaders WHERE n <> 1
UNION ALL BY NAME
SELECT format('{} steps with batches are known, {} are needed', counted.n, $least) AS unknown FROM counted, loaders l WHERE counted.n < $least AND l.n = 1
