-- title = "the same file is read again and again"
-- severity = "notice"
-- symptoms = ["slow", "data"]
-- order = 111
-- scope = "rank"
-- needs = "calls of torch.load or numpy.load in training steps, on the training thread"
-- what = "the same file is loaded {per_step:.0f} times in each step, as if once per sample: {cost}"
-- why = [
--   "{path}: {calls:.0f} calls of torch.load or numpy.load in {steps:.0f} steps{size}",
--   "load it once, before training; or memory-map it (mmap=True of torch.load, mmap_mode=\"r\" of numpy.load, which has no effect on .npz files), so that only the parts in use are read",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT name, value, number FROM probe.facts WHERE kind = 'data' AND name LIKE 'reads%' ORDER BY t_ns DESC LIMIT 10\"",
--   "probe {endpoint} backtrace",
-- ]
-- false_positives = "a file that another process rewrites between the reads; `info` if loading takes less than a tenth of the time (for an .npz file, whose arrays are read only when used: if waiting for data does)"
-- explains = ["input-bound", "low-mfu", "throughput-drop", "time-outside"]
-- [parameters.calls]
-- value = 64
-- unit = "calls"
-- source = "ours"
-- [parameters.each]
-- value = 1.5
-- unit = "calls per step"
-- source = "ours: one load per step may be a buffer kept on disk"
-- [parameters.share]
-- value = 0.1
-- unit = "ratio of the time"
-- source = "practice: 10 % either way is healthy"
WITH told AS (
    SELECT regexp_extract(name, '^(reads[0-9]+)[.]', 1) AS file, regexp_extract(name, '[.]([a-z_]+)$', 1) AS what, ARG_MAX(value, t_ns) AS value, ARG_MAX(number, t_ns) AS number
    FROM probe.facts WHERE kind = 'data' AND name LIKE 'reads%' GROUP BY ALL
), files AS (
    SELECT file, MAX(value) FILTER (what = 'path') AS path, MAX(number) FILTER (what = 'calls') AS calls, MAX(number) FILTER (what = 'steps') AS steps, MAX(number) FILTER (what = 'spent_ratio') AS share, MAX(number) FILTER (what = 'bytes') AS bytes
    FROM told GROUP BY file
), waits AS (
    SELECT MEDIAN(data_s / wall_s) AS waiting FROM (SELECT data_s, wall_s FROM python.steps WHERE data_s IS NOT NULL AND wall_s > 0 ORDER BY step DESC LIMIT 100)
)
SELECT NULL AS unknown, path AS subject, path, calls, steps, calls / steps AS per_step, COALESCE(format(', {:.1f} MB each', bytes / 1e6), '') AS size,
    CASE WHEN share IS NOT NULL THEN format('{:.0f}% of the time is spent reading it', 100 * share)
        WHEN waiting IS NOT NULL THEN format('its arrays are read when they are used, and steps wait for data {:.0f}% of the time', 100 * waiting)
        ELSE 'its arrays are read when they are used, which takes an unknown time' END AS cost,
    CASE WHEN COALESCE(share, waiting) >= $share THEN 'notice' ELSE 'info' END AS severity
FROM files, waits WHERE calls >= $calls AND calls >= $each * steps
UNION ALL BY NAME
SELECT 'no file was loaded many times in training steps' AS unknown FROM files HAVING COUNT(*) = 0
