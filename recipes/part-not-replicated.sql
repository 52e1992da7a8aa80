-- title = "part outside the replicas"
-- severity = "alarm"
-- symptoms = ["loss", "gradients"]
-- order = 217
-- scope = "job"
-- needs = "values of parameters on every rank at the same steps, beside a model in DistributedDataParallel"
-- what = "{subject} differs between the ranks, although the model in DistributedDataParallel is the same on all: it is trained outside of it, and its gradients are not averaged"
-- why = [
--   "root mean square of its values after the same {steps} steps differs; at step {step}: {sizes}",
--   "{model}: equal hashes of its weights on all {ranks} ranks at {agreed} steps",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, rank, param, numel, optimizer, weight_rms, gradient_rms FROM python.updates ORDER BY step DESC, place, rank LIMIT 40\"",
-- ]
-- false_positives = "a part that each rank trains for itself on purpose; model parallelism beside data parallelism"
-- explains = ["slow-decrease", "plateau"]
-- [parameters.least]
-- value = 2
-- unit = "steps looked at"
-- source = "ours: at step 3 all may still be equal by chance"
WITH replicas AS (
    SELECT step, number, ANY_VALUE(model) AS model, COUNT(DISTINCT rank) AS ranks, COUNT(DISTINCT weights_hash) AS kinds FROM python.weights
    WHERE replicated AND from_start AND optimizer IS NOT NULL GROUP BY step, number
), agreement AS (
    SELECT ANY_VALUE(model) AS model, MAX(ranks) AS ranks, COUNT(*) AS agreed FROM replicas
    WHERE ranks > 1 AND ranks = (SELECT MAX(ranks) FROM replicas) HAVING MAX(kinds) = 1
), rows AS (
    SELECT u.step, u.rank, u.param, u.place, u.numel, u.weight_rms,
        ROW_NUMBER() OVER (PARTITION BY u.rank, u.pid, u.step, u.param, u.numel ORDER BY u.t_ns, u.place) AS which
    FROM python.updates u JOIN (SELECT DISTINCT rank, from_start FROM python.weights WHERE replicated AND from_start) USING (rank)
    WHERE u.optimizer IS NOT NULL AND u.weight_rms IS NOT NULL
), compared AS (
    SELECT step, param, numel, which, COUNT(DISTINCT rank) AS ranks, COUNT(DISTINCT weight_rms) AS kinds,
        array_to_string(list(format('{:.6g} (rank {})', weight_rms, rank) ORDER BY rank)[:8], ', ') AS sizes
    FROM rows GROUP BY ALL HAVING COUNT(DISTINCT rank) = (SELECT ranks FROM agreement)
), judged AS (
    SELECT param, numel, which, COUNT(*) AS looked, COUNT(*) FILTER (kinds > 1) AS steps, MIN(step) FILTER (kinds > 1) AS step, ARG_MIN(sizes, step) FILTER (kinds > 1) AS sizes
    FROM compared GROUP BY ALL
)
SELECT NULL AS unknown, COALESCE(param, format('a parameter of {} elements that is in no known model', numel)) AS subject, steps, step, sizes, model, agreement.ranks, agreed
FROM judged, agreement WHERE steps >= $least AND steps >= 0.5 * looked
UNION ALL BY NAME
SELECT 'no model in DistributedDataParallel is known to be equal on all ranks' AS unknown WHERE NOT EXISTS (SELECT 1 FROM agreement)
UNION ALL BY NAME
SELECT 'parameters were looked at on all ranks in too few steps' AS unknown FROM agreement WHERE COALESCE((SELECT MAX(looked) FROM judged), 0) < $least
