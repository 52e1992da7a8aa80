-- Whether two trainings take turns, each with an optimizer of its own, as where a probe is fitted anew between the
-- epochs of an encoder: one goes on with its rate after another one has begun, or is looked at again after it.
WITH rates AS (
    SELECT o.rank, o.optimizer, o.parameters, o.made_step, MIN(o.step) AS first, MAX(o.step) AS last, LIST(DISTINCT o.lr) AS rates
    FROM python.optimizers o WHERE o.param_group = 0 AND o.step IS NOT NULL GROUP BY ALL
), lead AS (
    SELECT s.rank, r.optimizer, r.parameters, r.made_step, MIN(s.step) AS first, MAX(s.step) AS last
    FROM python.steps s JOIN rates r ON r.rank = s.rank AND list_contains(r.rates, s.lr) GROUP BY ALL
)
SELECT EXISTS (
    SELECT 1 FROM rates a JOIN rates b ON a.rank = b.rank AND b.made_step > a.first AND (a.optimizer, a.parameters) IS DISTINCT FROM (b.optimizer, b.parameters)
        JOIN lead la ON (la.rank, la.optimizer, la.parameters) = (a.rank, a.optimizer, a.parameters) AND la.made_step IS NOT DISTINCT FROM a.made_step
        JOIN lead lb ON (lb.rank, lb.optimizer, lb.parameters) = (b.rank, b.optimizer, b.parameters) AND lb.made_step IS NOT DISTINCT FROM b.made_step
    WHERE a.last > b.first OR (NOT list_has_any(a.rates, b.rates) AND la.last > lb.first)
) AS yes
