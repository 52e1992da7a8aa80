-- title = "ranks step at different times"
-- severity = "alarm"
-- symptoms = ["loss", "gradients"]
-- order = 213
-- scope = "job"
-- needs = "the backward calls per step on every rank, counted from the start of training, for a DistributedDataParallel model"
-- what = "each rank decides for itself whether to step: over the same {backwards:.0f} backwards, rank {least_rank} made {least_steps} steps and rank {most_rank} {most_steps}, so the replicas drift apart"
-- why = [
--   "{differ} of {looked} steps took a different number of backwards on different ranks, from step {step} on; the gradients of all these backwards are averaged over the ranks",
--   "a guard that skips steps must use a value that is the same on all ranks: average the loss first (all_reduce), or check the norm of the averaged gradients",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, rank, micro_steps, loss FROM python.steps WHERE micro_steps > 1 ORDER BY step DESC, rank LIMIT 16\"",
--   "probe {endpoint} query \"SELECT step, rank, weights_hash FROM python.weights WHERE replicated ORDER BY step DESC, rank LIMIT 16\"",
-- ]
-- false_positives = "ranks that accumulate over different numbers of batches on purpose and average their weights later"
-- explains = ["replicas-part", "ranks-settings-differ", "loss-spike", "divergence"]
-- dated = true
-- [parameters.least]
-- value = 2
-- unit = "steps"
-- source = "ours: a single one could be the end of a recording, although it is enough to make replicas diverge"
WITH weights AS (
    SELECT COALESCE(BOOL_OR(replicated), false) AS replicated, COALESCE(BOOL_AND(from_start), false) AS from_start, COUNT(DISTINCT rank) AS ranks FROM python.weights
), rows AS (
    SELECT DISTINCT ON (rank, step) rank, step, micro_steps FROM python.steps WHERE micro_steps IS NOT NULL
), common AS (
    SELECT MAX(first) AS first, MIN(last) AS last, COUNT(*) AS ranks FROM (SELECT rank, MIN(step) AS first, MAX(step) AS last FROM rows GROUP BY rank)
), by_step AS (
    SELECT step, COUNT(DISTINCT micro_steps) AS kinds, COUNT(*) AS ranks FROM rows, common WHERE step BETWEEN first AND last GROUP BY step
), counted AS (
    SELECT COUNT(*) FILTER (kinds > 1) AS differ, COUNT(*) AS looked, MIN(step) FILTER (kinds > 1) AS step FROM by_step, common WHERE by_step.ranks = common.ranks
), sums AS (
    SELECT rank, rows.step, SUM(micro_steps) OVER (PARTITION BY rank ORDER BY rows.step) AS backwards FROM rows, common WHERE rows.step >= first
), all_of AS (
    SELECT MIN(backwards) AS backwards FROM (SELECT rank, MAX(backwards) AS backwards FROM sums GROUP BY rank)
), made AS (
    SELECT rank, COUNT(*) FILTER (sums.backwards <= all_of.backwards) AS steps FROM sums, all_of GROUP BY rank
), ends AS (
    SELECT MIN(steps) AS least_steps, ARG_MIN(rank, (steps, rank)) AS least_rank, MAX(steps) AS most_steps, ARG_MAX(rank, (steps, -rank)) AS most_rank FROM made
)
SELECT NULL AS unknown, 'steps' AS subject, differ, looked, step, backwards, least_steps, least_rank, most_steps, most_rank
FROM counted, all_of, ends, weights WHERE replicated AND from_start AND differ >= $least AND least_rank <> most_rank
UNION ALL BY NAME
SELECT CASE WHEN ranks < 2 OR NOT replicated THEN 'weights of only one rank, or of no replicated model, were sampled' ELSE 'steps are not counted from the start of training on all ranks' END AS unknown
FROM weights WHERE NOT replicated OR NOT from_start OR ranks < 2
