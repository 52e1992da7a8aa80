-- title = "attention weights do not add up to 1"
-- severity = "notice"
-- symptoms = ["loss", "gradients"]
-- order = 127
-- scope = "rank"
-- needs = "the autograd graph of the loss, from two sampled steps, with an attention written in plain operations (fused attention is correct by construction)"
-- what = "the softmax of an attention runs over the wrong dimension: the attention weights of a position do not add up to 1"
-- why = [
--   "in {unnormalized} of {attentions} attentions, the product with the values sums over one dimension but the softmax runs over another (queries, heads or samples); the keys are dim=-1",
--   "each weight then depends on the queries of all positions, including later ones: a causal mask does not hide the future",
--   "seen in all {n} sampled graphs, from step {step} on",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, attentions, unnormalized FROM python.graphs WHERE attentions IS NOT NULL ORDER BY step DESC LIMIT 8\"",
--   "probe {endpoint} checkpoint before-restart.pt",
--   "probe {endpoint} stop",
-- ]
-- false_positives = "attention in which a few queries compete for positions by design and the weights are not renormalized afterwards"
-- explains = ["dependence", "train-validation-gap", "validation-rising", "plateau", "slow-decrease"]
-- [parameters.least]
-- value = 2
-- unit = "graphs"
-- source = "ours: every step has the same structure"
WITH looks AS (
    SELECT * FROM python.graphs WHERE attentions IS NOT NULL ORDER BY t_ns DESC LIMIT 16
), counted AS (
    SELECT attentions, unnormalized, COUNT(*) AS n, MIN(step) AS step FROM looks WHERE unnormalized > 0 GROUP BY ALL HAVING COUNT(*) >= $least
)
SELECT NULL AS unknown, 'softmax' AS subject, * FROM counted QUALIFY ROW_NUMBER() OVER (ORDER BY n DESC) = 1
UNION ALL BY NAME
SELECT format('{} graphs were sampled, {} are needed', COUNT(*), $least) AS unknown FROM looks HAVING COUNT(*) < $least
