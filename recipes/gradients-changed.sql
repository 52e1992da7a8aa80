-- title = "gradients are changed between backward and step"
-- severity = "notice"
-- symptoms = ["gradients", "loss"]
-- order = 226
-- scope = "rank"
-- needs = "gradients of some parameters after backward and at the optimizer step, from three sampled steps"
-- what = "{fact}"
-- why = [
--   "{evidence}",
--   "cosine between the gradients after backward and at the step: {cosine:.2f} (median over {params} parameters of {steps} sampled steps, from step {step} to {last}); clipping and loss scaling leave it at 1",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, param, gradient_rms, step_rms, direction FROM python.updates ORDER BY step DESC, place LIMIT 24\"",
--   "probe {endpoint} checkpoint before-restart.pt",
-- ]
-- false_positives = "noise on purpose: differentially private training (`info` with Opacus), Langevin dynamics; gradient ascent on purpose, as in unlearning; `info`: gradients averaged over ranks by the program, gradient surgery between tasks, preconditioners, sign-only gradients, clipping by value, penalties added to the gradients"
-- explains = ["layer-not-learning", "learning-rate-too-high", "plateau", "slow-decrease", "oscillation", "divergence"]
-- [parameters.least]
-- value = 3
-- unit = "sampled steps"
-- source = "ours"
-- [parameters.unchanged]
-- value = 0.999
-- unit = "cosine"
-- source = "ours: scaling alone keeps the direction up to rounding, even in half precision"
-- [parameters.even]
-- value = 0.3
-- unit = "standard deviation / mean"
-- source = "the root mean square of 64 random numbers scatters by 9 %, of 16 by 18 %"
-- [parameters.uneven]
-- value = 3.0
-- unit = "times"
-- source = "ours: a change that depends on the gradients would vary between layers as much as they do"
-- [parameters.outweighs]
-- value = 1.0
-- unit = "ratio of the gradient's norm"
-- source = "ours: more than half of each step is then in a random direction; annealed noise (Neelakantan et al. 2015) soon falls far below this"
WITH steps AS (
    SELECT DISTINCT step FROM python.updates WHERE direction IS NOT NULL ORDER BY step DESC LIMIT 8
), rows AS (
    -- Noise leaves the part along the gradient as it is, but for its own share in that one of so many directions.
    SELECT u.*, step_rms * SQRT(GREATEST(0, 1 - direction * direction)) AS added,
        gradient_rms * COALESCE(clip_ratio, 1) AS given,
        ABS(step_rms * direction - given) <= 4 / SQRT(looked_at) * added AS kept
    FROM python.updates u JOIN steps USING (step)
    WHERE optimizer IS NOT NULL AND after_backward = 'present' AND at_step = 'present' AND direction IS NOT NULL AND gradient_rms > 0 AND step_rms > 0 AND looked_at >= 16
        AND COALESCE(in_graph, true)  -- else its gradient comes from elsewhere: a copy that is handed the gradients of the model
), by_step AS (
    SELECT step, COUNT(*) AS params, MEDIAN(direction) AS cosine, MAX(direction) AS most, MEDIAN(added) AS noise, STDDEV_POP(added) / AVG(added) AS scatter,
        quantile_cont(gradient_rms, 0.9) / quantile_cont(gradient_rms, 0.1) AS spread, SQRT(SUM(numel * added * added) / SUM(numel * given * given)) AS ratio, MEDIAN(ABS(inward)) AS inward, AVG(kept::INT) AS kept
    FROM rows GROUP BY step HAVING COUNT(*) >= 3
), counted AS (
    SELECT COUNT(*) AS steps, MIN(step) AS step, MAX(step) AS last, MAX(params) AS params, MEDIAN(cosine) AS cosine, MEDIAN(noise) AS noise, MEDIAN(ratio) AS ratio,
        COUNT(*) FILTER (most < $unchanged) AS changed, MAX(most) AS most, MEDIAN(scatter) AS scatter, MEDIAN(spread) AS spread, MEDIAN(inward) AS inward, MEDIAN(kept) AS kept FROM by_step
), private AS (
    SELECT EXISTS (SELECT 1 FROM probe.facts WHERE lower(name || ' ' || COALESCE(value, '')) LIKE '%opacus%') AS yes
), judged AS (
    SELECT *, steps >= $least AND changed = steps AND scatter < $even AND spread > $uneven AND inward < 0.35 AND kept >= 0.9 AS noisy, steps >= $least AND most < -$unchanged AS reversed,
        steps >= $least AND changed = steps AS altered FROM counted, private
)
SELECT NULL AS unknown, 'noise' AS subject, CASE WHEN ratio < $outweighs OR yes THEN 'info' ELSE 'notice' END AS severity, step, last, steps, params, cosine,
    format('noise is added to the gradients between backward and step, {:.2g} times as large as the gradient itself', ratio) AS fact,
    format('the added part has the same size in all parameters ({:.2g}, to within {:.0f} %), while their gradients differ by a factor of {:.2g}; the component along the gradient is unchanged', noise, 100 * scatter, spread) AS evidence
FROM judged WHERE noisy
UNION ALL BY NAME
SELECT NULL AS unknown, 'sign' AS subject, 'notice' AS severity, step, last, steps, params, cosine,
    'the sign of the gradients is flipped between backward and step: the step goes uphill' AS fact,
    'at the optimizer step they point in the opposite direction' AS evidence
FROM judged WHERE reversed
UNION ALL BY NAME
SELECT NULL AS unknown, 'changed' AS subject, 'info' AS severity, step, last, steps, params, cosine,
    format('the gradients are changed between backward and step: the change is {:.2g} times as large as the gradient', ratio) AS fact,
    'averaging over ranks, gradient surgery, clipping by value, a preconditioner or a penalty has this effect' AS evidence
FROM judged WHERE altered AND NOT noisy AND NOT reversed
UNION ALL BY NAME
SELECT format('gradients of {} sampled steps were seen both after backward and at the step, {} are needed', steps, $least) AS unknown FROM counted WHERE steps < $least
