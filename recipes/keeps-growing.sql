-- title = "data kept across steps keeps growing"
-- severity = "notice"
-- symptoms = ["memory", "slow"]
-- order = 221
-- scope = "rank"
-- needs = "several samples of the variables in the training loop's frames"
-- what = "{fact}"
-- why = [
--   "{looks} samples from step {step} to {last}: {first:,} at first, {now:,} in the last one, in proportion to the steps (correlation {r:.3f})",
--   "{evidence}",
--   "it holds about {mib:,.1f} MiB",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, name, kind, count, bytes, holds FROM python.growth ORDER BY t_ns DESC LIMIT 20\"",
--   "probe {endpoint} backtrace --locals",
--   "probe {endpoint} checkpoint before-restart.pt",
-- ]
-- false_positives = "a replay buffer or data set that fills once, logs and metrics of a long epoch (`info`); a cache in its first epoch (`info`); results that are collected on purpose and copied as a whole in each step; a default argument meant as a log of all calls; a cycle over a validation set or over batches that are meant to stay the same (`info` while it is small and training still draws from loaders)"
-- explains = ["host-memory-growth", "device-memory-growth", "host-memory-near-limit", "device-memory-near-limit", "out-of-memory", "throughput-drop", "slow-step", "slow-module", "low-mfu"]
-- [parameters.least]
-- value = 3
-- unit = "rows"
-- source = "ours"
-- [parameters.r]
-- value = 0.98
-- unit = "correlation"
-- source = "ours: data that is kept grows by the same amount in each step"
-- [parameters.steps_r]
-- value = 0.9
-- unit = "correlation"
-- source = "ours: data that grows with each evaluation grows in jumps"
-- [parameters.bytes]
-- value = 16777216
-- unit = "bytes"
-- source = "ours: less does no harm yet, and is `info`"
-- [parameters.followed]
-- value = 1000
-- unit = "nodes"
-- source = "ours: a graph is followed no further; one that was seen to grow until then goes on"
-- [parameters.hits]
-- value = 0.05
-- unit = "hits per entry"
-- source = "ours: after one pass over the data, each sample is requested again"
WITH seen AS (
    SELECT name, kind, COUNT(*) AS looks, MIN(step) AS step, MAX(step) AS last, ARG_MIN(count, step) AS first, ARG_MAX(count, step) AS now, CORR(count, step) AS r, REGR_SLOPE(count, step) AS slope,
        ARG_MAX(bytes, step) AS bytes, ARG_MAX(holds, step) AS holds, ARG_MAX(hits, step) AS hits
    FROM python.growth WHERE kind <> 'cycle' GROUP BY name, kind HAVING COUNT(*) >= CASE WHEN kind = 'default' THEN $least - 1 ELSE $least END
), newest AS (
    SELECT MAX(step) AS step FROM python.steps
), passes AS (
    SELECT MAX(epoch) AS ended FROM python.batches WHERE state = 'done'
), grown AS (
    SELECT seen.*, ended FROM seen, newest, passes WHERE r >= $r AND (now >= 2 * first OR kind = 'graph' AND now >= $followed OR looks > $least AND now >= 1.1 * first AND (kind = 'graph' OR holds = 'tensor with its graph')) AND newest.step <= 2 * last + 500
), cycled AS (
    SELECT name, kind, COUNT(*) AS looks, MIN(step) AS step, MAX(step) AS last, ARG_MIN(count, step) AS first, ARG_MAX(count, step) AS now, COALESCE(CORR(count, step), 1) AS r, ARG_MAX(bytes, step) AS bytes
    FROM python.growth WHERE kind = 'cycle' AND holds LIKE 'tensor%' GROUP BY name, kind
), replayed AS (
    -- The training goes on, and asks no loader for batches any more.
    SELECT MAX(b.step) > 0 AND MAX(s.step) > 1.5 * MAX(b.step) + 20 AS yes FROM python.batches b, newest s WHERE b.state = 'done'
), piled AS (
    -- It grows by the calls, in steps: with each evaluation, say.
    SELECT seen.*, ended FROM seen, newest, passes WHERE kind = 'default' AND r >= $steps_r AND now >= 1.5 * first AND newest.step <= 2 * last + 500
), facts AS (
    SELECT *, 'notice' AS severity, format('{} keeps the graph of every step: {:,} nodes along it at step {}, {:,} at step {}; no graph is freed', name, first, step, now, last) AS fact,
        'it is computed from itself and from tensors that require a gradient: add a detach()ed value or an item()' AS evidence FROM grown WHERE kind = 'graph'
    UNION ALL BY NAME
    SELECT *, 'notice' AS severity, format('{} holds {:,} tensors with their graphs, {:.3g} more each step: none is freed', name, now, slope) AS fact,
        'each kept tensor keeps everything that its backward would need: append tensor.detach() or its item()' AS evidence FROM grown WHERE kind = 'container' AND holds = 'tensor with its graph'
    UNION ALL BY NAME
    SELECT *, CASE WHEN bytes >= $bytes THEN 'notice' ELSE 'info' END AS severity, format('{}, a tensor, grows with every step: {:,} elements at step {}, {:,} at step {}', name, first, step, now, last) AS fact,
        'a tensor cannot grow in place: with torch.cat every step copies all earlier ones; append to a list, or write into a tensor of the final size' AS evidence FROM grown WHERE kind = 'tensor'
    UNION ALL BY NAME
    SELECT *, CASE WHEN ended >= 1 THEN 'notice' ELSE 'info' END AS severity, format('the cache of {} grows without a limit and is of no use: {:,} entries, {:,} hits', name, now, hits) AS fact,
        CASE WHEN ended >= 1 THEN format('{} passes over the data have ended: repeated requests have a different key each time (a random number, a float, an object)', ended) ELSE 'the first pass over the data has not ended' END AS evidence FROM grown WHERE kind = 'cache' AND hits < $hits * now
    UNION ALL BY NAME
    SELECT *, 'notice' AS severity, format('a default argument keeps what earlier calls put into it: {} has {:,} entries, {:,} at step {}; it is never reset', name, now, first, step) AS fact,
        'a list in the def line is created once and shared by all calls: counts and averages over it cover all calls since the start. Create it inside the function' AS evidence FROM piled
    UNION ALL BY NAME
    SELECT *, CASE WHEN replayed.yes OR bytes >= $bytes THEN 'notice' ELSE 'info' END AS severity, format('{}, an itertools.cycle, keeps every batch of its first pass ({:,} so far) and gives the same batches again in each later pass', name, now) AS fact,
        'later passes draw no new batches: order, batch composition and augmentation stay those of the first pass, and all batches stay in memory. Iterate over the loader again in each epoch, as with `while True: yield from loader`' AS evidence FROM cycled, replayed
    UNION ALL BY NAME
    SELECT *, 'info' AS severity, format('{} holds {:,} entries with tensors, {:.3g} more each step', name, now, slope) AS fact, 'they have no graph' AS evidence FROM grown WHERE kind = 'container' AND holds = 'tensor' AND bytes >= $bytes
)
SELECT NULL AS unknown, name AS subject, facts.*, bytes / 1048576 AS mib FROM facts
UNION ALL BY NAME
SELECT 'no training step has been seen yet' AS unknown FROM newest WHERE step IS NULL
