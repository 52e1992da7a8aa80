-- title = "layer is created in each forward"
-- severity = "notice"
-- symptoms = ["loss", "gradients"]
-- order = 206
-- scope = "rank"
-- needs = "the autograd graphs of the losses, from a few sampled steps"
-- what = "new parameters are created in each step, with new random values, and are in no optimizer: {shapes}"
-- why = [
--   "in {anew} of the last {n} sampled graphs, the loss led to {each:.0f} parameters that no earlier graph contained, and {gone} earlier ones no longer existed",
--   "probably a layer is constructed inside forward: construct it in __init__",
--   "{doubt}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, held, unheld, anew, gone, shapes FROM python.graphs ORDER BY step DESC LIMIT 12\"",
--   "probe {endpoint} checkpoint before-restart.pt",
--   "probe {endpoint} stop",
-- ]
-- false_positives = "normalization or activation layers used like functions, with the same values each time (`info`); random layers that perturb the input on purpose; per-task model copies in meta-learning, as long as their optimizer is not known"
-- explains = ["plateau", "slow-decrease", "oscillation", "parameters-forgotten"]
-- [parameters.least]
-- value = 3
-- unit = "graphs"
-- source = "ours"
-- [parameters.share]
-- value = 0.9
-- unit = "ratio of the graphs"
-- source = "ours: a part used for the first time, or a growing model, is new only once"
WITH looks AS (
    SELECT * FROM python.graphs WHERE anew IS NOT NULL ORDER BY t_ns DESC LIMIT 8
), counted AS (
    SELECT COUNT(*) AS n, COUNT(*) FILTER (anew > 0) AS anew, MEDIAN(anew) FILTER (anew > 0) AS each, SUM(gone) AS gone, MIN(step) AS step,
        MODE(shapes) AS shapes, COUNT(DISTINCT shapes) FILTER (anew > 0) AS kinds FROM looks
)
SELECT NULL AS unknown, n, anew, each, gone, step, shapes, shapes AS subject,
    CASE WHEN regexp_matches(shapes, '\[[0-9]+, ') THEN 'notice' ELSE 'info' END AS severity,
    CASE WHEN NOT regexp_matches(shapes, '\[[0-9]+, ') THEN 'they are all vectors: a recreated normalization layer has the same values each time' END AS doubt
FROM counted WHERE anew >= $least AND anew >= $share * n AND gone > 0 AND kinds <= 2
UNION ALL BY NAME
SELECT format('graphs of the loss were sampled in {} steps, {} are needed', COUNT(*), $least) AS unknown FROM looks HAVING COUNT(*) < $least
