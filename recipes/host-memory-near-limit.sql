-- title = "host memory is nearly used up"
-- severity = "notice"
-- symptoms = ["memory"]
-- order = 620
-- scope = "rank"
-- needs = "samples of free memory, of the machine or the cgroup"
-- what = "{left:.1%} of host memory is left: {left_mib:,.0f} of {limit_mib:,.0f} MiB; this process has {rss_mib:,.0f} MiB"
-- why = ["the lowest of the last {n} samples, at step {step}", "resident memory was {rss_then_mib:,.0f} MiB {ago} steps before"]
-- next = [
--   "probe {endpoint} checkpoint before-oom.pt",
--   "probe {endpoint} eval \"print(train_loader.num_workers, train_loader.prefetch_factor)\"",
--   "probe {endpoint} memory-snapshot -o memory.pickle",
-- ]
-- false_positives = "other processes on the machine that use the memory only temporarily"
-- explains = ["out-of-memory"]
-- [parameters.left]
-- value = 0.05
-- unit = "ratio of the limit"
-- source = "practice: 95 % used is a warning"
-- [parameters.alarm]
-- value = 0.02
-- unit = "ratio of the limit"
-- source = "ours: the OOM killer starts soon after"
-- [zone]
-- of = "rss"
-- words = "until {left:.0%} of the host's memory is left"
-- sql = '''
-- SELECT MIN(t_ns // 1000000) AS ms, NULL AS low, MIN(GREATEST(rss_bytes + available_bytes - $left * limit_bytes, 0.1 * limit_bytes)) AS high
-- FROM process.memory WHERE rank = $rank AND t_ns // 1000000 >= $from_ms AND t_ns // 1000000 < $to_ms AND available_bytes IS NOT NULL AND limit_bytes > 0 GROUP BY (t_ns // 1000000 - $from_ms) // $width_ms
-- '''
WITH samples AS (
    SELECT step, t_ns, rss_bytes, available_bytes, limit_bytes, ROW_NUMBER() OVER (ORDER BY t_ns DESC) AS ago FROM process.memory WHERE available_bytes IS NOT NULL AND limit_bytes > 0
), recent AS (
    SELECT COUNT(*) AS n, MAX(available_bytes / limit_bytes) AS most, MIN(available_bytes) AS left_bytes, MAX(limit_bytes) AS limit_bytes, ARG_MIN(rss_bytes, ago) AS rss, MAX(step) AS step FROM samples WHERE ago <= 3
), old AS (
    SELECT ARG_MAX(rss_bytes, ago) AS rss, ARG_MAX(step, ago) AS step FROM samples WHERE ago <= 500
)
SELECT NULL AS unknown, recent.step, n, left_bytes / limit_bytes AS left, left_bytes / 1048576 AS left_mib, limit_bytes / 1048576 AS limit_mib, recent.rss / 1048576 AS rss_mib,
    CASE WHEN old.step < recent.step THEN old.rss / 1048576 END AS rss_then_mib, recent.step - old.step AS ago,
    CASE WHEN most < $alarm THEN 'alarm' ELSE 'notice' END AS severity
FROM recent, old WHERE n > 0 AND most < $left AND recent.rss > 0.1 * limit_bytes
UNION ALL BY NAME
SELECT 'free memory cannot be read here' AS unknown FROM recent WHERE n = 0
