-- title = "garbage collection runs too often"
-- severity = "notice"
-- symptoms = ["slow"]
-- order = 524
-- scope = "rank"
-- needs = "garbage collection counts over sixteen steps, and the duration of those steps"
-- what = "Python's garbage collector goes through all objects {often}: {per_step:.2f} full collections per step, {fact}"
-- why = [
--   "{collections} full collections in {steps} steps, from step {step} on; {who}",
--   "{share:.0%} of the time of these steps is outside all phases (data loading, forward, backward, optimizer step): {other_ms:.1f} ms of {wall_ms:.1f} ms in the median step",
--   "tensor memory is freed when the last reference goes away, without a collection",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, full_collections, rss_bytes FROM process.memory ORDER BY t_ns DESC LIMIT 10\"",
--   "probe {endpoint} backtrace",
--   "probe {endpoint} profile --steps 3 -o slow.json",
-- ]
-- false_positives = "collections synchronized across ranks every 50 to 1,000 steps, so that no rank waits for another's; steps of several seconds, in which they cost little (`info`)"
-- explains = ["time-outside", "throughput-drop", "slow-step", "low-mfu"]
-- [parameters.per_step]
-- value = 0.2
-- unit = "full collections per step"
-- source = "practice: training frameworks that collect explicitly do so every 50 to 1,000 steps; ours: every fifth step is far more often"
-- [parameters.called]
-- value = 0.3
-- unit = "full collections per middle-generation collection"
-- source = "CPython: an automatic full collection needs at least ten collections of the middle generation"
-- [parameters.least]
-- value = 16
-- unit = "steps"
-- source = "ours: a collection in each of 16 steps is not chance, and such steps can take a second"
-- [parameters.share]
-- value = 0.2
-- unit = "ratio of the time"
-- source = "ours: below this, collections outside the phases cannot take a fifth of the time"
-- [parameters.window_s]
-- value = 120.0
-- unit = "s"
-- source = "ours"
WITH samples AS (
    SELECT step, t_ns, full_collections, middle_collections FROM process.memory WHERE full_collections IS NOT NULL AND step >= 0
), recent AS (
    SELECT * FROM samples WHERE t_ns >= (SELECT MAX(t_ns) FROM samples) - $window_s * 1e9
), counted AS (
    SELECT MIN(step) AS step, MAX(step) - MIN(step) AS steps, MAX(full_collections) - MIN(full_collections) AS collections, MAX(middle_collections) - MIN(middle_collections) AS middle FROM recent
), phases AS (
    SELECT SUM(other_s) / SUM(wall_s - COALESCE(held_s, 0)) AS share, 1000 * MEDIAN(other_s) AS other_ms, 1000 * MEDIAN(wall_s - COALESCE(held_s, 0)) AS wall_ms FROM python.steps
    WHERE other_s IS NOT NULL AND NOT COALESCE(sampled, false) AND step >= (SELECT step FROM counted)
), judged AS (
    SELECT *, collections / NULLIF(steps, 0) AS per_step, COALESCE(collections > $called * middle, true) AS called FROM counted, phases
)
SELECT NULL AS unknown, 'gc' AS subject, CASE WHEN share >= $share AND called THEN 'notice' ELSE 'info' END AS severity, step, steps, collections, per_step, share, other_ms, wall_ms,
    CASE WHEN called THEN 'Python itself runs one per ten or more collections of the younger generation, so the program calls gc.collect() (often together with torch.cuda.empty_cache())'
        ELSE 'as many as Python runs by itself, because so many objects are created: create fewer, or gc.freeze() the long-lived ones before training' END AS who,
    CASE WHEN per_step > 0.9 THEN 'in every step' ELSE 'every few steps' END AS often,
    CASE WHEN share >= $share THEN format('and they take up to {:.0f} % of the time', 100 * share) WHEN share IS NULL THEN 'how long they take is not known' ELSE 'which cost little here, or run within a phase' END AS fact
FROM judged WHERE steps >= $least AND per_step >= $per_step
UNION ALL BY NAME
SELECT format('garbage collections were counted over {} steps, {} are needed', COALESCE(steps, 0), $least) AS unknown FROM counted WHERE COALESCE(steps, 0) < $least
