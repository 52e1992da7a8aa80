-- title = "clipped to a tiny part"
-- severity = "notice"
-- symptoms = ["gradients", "loss"]
-- order = 209
-- scope = "rank"
-- needs = "clipping in a few sampled steps"
-- what = "clipping cuts nearly every step to a tiny part: to {cut:.2g} of the gradient (median), in {n} of {looked} sampled steps"
-- why = [
--   "gradient norm before clipping: {norm:.3g} (median of the last steps), so max_norm is about {limit:.2g}",
--   "{adaptive}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, grad_norm, loss, lr FROM python.steps ORDER BY step DESC LIMIT 20\"",
--   "probe {endpoint} query \"SELECT DISTINCT step, clip_ratio FROM python.updates ORDER BY step DESC LIMIT 10\"",
-- ]
-- false_positives = "gradients normalized to a fixed length on purpose, with a rate that was chosen for it"
-- [parameters.least]
-- value = 3
-- unit = "steps looked at"
-- source = "ours"
-- [parameters.share]
-- value = 0.9
-- unit = "ratio of what was looked at"
-- source = "ours: what happens in nearly every step is no accident of one"
-- [parameters.part]
-- value = 0.01
-- unit = "ratio of the gradient"
-- source = "ours: limits of 0.25 to 10 cut ordinary gradients to a third or so at worst, and the first steps of a training to a hundredth"
WITH steps AS (
    SELECT DISTINCT step FROM python.updates ORDER BY step DESC LIMIT 8
), seen AS (
    SELECT u.* FROM python.updates u JOIN steps USING (step)
), clipped AS (
    SELECT step, MIN(clip_ratio) AS cut, MAX(clip_scale) AS scale, ANY_VALUE(optimizer) AS optimizer FROM seen WHERE optimizer IS NOT NULL AND clip_ratio IS NOT NULL GROUP BY step
), counted AS (
    SELECT COUNT(*) AS looked, COUNT(*) FILTER (cut <= $part AND scale IS NULL) AS n, MEDIAN(cut) AS cut, MIN(step) AS step, ANY_VALUE(optimizer) AS optimizer FROM clipped
), norms AS (
    SELECT MEDIAN(grad_norm) AS norm FROM (SELECT grad_norm FROM python.steps WHERE isfinite(grad_norm) ORDER BY step DESC LIMIT 50)
)
SELECT NULL AS unknown, n, looked, cut, step, norm, norm * cut AS limit, CASE WHEN optimizer NOT IN ('SGD', 'ASGD', 'Rprop') THEN format('{} divides the gradient by its own size, so that it makes up for most of this', optimizer) END AS adaptive,
    CASE WHEN optimizer IN ('SGD', 'ASGD') THEN 'notice' ELSE 'info' END AS severity
FROM counted, norms WHERE n >= $least AND n >= $share * looked
UNION ALL BY NAME
SELECT format('updates were looked at in {} steps, {} are needed', COUNT(*), $least) AS unknown FROM steps HAVING COUNT(*) < $least
