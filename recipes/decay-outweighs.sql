-- title = "weight decay outweighs the updates"
-- severity = "notice"
-- symptoms = ["loss", "gradients"]
-- order = 211
-- scope = "rank"
-- needs = "weights and updates of a few sampled steps, with an optimizer whose decay acts on the weights (SGD, AdamW)"
-- what = "weight decay outweighs the updates: each step takes {part:.2g} of every weight, so a weight is forgotten within {steps_kept:.0f} steps"
-- why = [
--   "what decay takes off is {share:.2g} times the whole change of the step (median over {params} matrices in the last {n} sampled steps)",
--   "weight_decay {weight_decay:.3g}, learning rate {lr:.3g}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, param, weight_rms, update_rms, decay_rms FROM python.updates ORDER BY step DESC, place LIMIT 24\"",
--   "probe {endpoint} query \"SELECT param_group, lr, weight_decay FROM python.optimizers ORDER BY t_ns DESC LIMIT 5\"",
--   "probe {endpoint} checkpoint before-restart.pt",
--   "probe {endpoint} stop",
-- ]
-- false_positives = "a strong regularisation on purpose; a loss that is at its floor and whose gradients have nearly gone"
-- explains = ["learning-rate-too-high", "weight-decay", "plateau", "slow-decrease", "gradients-vanishing"]
-- [parameters.least]
-- value = 3
-- unit = "steps looked at"
-- source = "ours"
-- [parameters.share]
-- value = 0.5
-- unit = "ratio of the change"
-- source = "ours: in equilibrium decay is a small part of the change, about the root of learning rate × decay"
-- [parameters.part]
-- value = 1e-3
-- unit = "ratio of the weight per step"
-- source = "practice: learning rate × decay of 1e-6 to 1e-4; ours: ten times the top of that"
WITH steps AS (
    SELECT DISTINCT step FROM python.updates ORDER BY step DESC LIMIT 8
), seen AS (
    SELECT u.* FROM python.updates u JOIN steps USING (step)
), params AS (
    SELECT param, COUNT(*) AS n, MEDIAN(decay_rms / update_rms) AS share, MEDIAN(decay_rms / weight_rms) AS part, MIN(step) AS step FROM seen
    WHERE decay_rms > 0 AND update_rms > 0 AND weight_rms > 0 AND equal_rows IS NOT NULL AND at_step = 'present' GROUP BY param
), counted AS (
    SELECT COUNT(*) AS params, MAX(n) AS n, MEDIAN(share) AS share, MEDIAN(part) AS part, MIN(step) AS step FROM params WHERE n >= $least
), settings AS (
    SELECT ARG_MAX(weight_decay, t_ns) AS weight_decay, ARG_MAX(lr, t_ns) AS lr FROM python.optimizers WHERE weight_decay > 0
)
SELECT NULL AS unknown, counted.*, 1 / part AS steps_kept, weight_decay, lr FROM counted, settings WHERE params > 0 AND share >= $share AND part >= $part
UNION ALL BY NAME
SELECT format('updates were looked at in {} steps, {} are needed', COUNT(*), $least) AS unknown FROM steps HAVING COUNT(*) < $least
