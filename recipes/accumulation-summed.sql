-- title = "accumulated gradients are summed, not averaged"
-- severity = "notice"
-- symptoms = ["gradients", "loss", "nan"]
-- order = 202
-- scope = "rank"
-- needs = "at least four backward calls in each step, and the graphs of their losses from a few sampled steps"
-- what = "each step adds up the gradients of {n:.0f} mean losses and divides by nothing: it is {n:.0f} times as long as that of their mean"
-- why = [
--   "{n:.0f} backward calls per step in {looked} steps, each on a whole mean loss ({function}; python.losses.share is 1)",
--   "{optimizer}: {effect}",
--   "divide each loss by the number of micro-batches, or the learning rate",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, micro_step, loss, share FROM python.losses ORDER BY step DESC, micro_step LIMIT 24\"",
--   "probe {endpoint} query \"SELECT step, function, reduction FROM python.loss_functions ORDER BY step DESC LIMIT 5\"",
-- ]
-- false_positives = "a learning rate that was chosen for the sum; several tasks whose losses are meant to be added, each with its own backward; parts of one long sequence"
-- explains = ["learning-rate-too-high", "gradients-exploding", "divergence", "loss-spike", "loss-nan", "nan-origin", "optimizer-state", "oscillation", "output-constant", "no-warm-up", "dead-units", "layer-not-learning", "plateau"]
-- [parameters.least]
-- value = 5
-- unit = "steps"
-- source = "ours"
-- [parameters.backwards]
-- value = 4
-- unit = "backward calls per step"
-- source = "ours: two or three are mostly different losses"
-- [parameters.alike]
-- value = 10.0
-- unit = "times the smallest loss of the step"
-- source = "ours: micro-batches of one loss are of the same size, different losses need not be"
WITH per_step AS (
    SELECT step, COUNT(*) AS n, COUNT(*) FILTER (share > 0.999 AND share < 1.001) AS whole, COUNT(share) AS known, MIN(loss) AS least_loss, MAX(loss) AS most_loss
    FROM python.losses GROUP BY step ORDER BY step DESC LIMIT 200
), counted AS (
    SELECT COUNT(*) AS looked, MIN(step) AS step, MEDIAN(n) AS n, SUM(known) AS known, SUM(whole) AS whole, SUM(n) AS calls, MIN(n) AS fewest,
        COUNT(*) FILTER (isfinite(most_loss) AND (least_loss <= 0 OR most_loss > $alike * least_loss)) AS unlike
    FROM per_step WHERE step < (SELECT MAX(step) FROM per_step)
), functions AS (
    SELECT COUNT(DISTINCT function) AS kinds, ANY_VALUE(function) AS function, COUNT(*) FILTER (reduction IS DISTINCT FROM 'mean') AS others FROM python.loss_functions
), used AS (
    SELECT COUNT(DISTINCT optimizer || COALESCE(made_step::VARCHAR, '')) AS optimizers, ANY_VALUE(optimizer) AS optimizer FROM python.optimizers
)
SELECT NULL AS unknown, step, looked, n, function, optimizer, CASE WHEN optimizer = 'SGD' THEN 'notice' ELSE 'info' END AS severity,
    CASE WHEN optimizer = 'SGD' THEN 'its updates grow with the gradient, as with a learning rate that is so many times larger' ELSE 'its updates hardly depend on the size of the gradient, but clipping and weight decay do' END AS effect
FROM counted, functions, used
WHERE looked >= $least AND n >= $backwards AND fewest >= 0.5 * n AND whole > 0.9 * calls AND unlike < 0.5 * looked AND kinds = 1 AND others = 0 AND optimizers = 1 AND optimizer NOT IN ('LBFGS', 'Rprop')
UNION ALL BY NAME
SELECT 'fewer than four backward calls per step' AS unknown FROM counted WHERE COALESCE(n, 0) < $backwards
UNION ALL BY NAME
SELECT 'the graphs of the losses were not sampled yet' AS unknown FROM counted, functions WHERE n >= $backwards AND (kinds = 0 OR looked < $least OR known = 0)
