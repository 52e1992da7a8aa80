-- title = "labels contradict each other"
-- severity = "notice"
-- symptoms = ["loss", "data"]
-- order = 126
-- scope = "rank"
-- needs = "samples on the CPU that appeared twice, each with a label"
-- what = "the same samples come with different labels: {share:.0%} of {again} repeated samples had a different label from the first time"
-- why = [
--   "input {name} of {module} and the one value per sample of its batch, from step {step} to {last}; samples are compared bitwise",
--   "no model can give two answers for the same input: check the code that pairs inputs and labels, and whether labels are drawn or reshuffled each time",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, name, compared, again, relabelled FROM python.model_inputs WHERE relabelled IS NOT NULL ORDER BY step DESC LIMIT 20\"",
-- ]
-- false_positives = "several annotations of the same sample; a per-sample value that is not a label, such as a weight or a noise level"
-- explains = ["plateau", "slow-decrease", "oscillation"]
-- [parameters.least]
-- value = 24
-- unit = "repeated samples"
-- source = "ours"
-- [parameters.share]
-- value = 0.3
-- unit = "ratio of the repeated samples"
-- source = "ours: known data sets have less than a tenth of wrong labels, and they do not change between passes"
WITH seen AS (
    SELECT module, name, SUM(again) AS again, SUM(relabelled) AS relabelled, MIN(step) FILTER (relabelled > 0) AS step, MAX(step) AS last
    FROM python.model_inputs WHERE NOT gradless AND relabelled IS NOT NULL GROUP BY module, name
), labels AS (
    SELECT COUNT(DISTINCT name) AS n, BOOL_AND(dtype LIKE '%int%' OR dtype = 'bool') AS whole FROM python.model_inputs WHERE module = 'batch'
)
SELECT NULL AS unknown, module || ' ' || name AS subject, seen.*, relabelled / again AS share, CASE WHEN whole THEN 'notice' ELSE 'info' END AS severity
FROM seen, labels WHERE again >= $least AND relabelled >= $share * again
UNION ALL BY NAME
SELECT format('{} repeated samples with a label, {} are needed', (SELECT COALESCE(SUM(again), 0) FROM seen), $least) AS unknown WHERE (SELECT COALESCE(SUM(again), 0) FROM seen) < $least
