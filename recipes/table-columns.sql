-- title = "constant input columns, or one value far from all others"
-- severity = "notice"
-- symptoms = ["loss", "data"]
-- order = 128
-- scope = "rank"
-- needs = "model inputs [N, F] of 2 to 64 columns, from ten sampled steps"
-- what = "{fact}"
-- why = [
--   "{evidence}",
--   "input {name} of {module}, {shape} ({dtype}): {rows:,.0f} samples in {looks} sampled steps, from step {step} to {last}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, name, shape, rows_so_far, still_columns, still_column, apart_ratio, apart_share, apart_column FROM python.model_inputs WHERE rows_so_far IS NOT NULL ORDER BY step DESC LIMIT 10\"",
-- ]
-- false_positives = "a column of ones used as a bias (left out); categories that do not occur in these data, observations of a simulation (`info` without a DataLoader, or if at least half of the columns are constant); a naturally extreme value"
-- explains = ["plateau", "slow-decrease", "output-constant"]
-- [parameters.looks]
-- value = 10
-- unit = "sampled steps"
-- source = "ours"
-- [parameters.rows]
-- value = 500
-- unit = "samples"
-- source = "ours: enough for rare values to occur"
-- [parameters.apart]
-- value = 10.0
-- unit = "times the range of all other values"
-- source = "ours: -999 or 1e9 for a missing value; the largest of a thousand normal numbers is less than one range away"
-- [parameters.often]
-- value = 0.8
-- unit = "ratio of the sampled steps"
-- source = "ours: a batch may hold fewer than two such values"
WITH given AS (
    SELECT * FROM python.model_inputs WHERE rows_so_far IS NOT NULL AND isfinite(apart_ratio) QUALIFY ROW_NUMBER() OVER (PARTITION BY module, name ORDER BY step DESC) <= 64
), inputs AS (
    SELECT module, name, COUNT(*) AS looks, MIN(step) AS step, MAX(step) AS last, MAX(rows_so_far) AS rows, ARG_MAX(still_columns, step) AS still, ARG_MAX(still_column, step) AS "column", ARG_MAX(still_value, step) AS value, ARG_MAX(shape, step) AS shape, ANY_VALUE(dtype) AS dtype, CAST(ARG_MAX(shape, step) AS BIGINT[])[2] AS columns,
        MODE(apart_column) FILTER (apart_ratio >= $apart) AS apart, COUNT(*) FILTER (apart_ratio >= $apart) AS times, MEDIAN(apart_ratio) FILTER (apart_ratio >= $apart) AS ratio, MEDIAN(apart_share) FILTER (apart_ratio >= $apart) AS share
    FROM given GROUP BY module, name HAVING COUNT(*) >= $looks AND MAX(rows_so_far) >= $rows
), fed AS (
    SELECT EXISTS (SELECT 1 FROM python.batches WHERE state = 'done') AS yes
), facts AS (
    SELECT *, 'columns' AS "of", CASE WHEN fed.yes AND 2 * still < columns AND NOT ended THEN 'notice' ELSE 'info' END AS severity,
        format('{} of the {} columns of the input {} the same value in every sample: they tell the model nothing', still, columns, CASE WHEN still = 1 THEN 'has' ELSE 'have' END) AS fact,
        format('the first of them is column {}, counted from 0, with {:.4g}: a join that matched nothing, a default for what is missing, or a column that was never filled', "column", value) AS evidence
    -- Columns of one value at the end are what sequences are filled up with; windows that begin or end at 0 are measured from there.
    FROM (SELECT *, (still > 1 AND "column" + still = columns) OR (still = 1 AND value = 0 AND "column" IN (0, columns - 1)) AS ended FROM inputs), fed WHERE still > 1 OR still = 1 AND value <> 1
    UNION ALL BY NAME
    SELECT *, 'values' AS "of", CASE WHEN fed.yes THEN 'notice' ELSE 'info' END AS severity,
        format('{:.1f} % of the samples share one value in column {} of the input, {:.0f} times as far from all other values as those are from each other', 100 * share, apart, ratio) AS fact,
        'a number that stands for a missing value (-999, 9999, 0) looks like this: after standard scaling the real values are nearly equal, and the model sees little more than what is missing. Impute the value, and add an indicator column' AS evidence
    FROM inputs, fed WHERE times >= $often * looks
)
SELECT NULL AS unknown, module || ' ' || name || ' ' || "of" AS subject, * EXCLUDE ("of", yes, ended) FROM facts
UNION ALL BY NAME
SELECT format('tables were sampled in {} steps, {} are needed', (SELECT COUNT(DISTINCT step) FROM given), $looks) AS unknown WHERE NOT EXISTS (SELECT 1 FROM inputs)
