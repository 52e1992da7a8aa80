-- The trainings that follow each other in one process (a backbone and then what is built on it, folds): the
-- step at which each began, by rank. It has an optimizer of its own, made when those before had done their
-- last step, or its optimizer counts its steps anew.
WITH looks AS (
    SELECT rank, optimizer, param_group, parameters, step, state_steps,
        LAG(state_steps) OVER w > state_steps AND COUNT(*) OVER (PARTITION BY rank, optimizer, param_group, parameters, step) = 1 AS anew
    FROM python.optimizers WHERE step IS NOT NULL WINDOW w AS (PARTITION BY rank, optimizer, param_group, parameters ORDER BY step)
), groups AS (
    SELECT rank, MIN(step) AS first, MAX(step) AS last, ARG_MIN(state_steps, step) AS counted
    FROM looks GROUP BY rank, optimizer, param_group, parameters
), following AS (
    SELECT *, MAX(last) OVER (PARTITION BY rank ORDER BY first RANGE BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS ended FROM groups
)
SELECT DISTINCT rank, 0 AS begun FROM python.steps
UNION SELECT rank, step - state_steps + 1 FROM looks WHERE anew
UNION SELECT rank, GREATEST(ended, first - counted) + 1 FROM following WHERE ended < first
