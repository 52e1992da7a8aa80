-- title = "attention over a single position"
-- severity = "notice"
-- symptoms = ["loss", "gradients"]
-- order = 127
-- scope = "rank"
-- needs = "the autograd graph of the loss, from two sampled steps, with attention"
-- what = "every attention runs over a single position: its softmax over one key is always 1, and queries and keys have no effect"
-- why = [
--   "all {softmaxes} attentions of the graph, in all {n} sampled graphs, from step {step} to {last}",
--   "the output is just the value of that position, like a linear layer; the query and key projections get no gradient",
--   "the sequence is probably in another dimension: each table row became a single token (unsqueeze(1)), or batch_first is missing and the batch size is 1",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, softmaxes, lone FROM python.graphs WHERE softmaxes IS NOT NULL ORDER BY step DESC LIMIT 8\"",
--   "probe {endpoint} query \"SELECT step, name, shape FROM python.model_inputs WHERE module <> 'batch' ORDER BY step DESC LIMIT 8\"",
-- ]
-- false_positives = "a model whose only attention is cross-attention to a single conditioning token; a layer kept for longer inputs"
-- explains = ["layer-not-learning", "gradients-vanishing"]
-- [parameters.least]
-- value = 3
-- unit = "graphs"
-- source = "ours: an occasional sequence of length 1 is normal"
WITH looks AS (
    SELECT * FROM python.graphs WHERE softmaxes > 0 QUALIFY ROW_NUMBER() OVER (ORDER BY t_ns DESC) <= 16
), judged AS (
    SELECT COUNT(*) AS n, MIN(step) AS step, MAX(step) AS last, MAX(softmaxes) AS softmaxes FROM looks HAVING COUNT(*) >= $least AND BOOL_AND(lone = softmaxes)
)
SELECT NULL AS unknown, 'attention' AS subject, * FROM judged
UNION ALL BY NAME
SELECT format('{} graphs with attention were sampled, {} are needed', COUNT(*), $least) AS unknown FROM looks HAVING COUNT(*) < $least
