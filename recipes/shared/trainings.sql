-- The trainings that follow each other in one process (a backbone and then what is built on it, folds): the
-- step at which each began, by rank. It has an optimizer of its own, made when those before had done their
-- last step, or its optimizer counts its steps anew. One of which neither is known began where the learning
-- rate became its own.
WITH looks AS (
    SELECT rank, optimizer, param_group, parameters, made_step, step, state_steps, lr,
        LAG(state_steps) OVER w > state_steps AND COUNT(*) OVER (PARTITION BY rank, optimizer, param_group, parameters, made_step, step) = 1 AS anew
    FROM python.optimizers WHERE step IS NOT NULL WINDOW w AS (PARTITION BY rank, optimizer, param_group, parameters, made_step ORDER BY step)
), groups AS (
    SELECT rank, made_step, MIN(step) AS first, MAX(step) AS last, ARG_MIN(step - state_steps + 1, step) AS started, ARG_MIN(lr, step) AS lr
    FROM looks GROUP BY rank, optimizer, param_group, parameters, made_step
), following AS (
    SELECT *, MAX(last) OVER (PARTITION BY rank ORDER BY first RANGE BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS ended FROM groups
), rates AS (
    SELECT rank, step, lr, LAG(lr) OVER (PARTITION BY rank ORDER BY step) AS before FROM python.steps
)
SELECT DISTINCT rank, 0 AS begun FROM python.steps
UNION SELECT rank, step - state_steps + 1 FROM looks WHERE anew
UNION SELECT f.rank, GREATEST(ended + 1, COALESCE(ANY_VALUE(started), ANY_VALUE(made_step) FILTER (made_step > ended), MAX(step)))
FROM following f LEFT JOIN rates r ON r.rank = f.rank AND r.lr = f.lr AND r.lr <> before AND step > ended AND step <= first
WHERE ended < first GROUP BY f.rank, ended, first
