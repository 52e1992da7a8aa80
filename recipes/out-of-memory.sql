-- title = "out of memory"
-- severity = "alarm"
-- symptoms = ["memory"]
-- order = 610
-- scope = "rank"
-- needs = "an exception that ended a thread"
-- what = "{type} at step {step}: {said}"
-- why = [
--   "batch of {samples} samples, {tokens} tokens",
--   "estimated: weights, gradients and Adam's moments take {fixed_mib:,.0f} MiB; peak before it {peak_mib:,.0f} of {total_mib:,.0f} MiB",
--   "1. halve the batch to {half} samples: half of the activations, about {half_mib:,.0f} MiB less (estimated)",
--   "2. accumulate gradients over twice as many backward calls to keep the effective batch size",
--   "3. activation checkpointing: 30 % to 40 % less memory in all, some 20 % slower",
--   "4. halve the sequence length: half of the activations, a quarter of the attention memory; then half precision, a smaller optimizer, sharding (FSDP)",
-- ]
-- next = [
--   "probe {endpoint} backtrace",
--   "probe {endpoint} query \"SELECT step, rss_bytes, allocated_bytes, reserved_bytes, available_bytes FROM process.memory ORDER BY t_ns DESC LIMIT 20\"",
--   "probe {endpoint} query \"SELECT module, MAX(allocated) FROM python.torch_trace GROUP BY module ORDER BY 2 DESC LIMIT 10\"",
-- ]
-- false_positives = "a job that catches the exception and continues with a smaller batch is not seen here"
WITH failed AS (
    SELECT t_ns, step, type, message FROM python.exceptions
    WHERE regexp_matches(type, 'OutOfMemoryError|MemoryError') OR regexp_matches(message, '(?i)out of memory|can.t allocate memory|not enough memory')
    ORDER BY t_ns DESC LIMIT 1
), fixed AS (
    SELECT SUM(numel * CASE WHEN dtype LIKE '%16%' THEN 2 WHEN dtype LIKE '%64%' THEN 8 ELSE 4 END * CASE WHEN NOT requires_grad THEN 1 WHEN optimizer LIKE '%Adam%' THEN 4 ELSE 2 END) AS fixed
    FROM (SELECT param, ARG_MAX(numel, t_ns) AS numel, ARG_MAX(dtype, t_ns) AS dtype, ARG_MAX(requires_grad, t_ns) AS requires_grad, ARG_MAX(optimizer, t_ns) AS optimizer FROM python.parameters GROUP BY param)
), memory AS (
    SELECT COALESCE(MAX(peak_allocated_bytes), MAX(rss_peak_bytes)) AS peak, COALESCE(MAX(device_total_bytes), MAX(limit_bytes)) AS total FROM process.memory
), batch AS (
    SELECT ARG_MAX(samples, step) AS samples, ARG_MAX(tokens, step) AS tokens FROM python.steps
)
SELECT NULL AS unknown, step, type, split_part(message, chr(10), 1)[:200] AS said, samples, COALESCE(tokens::VARCHAR, 'unknown') AS tokens, samples // 2 AS half, fixed / 1048576 AS fixed_mib,
    peak / 1048576 AS peak_mib, total / 1048576 AS total_mib, GREATEST(peak - fixed, 0) / 2 / 1048576 AS half_mib
FROM failed, fixed, memory, batch
