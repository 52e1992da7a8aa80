-- title = "checkpoint contents and disk use"
-- severity = "notice"
-- symptoms = ["memory", "slow"]
-- order = 531
-- scope = "rank"
-- needs = "a few saved files, and the parameter sizes"
-- what = "{fact}"
-- why = [
--   "{evidence}",
--   "{hint}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, path, bytes, free_bytes FROM python.saves ORDER BY t_ns DESC LIMIT 20\"",
-- ]
-- false_positives = "a replay buffer or data set saved on purpose; a frozen model included in the checkpoint (`info`); old files that another program deletes"
-- explains = ["host-memory-growth"]
-- [parameters.least]
-- value = 4
-- unit = "saves"
-- source = "ours"
-- [parameters.grown]
-- value = 1.3
-- unit = "times the first size"
-- source = "ours: lists of losses and dates take a few kilobytes"
-- [parameters.r]
-- value = 0.95
-- unit = "correlation"
-- source = "ours"
-- [parameters.times]
-- value = 8.0
-- unit = "times the parameters"
-- source = "practice: weights, two moments, an average and a copy in higher precision make six"
-- [parameters.beside_bytes]
-- value = 1048576
-- unit = "bytes"
-- source = "ours: metadata beside the tensors in a file"
-- [parameters.hours]
-- value = 12.0
-- unit = "h"
-- source = "ours: one night"
WITH saves AS (
    SELECT step, t_ns, path, regexp_replace(path, '[0-9]+', '#', 'g') AS name, bytes, free_bytes FROM python.saves WHERE bytes IS NOT NULL AND step >= 1
), sizes AS (
    SELECT SUM(size) AS parameters FROM (SELECT param, ARG_MAX(numel, t_ns) * CASE WHEN ARG_MAX(dtype, t_ns) LIKE '%16%' THEN 2 WHEN ARG_MAX(dtype, t_ns) LIKE '%64%' THEN 8 ELSE 4 END AS size FROM python.parameters GROUP BY param)
), named AS (
    SELECT name, COUNT(*) AS n, COUNT(DISTINCT path) AS paths, MIN(step) AS step, MAX(step) AS last, ARG_MIN(bytes, t_ns) AS first, ARG_MAX(bytes, t_ns) AS now, MEDIAN(bytes) AS usual, SUM(bytes) AS together, CORR(bytes, step) AS r, ARG_MAX(path, t_ns) AS path,
        ARG_MIN(free_bytes, t_ns) - ARG_MAX(free_bytes, t_ns) AS taken, ARG_MAX(free_bytes, t_ns) AS free, (MAX(t_ns) - MIN(t_ns)) / 1e9 AS seconds FROM saves GROUP BY name
)
SELECT NULL AS unknown, name AS subject, step, CASE WHEN now >= 2 * first THEN 'notice' ELSE 'info' END AS severity, format('each checkpoint is larger than the one before: {:,.1f} MB at step {}, {:,.1f} MB at step {}', first / 1e6, step, now / 1e6, last) AS fact,
    format('{} saves as {}, in proportion to the steps (correlation {:.3f})', n, path, r) AS evidence, 'weights and optimizer state do not grow: something that accumulates is saved with them (a history, outputs, samples)' AS hint
FROM named WHERE n >= $least AND now >= $grown * first AND r >= $r AND now - first >= $beside_bytes
UNION ALL BY NAME
SELECT NULL AS unknown, name AS subject, step, 'info' AS severity, format('a checkpoint holds more than the model and its optimizer: {:,.1f} MB, while all parameters together take {:,.1f} MB', now / 1e6, parameters / 1e6) AS fact,
    format('{} saves as {}', n, path) AS evidence, 'saving a view saves the whole tensor (clone it first), and saving an object saves everything it references (a data set, a trainer): save state_dict()s' AS hint
FROM named, sizes WHERE parameters > 0 AND LEAST(first, now) > $times * parameters + $beside_bytes
UNION ALL BY NAME
SELECT NULL AS unknown, 'kept' AS subject, step, CASE WHEN free / GREATEST(usual, 1) * seconds / GREATEST(n - 1, 1) < 3600 * $hours THEN 'notice' ELSE 'info' END AS severity,
    format('every checkpoint is kept: {} files of {:,.1f} MB so far, one every {:.0f} steps, and space for {:,.0f} more', paths, usual / 1e6, (last - step) / GREATEST(n - 1, 1), free / GREATEST(usual, 1)) AS fact,
    format('{:,.1f} MB were saved as {}, and free disk space fell by {:,.1f} MB; at this rate the disk is full in {:,.1f} hours', together / 1e6, name, taken / 1e6, free / GREATEST(usual, 1) * seconds / GREATEST(n - 1, 1) / 3600) AS evidence, 'keep the last few and the best one' AS hint
FROM named WHERE paths >= 10 AND paths >= 0.9 * n AND taken >= 0.8 * (together - first) AND (last - step) / GREATEST(n - 1, 1) <= 100
UNION ALL BY NAME
SELECT 'fewer than four files were saved' AS unknown FROM saves HAVING COUNT(*) < $least
