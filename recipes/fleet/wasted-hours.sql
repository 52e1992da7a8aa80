-- title = "rank hours wasted"
-- severity = "notice"
-- symptoms = ["hang", "nan"]
-- order = 60
-- needs = "ended processes"
-- what = "{wasted:.1f} of {hours:.1f} rank hours were wasted ({share:.1%})"
-- why = [
--   "hung: {hung:.1f} hours, from the first alarm about a stall to the end of the run",
--   "not finite: {nan:.1f} hours, from the first of the losses that stayed NaN or infinite to the end",
--   "lost: {lost:.1f} hours of runs that failed, from their last checkpoint seen (from their start without one) to the end",
--   "most in: {names}",
-- ]
-- next = ["probe fleet URL runs"]
-- false_positives = "checkpoints that probe does not see, written by another program: what is counted as lost then was not"
-- [parameters.least]
-- value = 0.05
-- unit = "ratio of all rank hours"
-- source = "ours: below that, the finding is information"
WITH runs AS (
    SELECT run, attempt, COUNT(*) AS ranks, MIN(started_ns) AS started_ns,
        MAX(COALESCE(ended_ns, last_t_ns)) AS ended_ns, bool_or(state IN ('failed', 'dead')) AS failed
    FROM archive.processes WHERE started_ns IS NOT NULL GROUP BY run, attempt
), hung AS (
    SELECT run, attempt, MIN(t_ns) AS t_ns FROM probe.verdicts
    WHERE severity = 'alarm' AND recipe IS NULL AND state IN ('missing rank', 'deadlock suspected', 'lock wait',
        'holds the GIL', 'blocked in C', 'busy without a step', 'uninterruptible', 'stopped', 'in a collective', 'retrying')
    GROUP BY run, attempt
), alive AS (  -- a step after the alarm: the run went on
    SELECT h.run, h.attempt, h.t_ns FROM hung h
    WHERE NOT EXISTS (SELECT 1 FROM python.steps s WHERE s.run = h.run AND s.attempt = h.attempt AND s.t_ns > h.t_ns)
), losses AS (
    SELECT run, attempt, MAX(t_ns) FILTER (isfinite(loss)) AS finite_ns, MIN(t_ns) AS first_ns,
        MAX(t_ns) FILTER (NOT isfinite(loss)) AS bad_ns
    FROM python.steps WHERE rank = 0 AND loss IS NOT NULL GROUP BY run, attempt
), saved AS (
    SELECT run, attempt, MAX(t_ns) AS t_ns FROM python.intervals WHERE kind = 'checkpoint' AND state = 'done'
    GROUP BY run, attempt
), parts AS (
    SELECT r.run, r.ranks * (r.ended_ns - r.started_ns) / 3.6e12 AS hours,
        CASE WHEN a.t_ns IS NOT NULL THEN r.ranks * greatest(r.ended_ns - a.t_ns, 0) / 3.6e12 END AS hung,
        CASE WHEN l.bad_ns > COALESCE(l.finite_ns, 0)
            THEN r.ranks * greatest(r.ended_ns - COALESCE(l.finite_ns, l.first_ns), 0) / 3.6e12 END AS nan,
        CASE WHEN r.failed THEN r.ranks * greatest(r.ended_ns - COALESCE(s.t_ns, r.started_ns), 0) / 3.6e12 END AS lost
    FROM runs r LEFT JOIN alive a USING (run, attempt) LEFT JOIN losses l USING (run, attempt)
        LEFT JOIN saved s USING (run, attempt)
), single AS (  -- all three last to the end of the run, and an hour is wasted once
    SELECT run, hours, COALESCE(hung, 0) AS hung, greatest(COALESCE(nan, 0) - COALESCE(hung, 0), 0) AS nan,
        greatest(COALESCE(lost, 0) - greatest(COALESCE(nan, 0), COALESCE(hung, 0)), 0) AS lost
    FROM parts
), total AS (
    SELECT SUM(hours) AS hours, SUM(hung) AS hung, SUM(nan) AS nan, SUM(lost) AS lost, SUM(hung + nan + lost) AS wasted,
        string_agg(format('{} ({:.1f})', run, hung + nan + lost), ', ' ORDER BY hung + nan + lost DESC) FILTER (hung + nan + lost > 0) AS names
    FROM single
)
SELECT wasted, hours, wasted / NULLIF(hours, 0) AS share, hung, nan, lost, left(names, 200) AS names,
    CASE WHEN wasted >= $least * hours THEN 'notice' ELSE 'info' END AS severity
FROM total WHERE wasted > 0
UNION ALL BY NAME
SELECT 'no process has an end or a last row' AS unknown WHERE NOT EXISTS (SELECT 1 FROM parts WHERE hours IS NOT NULL)
