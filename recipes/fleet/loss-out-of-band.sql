-- title = "loss outside its family's band"
-- severity = "notice"
-- symptoms = ["loss"]
-- order = 40
-- needs = "five runs of a job with losses"
-- what = "{run} of {job}: loss {loss:.4g} at step {step:,}, the other runs {middle:.4g} +- {spread:.2g}"
-- why = [
--   "median of {window} steps up to the last step that all {runs} runs have, which is {step:,}",
--   "it is {sigmas_off:.1f} robust standard deviations (1.4826 MAD) above the family's median, {sigmas} are allowed",
-- ]
-- next = ["probe fleet URL diagnose {run}", "probe fleet URL compare {middle_run} {run}"]
-- false_positives = "a sweep, whose runs are meant to differ"
-- [parameters.sigmas]
-- value = 5.0
-- unit = "robust standard deviations"
-- source = "practice: 3.5 for one look (Iglewicz and Hoaglin 1993); a fleet is looked at for many runs at once"
-- [parameters.least]
-- value = 0.05
-- unit = "ratio"
-- source = "ours: closer runs are alike, however narrow the band is"
-- [parameters.window]
-- value = 100
-- unit = "steps"
-- source = "practice: a loss is judged over 100 steps"
-- [parameters.runs]
-- value = 5
-- unit = "runs"
-- source = "ours: the spread of fewer is not known"
WITH ends AS (
    SELECT job, run, attempt, MAX(step) AS last FROM python.steps WHERE rank = 0 AND loss IS NOT NULL GROUP BY ALL
), families AS (
    SELECT job, MIN(last) AS step, COUNT(*) AS runs FROM ends WHERE last >= 2 * $window GROUP BY job
), curves AS (
    SELECT s.job, s.run, s.attempt, f.step, f.runs, MEDIAN(s.loss) AS loss, COUNT(*) FILTER (NOT isfinite(s.loss)) AS bad
    FROM python.steps s JOIN families f USING (job) JOIN ends e USING (job, run, attempt)
    WHERE s.rank = 0 AND e.last >= f.step AND s.loss IS NOT NULL AND s.step > f.step - $window AND s.step <= f.step
        AND f.runs >= $runs
    GROUP BY ALL
), bands AS (
    SELECT job, MEDIAN(loss) AS middle, 1.4826 * mad(loss) AS spread FROM curves WHERE bad = 0 GROUP BY job
)
SELECT c.job, c.run, concat(c.job, ' ', c.run) AS subject, c.step, c.runs, c.loss, b.middle, b.spread,
    (c.loss - b.middle) / NULLIF(b.spread, 0) AS sigmas_off,
    (SELECT arg_min(o.run, abs(o.loss - b.middle)) FROM curves o WHERE o.job = c.job AND o.bad = 0) AS middle_run
FROM curves c JOIN bands b USING (job)
WHERE c.bad = 0 AND c.loss > b.middle + $sigmas * b.spread AND c.loss - b.middle > $least * abs(b.middle)
UNION ALL BY NAME
SELECT 'no job has so many runs with losses' AS unknown WHERE NOT EXISTS (SELECT 1 FROM bands)
ORDER BY sigmas_off DESC
