-- title = "passes over the data are broken off"
-- severity = "notice"
-- symptoms = ["loss", "data", "slow"]
-- order = 124
-- scope = "rank"
-- needs = "a DataLoader that feeds the training, over several passes, and the sample indices of its batches"
-- what = "{fact}"
-- why = [
--   "{evidence}",
--   "the last {passes} passes over {loader}, from step {step} to {last}, had {batches} batches each before a new iterator was created",
--   "everything done once per epoch (schedule, evaluation, logging) happens every {batches} steps",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, loader, epoch, place FROM python.batches ORDER BY t_ns DESC LIMIT 20\"",
-- ]
-- false_positives = "epochs with a fixed number of batches on purpose (`info` above `few` batches); the longer of two loaders that are used together (`info`); a new iterator for one batch in each step (`info`)"
-- explains = ["schedule", "evaluation-share", "batches-repeat", "input-bound"]
-- [parameters.passes]
-- value = 5
-- unit = "passes in a row"
-- source = "ours: all ended after the same number of batches"
-- [parameters.few]
-- value = 10
-- unit = "batches"
-- source = "practice: trial runs stop after 1 to 10 batches (fast_dev_run, limit_train_batches); intentionally shortened epochs have hundreds"
WITH arrived AS (
    SELECT step, t_ns, loader, epoch, place, samples, SUM(CAST(place = 0 AS INTEGER)) OVER (PARTITION BY loader ORDER BY t_ns) AS pass
    FROM python.batches WHERE state = 'done' AND place IS NOT NULL AND step IS NOT NULL
), feeding AS (
    SELECT loader, MAX(pass) AS newest, MAX(epoch) > MIN(epoch) AS ends FROM arrived
    WHERE loader NOT IN (SELECT loader FROM python.intervals WHERE loader IS NOT NULL AND kind <> 'checkpoint')
    GROUP BY loader HAVING COUNT(DISTINCT step) > 0.5 * (MAX(step) - MIN(step) + 1)
), passes AS (
    SELECT loader, pass, MIN(epoch) AS epoch, MAX(place) + 1 AS batches, MAX(samples) AS samples, MIN(step) AS step, MAX(step) AS last
    FROM arrived JOIN feeding USING (loader) WHERE pass > 0 AND pass < newest GROUP BY loader, pass
), drawn AS (
    SELECT name[:-15] AS loader, CAST(MAX(number) AS BIGINT) + 1 AS "all" FROM probe.facts WHERE kind = 'data' AND name LIKE '%.highest_index' GROUP BY ALL
), judged AS (
    SELECT loader, COUNT(*) AS passes, MIN(batches) AS batches, MAX(samples) AS samples, MIN(step) AS step, MAX(last) AS last
    FROM (SELECT * FROM passes QUALIFY ROW_NUMBER() OVER (PARTITION BY loader ORDER BY pass DESC) <= 32)
    GROUP BY loader HAVING COUNT(*) >= $passes AND MIN(epoch) = MAX(epoch) AND MIN(batches) = MAX(batches)
)
SELECT NULL AS unknown, loader AS subject, judged.*, "all",
    CASE WHEN batches = 1 THEN 'each step creates a new iterator of its loader and takes one batch from it'
        ELSE format('every pass over the training data is broken off after {} batches, before the loader is exhausted', batches) END AS fact,
    format('a pass uses at most {} samples, of at least {} that the sampler draws from', batches * samples, "all")
        || CASE WHEN batches = 1 THEN '; the loader''s workers restart each time' ELSE '; a `break` left over from a trial run looks like this' END AS evidence,
    CASE WHEN batches BETWEEN 2 AND $few AND NOT EXISTS (SELECT 1 FROM feeding o WHERE o.loader <> judged.loader AND o.ends) THEN 'notice' ELSE 'info' END AS severity
FROM judged JOIN drawn USING (loader) WHERE "all" > (batches + 1) * samples
UNION ALL BY NAME
SELECT format('{} passes over a training loader are known', (SELECT COUNT(*) FROM passes)) AS unknown WHERE NOT EXISTS (SELECT 1 FROM passes)
