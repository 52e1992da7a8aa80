-- title = "scheduler has no effect"
-- severity = "notice"
-- symptoms = ["loss"]
-- order = 330
-- scope = "rank"
-- needs = "a known scheduler, and the learning rate of 200 steps"
-- what = "there is a {scheduler}, but the learning rate has been {lr:.6g} for all {n} steps"
-- why = [
--   "learning rate {lr:.6g} on every step from {step} to {last}",
--   "a scheduler changes the rate only when its step() is called: after each step or epoch",
-- ]
-- next = [
--   "probe {endpoint} lr",
--   "probe {endpoint} eval \"print(scheduler.last_epoch, scheduler.get_last_lr())\"",
-- ]
-- false_positives = "a scheduler stepped once per epoch when an epoch is longer than the recording; ReduceLROnPlateau before its first cut (excluded), ConstantLR"
-- [parameters.steps]
-- value = 200
-- unit = "steps"
-- source = "ours: warm-ups and cosines, stepped after each step, differ within two; an epoch may be longer"
WITH known AS (
    SELECT ANY_VALUE(value) AS scheduler FROM probe.facts
    WHERE kind = 'hyperparameter' AND regexp_matches(LOWER(name), '^(lr_)?scheduler([.]class)?$') AND NOT regexp_matches(value, 'Plateau|ConstantLR')
), rates AS (
    SELECT COUNT(*) AS n, MIN(lr) AS lowest, MAX(lr) AS lr, MIN(step) AS step, MAX(step) AS last FROM python.steps WHERE lr IS NOT NULL
)
SELECT NULL AS unknown, scheduler, lr, n, step, last FROM known, rates
WHERE scheduler IS NOT NULL AND n >= $steps AND lowest = lr
    AND NOT EXISTS (SELECT 1 FROM probe.actions WHERE action = 'lr' AND state = 'standing')
UNION ALL BY NAME
SELECT 'no scheduler is known' AS unknown FROM known WHERE scheduler IS NULL
