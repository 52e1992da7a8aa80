-- title = "one optimizer step per epoch"
-- severity = "notice"
-- symptoms = ["loss", "gradients"]
-- order = 198
-- scope = "rank"
-- needs = "the batches of a DataLoader in a few optimizer steps"
-- what = "the optimizer steps once per epoch: each of the last {n} steps used all {batches} batches of {loader}, with a backward for each"
-- why = [
--   "step {seen} began with the first batch of the pass and ended after the last one",
--   "{steps} steps since recording began, {wall_s:.3g} s each",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, loader, epoch, COUNT(*) AS batches FROM python.batches GROUP BY ALL ORDER BY step DESC LIMIT 10\"",
--   "probe {endpoint} backtrace --locals",
-- ]
-- false_positives = "training on the whole data set at once on purpose, with gradients accumulated over its parts"
-- explains = ["slow-decrease", "plateau", "accumulation-cleared", "learning-rate-too-low", "gradients-exploding", "clipping"]
-- [parameters.least]
-- value = 2
-- unit = "steps"
-- source = "ours: each of them used every batch of the pass, neither more nor less"
-- [parameters.batches]
-- value = 4
-- unit = "batches of an epoch"
-- source = "ours: a smaller set may well be used as a whole"
WITH used AS (
    SELECT step, loader, COUNT(*) AS batches, MIN(place) AS first, MAX(place) + 1 AS size, COUNT(DISTINCT epoch) AS epochs
    FROM python.batches WHERE step IS NOT NULL AND place IS NOT NULL GROUP BY ALL
), sizes AS (
    SELECT loader, MAX(place) + 1 AS whole FROM python.batches GROUP BY loader
), steps AS (
    SELECT s.step, u.loader, u.batches, s.wall_s,
        u.first = 0 AND u.epochs = 1 AND u.batches = u.size AND u.size = z.whole AND s.micro_steps = u.batches AS whole
    FROM python.steps s JOIN used u USING (step) JOIN sizes z USING (loader)
    WHERE s.micro_steps > 0 AND s.boundary = 'optimizer' QUALIFY ROW_NUMBER() OVER (PARTITION BY s.step ORDER BY u.batches DESC) = 1
), recent AS (
    SELECT * FROM steps ORDER BY step DESC LIMIT 10
), counted AS (
    SELECT COUNT(*) AS n, BOOL_AND(whole) AS whole, MIN(batches) AS batches, MAX(loader) AS loader, MIN(step) AS step,
        MAX(step) AS seen, MEDIAN(wall_s) AS wall_s FROM recent
)
SELECT NULL AS unknown, *, (SELECT COUNT(*) FROM python.steps) AS steps
FROM counted WHERE n >= $least AND whole AND batches >= $batches
UNION ALL BY NAME
SELECT format('the batches of {} steps are known, {} are needed', n, $least) AS unknown FROM counted WHERE n < $least
