-- title = "many small collectives"
-- severity = "notice"
-- symptoms = ["slow"]
-- order = 522
-- scope = "rank"
-- needs = "the collectives that the program calls, over about twenty steps"
-- what = "{fact}: {share:.0%} of the time"
-- why = [
--   "{evidence}",
--   "they took {ms:.1f} ms of the {wall_ms:.1f} ms of a step, in the last {steps} steps; most from {place}",
--   "each of them makes every rank wait for all others: stack the numbers into one tensor and reduce it once; for logging, every hundred steps is enough",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT op, elements, call_site, COUNT(*) AS calls, AVG(wait_s) AS wait_s, SUM(wait_s) AS total_s FROM python.collectives WHERE source = 'call' GROUP BY ALL ORDER BY total_s DESC LIMIT 10\"",
--   "probe {endpoint} backtrace",
-- ]
-- false_positives = "ranks with unequal work: they would otherwise wait in the next collective (so a barrier alone is `info`); algorithms that must agree on a number at several points in a step"
-- explains = ["low-mfu", "time-outside"]
-- [parameters.least]
-- value = 20
-- unit = "steps"
-- source = "ours"
-- [parameters.count]
-- value = 8
-- unit = "collectives per step"
-- source = "ours: a step needs a few numbers from all ranks (loss, gradient norm, found_inf); many more means one collective per value"
-- [parameters.small]
-- value = 4
-- unit = "elements"
-- source = "ours: nearly all manually reduced gradients are larger"
-- [parameters.share]
-- value = 0.1
-- unit = "ratio of the time"
-- source = "practice: 10 % either way is healthy"
WITH calls AS (
    SELECT step, op, elements, call_site, COALESCE(wait_s, 0) AS wait_s FROM python.collectives
    WHERE source = 'call' AND state = 'done' AND step IS NOT NULL AND NOT COALESCE(asynchronous, false)
), ends AS (
    SELECT MIN(step) AS first, MAX(step) AS last FROM calls
), whole AS (
    SELECT DISTINCT ON (step) step, wall_s - COALESCE(held_s, 0) - COALESCE(eval_s, 0) - COALESCE(checkpoint_s, 0) AS wall_s FROM python.steps, ends WHERE step > first AND step < last AND wall_s > 0
), by_step AS (
    SELECT whole.step, wall_s, COUNT(op) FILTER (op <> 'barrier' AND elements <= $small) AS small, COALESCE(SUM(wait_s) FILTER (op <> 'barrier' AND elements <= $small), 0) AS small_s,
        COUNT(op) FILTER (op = 'barrier') AS barriers, COALESCE(SUM(wait_s) FILTER (op = 'barrier'), 0) AS barrier_s
    FROM whole LEFT JOIN calls USING (step) GROUP BY whole.step, wall_s
), sums AS (
    SELECT COUNT(*) AS steps, MIN(step) AS step, SUM(wall_s) AS wall_s, MEDIAN(small) AS small, SUM(small_s) AS small_s, AVG(CAST(barriers > 0 AS INTEGER)) AS with_barrier, MEDIAN(barriers) AS barriers, SUM(barrier_s) AS barrier_s
    FROM by_step
), places AS (
    SELECT op = 'barrier' AS barrier, ARG_MAX(op, n) AS op, ARG_MAX(call_site, n) AS place FROM (
        SELECT op, call_site, COUNT(*) AS n FROM calls WHERE op = 'barrier' OR elements <= $small GROUP BY ALL) GROUP BY 1
)
SELECT NULL AS unknown, 'collectives' AS subject, steps, step, place, (small_s + CASE WHEN with_barrier > 0.9 THEN barrier_s ELSE 0 END) / wall_s AS share,
    1000 * (small_s + CASE WHEN with_barrier > 0.9 THEN barrier_s ELSE 0 END) / steps AS ms, 1000 * wall_s / steps AS wall_ms,
    format('each step has {:.0f} collectives of a few numbers each, called one by one{}', small, CASE WHEN with_barrier > 0.9 THEN ', and a barrier' ELSE '' END) AS fact,
    format('{} {} calls of at most {} elements in the median step, called by the program itself (not by DistributedDataParallel){}', round(small)::BIGINT, op, CAST($small AS BIGINT),
        CASE WHEN with_barrier > 0.9 THEN format('; {:.0f} barriers took {:.1f} ms of a step', barriers, 1000 * barrier_s / steps) ELSE '' END) AS evidence,
    CASE WHEN (small_s + CASE WHEN with_barrier > 0.9 THEN barrier_s ELSE 0 END) / wall_s >= $share THEN 'notice' ELSE 'info' END AS severity
FROM sums, places WHERE NOT barrier AND steps >= $least AND small >= $count
UNION ALL BY NAME
SELECT NULL AS unknown, 'barrier' AS subject, steps, step, place, barrier_s / wall_s AS share, 1000 * barrier_s / steps AS ms, 1000 * wall_s / steps AS wall_ms,
    'each step has a barrier' AS fact, format('{:.0f} % of {} steps called barrier(); collectives that need the other ranks wait for them anyway', 100 * with_barrier, steps) AS evidence, 'info' AS severity
FROM sums, places WHERE barrier AND steps >= $least AND small < $count AND with_barrier > 0.9 AND barrier_s >= $share * wall_s
UNION ALL BY NAME
SELECT format('the collectives of {} whole steps are known, {} are needed', steps, $least) AS unknown FROM sums WHERE steps < $least
