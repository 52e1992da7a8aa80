-- title = "a module became slower"
-- severity = "notice"
-- symptoms = ["slow"]
-- order = 520
-- scope = "rank"
-- needs = "module times of ten sampled steps"
-- what = "{module} ({stage}) takes {now_ms:.2f} ms, {times:.1f} times the {before_ms:.2f} ms before step {step}; the other modules take {others:.1f} times as long"
-- why = [
--   "median of the last {n} sampled steps against the {n_before} before; it changed between steps {last_fast} and {step}",
--   "that is {added_ms:.1f} ms more in each step",
--   "on this machine {busy_before:.0f} threads wanted a CPU before, {busy:.0f} since; the rest of a step takes {rest:.1f} times as long",
--   "the training thread waited for a CPU {waited:.0%} of the time since",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, duration FROM python.torch_trace WHERE module = '{module}' AND stage = '{stage}' ORDER BY step DESC LIMIT 20\"",
--   "probe {endpoint} profile --steps 3 -o slow.json",
--   "probe {endpoint} capture {module} -o slow.pt",
-- ]
-- false_positives = "a module that does more work for some inputs (`info` where the sizes of the batches vary and fewer than eight slow steps were sampled) or in some steps (`info` unless most steps became slower); a call that had to wait for a CPU (`info` if the machine is busier since then, if the rest of the step also became slower, or if training waits for a CPU and fewer than eight slow steps were sampled)"
-- explains = ["slow-step", "throughput-drop", "low-mfu"]
-- [parameters.times]
-- value = 1.6
-- unit = "times"
-- source = "practice: step times within 10 % are healthy, twice is an alarm; single modules vary more"
-- [parameters.share]
-- value = 0.05
-- unit = "ratio of the step"
-- source = "ours: less is not worth a notice"
-- [parameters.starved]
-- value = 0.2
-- unit = "ratio of the time"
-- source = "ours: from here on one call in five is interrupted"
WITH steps AS (
    SELECT step, ROW_NUMBER() OVER (ORDER BY step) AS i, COUNT(*) OVER () AS n FROM (SELECT DISTINCT step FROM python.torch_trace WHERE step > 2 ORDER BY step DESC LIMIT 64)
), times AS (
    SELECT t.module, t.stage, t.step, ANY_VALUE(s.i) AS i, ANY_VALUE(s.n) AS n, SUM(t.duration) AS duration
    FROM python.torch_trace t JOIN steps s USING (step) WHERE t.stage <> 'step' AND t.duration IS NOT NULL AND NOT COALESCE(t.recompute, false)
    GROUP BY t.module, t.stage, t.step
), sides AS (
    SELECT module, stage, MEDIAN(duration) FILTER (i > n - 3) AS now, MIN(duration) FILTER (i > n - 3) AS least, MIN(duration) FILTER (i > n - 8) AS least_longer,
        MEDIAN(duration) FILTER (i <= n - 3 AND i <= GREATEST(n // 2, 4)) AS before, QUANTILE_CONT(duration, 0.8) FILTER (i <= GREATEST(n // 2, 4)) AS high, COUNT(*) FILTER (i > n - 3) AS recent, COUNT(*) FILTER (i <= n - 3) AS earlier
    FROM times GROUP BY module, stage
), changes AS (
    SELECT *, MEDIAN(now / before) OVER () AS others, MAX(now - before) OVER () AS most FROM sides WHERE recent = 3 AND earlier >= 4 AND before > 0
), usual AS (
    SELECT MEDIAN(wall_s) AS wall_s FROM (SELECT wall_s FROM python.steps ORDER BY step DESC LIMIT 200)
), slower AS (
    SELECT changes.* FROM changes, usual
    WHERE now > $times * before AND least > $times * before AND now - before > $share * wall_s AND least > 1.2 * high AND now / before > 1.5 * others AND now - before > 0.6 * most
), leaf AS (
    SELECT * FROM slower a WHERE NOT EXISTS (SELECT 1 FROM slower b WHERE b.stage = a.stage AND b.module <> a.module AND starts_with(b.module, a.module || '.'))
    ORDER BY contains(module, '.') OR regexp_matches(module, '^[0-9a-z_]+$') DESC, length(module) DESC, now - before DESC LIMIT 1
), since AS (
    SELECT MAX(t.step) AS last_fast FROM times t, leaf WHERE t.module = leaf.module AND t.stage = leaf.stage AND t.duration < (leaf.before + leaf.now) / 2
), sizes AS (
    SELECT MAX(COALESCE(tokens, samples)) > 1.25 * MIN(COALESCE(tokens, samples)) AS vary FROM python.steps JOIN steps USING (step)
), changed AS (
    SELECT last_fast, (SELECT MIN(step) FROM times t WHERE t.step > last_fast) AS step FROM since
), machine AS (
    SELECT MEDIAN(runnable) FILTER (m.step <= last_fast) AS busy_before, MEDIAN(runnable) FILTER (m.step >= changed.step) AS busy, MEDIAN(waits) FILTER (m.step >= last_fast) AS waited
    FROM (SELECT *, (cpu_wait_ns - LAG(cpu_wait_ns) OVER w) / NULLIF(t_ns - LAG(t_ns) OVER w, 0) AS waits FROM process.memory WINDOW w AS (ORDER BY t_ns)) m, changed
), everywhere AS (
    -- All steps, not only those in which modules are timed: a penalty in each 16th step may fall on just these.
    SELECT MEDIAN(whole) FILTER (s.step >= changed.step) - MEDIAN(whole) FILTER (s.step <= last_fast) AS added
    FROM (SELECT step, CASE WHEN (SELECT stage FROM leaf) = 'forward' THEN forward_s ELSE backward_s END AS whole FROM python.steps WHERE NOT shadow) s, changed
), rest AS (
    SELECT MEDIAN(o) FILTER (s.step >= changed.step) / NULLIF(MEDIAN(o) FILTER (s.step <= last_fast), 0) AS rest
    FROM (SELECT step, CASE WHEN (SELECT stage FROM leaf) = 'forward' THEN COALESCE(backward_s, 0) ELSE COALESCE(forward_s, 0) END + COALESCE(optimizer_s, 0) AS o FROM python.steps WHERE NOT shadow) s, changed
)
SELECT NULL AS unknown, module || ' ' || stage AS subject, module, stage, 1e3 * now AS now_ms, 1e3 * before AS before_ms, now / before AS times, others, recent AS n, earlier AS n_before,
    last_fast, step, 1e3 * (now - before) AS added_ms, busy_before, busy, waited, rest,
    CASE WHEN COALESCE(busy > 1.3 * busy_before + 1, false) OR COALESCE(rest > 1.25, false) OR COALESCE(added < 0.3 * (now - before), false) OR COALESCE((vary OR waited > $starved) AND NOT least_longer > $times * before, false) THEN 'info' ELSE 'notice' END AS severity
FROM leaf, changed, machine, rest, sizes, everywhere WHERE last_fast IS NOT NULL
UNION ALL BY NAME
SELECT format('module times of {} sampled steps are known, 7 are needed', COUNT(*)) AS unknown FROM steps HAVING COUNT(*) < 7
