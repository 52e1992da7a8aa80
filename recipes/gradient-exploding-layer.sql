-- title = "gradient of one layer explodes"
-- severity = "notice"
-- symptoms = ["gradients", "nan"]
-- order = 235
-- scope = "rank"
-- needs = "per-parameter gradients from several steps"
-- deepen = "gradients"
-- what = "gradient of {param} grew to {norm:.3g} at step {step}, {times:.0f} times its usual {usual:.3g}"
-- why = [
--   "its previous norm: {usual:.3g} (median of {n}); the norms of the other parameters grew by a factor of {others:.1f} in the same steps (median)",
--   "since then: {later:.3g} (median of {later_n} norms)",
--   "it is {part:.0%} of the gradient norm of all sampled parameters in that step",
--   "largest element {abs_max:.3g}, update ratio {ratio:.2g}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, norm, abs_max, weight_norm, update_ratio FROM python.gradients WHERE param = '{param}' ORDER BY step DESC LIMIT 20\"",
--   "probe {endpoint} watch --gradients --steps 5",
-- ]
-- false_positives = "an embedding or expert that few batches use; networks that train each other, as in a GAN (`unknown`)"
-- explains = ["gradients-exploding", "divergence", "loss-spike", "loss-nan", "amp-overflow"]
-- effect = true
-- uses = ["trainings", "adversarial", "moving"]
-- [parameters.times]
-- value = 10.0
-- unit = "times its own median"
-- source = "practice: any layer above 100 (absolute), or 10 times its previous norm; the relative rule was chosen"
-- [parameters.apart]
-- value = 5.0
-- unit = "times the growth of the others"
-- source = "ours: otherwise all layers explode, see gradients-exploding"
-- [parameters.least]
-- value = 2
-- unit = "earlier samples"
-- source = "ours: with short steps, a parameter is sampled once in a few hundred steps; with fewer than three samples the threshold is tripled"
-- [parameters.past]
-- value = 60
-- unit = "sampled steps"
-- source = "ours: an explosion that went back to normal is over after this many"
-- [parameters.first]
-- value = 100
-- unit = "steps"
-- source = "ours: gradients need some steps to settle"
-- [parameters.beside]
-- value = 0.01
-- unit = "ratio of the median parameter's norm"
-- source = "ours: a bias that a following normalization cancels has only rounding error as its gradient"
-- [parameters.dominates]
-- value = 0.5
-- unit = "ratio of the total norm"
-- source = "ours: a layer with a smaller share does not dominate the step, however much it grew (`info`)"
-- [parameters.fallen]
-- value = 0.1
-- unit = "ratio of what the loss has fallen by"
-- source = "ours, as in gradients-exploding: a gradient that grows explodes nothing while the loss does not suffer (`info`)"
-- [parameters.rounding]
-- value = 1e-4
-- unit = "ratio of the median parameter's norm"
-- source = "if all terms cancel, float32 rounding leaves 1e-7 to 1e-5 of the other gradients; such a rest is no baseline, for example once the normalization is in eval mode"
WITH steps AS (
    SELECT step, ROW_NUMBER() OVER (ORDER BY step DESC) AS ago FROM (SELECT DISTINCT step FROM python.gradients)
), seen AS (
    SELECT g.param, g.step, g.norm, g.numel, g.abs_max, g.update_ratio, steps.ago,
        MEDIAN(g.norm) OVER w AS usual, COUNT(*) OVER w AS n, MAX(g.norm) OVER w AS highest
    FROM python.gradients g JOIN steps USING (step) WHERE isfinite(g.norm) AND g.norm > 0 AND g.numel > 1
    WINDOW w AS (PARTITION BY g.param ORDER BY g.step ROWS BETWEEN 40 PRECEDING AND 1 PRECEDING)
), grown AS (
    SELECT *, norm / usual AS times, MEDIAN(norm / usual) OVER (PARTITION BY step) AS others, MEDIAN(norm) OVER (PARTITION BY step) AS level, SQRT(SUM(norm * norm) OVER (PARTITION BY step)) AS total, COUNT(*) OVER (PARTITION BY step) AS params FROM seen WHERE n >= $least
), found AS (
    SELECT * FROM grown WHERE times > $times * CASE WHEN n < 3 THEN 3 ELSE 1 END AND norm > 3 * highest AND times > $apart * others AND params >= 3 AND step >= $first AND norm > $beside * level AND usual > $rounding * level
    QUALIFY ROW_NUMBER() OVER (PARTITION BY param ORDER BY step DESC) = 1
), later AS (
    SELECT param, MEDIAN(s.norm) AS later, COUNT(*) AS later_n, MEDIAN(s.norm) FILTER (s.ago <= 5) AS lately FROM found JOIN seen s USING (param) WHERE s.step >= found.step GROUP BY param
), losses AS (
    SELECT step, loss, MAX(step) OVER () AS last, ROW_NUMBER() OVER (ORDER BY step) AS i FROM python.steps WHERE loss IS NOT NULL
), levels AS (
    SELECT found.param, COALESCE(BOOL_OR(l.step >= found.step AND NOT isfinite(l.loss)), false) AS broken, MEDIAN(l.loss) FILTER (i <= 10) AS start,
        MEDIAN(l.loss) FILTER (l.step BETWEEN found.step - 50 AND found.step - 1) AS level, MEDIAN(l.loss) FILTER (l.step > last - 50) AS now
    FROM found, losses l GROUP BY found.param
), harm AS (
    -- NULL where losses are not known: then nothing is taken for harmless.
    SELECT param, broken OR now > level + $fallen * GREATEST(start - level, 0) AS suffered FROM levels
)
SELECT CASE WHEN adversarial.yes THEN 'several optimizers have their own backward: their gradients affect each other''s networks' END AS unknown, found.param, found.param AS subject, step, norm, times, usual, n, others, later, later_n, abs_max, update_ratio AS ratio, norm / total AS part,
    CASE WHEN norm < $dominates * total OR moving.yes OR adversarial.contrasted OR NOT COALESCE(suffered, true) THEN 'info' WHEN later_n >= 3 AND later > 0.5 * $times * usual THEN 'alarm' ELSE 'notice' END AS severity,
    ago > $past AND COALESCE(lately, later) <= 0.5 * $times * usual AS over
FROM found JOIN later USING (param) LEFT JOIN harm USING (param) CROSS JOIN moving CROSS JOIN adversarial QUALIFY ROW_NUMBER() OVER (ORDER BY ago <= $past DESC, times DESC) <= 3
UNION ALL BY NAME
SELECT format('gradients of {} steps were sampled, {} are needed', COUNT(*), $least + 1) AS unknown FROM steps HAVING COUNT(*) <= $least
