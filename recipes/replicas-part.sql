-- title = "replicas diverge"
-- severity = "alarm"
-- symptoms = ["loss", "gradients"]
-- order = 214
-- scope = "job"
-- needs = "weight hashes of every rank at the same steps, for a DistributedDataParallel model and modules trained beside it"
-- what = "the replicas differ: after step {step} the ranks hold {kinds} different sets of weights of {model}{because}"
-- why = [
--   "their weights differ at {differ} of {looked} sampled steps of all {ranks} ranks; the first one sampled was step {first}",
--   "gradients at the step differed between the ranks in {gradients} of them",
--   "gradients right after backward differed in {made} of {made_looked} of them",
--   "learning rates at step {step}: {rates}",
--   "root mean square of the weights: {sizes}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, rank, weights_hash, gradients_hash FROM python.weights WHERE replicated ORDER BY step DESC, rank LIMIT 16\"",
--   "probe {endpoint} query \"SELECT step, rank, lr FROM python.steps ORDER BY step DESC, rank LIMIT 8\"",
-- ]
-- false_positives = "ranks that train independently for some steps and are then averaged (local SGD)"
-- [parameters.least]
-- value = 2
-- unit = "sampled steps"
-- source = "ours: a single sample could fall between two writes"
WITH rows AS (
    SELECT DISTINCT ON (step, rank, number) replicated, step, rank, number, model, weights_hash, gradients_hash, backward_hash, weights_rms FROM python.weights
    WHERE from_start AND optimizer IS NOT NULL AND (replicated OR EXISTS (SELECT 1 FROM python.weights w WHERE w.replicated))
), world AS (
    SELECT COUNT(DISTINCT rank) AS ranks FROM rows
), by_step AS (
    SELECT step, number, ANY_VALUE(model) AS model, BOOL_AND(replicated) AS replicated, COUNT(DISTINCT rank) AS ranks, COUNT(DISTINCT weights_hash) AS kinds, COUNT(DISTINCT gradients_hash) AS gradients, COUNT(DISTINCT backward_hash) AS made,
        array_to_string(list(format('{:.6g}', weights_rms) ORDER BY rank)[:8], ', ') AS sizes
    FROM rows GROUP BY step, number
), counted AS (
    SELECT number, COUNT(*) AS looked, COUNT(*) FILTER (kinds > 1) AS differ, COUNT(*) FILTER (step >= parted) AS since, NULLIF(COUNT(*) FILTER (kinds > 1 AND gradients > 1), 0) AS gradients, COUNT(*) FILTER (kinds > 1 AND made > 1) AS made, NULLIF(COUNT(*) FILTER (kinds > 1 AND made > 0), 0) AS made_looked, MIN(step) AS first,
        MIN(step) FILTER (kinds > 1) AS step, ANY_VALUE(by_step.ranks) AS ranks
    FROM (SELECT *, MIN(step) FILTER (kinds > 1) OVER (PARTITION BY number) AS parted FROM by_step) by_step, world WHERE by_step.ranks = world.ranks AND by_step.ranks > 1 GROUP BY number
), rates AS (
    SELECT step, COUNT(DISTINCT lr) AS kinds, array_to_string(list(format('{:.6g} (rank {})', lr, rank) ORDER BY rank)[:8], ', ') AS rates FROM python.steps WHERE lr IS NOT NULL GROUP BY step
)
SELECT NULL AS unknown, c.step, c.first, c.looked, c.differ, c.gradients, CASE WHEN c.made_looked > 0 THEN c.made END AS made, c.made_looked, c.ranks, b.kinds, b.model, b.model AS subject, b.sizes, CASE WHEN r.kinds > 1 THEN r.rates END AS rates,
    CASE WHEN NOT b.replicated THEN ': it is outside DistributedDataParallel, so nothing averages its gradients'
        WHEN r.kinds > 1 THEN ': each rank has another learning rate'
        WHEN b.made > 1 THEN ': their gradients differ after backward and are not averaged (the forward bypasses DistributedDataParallel, or every backward runs under no_sync)'
        WHEN b.gradients > 1 AND b.made = 1 THEN ': their gradients are averaged, and then changed before the step on some ranks only (clipping or scaling that not all ranks apply)'
        WHEN b.gradients > 1 THEN ': their gradients differ at the optimizer step; whether they were not averaged, or changed afterwards, is not known'
        WHEN c.step = c.first THEN ': they differ from the first sampled step on, with equal gradients or none to compare (initialized after DistributedDataParallel had broadcast the weights?)'
        ELSE '' END AS because
FROM counted c JOIN by_step b ON b.step = c.step AND b.number = c.number LEFT JOIN rates r ON r.step = c.step
WHERE c.differ >= $least AND c.differ >= 0.9 * c.since
UNION ALL BY NAME
SELECT CASE WHEN (SELECT ranks FROM world) < 2 THEN 'weights of only one rank, or of no replicated model, were sampled' ELSE 'too few steps in which all ranks were sampled' END AS unknown
WHERE COALESCE((SELECT MAX(looked) FROM counted), 0) < $least
