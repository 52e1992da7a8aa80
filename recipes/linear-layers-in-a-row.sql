-- title = "no non-linearity between layers"
-- severity = "notice"
-- symptoms = ["loss", "gradients"]
-- order = 134
-- scope = "rank"
-- needs = "the shape of the graph of a loss on two sampled steps: matrices behind one another, outside of compiled parts and reentrant activation checkpoints"
-- what = "there is no activation between linear layers ({layers}): each such row is one linear map, whatever its width"
-- why = [
--   "in {direct} of {junctions} places where a layer stands behind another, nothing but linear operations (dropout, a mean, another shape) lies between them, and no other operation takes what the first one made",
--   "it was so in all of {n} graphs looked at, from step {step} on; the layers between have enough units to be no bottleneck",
--   "{doubt}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, junctions, direct, direct_layers FROM python.graphs WHERE junctions IS NOT NULL ORDER BY step DESC LIMIT 8\"",
--   "probe {endpoint} checkpoint before-restart.pt",
-- ]
-- false_positives = "deep linear networks that are studied as such; a projection in front of a head (`info` where most other places have an activation); low-rank factors, adapters and attentions are left out"
-- explains = ["plateau", "slow-decrease"]
-- [parameters.least]
-- value = 2
-- unit = "graphs"
-- source = "ours: every step has the same structure"
-- [parameters.share]
-- value = 0.5
-- unit = "ratio of the places"
-- source = "ours: one projection without an activation is often meant, half of all are not"
WITH looks AS (
    SELECT * FROM python.graphs WHERE junctions IS NOT NULL ORDER BY t_ns DESC LIMIT 16
), groups AS (
    SELECT direct_layers AS layers, COUNT(*) AS n, MIN(step) AS step, MIN(direct) AS direct, MAX(junctions) AS junctions
    FROM looks WHERE direct > 0 AND junctions > 0 GROUP BY direct_layers HAVING COUNT(*) >= $least
)
SELECT NULL AS unknown, layers, layers AS subject, n, step, direct, junctions,
    CASE WHEN direct >= $share * junctions THEN 'notice' ELSE 'info' END AS severity,
    CASE WHEN direct < $share * junctions THEN 'most other places have a non-linearity: this one may be meant' END AS doubt
FROM groups
UNION ALL BY NAME
SELECT format('{} graphs were sampled, {} are needed', COUNT(*), $least) AS unknown FROM looks HAVING COUNT(*) < $least
