-- title = "gradients have the wrong sign"
-- severity = "notice"
-- symptoms = ["gradients", "loss"]
-- order = 128
-- scope = "rank"
-- needs = "an audit in a forked child process, about ten seconds after the start; the model must be on the CPU, neither compiled nor sharded"
-- what = "{fact}"
-- why = [
--   "moved slightly along their gradients, {turned:.0%} of the checked parameters change the outputs by {leak:.2f} times what the gradients predict{others}",
--   "measured at step {step}: the call of {model} was repeated with each parameter moved by 1 % and by 0.2 % of its size, with dropout and batch normalization off",
--   "an optimizer step moves parameters against the gradient: here it increases the loss by as much as it should decrease it",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, model, subject, module, effect, leak, effect_ratio, leak_ratio FROM python.dependence WHERE question = 'gradient' ORDER BY t_ns DESC LIMIT 5\"",
--   "probe {endpoint} checkpoint before-restart.pt",
--   "probe {endpoint} stop",
-- ]
-- false_positives = "adversarial training by gradient reversal, if the repeated call has only the adversary's output; with both outputs nothing is reported"
-- explains = ["gradients-exploding", "gradient-depth", "gradient-exploding-layer", "divergence", "loss-spike", "oscillation", "plateau", "slow-decrease", "layer-not-learning", "learning-rate-too-high", "no-warm-up", "optimizer-state"]
-- [parameters.all]
-- value = 0.99
-- unit = "ratio of the checked parameters"
-- source = "ours: a parameter whose slope matches neither the gradient nor its negative (a straight-through estimator, a stopped gradient) makes the rest unreliable"
WITH newest AS (
    SELECT * FROM python.dependence WHERE question = 'gradient' AND refused IS NULL QUALIFY ROW_NUMBER() OVER (PARTITION BY model ORDER BY t_ns DESC) = 1
)
SELECT NULL AS unknown, subject, step, model, leak, leak_ratio AS turned,
    CASE WHEN leak_ratio >= $all THEN format('the gradient has the wrong sign: that of every parameter of {} points the wrong way', model)
        ELSE format('the gradient has the wrong sign for the parameters from {} to {}: theirs points the wrong way, and that of the layers after them is right', subject, module) END AS fact,
    CASE WHEN effect_ratio > 0 THEN format('; the others by {:.2f} times', effect) ELSE '' END AS others
FROM newest WHERE leak_ratio > 0 AND leak_ratio + effect_ratio >= $all
UNION ALL BY NAME
SELECT COALESCE((SELECT refused FROM python.dependence WHERE refused IS NOT NULL ORDER BY t_ns DESC LIMIT 1), 'gradient directions were not measured') AS unknown WHERE NOT EXISTS (SELECT 1 FROM newest)
