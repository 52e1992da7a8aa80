-- title = "attention weights do not add up to 1"
-- severity = "notice"
-- symptoms = ["loss", "gradients"]
-- order = 127
-- scope = "rank"
-- needs = "the shape of the graph of a loss on two sampled steps, with an attention that is written out (fused ones are right by construction)"
-- what = "the softmax of an attention runs over the wrong dimension: the weights with which a position takes the values do not add up to 1"
-- why = [
--   "in {unnormalized} of {attentions} attentions the product with the values sums over one dimension, and the softmax runs over another (the queries, heads or samples): dim=-1 is that of the keys",
--   "each weight then depends on the queries of all positions, later ones too: a causal mask does not keep the future out",
--   "it was so in all of {n} graphs looked at, from step {step} on",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, attentions, unnormalized FROM python.graphs WHERE attentions IS NOT NULL ORDER BY step DESC LIMIT 8\"",
--   "probe {endpoint} checkpoint before-restart.pt",
--   "probe {endpoint} stop",
-- ]
-- false_positives = "an assignment of positions to a few queries that are meant to compete, and that nothing divides by its sum afterwards"
-- explains = ["dependence", "train-validation-gap", "validation-rising", "plateau", "slow-decrease"]
-- [parameters.least]
-- value = 2
-- unit = "graphs"
-- source = "ours: the structure is the same in each step"
WITH looks AS (
    SELECT * FROM python.graphs WHERE attentions IS NOT NULL ORDER BY t_ns DESC LIMIT 16
), counted AS (
    SELECT attentions, unnormalized, COUNT(*) AS n, MIN(step) AS step FROM looks WHERE unnormalized > 0 GROUP BY ALL HAVING COUNT(*) >= $least
)
SELECT NULL AS unknown, 'softmax' AS subject, * FROM counted QUALIFY ROW_NUMBER() OVER (ORDER BY n DESC) = 1
UNION ALL BY NAME
SELECT format('the shape of {} graphs was looked at, {} are needed', COUNT(*), $least) AS unknown FROM looks HAVING COUNT(*) < $least
