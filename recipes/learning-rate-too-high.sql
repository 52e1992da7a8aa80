-- title = "learning rate too high"
-- severity = "notice"
-- symptoms = ["gradients", "loss", "nan"]
-- order = 310
-- scope = "rank"
-- needs = "update ratios (relative weight change per step) of several steps"
-- deepen = "gradients"
-- what = "{seen} (median over parameters): {verdict}"
-- why = [
--   "update ratio {ratio:.2g} in the last {n} sampled steps, {kind}; usual in {phase} training: {low:.0e} to {high:.0e}",
--   "weight norms are {grown:.1f} times what they were at first",
--   "update ratio {worst:.2g} in step {worst_step} (median over parameters)",
--   "largest change: {param}, {most:.2g} of its weight in one step",
--   "loss: {loss_best:.4g} at its lowest, {loss_then:.4g} some steps before, {loss_now:.4g} now",
-- ]
-- next = [
--   "probe {endpoint} lr --scale {scale:.1g}",
--   "probe {endpoint} query \"SELECT param, update_ratio, weight_norm, norm FROM python.gradients WHERE step = (SELECT MAX(step) FROM python.gradients) ORDER BY update_ratio DESC LIMIT 10\"",
-- ]
-- false_positives = "large updates or tenfold weight growth without a rising loss, if the optimizer is not adaptive (`info`: something else may keep the loss from falling; only an adaptive optimizer's updates are about as large as the rate whatever the gradient); weights initialized to zero, such as adapters; a loss whose targets move, as in reinforcement learning (`info`); the first steps from scratch with a high rate and a short warm-up, except with RMSprop, whose first updates exceed the rate anyway"
-- explains = ["divergence", "oscillation", "loss-spike", "dead-units", "saturated-units", "plateau", "slow-decrease", "loss-nan", "amp-overflow", "output-constant", "weights-overwritten"]
-- uses = ["trainings", "adversarial", "moving", "reweighted"]
-- [parameters.limit]
-- value = 0.1
-- unit = "update ratio"
-- source = "practice: above 0.1 a step destroys what was learned; reduce the rate 5 to 10 times (LLM training guides)"
-- [parameters.over]
-- value = 10.0
-- unit = "times the top of the phase's range"
-- source = "practice: 1e-3 to 1e-2 in the first 1,000 steps, 1e-4 to 1e-3 until 10,000, 1e-5 to 1e-4 later; ours: ten times more, and only where the loss does not fall, since small models live above these ranges"
-- [parameters.growth]
-- value = 10.0
-- unit = "times"
-- source = "practice: weight norms grow by 10 % to 50 % over a run, ten times is an alarm; an adaptive optimizer with a far too high rate makes the weights large, and thus the ratios small again"
-- [parameters.learned]
-- value = 0.6
-- unit = "ratio of the first loss"
-- source = "ours: a loss that has fallen this far shows learning in spite of one large step"
-- [parameters.settled]
-- value = 30
-- unit = "steps"
-- source = "torch: RMSprop divides by a mean of squares that starts at 0 without bias correction; at alpha 0.99 its first update is 10 times the rate, at step 30 still twice"
-- [parameters.least_rms]
-- value = 1e-3
-- unit = "root mean square of a parameter"
-- source = "ours: weights are initialized at 0.02 or more; half of BERT's parameters are biases that start at 0, relative to which any update is large"
-- [parameters.least]
-- value = 3
-- unit = "sampled steps"
-- source = "ours"
WITH updates AS (
    -- Beside the size that the parameter began with: next to weights that have shrunk to nothing, any update is large.
    SELECT * REPLACE (COALESCE(update_ratio * weight_norm / NULLIF(GREATEST(weight_norm, first), 0), update_ratio) AS update_ratio) FROM (
        SELECT *, FIRST_VALUE(weight_norm IGNORE NULLS) OVER (PARTITION BY param ORDER BY step) AS first FROM python.gradients WHERE step >= (SELECT MAX(begun) FROM trainings))
), steps AS (
    SELECT DISTINCT step FROM updates WHERE update_ratio IS NOT NULL AND step >= 10 ORDER BY step DESC LIMIT 5
), seen AS (
    SELECT step, MEDIAN(update_ratio) AS ratio, ANY_VALUE(update_kind) AS kind, MAX(update_ratio) AS most, ARG_MAX(param, update_ratio) AS param
    FROM updates JOIN steps USING (step) WHERE isfinite(update_ratio) AND numel >= 16 GROUP BY step
), now AS (
    SELECT MEDIAN(ratio) AS ratio, MIN(ratio) AS least_ratio, COUNT(*) AS n, MIN(step) AS step, MAX(step) AS last, ANY_VALUE(kind) AS kind,
        ARG_MAX(most, step) AS most, ARG_MAX(param, step) AS param FROM seen
), phase AS (
    SELECT *, CASE WHEN last < 1000 THEN 'early' WHEN last < 10000 THEN 'middle' ELSE 'late' END AS phase,
        CASE WHEN last < 1000 THEN 1e-2 WHEN last < 10000 THEN 1e-3 ELSE 1e-4 END AS high FROM now
), optimizer AS (
    SELECT ARG_MAX(optimizer, t_ns) AS name, COALESCE(ARG_MAX(optimizer, t_ns) NOT IN ('SGD', 'ASGD', 'Rprop', 'LBFGS'), false) AS adaptive FROM python.optimizers
), worst AS (
    SELECT step AS worst_step, MEDIAN(update_ratio) AS worst FROM updates, optimizer
    WHERE isfinite(update_ratio) AND numel >= 64 AND COALESCE(first >= $least_rms * SQRT(numel), true) AND (step >= $settled OR name IS DISTINCT FROM 'RMSprop') AND step > (SELECT MAX(step) FROM python.gradients) - 2000
    GROUP BY step HAVING COUNT(*) >= 5 AND MEDIAN(update_ratio) > $limit ORDER BY worst DESC LIMIT 1
), grown AS (
    SELECT MEDIAN(now / first) AS grown, COUNT(*) AS params FROM (
        SELECT ARG_MAX(weight_norm, step) AS now, ARG_MIN(weight_norm, step) AS first FROM updates
        WHERE weight_norm > 0 AND isfinite(weight_norm) AND numel >= 16 AND COALESCE(updates.first >= $least_rms * SQRT(numel), true) GROUP BY param HAVING COUNT(*) >= 3)
), losses AS (
    SELECT MEDIAN(loss) FILTER (ago <= 50) AS loss_now, MEDIAN(loss) FILTER (ago > 250) AS loss_then, ARG_MIN(lr, ago) AS lr, 1.4826 * MAD(loss) FILTER (ago <= 50) AS spread
    FROM (SELECT loss, lr, ROW_NUMBER() OVER (ORDER BY step DESC) AS ago FROM python.steps WHERE isfinite(loss) AND step >= (SELECT MAX(begun) FROM trainings) ORDER BY step DESC LIMIT 300)
), best AS (
    SELECT MIN(level) AS loss_best, ARG_MIN(part, level) * 20 AS best_step, ARG_MIN(level, part) AS loss_first FROM (SELECT step // 20 AS part, MEDIAN(loss) AS level FROM python.steps WHERE isfinite(loss) AND step >= (SELECT MAX(begun) FROM trainings) GROUP BY part)
), terms AS (
    -- A loss whose terms get more weight rises without getting worse.
    SELECT COALESCE(ARG_MAX(weights_low, step) > 1.25 * ARG_MIN(weights_high, ABS(step - best_step)), false) AS heavier FROM reweighted, best
), judged AS (
    SELECT losses.*, loss_best, adaptive, adversarial.compete IS NULL AND NOT adversarial.contrasted AND NOT moving.yes AND NOT heavier AND COALESCE(loss_now > loss_best + GREATEST(0.2 * ABS(loss_best), 3 * spread), false) AS risen,
        -- A step can be large beside what a parameter began with, and right: then the loss falls.
        worst IS NOT NULL AND adaptive AND NOT COALESCE(loss_first > 0 AND loss_now < $learned * loss_first, false) AS jumped
    FROM losses CROSS JOIN best CROSS JOIN optimizer CROSS JOIN adversarial CROSS JOIN moving CROSS JOIN terms LEFT JOIN worst ON true
)
SELECT NULL AS unknown, COALESCE(worst_step, step) AS step, ratio, n, kind, most, param, phase, high / 10 AS low, high, lr,
    loss_best, loss_then, loss_now,
    CASE WHEN risen OR jumped THEN format('learning rate {:.3g} is too high for {} training', lr, phase)
        WHEN grown > $growth THEN format('whether the learning rate {:.3g} is the reason was not shown', lr)
        WHEN worst IS NOT NULL AND NOT risen THEN format('large for {} training, but the loss fell; that the learning rate {:.3g} is too high was not shown', phase, lr)
        ELSE format('large for {} training, and the loss is not falling; whether the learning rate {:.3g} is the reason was not shown', phase, lr) END AS verdict,
    CASE WHEN risen THEN 0.1 END AS scale,
    CASE WHEN grown > $growth THEN grown END AS grown,
    worst.worst, worst_step,
    CASE WHEN grown > $growth THEN format('the weights have grown {:.0f} times', grown) WHEN worst > ratio THEN format('step {} changed the weights by {:.0f} %', worst_step, 100 * worst)
        ELSE format('each step changes the weights by {:.2f} %', 100 * ratio) END AS seen,
    CASE WHEN least_ratio > $limit AND risen THEN 'alarm' WHEN risen OR jumped THEN 'notice' ELSE 'info' END AS severity
FROM phase CROSS JOIN judged CROSS JOIN grown LEFT JOIN worst ON true
WHERE worst IS NOT NULL OR n >= $least AND (least_ratio > $limit OR grown > $growth
    OR (least_ratio > $over * high AND loss_now > loss_then - 0.02 * ABS(loss_then) - 0.2 * spread))
UNION ALL BY NAME
SELECT format('update ratios of {} steps, {} are needed', COUNT(*), $least) AS unknown FROM seen HAVING COUNT(*) < $least
