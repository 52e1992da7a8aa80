-- title = "parameters with zeroed gradients still move"
-- severity = "notice"
-- symptoms = ["loss", "gradients"]
-- order = 218
-- scope = "rank"
-- needs = "gradients after backward and at the optimizer step, and weights before and after it, from a few sampled steps"
-- what = "{params} parameters get gradients that something sets to 0 before the step, and still move: {by}: {names}"
-- why = [
--   "in the last {n} sampled steps: a gradient after backward, exactly 0 at the step, and the step changed the weights by {change:.2g} of their size",
--   "{size}",
--   "{way}",
--   "a parameter whose gradient is 0 is stepped like any other: to freeze it, set requires_grad to False, or its gradient to None",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, param, after_backward, at_step, update_rms, weight_rms FROM python.updates WHERE at_step = 'zero' ORDER BY step DESC, place LIMIT 24\"",
--   "probe {endpoint} checkpoint before-restart.pt",
-- ]
-- false_positives = "layers frozen only for a while; earlier momentum that is fading, and decay that takes less than a thousandth of the weights in a thousand steps (both `info`)"
-- explains = ["gradient-exploding-layer", "gradients-exploding", "gradients-vanishing", "weights-shrink", "weight-decay", "dead-units", "output-constant", "learning-rate-too-high", "layer-not-learning", "optimizer-state", "loss-spike", "divergence", "plateau", "slow-decrease"]
-- [parameters.least]
-- value = 3
-- unit = "sampled steps"
-- source = "ours: earlier momentum has faded, or is fading, by then"
-- [parameters.most]
-- value = 0.9
-- unit = "ratio of the parameters"
-- source = "ours: if all gradients are gone, zero_grad comes too late (see gradients-cleared)"
-- [parameters.counts]
-- value = 1e-6
-- unit = "ratio of the weight per step"
-- source = "practice: learning rate x decay is 1e-6 to 1e-4 per step"
WITH latest AS (
    SELECT * FROM python.updates WHERE optimizer IS NOT NULL QUALIFY ROW_NUMBER() OVER (PARTITION BY param ORDER BY step DESC) <= 8
), params AS (
    SELECT param, COUNT(*) AS n, MIN(place) AS place, MIN(step) AS step, MAX(step) AS last, MEDIAN(update_rms) AS moved, MEDIAN(update_rms / NULLIF(weight_rms, 0)) AS change, ARG_MIN(weight_rms, step) AS first, ARG_MAX(weight_rms, step) AS now,
        ANY_VALUE(optimizer) AS optimizer, BOOL_AND(after_backward = 'present' AND at_step = 'zero') AS zeroed FROM latest WHERE at_step IS NOT NULL AND after_backward IS NOT NULL AND param IS NOT NULL GROUP BY param HAVING COUNT(*) >= $least
), share AS (
    SELECT AVG(zeroed::INT) AS share FROM params
), settings AS (
    SELECT MAX(weight_decay) AS decay, MAX(momentum) AS momentum, MAX(lr) AS lr FROM python.optimizers
), found AS (
    SELECT COUNT(*) AS params, MAX(n) AS n, MIN(step) AS step, MEDIAN(change) AS change, array_to_string(list(param ORDER BY place)[:4], ', ') AS names, ARG_MIN(param, place) AS subject, ANY_VALUE(optimizer) AS optimizer,
        MEDIAN(first) AS first, MEDIAN(now) AS now FROM params WHERE zeroed AND moved > 0 HAVING COUNT(*) > 0
)
SELECT NULL AS unknown, found.* EXCLUDE (first, now, optimizer),
    CASE WHEN decay > 0 THEN 'weight decay goes on without a gradient, and takes them to 0' ELSE 'the optimizer''s momentum moves them on' END AS by,
    CASE WHEN decay > 0 THEN format('weights of {} sampled elements: {:.3g} at step {} (root mean square), {:.3g} lately', params, first, step, now) END AS size,
    CASE WHEN decay > 0 AND optimizer IN ('Adam', 'NAdam', 'RAdam', 'Adamax') AND change > 10 * lr * decay
        THEN format('weight decay {:.3g} is part of the gradient in {}, which divides it by its own size: without another gradient, each step moves a weight by about the learning rate, {:.3g}', decay, optimizer, lr) END AS way,
    CASE WHEN decay > 0 AND change >= $counts THEN 'notice' ELSE 'info' END AS severity
FROM found, share, settings WHERE share < $most
UNION ALL BY NAME
SELECT format('updates of {} parameters were sampled on {} steps', COUNT(*), $least) AS unknown FROM params HAVING COUNT(*) = 0
