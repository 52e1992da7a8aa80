-- Whether several optimizers, each with a backward of its own, train each other's networks, as in a GAN (`yes`), and
-- why the terms of the loss compete, if they do (`compete`): also where a gradient is reversed on purpose. In the
-- newest of the `trainings`. `contrasted`: the loss is the difference of what a network gives for two inputs, as that of
-- an energy-based model is, and its level means nothing.
WITH several AS (
    SELECT COALESCE(MEDIAN(micro_steps) > 1, false) AND (
        EXISTS (SELECT 1 FROM probe.facts WHERE kind = 'hyperparameter' AND name = 'optimizer2')
        OR EXISTS (SELECT 1 FROM python.torch_trace WHERE stage = 'step' GROUP BY rank, step HAVING COUNT(*) > 1)) AS yes
    FROM python.steps WHERE step >= (SELECT MAX(begun) FROM trainings)
), turned AS (
    SELECT ARG_MAX(reversing, step) AS names FROM python.graphs WHERE step >= (SELECT MAX(begun) FROM trainings) AND reversing IS NOT NULL
)
SELECT yes, COALESCE((SELECT BOOL_OR(contrasted) FROM python.graphs WHERE step >= (SELECT MAX(begun) FROM trainings)), false) AS contrasted, CASE WHEN yes THEN 'several optimizers have their own backward: their losses compete'
    WHEN names IS NOT NULL THEN format('{} negates the gradient that passes it: what lies before it learns to raise a term of the loss', names) END AS compete
FROM several, turned
