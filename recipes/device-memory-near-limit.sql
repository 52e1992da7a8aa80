-- title = "device memory is nearly used up"
-- severity = "notice"
-- symptoms = ["memory"]
-- order = 640
-- scope = "rank"
-- needs = "a GPU"
-- what = "device memory was {used:.1%} full at its peak: {peak_mib:,.0f} of {total_mib:,.0f} MiB"
-- why = [
--   "tensors held {allocated_mib:,.0f} MiB at step {step}, the allocator {reserved_mib:,.0f} MiB",
--   "{fragmented:.0%} of the allocator's memory is reserved but unused, probably fragmented: set PYTORCH_ALLOC_CONF=expandable_segments:True (PYTORCH_CUDA_ALLOC_CONF before torch 2.9)",
--   "estimated: weights, gradients and Adam's moments take {fixed_mib:,.0f} MiB, activations the other {activations_mib:,.0f} MiB at the peak",
--   "1. halve the batch: about {half_mib:,.0f} MiB less (estimated); accumulate gradients over two batches to keep the effective batch size",
--   "2. activation checkpointing: about {checkpointing_mib:,.0f} MiB less (estimated), some 20 % to 30 % slower",
--   "3. halve the sequence length: half of the activations, a quarter of the attention memory",
-- ]
-- next = [
--   "probe {endpoint} memory-snapshot -o memory.pickle",
--   "probe {endpoint} checkpoint before-oom.pt",
--   "probe {endpoint} query \"SELECT module, MAX(allocated) FROM python.torch_trace GROUP BY module ORDER BY 2 DESC LIMIT 10\"",
-- ]
-- false_positives = "an allocator configured to use all memory; constant tensor sizes, for which the peak stays where it is"
-- explains = ["out-of-memory"]
-- [parameters.used]
-- value = 0.95
-- unit = "ratio"
-- source = "practice: 70 % to 90 % used is healthy, 95 % is a warning"
-- [parameters.saved]
-- value = 0.6
-- unit = "ratio of the activations"
-- source = "practice: checkpointing reduces total memory by 30 % to 40 %, activation memory by 60 % or more"
-- [zone]
-- of = "allocated"
-- words = "up to {used:.0%} of the device's memory, peaks within a step included"
-- sql = '''
-- SELECT MIN(t_ns // 1000000) AS ms, NULL AS low, $used * MAX(device_total_bytes) AS high
-- FROM process.memory WHERE rank = $rank AND t_ns // 1000000 >= $from_ms AND t_ns // 1000000 < $to_ms AND device_total_bytes > 0 GROUP BY (t_ns // 1000000 - $from_ms) // $width_ms
-- '''
WITH samples AS (
    SELECT *, ROW_NUMBER() OVER (ORDER BY t_ns DESC) AS ago FROM process.memory WHERE device_total_bytes > 0
), recent AS (
    SELECT MAX(peak_allocated_bytes) AS peak, MAX(device_total_bytes) AS total, ARG_MIN(allocated_bytes, ago) AS allocated, ARG_MIN(reserved_bytes, ago) AS reserved,
        ARG_MIN(step, ago) AS step, COUNT(*) AS n FROM samples WHERE ago <= 20
), fixed AS (
    SELECT SUM(numel * CASE WHEN dtype LIKE '%16%' THEN 2 WHEN dtype LIKE '%64%' THEN 8 ELSE 4 END * CASE WHEN NOT requires_grad THEN 1 WHEN optimizer LIKE '%Adam%' THEN 4 ELSE 2 END) AS fixed
    FROM (SELECT param, ARG_MAX(numel, t_ns) AS numel, ARG_MAX(dtype, t_ns) AS dtype, ARG_MAX(requires_grad, t_ns) AS requires_grad, ARG_MAX(optimizer, t_ns) AS optimizer FROM python.parameters GROUP BY param)
), judged AS (
    SELECT *, GREATEST(COALESCE(reserved, 0), peak) AS used, GREATEST(peak - fixed, 0) AS activations FROM recent, fixed
)
SELECT NULL AS unknown, step, used / total AS used, used / 1048576 AS peak_mib, total / 1048576 AS total_mib, allocated / 1048576 AS allocated_mib, reserved / 1048576 AS reserved_mib,
    CASE WHEN 1 - peak / reserved > 0.2 THEN 1 - peak / reserved END AS fragmented, fixed / 1048576 AS fixed_mib, activations / 1048576 AS activations_mib,
    activations / 2 / 1048576 AS half_mib, $saved * activations / 1048576 AS checkpointing_mib
FROM judged WHERE n > 0 AND used >= $used * total AND peak >= 0.9 * $used * total
UNION ALL BY NAME
SELECT 'the job uses no GPU' AS unknown FROM recent WHERE n = 0
