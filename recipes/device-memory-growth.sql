-- title = "device memory grows"
-- severity = "notice"
-- symptoms = ["memory"]
-- order = 650
-- scope = "rank"
-- needs = "memory samples over a few hundred steps"
-- what = "device memory held by tensors has grown by {per_step_kib:,.1f} KiB per step since step {step}: {then_mib:,.0f} to {now_mib:,.0f} MiB"
-- why = [
--   "with the samples since then cut into eighths, it rose from one to the next in {rises} of {pairs} cases; linear fit: correlation {r:.2f}",
--   "{left_mib:,.0f} MiB left: enough for about {steps_left:,.0f} steps, {hours_left:.1f} h",
-- ]
-- next = [
--   "probe {endpoint} checkpoint before-oom.pt",
--   "probe {endpoint} memory-snapshot -o memory.pickle",
--   "probe {endpoint} eval \"import collections, gc, torch; print(collections.Counter(tuple(o.shape) for o in gc.get_referrers(torch.Tensor) if type(o) is torch.Tensor).most_common(10))\"",
-- ]
-- false_positives = "caches that fill once; data read into memory in the first epoch; growing batches"
-- explains = ["device-memory-near-limit", "out-of-memory"]
-- effect = true
-- [parameters.samples]
-- value = 24
-- unit = "samples"
-- source = "ours"
-- [parameters.r]
-- value = 0.9
-- unit = "correlation"
-- source = "ours: a leak grows linearly"
-- [parameters.growth]
-- value = 0.05
-- unit = "ratio of what it was"
-- source = "ours; and at least 32 MiB"
-- [parameters.soon]
-- value = 1.0
-- unit = "h left"
-- source = "ours: an alarm from here on"
WITH samples AS (
    SELECT step, t_ns, allocated_bytes AS bytes, device_total_bytes - GREATEST(reserved_bytes, allocated_bytes) + (reserved_bytes - allocated_bytes) AS left_bytes FROM process.memory WHERE allocated_bytes IS NOT NULL AND step IS NOT NULL AND step > 10
), recent AS (
    SELECT *, NTILE(8) OVER (ORDER BY t_ns) AS part, COUNT(*) OVER () AS n FROM samples
    WHERE step > (SELECT MIN(step) + (MAX(step) - MIN(step)) * 0.4 FROM samples)
), parts AS (
    SELECT part, MEDIAN(bytes) AS bytes FROM recent GROUP BY part
), rises AS (
    SELECT COUNT(*) AS pairs, COUNT(*) FILTER (bytes > before) AS rises FROM (SELECT bytes, LAG(bytes) OVER (ORDER BY part) AS before FROM parts) WHERE before IS NOT NULL
), line AS (
    SELECT CORR(bytes, step) AS r, REGR_SLOPE(bytes, step) AS per_step, REGR_SLOPE(bytes, t_ns) AS per_ns, MAX(n) AS n, MIN(step) AS step, ARG_MIN(bytes, t_ns) AS bytes_then, ARG_MAX(bytes, t_ns) AS bytes_now,
        ARG_MAX(left_bytes, t_ns) AS left_bytes FROM recent
)
SELECT NULL AS unknown, step, r, per_step / 1024 AS per_step_kib, bytes_then / 1048576 AS then_mib, bytes_now / 1048576 AS now_mib, rises, pairs,
    left_bytes / 1048576 AS left_mib, left_bytes / per_step AS steps_left, left_bytes / per_ns / 3.6e12 AS hours_left,
    CASE WHEN left_bytes / per_ns / 3.6e12 < $soon THEN 'alarm' ELSE 'notice' END AS severity
FROM line, rises
WHERE n >= $samples AND r >= $r AND rises >= pairs - 1 AND bytes_now - bytes_then > GREATEST($growth * bytes_then, 32 << 20)
UNION ALL BY NAME
SELECT format('{} samples, {} are needed', COALESCE(n, 0), $samples) AS unknown FROM line WHERE COALESCE(n, 0) < $samples
