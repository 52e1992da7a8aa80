-- title = "checkpoint was loaded only in part"
-- severity = "notice"
-- symptoms = ["loss"]
-- order = 326
-- scope = "rank"
-- needs = "a checkpoint loaded in this process before its first step"
-- what = "{fact}"
-- why = [
--   "{evidence}",
--   "loss: {loss_first:.4g} in the first steps, {loss_now:.4g} now",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT name, value FROM probe.facts WHERE kind = 'resumption'\"",
--   "probe {endpoint} query \"SELECT step, lr, loss FROM python.steps ORDER BY step LIMIT 50\"",
--   "probe {endpoint} stop",
-- ]
-- false_positives = "fine-tuning that loads only the weights of a checkpoint on purpose (`info` unless the schedule was loaded too); an intended warm-up after resuming"
-- explains = ["loss-spike", "learning-rate-jump", "gradients-exploding", "divergence"]
-- [parameters.rose]
-- value = 1.5
-- unit = "times"
-- source = "ours: a warm-up rises by much more within its first steps"
-- [parameters.steps]
-- value = 20
-- unit = "steps"
-- source = "ours"
-- [parameters.few]
-- value = 0.1
-- unit = "ratio of the names given"
-- source = "ours: with a new head, or an encoder alone, more than half of the names match; with adapters, all do"
-- [parameters.renamed]
-- value = 2
-- unit = "names"
-- source = "ours: a layer's weight and bias"
WITH facts AS (
    SELECT MAX(number) FILTER (name = 'checkpoint.optimizer') AS held, MAX(number) FILTER (name = 'checkpoint.scheduler') AS counted, MAX(value) FILTER (name = 'loaded.model') AS model,
        MAX(value) FILTER (name = 'loaded.optimizer') AS optimizer, MAX(number) FILTER (name = 'loaded.optimizer.lr') AS kept, MAX(value) FILTER (name = 'loaded.scheduler') AS scheduler, COUNT(*) AS n,
        MAX(value) FILTER (name = 'loaded.worst.model') AS worst, MAX(number) FILTER (name = 'loaded.worst.given') AS given, MAX(number) FILTER (name = 'loaded.worst.matched') AS matched, MAX(number) FILTER (name = 'loaded.worst.missing') AS missing,
        MAX(number) FILTER (name = 'loaded.worst.near') AS near, MAX(value) FILTER (name = 'loaded.worst.near.given') AS near_given, MAX(value) FILTER (name = 'loaded.worst.near.wanted') AS near_wanted
    FROM probe.facts WHERE kind = 'resumption'
), made AS (
    SELECT MAX(value) FILTER (name = 'scheduler') AS class, MAX(value) FILTER (name = 'optimizer') AS optimizer_class FROM probe.facts WHERE kind = 'hyperparameter'
), rates AS (
    SELECT ARG_MIN(lr, step) AS first, ARG_MAX(lr, step) AS later, COUNT(*) AS steps, COUNT(*) FILTER (lr < before) AS falls FROM (
        SELECT step, lr, LAG(lr) OVER (ORDER BY step) AS before FROM python.steps WHERE lr IS NOT NULL ORDER BY step LIMIT $steps)
), losses AS (
    SELECT MEDIAN(loss) FILTER (i <= 10) AS loss_first, MEDIAN(loss) FILTER (i > k - 10) AS loss_now
    FROM (SELECT loss, ROW_NUMBER() OVER (ORDER BY step) AS i, COUNT(*) OVER () AS k FROM python.steps WHERE isfinite(loss))
), found AS (
    SELECT 'nothing loaded' AS subject, CASE WHEN matched = 0 THEN format('nothing was loaded into {}: none of the {:.0f} names passed to load_state_dict is one of its own', worst, given)
            ELSE format('hardly anything was loaded into {}: {:.0f} of the {:.0f} names passed to load_state_dict are its own', worst, matched, given) END AS fact,
        format('{:.0f} unexpected keys and {:.0f} missing ones; strict=False hides this: the weights are still the initial ones. {}', given - matched, missing,
            CASE WHEN near_given IS NULL THEN 'Compare the names: a prefix such as `module.` may be missing or extra' ELSE format('Given: {}; wanted: {}', near_given, near_wanted) END) AS evidence,
        CASE WHEN matched = 0 THEN 'alarm' ELSE 'notice' END AS severity
    FROM facts WHERE given >= 2 AND missing > 0 AND matched < $few * given
    UNION ALL BY NAME
    SELECT 'renamed' AS subject, format('{:.0f} of the {:.0f} tensors passed to load_state_dict of {} were not loaded, and differ from its names by a part of the path only', near, given, worst) AS fact,
        format('given: {}; wanted: {}; strict=False hides this: these weights are still the initial ones', near_given, near_wanted) AS evidence, 'notice' AS severity
    FROM facts WHERE near >= $renamed AND near >= 0.5 * (given - matched) AND matched >= $few * given
    UNION ALL BY NAME
    SELECT 'optimizer' AS subject, format('the weights of {} were loaded from a checkpoint, but not the optimizer''s state that it holds: its moments start from zero', model) AS fact,
        format('the file holds the state of {:.0f} parameters of an optimizer; load_state_dict of {} was not called before the first step', held, COALESCE(optimizer_class, 'the optimizer')) AS evidence,
        CASE WHEN scheduler IS NOT NULL THEN 'notice' ELSE 'info' END AS severity
    FROM facts, made WHERE model IS NOT NULL AND held > 0 AND optimizer IS NULL AND NOT COALESCE(matched = 0, false)
    UNION ALL BY NAME
    SELECT 'schedule' AS subject, format('the optimizer''s state was loaded from a checkpoint, but not that of the schedule: {} starts from the beginning', class) AS fact,
        format('the file holds a schedule that had counted {:.0f}; load_state_dict of {} was not called before the first step', counted, class) AS evidence, 'notice' AS severity
    FROM facts, made WHERE optimizer IS NOT NULL AND counted > 0 AND scheduler IS NULL AND class IS NOT NULL
    UNION ALL BY NAME
    SELECT 'schedule' AS subject, 'the warm-up is run again: the optimizer''s state was loaded from a checkpoint, and the learning rate starts from the beginning' AS fact,
        format('its rate was {:.3g} when it was saved; the first step used {:.3g}, and {:.3g} after {} steps', kept, first, later, steps) AS evidence, 'notice' AS severity
    FROM facts, made, rates WHERE optimizer IS NOT NULL AND scheduler IS NULL AND NOT (counted > 0 AND class IS NOT NULL) IS TRUE
        AND steps >= $steps AND first < 0.5 * kept AND falls = 0 AND later > $rose * first
)
SELECT NULL AS unknown, 0 AS step, found.*, losses.* FROM found, losses
UNION ALL BY NAME
SELECT 'nothing was loaded from a checkpoint' AS unknown FROM facts WHERE n = 0
