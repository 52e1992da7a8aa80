-- title = "files, threads or processes pile up"
-- severity = "notice"
-- symptoms = ["memory", "slow"]
-- order = 222
-- scope = "rank"
-- needs = "twenty samples of the process, one per second"
-- what = "{fact}"
-- why = [
--   "{first:,.0f} at step {step}, {now:,.0f} at step {last}, in proportion to the steps (correlation {r:.3f}, {n} samples)",
--   "{limit}",
--   "{hint}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, open_files, threads, children FROM process.memory ORDER BY t_ns DESC LIMIT 20\"",
--   "probe {endpoint} backtrace",
-- ]
-- false_positives = "pools and caches that fill once and then stop growing; a data set that opens its files on first read, in the first epoch"
-- explains = ["host-memory-growth"]
-- [parameters.least]
-- value = 20
-- unit = "samples"
-- source = "ours"
-- [parameters.more]
-- value = 32
-- unit = "increase since the first sample"
-- source = "ours: thread pools and loader workers are fewer, and start at the same time"
-- [parameters.r]
-- value = 0.97
-- unit = "correlation"
-- source = "ours: unclosed resources grow by the same number in each step"
WITH samples AS (
    SELECT m.step, m.t_ns, UNNEST(['open files', 'threads', 'child processes']) AS what, UNNEST([open_files, threads, children]) AS held FROM process.memory m WHERE step >= 2
), ordered AS (
    SELECT *, ROW_NUMBER() OVER w AS place, COUNT(*) OVER (PARTITION BY what) AS of_all, LAG(held) OVER w AS before FROM samples WHERE held IS NOT NULL WINDOW w AS (PARTITION BY what ORDER BY t_ns)
), grown AS (
    -- It grows to the end, and not at once: in the last third of the samples as well.
    SELECT what, COUNT(*) AS n, MIN(step) AS step, MAX(step) AS last, ARG_MIN(held, t_ns) AS first, ARG_MAX(held, t_ns) AS now, CORR(held, step) AS r, AVG(CAST(held > before AS INTEGER)) AS rising, MAX(held) FILTER (place <= 2 * of_all / 3) AS third, MAX(before - held) AS fell
    FROM ordered GROUP BY what
), files AS (
    SELECT TRY_CAST(ARG_MAX(value, t_ns) AS DOUBLE) AS most FROM probe.facts WHERE kind = 'environment' AND name = 'open_files_limit'
)
SELECT NULL AS unknown, what AS subject, grown.*, format('{} pile up: {} now, {:.2f} more with each step, and none is ever {}', what, now, (now - first) / GREATEST(1, last - step), CASE what WHEN 'open files' THEN 'closed' WHEN 'threads' THEN 'ended' ELSE 'waited for' END) AS fact,
    CASE WHEN what = 'open files' AND most > 0 AND now > first THEN format('the limit is {:,.0f}: it is reached in about {:,.0f} steps', most, GREATEST(0, (most - now) * (last - step) / (now - first))) END AS "limit",
    CASE what WHEN 'open files' THEN 'close what each step opens (with open(...) as file), including files opened by libraries; each tensor shared between processes keeps a file open'
        WHEN 'threads' THEN 'start a thread, an executor or a writer once, before the loop, or end it (join, shutdown, close)' ELSE 'wait for each child process (subprocess.run, or Popen.wait); otherwise the system keeps an entry for each' END AS hint
FROM grown, files WHERE n >= $least AND now >= first + $more AND now > 1.5 * first AND r >= $r AND now > third AND fell <= 0.1 * now
UNION ALL BY NAME
SELECT format('{} samples of the process, {} are needed', COALESCE(MAX(n), 0), $least) AS unknown FROM grown HAVING COALESCE(MAX(n), 0) < $least
