-- Whether several optimizers, each with a backward of its own, train each other's networks, as in a GAN: in
-- the newest of the `trainings`.
SELECT COALESCE(MEDIAN(micro_steps) > 1, false) AND (
    EXISTS (SELECT 1 FROM probe.facts WHERE kind = 'hyperparameter' AND name = 'optimizer2')
    OR EXISTS (SELECT 1 FROM python.torch_trace WHERE stage = 'step' GROUP BY rank, step HAVING COUNT(*) > 1)) AS yes
FROM python.steps WHERE step >= (SELECT MAX(begun) FROM trainings)
