-- title = "the gradient is turned round"
-- severity = "notice"
-- symptoms = ["gradients", "loss"]
-- order = 128
-- scope = "rank"
-- needs = "an audit in a forked child: a model on the CPU that is not compiled or sharded, some ten seconds after the start"
-- what = "{fact}"
-- why = [
--   "moved a little along their gradients, {turned:.0%} of the parameters that were looked at change the outputs by {leak:.2f} times what the gradients say{others}",
--   "measured at step {step} by repeating the call of {model} with each parameter moved by 1 % and by 0.2 % of its size; dropout and normalization by the batch off",
--   "a step takes the parameters against the gradient: it makes the loss larger by as much as it should make it smaller",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, model, subject, module, effect, leak, effect_ratio, leak_ratio FROM python.dependence WHERE question = 'gradient' ORDER BY t_ns DESC LIMIT 5\"",
--   "probe {endpoint} checkpoint before-restart.pt",
--   "probe {endpoint} stop",
-- ]
-- false_positives = "adversarial training by gradient reversal, where the call that was repeated has only the adversary's output: with both outputs nothing is reported"
-- explains = ["gradients-exploding", "gradient-depth", "gradient-exploding-layer", "divergence", "loss-spike", "oscillation", "plateau", "slow-decrease", "layer-not-learning", "learning-rate-too-high", "no-warm-up", "optimizer-state"]
-- [parameters.all]
-- value = 0.99
-- unit = "ratio of the parameters looked at"
-- source = "ours: one whose slope is neither the gradient's nor its opposite (a straight-through estimator, a stopped gradient) makes the others unsafe to judge"
WITH newest AS (
    SELECT * FROM python.dependence WHERE question = 'gradient' AND refused IS NULL QUALIFY ROW_NUMBER() OVER (PARTITION BY model ORDER BY t_ns DESC) = 1
)
SELECT NULL AS unknown, subject, step, model, leak, leak_ratio AS turned,
    CASE WHEN leak_ratio >= $all THEN format('the gradient is turned round on its way: that of every parameter of {} points the wrong way', model)
        ELSE format('the gradient is turned round on its way to the parameters from {} to {}: theirs points the wrong way, and that of the layers behind them is right', subject, module) END AS fact,
    CASE WHEN effect_ratio > 0 THEN format('; the others by {:.2f} times', effect) ELSE '' END AS others
FROM newest WHERE leak_ratio > 0 AND leak_ratio + effect_ratio >= $all
UNION ALL BY NAME
SELECT COALESCE((SELECT refused FROM python.dependence WHERE refused IS NOT NULL ORDER BY t_ns DESC LIMIT 1), 'the directions of the gradients were not measured') AS unknown WHERE NOT EXISTS (SELECT 1 FROM newest)
