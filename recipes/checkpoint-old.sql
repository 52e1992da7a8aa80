-- title = "last checkpoint is old"
-- severity = "info"
-- symptoms = ["hang", "loss"]
-- order = 710
-- scope = "rank"
-- needs = "checkpoints made with probe; the job's own are not counted here"
-- what = "{said}: if the job died now, {lost_h:.1f} h of training would be lost, unless it saves checkpoints of its own"
-- why = ["last one: step {saved_step}, {age_h:.1f} h ago; the job is at step {step}", "{n} checkpoints were made with probe in {run_h:.1f} h of recording"]
-- next = ["probe {endpoint} checkpoint kept --every 1000 --keep 3", "probe {endpoint} checkpoint rescue.pt"]
-- false_positives = "a job that saves its own checkpoints, which this check does not count: `info` if probe never saved one, a notice if it did and stopped"
-- [parameters.hours]
-- value = 2.0
-- unit = "h"
-- source = "practice: every 30 minutes to 4 hours; the Young-Daly rule gives half an hour for one failure per 8 h and one minute per save"
WITH saved AS (
    SELECT MAX(t_ns) AS t_ns, ARG_MAX(step, t_ns) AS step, COUNT(*) AS n FROM probe.actions WHERE action = 'checkpoint' AND state = 'done'
), kept AS (
    SELECT COUNT(*) > 0 AS yes FROM (SELECT action_id, ARG_MAX(state, t_ns) AS state FROM probe.actions WHERE action = 'checkpoint' GROUP BY action_id) WHERE state = 'standing'
), run AS (
    SELECT MIN(t_ns) AS began, MAX(t_ns) AS now, MAX(step) AS step, COUNT(*) AS steps FROM python.steps
)
SELECT NULL AS unknown, run.step, saved.step AS saved_step, n, (now - saved.t_ns) / 3.6e12 AS age_h, (now - began) / 3.6e12 AS run_h, (now - COALESCE(saved.t_ns, began)) / 3.6e12 AS lost_h,
    CASE WHEN n = 0 THEN 'no checkpoint was made with probe' ELSE format('the last checkpoint made with probe is from step {}', saved.step) END AS said,
    CASE WHEN n = 0 THEN 'info' ELSE 'notice' END AS severity
FROM run, saved, kept WHERE steps > 0 AND (NOT kept.yes OR (now - saved.t_ns) / 3.6e12 > 2 * $hours) AND (now - COALESCE(saved.t_ns, began)) / 3.6e12 > $hours
