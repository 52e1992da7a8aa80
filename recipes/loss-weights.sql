-- title = "trained loss weights"
-- severity = "alarm"
-- symptoms = ["loss", "gradients", "nan"]
-- order = 17
-- scope = "rank"
-- needs = "the autograd graph of the loss, from two sampled steps"
-- what = "{fact}"
-- why = [
--   "{names} multiplies terms of the loss, and no other term depends on it: the gradient of each weight is the term itself, so training makes the weight smaller whatever the model does",
--   "loss: {first:.4g} at first, {now:.4g} now",
--   "a learned weight needs a term that keeps it up, such as exp(-s) * term + s (Kendall et al. 2018), or a softmax",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, loss_weights, loss_weights_positive FROM python.graphs WHERE loss_weights IS NOT NULL ORDER BY step DESC LIMIT 8\"",
--   "probe {endpoint} checkpoint before-restart.pt",
--   "probe {endpoint} stop",
-- ]
-- false_positives = "weights trained to increase the loss (self-adaptive weights, Lagrange multipliers) or with their own gradient (GradNorm): `info` as long as the loss is not negative"
-- explains = ["loss-unbounded", "gradients-exploding", "gradient-exploding-layer", "learning-rate-too-high", "learning-rate-too-low", "optimizer-state", "layer-not-learning", "loss-spike", "divergence", "oscillation", "output-constant", "nan-origin", "loss-nan", "amp-overflow"]
-- [parameters.least]
-- value = 2
-- unit = "graphs"
-- source = "ours: every step has the same structure"
-- [parameters.early]
-- value = 50
-- unit = "steps"
-- source = "ours"
WITH looks AS (
    SELECT * FROM python.graphs WHERE junctions IS NOT NULL ORDER BY t_ns DESC LIMIT 16
), weighted AS (
    SELECT loss_weights AS names, BOOL_AND(loss_weights_positive) AS positive, COUNT(*) AS n, MIN(step) AS step FROM looks WHERE loss_weights IS NOT NULL GROUP BY loss_weights HAVING COUNT(*) >= $least
), seen AS (
    SELECT step, loss, ROW_NUMBER() OVER (ORDER BY step) AS i, COUNT(*) OVER () AS n FROM python.steps WHERE isfinite(loss)
), losses AS (
    SELECT MEDIAN(loss) FILTER (i <= 10) AS first, MEDIAN(loss) FILTER (i > n - 20) AS now, MIN(loss) FILTER (i <= $early) AS least, MAX(step) FILTER (loss >= 0) AS above FROM seen
), judged AS (
    SELECT *, COALESCE(NOT positive AND now < 0 AND first > 0, false) AS fell FROM weighted, losses
)
SELECT NULL AS unknown, names AS subject, names, first, now,
    CASE WHEN fell THEN above + 1 ELSE step END AS step,
    CASE WHEN fell THEN 'alarm' ELSE 'info' END AS severity,
    CASE WHEN fell THEN format('the weights of the loss are trained with the rest ({}) and have become negative: the loss is below zero since step {}, and training now increases the terms', names, above + 1)
        WHEN positive THEN format('the weights of the loss are trained with the rest ({}): nothing keeps them from going to 0, and the loss with them', names)
        ELSE format('the weights of the loss are trained with the rest ({}): nothing keeps them above 0, and the loss has no lower bound', names) END AS fact
FROM judged
UNION ALL BY NAME
SELECT format('{} graphs were sampled, {} are needed', COUNT(*), $least) AS unknown FROM looks HAVING COUNT(*) < $least
