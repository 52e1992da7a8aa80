-- title = "an optimizer setting that nothing reads"
-- severity = "notice"
-- symptoms = ["loss", "gradients"]
-- order = 143
-- scope = "rank"
-- needs = "the settings of an optimizer of torch's own"
-- what = "{fact}"
-- why = [
--   "{evidence}",
--   "an optimizer reads its settings from param_groups in each step: for group in optimizer.param_groups: group[\"{setting}\"] = …",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT name, value, t_ns FROM probe.facts WHERE name LIKE '%.unread.%' ORDER BY t_ns\"",
--   "probe {endpoint} lr",
-- ]
-- false_positives = "a value that the program stores on its optimizer for itself (`info` if a schedule changes the rate in use)"
-- explains = ["learning-rate-flat", "learning-rate-too-high", "learning-rate-too-low", "no-warm-up", "weight-decay", "oscillation", "divergence", "loss-spike", "plateau", "slow-decrease"]
-- [parameters.apart]
-- value = 0.01
-- unit = "ratio"
-- source = "ours: rates that differ only by rounding are equal"
-- [parameters.least]
-- value = 50
-- unit = "steps"
-- source = "ours"
WITH written AS (
    SELECT regexp_extract(name, '^(optimizer[0-9]*)[.]unread', 1) AS optimizer, regexp_extract(name, '[.]unread[.]([a-z_]+)[.]', 1) AS setting, regexp_extract(name, '[.]unread[.][a-z_]+[.]([a-z]+)[.]', 1) AS place,
        regexp_extract(name, '[.]unread[.][a-z_]+[.][a-z]+[.](.*)$', 1) AS called, ARG_MAX(value, t_ns) AS value, ARG_MAX(number, t_ns) AS number, COUNT(DISTINCT value) AS kinds
    FROM probe.facts WHERE kind = 'hyperparameter' AND name LIKE 'optimizer%.unread.%' GROUP BY ALL
), settings AS (
    SELECT name, ARG_MAX(value, t_ns) AS value, ARG_MAX(number, t_ns) AS number FROM probe.facts WHERE kind = 'hyperparameter' AND regexp_matches(name, '^optimizer[0-9]*[.][a-z_]+$') GROUP BY name
), steps AS (
    SELECT COUNT(*) AS n, MIN(step) AS step, MIN(lr) AS lowest, MAX(lr) AS highest FROM python.steps WHERE lr IS NOT NULL
), judged AS (
    SELECT written.*, n, step, lowest, highest, settings.value AS used,
        CASE place WHEN 'attribute' THEN 'optimizer.' || called WHEN 'defaults' THEN format('optimizer.defaults["{}"]', called) ELSE format('param_groups[0]["{}"]', called) END AS target,
        setting = 'lr' AND written.optimizer = 'optimizer' AND NOT EXISTS (SELECT 1 FROM settings o WHERE o.name LIKE 'optimizer2.%') AS seen
    FROM written JOIN settings ON settings.name = written.optimizer || '.' || setting, steps
    WHERE n >= $least
), facts AS (
    SELECT *, CASE WHEN highest <= lowest * (1 + $apart) THEN 'notice' ELSE 'info' END AS severity,
        format('the learning rate is written to {}, which no step reads: it is {:.4g} there, and {}', target, number, CASE WHEN highest <= lowest * (1 + $apart) THEN format('{:.4g} in every step', highest) ELSE format('{:.4g} to {:.4g} in the steps', lowest, highest) END) AS fact,
        format('{} steps used no value within {:.0f} % of it{}', n, 100 * $apart, CASE WHEN kinds > 1 THEN format('; {} values were seen there: a schedule that has no effect', kinds) ELSE '' END) AS evidence
    FROM judged WHERE seen AND NOT EXISTS (SELECT 1 FROM python.steps s WHERE ABS(s.lr - number) <= $apart * number)
    UNION ALL BY NAME
    SELECT *, 'notice' AS severity, format('{} is written to {}, which no step reads: it is {} there, and {} in the steps', setting, target, value, used) AS fact,
        CASE place WHEN 'defaults' THEN 'defaults apply only when a group is added, not later' ELSE 'Python allows any attribute name; torch has no setting of this name here' END AS evidence
    FROM judged WHERE NOT seen AND value <> used AND (setting <> 'lr' OR place <> 'defaults')
)
SELECT NULL AS unknown, target AS subject, fact, evidence, severity, setting, step FROM facts
UNION ALL BY NAME
SELECT 'the settings of the optimizer are not known yet' AS unknown WHERE NOT EXISTS (SELECT 1 FROM settings)
