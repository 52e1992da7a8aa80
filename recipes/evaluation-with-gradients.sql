-- title = "evaluation with gradients"
-- severity = "info"
-- symptoms = ["slow", "memory"]
-- order = 68
-- scope = "rank"
-- needs = "evaluations whose module calls were seen"
-- what = "gradients are recorded in {n} of {all_} evaluations: each forward builds a graph that no backward uses"
-- why = [
--   "recognised as an evaluation by: {by}; the last one before step {step}, {batches:.0f} batches each of {loader}",
--   "torch.no_grad() or torch.inference_mode() around it spares the memory of its activations, and time; a loss that is added up as a tensor keeps the graph of every batch",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, kind, duration_s, batches, recognised_by FROM python.intervals ORDER BY t_ns DESC LIMIT 10\"",
-- ]
-- false_positives = "evaluations that need gradients: attacks, derivatives of the outputs, adaptation at test time"
-- [parameters.least]
-- value = 2
-- unit = "evaluations"
-- source = "ours"
WITH judged AS (
    SELECT *, recognised_by = 'eval mode, no backward' AS graded FROM python.intervals WHERE kind = 'evaluation' AND state = 'done' AND recognised_by IS NOT NULL
), counted AS (
    SELECT COUNT(*) AS all_, COUNT(*) FILTER (graded) AS n, MAX(step) FILTER (graded) AS step, MEDIAN(batches) FILTER (graded) AS batches, ARG_MAX(loader, t_ns) FILTER (graded) AS loader,
        ARG_MAX(recognised_by, t_ns) FILTER (graded) AS "by" FROM judged
)
SELECT NULL AS unknown, counted.* FROM counted WHERE n >= $least AND n >= 0.9 * all_
UNION ALL BY NAME
SELECT format('{} evaluations are known, {} are needed', all_, $least) AS unknown FROM counted WHERE all_ < $least
