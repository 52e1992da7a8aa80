-- title = "scheduler is never stepped"
-- severity = "notice"
-- symptoms = ["loss"]
-- order = 330
-- scope = "rank"
-- needs = "a known scheduler and its step count, and either a finished epoch or a schedule that is known to count steps"
-- what = "there is a {scheduler}, but its step() has never been called: the learning rate has been {lr:.6g} for all {n} steps{doubt}"
-- why = [
--   "learning rate {lr:.6g} in every step from {step} to {last}",
--   "the scheduler's step count is 0, and {due}: it changes the rate only when its step() is called, after each step or epoch",
-- ]
-- next = [
--   "probe {endpoint} lr",
--   "probe {endpoint} eval \"print(scheduler.last_epoch, scheduler.get_last_lr())\"",
-- ]
-- false_positives = "a scheduler meant for a later phase of training"
-- [parameters.steps]
-- value = 200
-- unit = "steps"
-- source = "ours: a warm-up or cosine stepped after each step changes within two steps; an epoch may be longer"
-- [parameters.epochs]
-- value = 500
-- unit = "counts of the scheduler"
-- source = "practice: trainings last 1 to 300 epochs; a schedule that is longer counts steps (`info`, as it may not)"
-- [parameters.sure_epochs]
-- value = 10
-- unit = "epochs"
-- source = "ours: fewer, in fewer steps than `sure_steps`, and it may be stepped at evaluations that are yet to come (`info`)"
-- [parameters.sure_steps]
-- value = 1000
-- unit = "steps"
-- source = "practice: evaluations, and schedules stepped with them, come every 100 to 1000 steps"
WITH known AS (
    SELECT ANY_VALUE(value) AS scheduler FROM probe.facts
    WHERE kind = 'hyperparameter' AND regexp_matches(LOWER(name), '^(lr_)?scheduler([.]class)?$') AND NOT regexp_matches(value, 'Plateau|ConstantLR')
), called AS (
    SELECT ARG_MAX(value, t_ns) FILTER (name = 'scheduler.stepped') AS stepped, MAX(number) FILTER (name = 'scheduler.not_stepped_until') AS until FROM probe.facts
), feeding AS (
    SELECT loader FROM python.batches WHERE state = 'done' GROUP BY loader HAVING COUNT(DISTINCT step) > 0.5 * (MAX(step) - MIN(step) + 1)
), passes AS (
    SELECT COALESCE(MAX(epoch) FILTER (step < (SELECT until FROM called) - 5), 0) AS epochs, COUNT(*) AS batches FROM python.batches JOIN feeding USING (loader) WHERE state = 'done'
), lengths AS (
    SELECT MAX(number) AS length FROM probe.facts WHERE kind = 'hyperparameter' AND name IN ('scheduler.T_max', 'scheduler.total_steps', 'scheduler.total_iters', 'scheduler.step_size')
), rates AS (
    SELECT COUNT(*) AS n, MIN(lr) AS lowest, MAX(lr) AS lr, MIN(step) AS step, MAX(step) AS last FROM python.steps WHERE lr IS NOT NULL
)
SELECT CASE WHEN stepped IS NULL THEN 'whether the scheduler was stepped is not known' WHEN epochs > 0 OR by_step OR long THEN NULL
        WHEN batches = 0 THEN 'without a DataLoader it is not known whether an epoch is over' ELSE 'the first epoch is not over' END AS unknown,
    scheduler, lr, n, step, last, CASE WHEN by_step OR epochs >= $sure_epochs OR epochs > 0 AND until > $sure_steps THEN '' WHEN epochs > 0 THEN '; it may be stepped every so many steps'
        ELSE '; it may count epochs, and none is over yet' END AS doubt,
    CASE WHEN epochs > 0 THEN format('{} epochs are over', epochs) WHEN by_step THEN format('{} is designed to be stepped after each batch', scheduler)
        ELSE format('its length of {:.0f} would be unusual as a number of epochs', length) END AS due,
    CASE WHEN by_step OR epochs >= $sure_epochs OR epochs > 0 AND until > $sure_steps THEN 'notice' ELSE 'info' END AS severity
FROM (SELECT *, scheduler IN ('OneCycleLR', 'CyclicLR') AND COALESCE(stepped = 'False' AND until >= $steps, false) AS by_step, COALESCE(stepped = 'False' AND until >= $steps AND length >= $epochs, false) AS long
    FROM known, rates, called, passes, lengths)
WHERE scheduler IS NOT NULL AND n >= $steps AND lowest = lr AND COALESCE(stepped = 'False', true)
    AND NOT EXISTS (SELECT 1 FROM probe.actions WHERE action = 'lr' AND state = 'standing')
UNION ALL BY NAME
SELECT 'no scheduler is known' AS unknown FROM known WHERE scheduler IS NULL
