-- title = "evaluation takes most of the time"
-- severity = "notice"
-- symptoms = ["slow"]
-- order = 36
-- scope = "rank"
-- needs = "four evaluations"
-- what = "evaluation takes {share:.0%} of the time: {evaluations} evaluations of {usual:.3g} s each, one {often}"
-- why = [
--   "from step {step} to {last}: {evaluated_s:.3g} s of {wall_s:.3g} s; recognised by: {by}",
--   "training between two evaluations takes {training:.3g} s",
--   "an evaluation after every step or every few steps is usually in the wrong loop, or its interval was chosen for a longer run",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, kind, duration_s, batches, recognised_by FROM python.intervals ORDER BY t_ns DESC LIMIT 10\"",
-- ]
-- false_positives = "little training and much validation on purpose, for example with few samples; rollouts of reinforcement learning (`info` without a DataLoader and without classes)"
-- [parameters.share]
-- value = 0.5
-- unit = "ratio of the time"
-- source = "ours: more time than training itself; a tenth or less is usual"
-- [parameters.known]
-- value = 0.3
-- unit = "ratio of the time"
-- source = "ours: `info` from here on"
-- [parameters.evaluations]
-- value = 4
-- unit = "evaluations"
-- source = "ours: the first may be a sanity check before training"
-- [parameters.seconds]
-- value = 5.0
-- unit = "s"
-- source = "ours: the first seconds of a job are not representative"
WITH counted AS (
    SELECT step, SUM(duration_s) AS duration_s, ARG_MAX(recognised_by, t_ns) AS "by", BOOL_OR(kind = 'evaluation') AS sure FROM python.intervals
    WHERE kind IN ('evaluation', 'inference') AND state = 'done' AND step <= (SELECT MAX(step) FROM python.steps) GROUP BY step
), span AS (
    SELECT COUNT(*) - 1 AS evaluations, MIN(step) AS step, MAX(step) AS last, MEDIAN(duration_s) AS usual, ARG_MAX("by", step) AS "by", BOOL_OR(sure) AS sure FROM counted
), times AS (
    SELECT SUM(s.wall_s - COALESCE(s.held_s, 0)) AS wall_s, COUNT(*) AS steps FROM python.steps s, span WHERE s.step > span.step AND s.step <= span.last
), evaluated AS (
    SELECT SUM(c.duration_s) AS evaluated_s FROM counted c, span, times WHERE c.step > span.step
), judged AS (
    SELECT *, evaluated_s / wall_s AS share, steps / evaluations AS every, (wall_s - evaluated_s) / evaluations AS training FROM span, times, evaluated WHERE evaluations >= $evaluations - 1 AND steps >= last - step
), policy AS (
    SELECT COUNT(*) FILTER (function = 'cross_entropy') = 0 AND NOT EXISTS (SELECT 1 FROM python.batches WHERE state = 'done') AS yes FROM python.loss_functions
)
SELECT NULL AS unknown, judged.*, CASE WHEN every < 1.5 THEN 'after every step' ELSE format('every {:.0f} steps', every) END AS often, CASE WHEN share > $share AND (sure OR NOT yes) THEN 'notice' ELSE 'info' END AS severity
FROM judged, policy WHERE share > $known AND wall_s >= $seconds
UNION ALL BY NAME
SELECT format('{} evaluations are known, {} are needed', (SELECT COUNT(*) FROM counted), $evaluations) AS unknown WHERE NOT EXISTS (SELECT 1 FROM judged)
