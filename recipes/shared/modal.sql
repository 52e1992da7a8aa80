-- The newest row of each module, and whether the module behaves differently in train mode (`changes`): dropout, and a
-- normalization by batch statistics. One whose weights are frozen is not counted: its statistics are to stay as well.
SELECT *, p > 0 OR (class LIKE '%BatchNorm%' OR class LIKE '%InstanceNorm%') AND NOT (COALESCE(parameters, 0) > 0 AND COALESCE(trainable, 1) = 0) AS changes
FROM (
    SELECT module, MAX(t_ns) AS read_ns, ARG_MAX(class, t_ns) AS class, ARG_MAX(p, t_ns) AS p, ARG_MAX(parameters, t_ns) AS parameters, ARG_MAX(trainable, t_ns) AS trainable, ARG_MAX(training, t_ns) AS training
    FROM python.modules GROUP BY module
)
