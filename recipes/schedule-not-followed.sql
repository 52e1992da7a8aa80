-- title = "schedule has no effect"
-- severity = "notice"
-- symptoms = ["loss"]
-- order = 327
-- scope = "rank"
-- needs = "a few samples of a learning-rate scheduler, and the learning rate of each step"
-- what = "{fact}"
-- why = [
--   "{evidence}",
--   "seen in {n} samples, from step {step} to step {last}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, scheduler, optimizer, leads, last_step, count, lr FROM python.schedulers ORDER BY step DESC LIMIT 12\"",
--   "probe {endpoint} query \"SELECT step, lr FROM python.steps ORDER BY step DESC LIMIT 12\"",
-- ]
-- false_positives = "the optimizer of a later stage, whose schedule already counts; a manual warm-up on top of a scheduler (`info` as long as the effective rate varies)"
-- explains = ["learning-rate-flat", "learning-rate-too-high", "learning-rate-too-low", "slow-decrease", "plateau", "oscillation"]
-- [parameters.least]
-- value = 3
-- unit = "samples"
-- source = "ours"
-- [parameters.share]
-- value = 0.3
-- unit = "ratio of the samples"
-- source = "ours: if code overwrites the rate once per epoch, the scheduler's rate is in effect in between"
-- [parameters.silent]
-- value = 100
-- unit = "steps"
-- source = "ours: an optimizer that steps rarely is not necessarily idle"
WITH looks AS (
    SELECT * FROM python.schedulers WHERE metric IS NULL
), elsewhere AS (
    SELECT scheduler, number, ANY_VALUE(optimizer) AS optimizer, COUNT(*) AS n, MIN(step) AS step, MAX(step) AS last, MIN(count) AS first_count, MAX(count) AS last_count, MAX(last_step) AS stepped,
        BOOL_OR(leads) AS led, BOOL_OR(same_parameters) AS same, ARG_MIN(lr, count) AS first_lr, ARG_MAX(lr, count) AS last_lr
    FROM looks WHERE leads IS NOT NULL AND step >= COALESCE((SELECT MAX(step) FROM looks WHERE leads), 0) GROUP BY scheduler, number
), gone AS (
    SELECT 'elsewhere' AS subject, CASE WHEN same THEN 'notice' ELSE 'info' END AS severity,
        format('the schedule does not reach the optimizer that steps: {} was made for another {} and drives a rate that no step uses', scheduler, optimizer) AS fact,
        format('it counted from {} to {} and set its rate from {:.3g} to {:.3g}, while its optimizer {}{}', first_count, last_count, first_lr, last_lr,
            CASE WHEN stepped IS NULL THEN 'never stepped' ELSE format('has not stepped since step {}', stepped) END,
            CASE WHEN same THEN '; another optimizer holds the same parameters and steps instead: create the scheduler after the optimizer, for the one that steps' ELSE '' END) AS evidence,
        n, step, last
    FROM elsewhere e WHERE NOT led AND n >= 2 AND last_count > GREATEST(first_count, 1) AND last - COALESCE(stepped, step) >= $silent
        AND NOT EXISTS (SELECT 1 FROM looks WHERE leads)
), compared AS (
    SELECT l.t_ns, l.step, l.number, ANY_VALUE(l.scheduler) AS scheduler, ANY_VALUE(l.lr) AS lr, MIN(s.lr) AS used, COUNT(s.step) AS known,
        COALESCE(BOOL_OR(ABS(s.lr - l.lr) <= 1e-3 * GREATEST(ABS(s.lr), ABS(l.lr))), true) AS agrees
    FROM looks l JOIN python.steps s ON s.step BETWEEN l.step - 2 AND l.step + 2 AND s.lr IS NOT NULL
    WHERE l.leads AND l.lr IS NOT NULL AND l.calls > 1 GROUP BY l.t_ns, l.step, l.number
), moments AS (
    SELECT step, ANY_VALUE(scheduler) AS scheduler, ARG_MIN(lr, number) AS lr, ANY_VALUE(used) AS used, BOOL_OR(agrees) AS agrees, COUNT(*) AS schedulers
    FROM compared WHERE known >= 2 GROUP BY step
), counted AS (
    SELECT ANY_VALUE(scheduler) AS scheduler, COUNT(*) AS n, COUNT(*) FILTER (NOT agrees) AS apart, MIN(step) FILTER (NOT agrees) AS step, MAX(step) FILTER (NOT agrees) AS last,
        COUNT(DISTINCT lr) AS set_rates, ARG_MAX(lr, step) FILTER (NOT agrees) AS lr, ARG_MAX(used, step) FILTER (NOT agrees) AS used,
        MIN(lr) AS lowest, MAX(lr) AS highest FROM moments
), rates AS (
    SELECT COUNT(DISTINCT s.lr) AS used_rates, COUNT(*) AS steps FROM python.steps s, counted c WHERE s.step BETWEEN c.step AND c.last AND s.lr IS NOT NULL
), overwritten AS (
    SELECT 'overwritten' AS subject, CASE WHEN used_rates = 1 AND set_rates > 1 THEN 'notice' ELSE 'info' END AS severity,
        format('the learning rate is overwritten by hand after {} has set it: {}', scheduler, CASE WHEN used_rates = 1 THEN 'the schedule has no effect' ELSE 'the steps use other rates than the schedule''s' END) AS fact,
        format('at step {} the scheduler had set {:.3g} and the step used {:.3g}; the schedule went from {:.3g} to {:.3g}, the steps used {} rate{} in {}', last, lr, used, lowest, highest,
            used_rates, CASE WHEN used_rates = 1 THEN '' ELSE 's' END, steps) AS evidence,
        apart AS n, step, last
    FROM counted, rates WHERE apart >= $least AND apart >= $share * n AND NOT EXISTS (SELECT 1 FROM probe.actions WHERE action = 'lr')
)
SELECT NULL AS unknown, * FROM gone
UNION ALL BY NAME
SELECT NULL AS unknown, * FROM overwritten
UNION ALL BY NAME
SELECT 'no scheduler was sampled' AS unknown WHERE NOT EXISTS (SELECT 1 FROM python.schedulers)
