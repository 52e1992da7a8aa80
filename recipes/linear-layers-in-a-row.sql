-- title = "no non-linearity between layers"
-- severity = "notice"
-- symptoms = ["loss", "gradients"]
-- order = 134
-- scope = "rank"
-- needs = "the autograd graph of the loss, from two sampled steps, with consecutive matrix products outside compiled parts and reentrant activation checkpoints"
-- what = "there is no activation between linear layers ({layers}): each such chain is a single linear map, whatever its width"
-- why = [
--   "at {direct} of {junctions} places where one layer follows another, there are only linear operations (dropout, mean, reshape) between them, and nothing else uses the first layer's output",
--   "seen in all {n} sampled graphs, from step {step} on; the layers between are wide enough not to be a bottleneck",
--   "{doubt}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, junctions, direct, direct_layers FROM python.graphs WHERE junctions IS NOT NULL ORDER BY step DESC LIMIT 8\"",
--   "probe {endpoint} checkpoint before-restart.pt",
-- ]
-- false_positives = "deep linear networks studied as such; a projection before a head (`info` if most other places have an activation); low-rank factors, adapters and attention are left out"
-- explains = ["plateau", "slow-decrease"]
-- [parameters.least]
-- value = 2
-- unit = "graphs"
-- source = "ours: every step has the same structure"
-- [parameters.share]
-- value = 0.5
-- unit = "ratio of the places"
-- source = "ours: a single projection without an activation is often intended, half of all layers are not"
WITH looks AS (
    SELECT * FROM python.graphs WHERE junctions IS NOT NULL ORDER BY t_ns DESC LIMIT 16
), groups AS (
    SELECT direct_layers AS layers, COUNT(*) AS n, MIN(step) AS step, MIN(direct) AS direct, MAX(junctions) AS junctions
    FROM looks WHERE direct > 0 AND junctions > 0 GROUP BY direct_layers HAVING COUNT(*) >= $least
)
SELECT NULL AS unknown, layers, layers AS subject, n, step, direct, junctions,
    CASE WHEN direct >= $share * junctions THEN 'notice' ELSE 'info' END AS severity,
    CASE WHEN direct < $share * junctions THEN 'most other places have a non-linearity: this one may be intended' END AS doubt
FROM groups
UNION ALL BY NAME
SELECT format('{} graphs were sampled, {} are needed', COUNT(*), $least) AS unknown FROM looks HAVING COUNT(*) < $least
