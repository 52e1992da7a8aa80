-- title = "attention over a single position"
-- severity = "notice"
-- symptoms = ["loss", "gradients"]
-- order = 127
-- scope = "rank"
-- needs = "the shape of the graph of a loss on two sampled steps, with attentions"
-- what = "every attention runs over a single position: its softmax over one key is always 1, and queries and keys have no effect"
-- why = [
--   "all {softmaxes} attentions of a graph, in all {n} graphs looked at, from step {step} to {last}",
--   "the output is the value of that one position, as of a linear layer; the projections of queries and keys get no gradient",
--   "the sequence is probably in another dimension: a row of a table made one token (unsqueeze(1)), or batch_first left out with a batch of one",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, softmaxes, lone FROM python.graphs WHERE softmaxes IS NOT NULL ORDER BY step DESC LIMIT 8\"",
--   "probe {endpoint} query \"SELECT step, name, shape FROM python.model_inputs WHERE module <> 'batch' ORDER BY step DESC LIMIT 8\"",
-- ]
-- false_positives = "conditioning on a single token by cross-attention in a model with no other attention; one layer that is kept for longer inputs"
-- explains = ["layer-not-learning", "gradients-vanishing"]
-- [parameters.least]
-- value = 3
-- unit = "graphs"
-- source = "ours: sequences of one position occur now and then among others"
WITH looks AS (
    SELECT * FROM python.graphs WHERE softmaxes > 0 QUALIFY ROW_NUMBER() OVER (ORDER BY t_ns DESC) <= 16
), judged AS (
    SELECT COUNT(*) AS n, MIN(step) AS step, MAX(step) AS last, MAX(softmaxes) AS softmaxes FROM looks HAVING COUNT(*) >= $least AND BOOL_AND(lone = softmaxes)
)
SELECT NULL AS unknown, 'attention' AS subject, * FROM judged
UNION ALL BY NAME
SELECT format('graphs with an attention that were looked at: {}, {} are needed', COUNT(*), $least) AS unknown FROM looks HAVING COUNT(*) < $least
