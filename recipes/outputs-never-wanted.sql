-- title = "most output classes never occur"
-- severity = "notice"
-- symptoms = ["slow", "loss", "data"]
-- order = 128
-- scope = "rank"
-- needs = "the number of classes and the targets of a cross entropy, from ten sampled steps"
-- what = "the last layer has {classes:,} classes, but no target is above {highest:.0f}: {unused:,.0f} of its outputs ({share:.1%}) are never a target"
-- why = [
--   "{targets:,.0f} targets in {looks} batches, from step {step} to {last}, lie between {lowest:.0f} and {highest:.0f}; at most {most:.0f} different ones occur in one batch",
--   "{evidence}",
--   "the vocabulary of another tokenizer, or a last layer for another data set, looks like this: the unused rows are only pushed down, and cost time and memory",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, function, classes, targets, occurring, target_min, target_max FROM python.loss_functions ORDER BY step DESC LIMIT 10\"",
--   "probe {endpoint} query \"SELECT param, shape, numel FROM python.parameters ORDER BY numel DESC LIMIT 6\"",
-- ]
-- false_positives = "data sorted by class; a pretrained model fine-tuned on part of its classes that should keep the rest (`info` below `many` unused outputs)"
-- [parameters.looks]
-- value = 10
-- unit = "batches"
-- source = "ours"
-- [parameters.targets]
-- value = 20.0
-- unit = "targets per class up to the highest"
-- source = "ours: enough for rare classes to occur"
-- [parameters.times]
-- value = 4.0
-- unit = "times the number of classes up to the highest target"
-- source = "practice: vocabularies are padded to a multiple of 64 or 128, and reserve up to a few hundred entries"
-- [parameters.many]
-- value = 500
-- unit = "outputs that are never a target"
-- source = "ours: fewer cost almost nothing"
WITH looks AS (
    SELECT * FROM python.loss_functions WHERE function IN ('cross_entropy', 'nll_loss') AND classes > 1 AND target_max IS NOT NULL AND isfinite(target_max) AND shape IS NOT NULL
    QUALIFY ROW_NUMBER() OVER (PARTITION BY classes ORDER BY step DESC) <= 256
), calls AS (
    SELECT classes, COUNT(*) AS looks, MIN(step) AS step, MAX(step) AS last, SUM(LEAST(targets, 4096) * (1 - COALESCE(ignored_ratio, 0))) AS targets, MIN(target_min) AS lowest, MAX(target_max) AS highest, MAX(occurring) AS most
    FROM looks GROUP BY classes HAVING COUNT(*) >= $looks
)
SELECT NULL AS unknown, 'classes' AS subject, calls.*, classes - highest - 1 AS unused, (classes - highest - 1) / classes AS share, CASE WHEN classes - highest - 1 >= $many THEN 'notice' ELSE 'info' END AS severity,
    format('an untrained model has a loss of {:.2f} with {:,} classes; {:.0f} classes would be enough, with {:.2f}', LN(classes), classes, highest + 1, LN(highest + 1)) AS evidence
FROM calls WHERE highest >= 1 AND classes >= $times * (highest + 1) AND targets >= $targets * (highest + 1)
UNION ALL BY NAME
SELECT format('the targets of a cross entropy were sampled in {} steps, {} are needed', COUNT(DISTINCT step), $looks) AS unknown FROM looks HAVING COUNT(DISTINCT step) < $looks
