-- title = "another thread competes for the interpreter (GIL)"
-- severity = "notice"
-- symptoms = ["slow"]
-- order = 524
-- scope = "rank"
-- needs = "twenty samples of the threads, one per second"
-- what = "{fact}"
-- why = [
--   "busy in {seen} of the last {n} samples, at {place}; it used {cpu_s:.1f} s of CPU time, the training thread {own_s:.1f} s",
--   "{hint}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT thread, place, COUNT(*) AS looks, SUM(cpu_ns) / 1e9 AS cpu_s FROM python.stack_samples WHERE NOT training GROUP BY ALL ORDER BY cpu_s DESC LIMIT 10\"",
--   "probe {endpoint} backtrace",
-- ]
-- false_positives = "a thread that prepares batches, mostly in C code that releases the GIL (`info` unless it is at the same place in all samples)"
-- explains = ["time-outside", "low-mfu"]
-- [parameters.least]
-- value = 20
-- unit = "samples"
-- source = "ours"
-- [parameters.often]
-- value = 0.6
-- unit = "ratio of the samples"
-- source = "ours"
-- [parameters.share]
-- value = 0.4
-- unit = "ratio of the CPU time of the training thread"
-- source = "ours: two threads that both run Python code get about half of the GIL time each"
WITH looks AS (
    SELECT * FROM python.stack_samples WHERE step >= 2 AND t_ns >= (SELECT MAX(t_ns) FROM python.stack_samples) - 300e9
), whole AS (
    SELECT COUNT(*) AS n, SUM(cpu_ns) / 1e9 AS own_s, MIN(step) AS step FROM looks WHERE training
), others AS (
    SELECT thread, COUNT(*) AS seen, SUM(cpu_ns) / 1e9 AS cpu_s, MODE(place) AS place, COUNT(*) FILTER (place IS NOT NULL) AS own_code, COUNT(DISTINCT place) AS places, COUNT(DISTINCT regexp_extract(place, '^[^ ]*')) AS functions FROM looks
    WHERE NOT training AND thread IS NOT NULL GROUP BY thread
)
SELECT NULL AS unknown, thread AS subject, others.*, whole.*, CASE WHEN functions = 1 AND own_code >= 0.9 * seen THEN 'notice' ELSE 'info' END AS severity,
    CASE WHEN functions = 1 AND own_code >= 0.9 * seen THEN format('the thread {} runs in {} all the time without a pause: it and the training thread take turns in the interpreter', thread, regexp_extract(place, '^[^ ]*')) ELSE format('the thread {} is busy beside training, at {}', thread, place) END AS fact,
    CASE WHEN functions = 1 AND own_code >= 0.9 * seen THEN 'only one thread runs Python code at a time: let it wait (Event.wait, Queue.get, time.sleep), or make it a process' ELSE 'only one thread runs Python code at a time; C code that releases the GIL (numpy, image decoding) lets both run' END AS hint
FROM others, whole WHERE n >= $least AND seen >= $often * n AND cpu_s >= $share * own_s AND place IS NOT NULL
UNION ALL BY NAME
SELECT format('{} samples of the training thread, {} are needed', n, $least) AS unknown FROM whole WHERE n < $least
