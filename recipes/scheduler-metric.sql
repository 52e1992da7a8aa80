-- title = "ReduceLROnPlateau in the wrong direction"
-- severity = "notice"
-- symptoms = ["loss"]
-- order = 328
-- scope = "rank"
-- needs = "a ReduceLROnPlateau that was stepped a few times with a number"
-- what = "the learning rate was cut {cuts} times although the model improves: ReduceLROnPlateau has mode {mode}, but is given {argument}, which {moves} as the model improves"
-- why = [
--   "the metric went from {first:.4g} to {newest:.4g} in {n} calls, and its best in mode {mode} was call {best}",
--   "learning rate {first_lr:.3g} at first, {lr:.3g} now; the training loss went from {loss_before:.4g} to {loss_after:.4g} meanwhile",
--   "{doubt}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, lr, mode, metric, argument FROM python.schedulers WHERE metric IS NOT NULL ORDER BY step\"",
-- ]
-- false_positives = "a validation loss that rises from the first evaluation on while the training loss falls (overfitting): `info` unless the metric's name says which way it improves"
-- explains = ["learning-rate-too-low", "learning-rate-zero", "slow-decrease", "plateau"]
-- [parameters.least]
-- value = 4
-- unit = "calls"
-- source = "ours"
-- [parameters.better]
-- value = "(^|[^a-z])(acc|accuracy|dice|iou|miou|f1|auc|auroc|map|ap|score|bleu|rouge|precision|recall|r2|psnr|ssim|reward|return|returns|correct|ndcg|mrr|top1|top5|spearman|pearson|kappa|mcc)([^a-z]|$)"
-- unit = "regular expression"
-- source = "practice: scores that rise as a model improves"
-- [parameters.worse]
-- value = "(loss|err|error|nll|ppl|perplexity|mse|mae|rmse|wer|cer|fid|bpc|bpb|distance|dist)([^a-z]|$)"
-- unit = "regular expression"
-- source = "practice: metrics that fall as a model improves"
WITH calls AS (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY number ORDER BY t_ns) AS place, LAG(lr) OVER (PARTITION BY number ORDER BY t_ns) AS before
    FROM python.schedulers WHERE metric IS NOT NULL AND isfinite(metric) AND mode IN ('min', 'max')
), counted AS (
    SELECT number, ANY_VALUE(mode) AS mode, LOWER(COALESCE(ANY_VALUE(argument), '')) AS name, ANY_VALUE(argument) AS argument, COUNT(*) AS n, MIN(step) AS step, MAX(step) AS last,
        ARG_MIN(metric, place) AS first, ARG_MAX(metric, place) AS newest, CASE WHEN ANY_VALUE(mode) = 'min' THEN ARG_MIN(place, metric) ELSE ARG_MAX(place, metric) END AS best,
        COUNT(*) FILTER (lr < before) AS cuts, ARG_MIN(COALESCE(before, lr), place) AS first_lr, ARG_MAX(lr, place) AS lr, CORR(metric, place) AS trend
    FROM calls GROUP BY number
), sides AS (
    SELECT *, CASE WHEN mode = 'min' THEN 'rises' ELSE 'falls' END AS moves,
        CASE WHEN mode = 'min' THEN regexp_matches(name, $better) AND NOT regexp_matches(name, $worse) ELSE regexp_matches(name, $worse) AND NOT regexp_matches(name, $better) END AS contrary,
        CASE WHEN mode = 'min' THEN regexp_matches(name, $worse) ELSE regexp_matches(name, $better) END AS fitting,
        CASE WHEN mode = 'min' THEN newest > first ELSE newest < first END AS away
    FROM counted
), losses AS (
    SELECT s.number, MEDIAN(p.loss) FILTER (p.step <= s.step + 20) AS loss_before, MEDIAN(p.loss) FILTER (p.step > s.last - 40) AS loss_after
    FROM sides s JOIN python.steps p ON p.step BETWEEN s.step - 20 AND s.last WHERE isfinite(p.loss) GROUP BY s.number
)
SELECT NULL AS unknown, mode, COALESCE(argument, 'a metric') AS argument, argument AS subject, moves, n, step, first, newest, best, cuts, first_lr, lr, loss_before, loss_after,
    CASE WHEN contrary THEN 'notice' ELSE 'info' END AS severity,
    CASE WHEN NOT contrary THEN 'the source does not show what the metric is: a validation loss that rises from the start would look the same' END AS doubt
FROM sides LEFT JOIN losses USING (number)
WHERE n >= $least AND cuts >= 1 AND away AND NOT fitting AND (contrary OR best <= 2 AND ABS(trend) > 0.7 AND loss_after < loss_before)
UNION ALL BY NAME
SELECT 'no ReduceLROnPlateau was stepped with a number' AS unknown WHERE NOT EXISTS (SELECT 1 FROM calls)
