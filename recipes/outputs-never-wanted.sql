-- title = "most outputs are of classes that never occur"
-- severity = "notice"
-- symptoms = ["slow", "loss", "data"]
-- order = 128
-- scope = "rank"
-- needs = "the classes of a cross entropy and its targets, on ten sampled steps"
-- what = "the last layer tells {classes:,} classes apart, and no target is above {highest:.0f}: {unused:,.0f} of its outputs ({share:.1%}) are never a target"
-- why = [
--   "{targets:,.0f} targets in {looks} batches, from step {step} to {last}, lie between {lowest:.0f} and {highest:.0f}; the most that occur in one batch are {most:.0f} different ones",
--   "{evidence}",
--   "a vocabulary of another tokenizer, or the last layer of a network for another data set, looks like this: their rows are only pushed down, and cost time and memory",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, function, classes, targets, occurring, target_min, target_max FROM python.loss_functions ORDER BY step DESC LIMIT 10\"",
--   "probe {endpoint} query \"SELECT param, shape, numel FROM python.parameters ORDER BY numel DESC LIMIT 6\"",
-- ]
-- false_positives = "data that come in the order of their classes; a pretrained model that is adapted to a part of what it knows and is to keep the rest (`info` below {many} classes)"
-- [parameters.looks]
-- value = 10
-- unit = "batches"
-- source = "ours"
-- [parameters.targets]
-- value = 20.0
-- unit = "targets for each class up to the highest"
-- source = "ours: classes that are rare are then among them"
-- [parameters.times]
-- value = 4.0
-- unit = "times as many classes as up to the highest target"
-- source = "practice: vocabularies are padded to a multiple of 64 or 128, and keep up to a few hundred places free"
-- [parameters.many]
-- value = 500
-- unit = "outputs that are never a target"
-- source = "ours: fewer cost next to nothing"
WITH looks AS (
    SELECT * FROM python.loss_functions WHERE function IN ('cross_entropy', 'nll_loss') AND classes > 1 AND target_max IS NOT NULL AND isfinite(target_max) AND shape IS NOT NULL
    QUALIFY ROW_NUMBER() OVER (PARTITION BY classes ORDER BY step DESC) <= 256
), calls AS (
    SELECT classes, COUNT(*) AS looks, MIN(step) AS step, MAX(step) AS last, SUM(LEAST(targets, 4096) * (1 - COALESCE(ignored_ratio, 0))) AS targets, MIN(target_min) AS lowest, MAX(target_max) AS highest, MAX(occurring) AS most
    FROM looks GROUP BY classes HAVING COUNT(*) >= $looks
)
SELECT NULL AS unknown, 'classes' AS subject, calls.*, classes - highest - 1 AS unused, (classes - highest - 1) / classes AS share, CASE WHEN classes - highest - 1 >= $many THEN 'notice' ELSE 'info' END AS severity,
    format('an untrained model has the loss {:.2f} of {:,} classes, where {:.0f} would be enough for {:.2f}', LN(classes), classes, highest + 1, LN(highest + 1)) AS evidence
FROM calls WHERE highest >= 1 AND classes >= $times * (highest + 1) AND targets >= $targets * (highest + 1)
UNION ALL BY NAME
SELECT format('the targets of a cross entropy were looked at on {} steps, {} are needed', COUNT(DISTINCT step), $looks) AS unknown FROM looks HAVING COUNT(DISTINCT step) < $looks
