-- Parameters that were frozen and are trained: the last step at which one was known to be frozen (`before`), and
-- the first at which it was known to require a gradient (`step`).
SELECT DISTINCT rank, before, step FROM (
    SELECT rank, step, requires_grad, LAG(requires_grad) OVER w AS required, LAG(step) OVER w AS before
    FROM python.parameters WINDOW w AS (PARTITION BY rank, param ORDER BY t_ns)
) WHERE requires_grad AND NOT required
