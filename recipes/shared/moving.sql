-- Whether the targets of the loss may be the model's own, as in reinforcement learning: no loader, and a loss
-- that compares with no classes, in the newest of the `trainings` (a policy may have learned from examples first).
SELECT COUNT(*) > 0 AND COUNT(*) FILTER (function = 'cross_entropy') = 0
    AND NOT EXISTS (SELECT 1 FROM python.batches WHERE state = 'done' AND step >= (SELECT MAX(begun) FROM trainings)) AS yes
FROM python.loss_functions WHERE step >= (SELECT MAX(begun) FROM trainings)
