-- title = "gradients vanish"
-- severity = "notice"
-- symptoms = ["gradients", "loss"]
-- order = 240
-- scope = "rank"
-- needs = "the total gradient norm of several steps"
-- deepen = "gradients"
-- what = "{fact}"
-- why = [
--   "{early:.3g} at first (median of {n} norms), {now:.3g} lately (median of {n_now})",
--   "loss: {loss_early:.4g} then, {loss_now:.4g} now",
--   "{hint}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT param, norm, zero_ratio, update_ratio FROM python.gradients WHERE step = (SELECT MAX(step) FROM python.gradients) ORDER BY place\"",
--   "probe {endpoint} watch --activations --steps 3",
-- ]
-- false_positives = "a model at the minimum of its loss, as in full-batch training (`info` once the loss has fallen at all); a model that has memorized its data, whose loss has fallen too, is not reported"
-- explains = ["layer-not-learning", "learning-rate-too-low", "plateau", "slow-decrease"]
-- effect = true
-- uses = ["trainings"]
-- [parameters.ratio]
-- value = 0.01
-- unit = "ratio to the beginning"
-- source = "practice: watch norms below 0.1 times the starting norm; absolute limits of 1e-2, 1e-3, 1e-4, 1e-5 and 1e-7 are all in use; a relative limit was chosen, and a stricter one, because norms fall in every run"
-- [parameters.floor]
-- value = 1e-7
-- unit = "gradient norm"
-- source = "practice: below 1e-7 a layer counts as vanished"
-- [parameters.kept]
-- value = 0.5
-- unit = "ratio of the first loss"
-- source = "ours: a loss that halved explains a smaller gradient"
-- [parameters.fallen]
-- value = 0.05
-- unit = "ratio of the first loss"
-- source = "ours: with noisy data the loss may only be able to fall a little, and the gradient is 0 at its minimum"
-- [parameters.least]
-- value = 6
-- unit = "norms"
-- source = "ours"
WITH seen AS (
    SELECT step, grad_norm, ROW_NUMBER() OVER (ORDER BY step) AS i, COUNT(*) OVER () AS n FROM python.steps WHERE isfinite(grad_norm) AND step >= (SELECT MAX(begun) FROM trainings)
), ends AS (
    SELECT GREATEST(ANY_VALUE(n) // 8, 3) AS part, ANY_VALUE(n) AS n FROM seen
), norms AS (
    SELECT MEDIAN(grad_norm) FILTER (i <= part) AS early, MEDIAN(grad_norm) FILTER (i > seen.n - part) AS now, MAX(grad_norm) FILTER (i > seen.n - part) AS highest,
        ANY_VALUE(part) AS part, ANY_VALUE(seen.n) AS n, MAX(step) AS last FROM seen, ends
), since AS (
    SELECT MAX(step) AS step FROM seen, norms WHERE grad_norm > 10 * highest
), losses AS (
    -- The first losses, as the first norms: a small model may fall within twenty steps.
    SELECT MEDIAN(loss) FILTER (i <= 5) AS loss_early, MEDIAN(loss) FILTER (i > k - 20) AS loss_now, 1.4826 * MAD(loss) FILTER (i > k - 20) AS spread FROM (
        SELECT loss, ROW_NUMBER() OVER (ORDER BY step) AS i, COUNT(*) OVER () AS k FROM python.steps WHERE isfinite(loss) AND step >= (SELECT MAX(begun) FROM trainings))
)
-- A norm of 0 beside sampled gradients that are not 0 was taken before the backward, when there was no gradient.
SELECT CASE WHEN highest = 0 AND EXISTS (SELECT 1 FROM python.gradients g WHERE g.norm > 0 AND g.step > COALESCE(since.step, -1) AND g.step >= (SELECT MAX(begun) FROM trainings))
        THEN 'the job''s own clipping computed norms of 0, and sampled gradients are not 0: it runs when there is no gradient' END AS unknown,
    COALESCE(since.step, 0) AS step, early, now, part AS n, part AS n_now, loss_early, loss_now,
    CASE WHEN highest = 0 THEN format('every gradient has been exactly 0 since step {}: the loss does not depend on the parameters', COALESCE(since.step, 0))
        WHEN fell THEN format('gradient norm has fallen to {:.2g} since step {}, {:.1g} of its previous value; probe cannot tell whether it has vanished or the loss is at its minimum', now, COALESCE(since.step, 0), now / early)
        ELSE format('gradient norm has fallen to {:.2g} since step {}, {:.1g} of its previous value, and the loss did not fall with it', now, COALESCE(since.step, 0), now / early) END AS fact,
    CASE WHEN highest = 0 THEN 'an exact 0 is not just a small gradient: the loss is clamped, masked or multiplied by 0, or every unit on the path is dead or saturated'
        ELSE 'saturated activations, activations that shrink from layer to layer, or weights that have become small' END AS hint,
    CASE WHEN highest = 0 THEN 'alarm' WHEN fell THEN 'info' ELSE 'notice' END AS severity
FROM norms, since, (SELECT *, COALESCE(loss_now < loss_early - GREATEST($fallen * ABS(loss_early), 2 * spread), false) AS fell FROM losses)
WHERE n >= $least AND (highest < $ratio * early OR highest < $floor)
    AND COALESCE(loss_now > loss_early - (1 - $kept) * ABS(loss_early), true)
UNION ALL BY NAME
SELECT format('{} gradient norms, {} are needed', COALESCE(n, 0), $least) AS unknown FROM ends WHERE COALESCE(n, 0) < $least
