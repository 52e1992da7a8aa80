-- title = "evaluation with gradients"
-- severity = "info"
-- symptoms = ["slow", "memory"]
-- order = 68
-- scope = "rank"
-- needs = "evaluations whose module calls were seen"
-- what = "{n} of {all_} evaluations run with gradients enabled: each forward builds a graph that no backward uses"
-- why = [
--   "recognised as an evaluation by: {by}; the last one before step {step}{size}",
--   "wrap it in torch.no_grad() or torch.inference_mode() to save time and activation memory; a loss summed as a tensor keeps the graph of every batch",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, kind, duration_s, batches, recognised_by FROM python.intervals ORDER BY t_ns DESC LIMIT 10\"",
-- ]
-- false_positives = "evaluations that need gradients: adversarial attacks, derivatives of the outputs, test-time adaptation"
-- [parameters.least]
-- value = 2
-- unit = "evaluations"
-- source = "ours"
-- [parameters.times]
-- value = 3.0
-- unit = "times the usual forward"
-- source = "ours: an evaluation has several batches"
-- [parameters.rare]
-- value = 0.2
-- unit = "ratio of the steps"
-- source = "ours: something done in more steps than that is part of training"
WITH judged AS (
    SELECT *, recognised_by = 'eval mode, no backward' AS graded FROM python.intervals WHERE kind = 'evaluation' AND state = 'done' AND recognised_by IS NOT NULL
), counted AS (
    SELECT COUNT(*) AS all_, COUNT(*) FILTER (graded) AS n, MAX(step) FILTER (graded) AS step, MEDIAN(batches) FILTER (graded) AS batches, ARG_MAX(loader, t_ns) FILTER (graded) AS loader,
        ARG_MAX(recognised_by, t_ns) FILTER (graded) AS "by" FROM judged
), usual AS (
    SELECT COUNT(*) AS steps, MEDIAN(forward_s) FILTER (training_mode) AS forward_s, COUNT(*) FILTER (NOT training_mode) AS others FROM python.steps WHERE training_mode IS NOT NULL AND forward_s IS NOT NULL
), unloaded AS (
    -- Without a loader: the first call of a step is in eval mode, with gradients, and a forward that is far too long follows, in the end of which the mode is another one.
    SELECT COUNT(*) AS n, COUNT(*) AS all_, MAX(step) AS step, MEDIAN(s.forward_s) AS took_s, ANY_VALUE(usual.forward_s) AS usual_s FROM python.steps s, usual
    WHERE NOT training_mode AND s.forward_s > $times * usual.forward_s AND usual.others <= $rare * usual.steps
)
SELECT NULL AS unknown, n, all_, step, format(', {:.0f} batches each of {}', batches, loader) AS size, "by" FROM counted WHERE n >= $least AND n >= 0.9 * all_
UNION ALL BY NAME
SELECT NULL AS unknown, n, all_, step, format('; {:.3g} s from its first call to the backward, usually {:.3g} s', took_s, usual_s) AS size, 'a first call in eval mode and a long forward, between steps in train mode' AS "by"
FROM unloaded, usual WHERE n >= $least AND n >= 0.9 * usual.others AND NOT EXISTS (SELECT 1 FROM judged WHERE graded)
UNION ALL BY NAME
SELECT format('{} evaluations are known, {} are needed', all_, $least) AS unknown FROM counted WHERE all_ < $least AND (SELECT n FROM unloaded) < $least
