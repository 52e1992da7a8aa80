-- title = "the schedule is stepped too often"
-- severity = "notice"
-- symptoms = ["loss"]
-- order = 324
-- scope = "rank"
-- needs = "a few samples of a learning-rate scheduler that counts its calls"
-- what = "the schedule is stepped {times:.0f} times for each optimizer step: {scheduler} counted {counted:,} in {steps:,} steps{cause}"
-- why = [
--   "{times:.2f} counts for each step, the same in each quarter of {n:.0f} samples from step {step} to {last} (at least {least_times:.2f}, at most {most_times:.2f})",
--   "{lengths}",
--   "a schedule with lengths in optimizer steps must be stepped once after each optimizer step; here its warm-up and decay end {times:.0f} times too early",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, scheduler, optimizer, count, lr, length FROM python.schedulers ORDER BY step DESC LIMIT 12\"",
--   "probe {endpoint} query \"SELECT step, micro_steps, lr FROM python.steps ORDER BY step DESC LIMIT 12\"",
-- ]
-- false_positives = "a schedule with lengths in batches on purpose (`info` with gradient accumulation, if its length is a whole number of passes or unknown); Accelerate, which steps a schedule once per process by design (`info`)"
-- explains = ["learning-rate-too-low", "learning-rate-zero", "slow-decrease", "plateau", "schedule"]
-- [parameters.least]
-- value = 8
-- unit = "samples"
-- source = "ours"
-- [parameters.part]
-- value = 8
-- unit = "steps"
-- source = "ours: for a quarter of the samples; over fewer steps, an error of one count is more than a tenth"
-- [parameters.even]
-- value = 0.1
-- unit = "ratio"
-- source = "ours: a sample may fall between an optimizer step and its scheduler step; a steady pace is a whole number of counts per step"
-- [parameters.steps]
-- value = 50
-- unit = "steps"
-- source = "ours"
WITH looks AS (
    SELECT *, NTILE(4) OVER w AS part, COUNT(*) OVER (PARTITION BY number) AS seen FROM python.schedulers WHERE leads AND metric IS NULL AND mode IS NULL AND count IS NOT NULL AND step IS NOT NULL WINDOW w AS (PARTITION BY number ORDER BY t_ns)
), parts AS (
    SELECT number, ANY_VALUE(scheduler) AS scheduler, COUNT(*) AS n, MIN(step) AS first, MAX(step) AS last, MIN(count) AS first_count, MAX(count) AS last_count, ANY_VALUE(length) AS length
    FROM looks WHERE seen >= $least GROUP BY number, part HAVING MAX(step) - MIN(step) >= $part
), paces AS (
    SELECT number, ANY_VALUE(scheduler) AS scheduler, SUM(n) AS n, MIN(first) AS step, MAX(last) AS last, MAX(last_count) - MIN(first_count) AS counted, MAX(last) - MIN(first) AS steps, MIN((last_count - first_count) / (last - first)) AS least_times, MAX((last_count - first_count) / (last - first)) AS most_times,
        ANY_VALUE(length) AS length, COUNT(*) AS parts FROM parts GROUP BY number
), judged AS (
    SELECT *, ROUND(counted / steps) AS times FROM paces WHERE parts = 4 AND steps >= $steps AND counted >= 1.5 * steps AND ABS(counted / steps / ROUND(counted / steps) - 1) < $even AND least_times > (1 - 2 * $even) * ROUND(counted / steps) AND most_times < (1 + 2 * $even) * ROUND(counted / steps)
), micro AS (
    SELECT MEDIAN(micro_steps) AS micro FROM python.steps
), around AS (
    SELECT COALESCE(MAX(TRY_CAST(value AS BIGINT)) FILTER (name IN ('world_size', 'WORLD_SIZE')), 0) AS ranks, COALESCE(BOOL_OR(lower(value) LIKE '%accelerate%'), false) AS accelerate,
        COALESCE(BOOL_OR(name = 'optimizer2'), false) AS several FROM probe.facts
), passes AS (
    SELECT MIN(ends) AS batches FROM (SELECT loader, epoch, MAX(place) + 1 AS ends FROM python.batches WHERE state = 'done' AND epoch < (SELECT MAX(epoch) FROM python.batches) GROUP BY ALL)
)
SELECT NULL AS unknown, scheduler AS subject, judged.*,
    CASE WHEN times = micro THEN format(', once for each of its {:.0f} micro-steps', micro) WHEN times = ranks THEN format(', once for each of {} ranks', ranks) ELSE '' END AS cause,
    CASE WHEN length IS NOT NULL AND length < 4611686018427387904 THEN format('it is {:,} counts long, which it reaches after {:,.0f} optimizer steps', length, length / times) ELSE 'its length is unknown' END AS lengths,
    CASE WHEN accelerate OR several OR times = micro AND (length IS NULL OR COALESCE(length % batches = 0, true)) THEN 'info' ELSE 'notice' END AS severity
FROM judged, micro, around, passes
UNION ALL BY NAME
SELECT 'no scheduler was sampled often enough' AS unknown WHERE NOT EXISTS (SELECT 1 FROM looks WHERE seen >= $least)
