-- title = "the training thread sleeps"
-- severity = "notice"
-- symptoms = ["slow"]
-- order = 524
-- scope = "rank"
-- needs = "a dozen samples of the training thread, one per second, on a kernel that shows what a thread waits in"
-- what = "the training thread is asleep for {share:.0%} of the time: the program calls sleep in {frame}"
-- why = [
--   "asleep in {asleep} of the last {n} samples, from step {step} to {last}: in a timed wait (nanosleep), not waiting for data, a lock, a device or another process",
--   "a step takes {wall_ms:.1f} ms; the thread used the CPU for {cpu:.0%} of the time",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, phase, frame, asleep FROM python.stack_samples WHERE training ORDER BY t_ns DESC LIMIT 20\"",
--   "probe {endpoint} backtrace",
-- ]
-- false_positives = "a loop that waits for others by sleeping (actors, a simulator, a rate limit): then those are slow"
-- explains = ["time-outside", "low-mfu", "slow-step", "throughput-drop", "input-bound"]
-- [parameters.share]
-- value = 0.25
-- unit = "ratio of the samples"
-- source = "ours: polling pauses and back-offs take less"
-- [parameters.least]
-- value = 12
-- unit = "samples"
-- source = "ours"
-- [parameters.asleep]
-- value = 5
-- unit = "samples"
-- source = "ours"
WITH looks AS (
    SELECT * FROM python.stack_samples WHERE training AND asleep IS NOT NULL AND step >= 2 ORDER BY t_ns DESC LIMIT 120
), counted AS (
    SELECT COUNT(*) AS n, COUNT(*) FILTER (asleep) AS asleep, COUNT(DISTINCT step) FILTER (asleep) AS steps, MIN(step) AS step, MAX(step) AS last, SUM(cpu_ns) / SUM(wall_ns) FILTER (cpu_ns IS NOT NULL) AS cpu FROM looks
), places AS (
    SELECT frame FROM looks WHERE asleep GROUP BY frame ORDER BY COUNT(*) DESC LIMIT 1
), usual AS (
    SELECT 1e3 * MEDIAN(wall_s) AS wall_ms FROM (SELECT wall_s FROM python.steps ORDER BY step DESC LIMIT 200)
)
SELECT NULL AS unknown, frame AS subject, counted.*, asleep / n AS share, frame, wall_ms FROM counted, places, usual
WHERE n >= $least AND asleep >= $asleep AND asleep >= $share * n AND steps >= $asleep
UNION ALL BY NAME
SELECT format('{} samples of the training thread, {} are needed', n, $least) AS unknown FROM counted WHERE n < $least
