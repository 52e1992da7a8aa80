-- title = "loss diverges"
-- severity = "alarm"
-- symptoms = ["loss", "nan"]
-- order = 20
-- scope = "rank"
-- needs = "a loss recorded at backward(), with a single objective, over a few hundred steps"
-- what = "loss has been rising since about step {step}: {now:.4g} over the last {recent} steps, {best:.4g} at its best"
-- why = [
--   "start {start:.4g}, best {best:.4g} around step {best_step}, now {now:.4g} (medians of {block} steps)",
--   "the rise is {rise_sigmas:.0f} times the spread within {block} steps",
--   "gradient norm: {norm_now:.3g} now, {norm_before:.3g} when the loss was best",
--   "learning rate: {lr:.3g} now, {lr_before:.3g} when the loss was best",
--   "the job reweighted the terms of its loss meanwhile: the product of their factors is {weights_now:.3g} now, {weights_before:.3g} then",
--   "the loss is computed in another way since: its graph has {nodes} nodes, and had {nodes_before} when the loss was best",
--   "the cross-entropy has {classes} classes now, and had {classes_before} when the loss was best: more of them raise it for the same answers",
-- ]
-- next = [
--   "probe {endpoint} checkpoint diverging.pt",
--   "probe {endpoint} diagnose loss",
--   "probe {endpoint} query \"SELECT param, norm, update_ratio FROM python.gradients WHERE step = (SELECT MAX(step) FROM python.gradients) ORDER BY update_ratio DESC LIMIT 10\"",
-- ]
-- false_positives = "a curriculum of increasing difficulty; a term whose weight rises (`info` if that weight is a constant of the loss's graph); a loss that is computed in another way from some step on (`info` if the size of its graph changed); reinforcement learning (`info` without a DataLoader and without classes); adversarial training (several optimizers with their own backward are excluded, reversed gradients, and trainings that take turns); a difference of what a network gives for two inputs, as an energy-based model has (`info`); a contrast with more and more negatives (`info` if the number of classes grew)"
-- explains = ["loss-spike", "loss-nan"]
-- dated = true
-- effect = true
-- uses = ["trainings", "adversarial", "moving", "turns", "reweighted", "rewritten"]
-- [parameters.share]
-- value = 0.25
-- unit = "ratio of the improvement so far"
-- source = "ours: relative to the improvement of this run; practice says `increases without bound`, or 50 (absolute), which depends on the loss"
-- [parameters.relative]
-- value = 0.2
-- unit = "ratio of the best"
-- source = "ours: for runs that had not improved before"
-- [parameters.sigmas]
-- value = 3.0
-- unit = "times the spread"
-- source = "ours: for three medians in a row"
-- [parameters.block]
-- value = 20
-- unit = "steps"
-- source = "ours"
WITH ends AS (
    SELECT MAX(step) AS last FROM python.steps WHERE isfinite(loss)
), seen AS (
    SELECT step, loss, grad_norm, lr, (last - step) // $block AS ago FROM python.steps, ends
    WHERE isfinite(loss) AND step >= (SELECT MAX(begun) FROM trainings)
), first AS (
    SELECT MEDIAN(loss) AS start FROM (SELECT loss FROM seen ORDER BY step LIMIT $block)
), blocks AS (
    SELECT ago, MIN(step) AS step, MEDIAN(loss) AS level, 1.4826 * MAD(loss) AS spread,
        MEDIAN(grad_norm) AS norm, MEDIAN(lr) AS lr
    FROM seen GROUP BY ago HAVING COUNT(*) >= $block / 2
), best AS (
    SELECT * FROM blocks WHERE ago >= 3 ORDER BY level LIMIT 1
), calm AS (
    -- Before the rise: measured with its own spread, a rise without bound would seem to begin near its end.
    SELECT GREATEST(ANY_VALUE(best.spread), MEDIAN(blocks.spread)) AS spread FROM blocks, best WHERE blocks.ago >= best.ago
), now AS (
    SELECT MIN(level) AS least, ARG_MIN(level, ago) AS now, MAX(spread) AS spread, COUNT(*) AS n,
        ARG_MIN(lr, ago) AS lr, MAX(norm) AS norm FROM blocks WHERE ago < 3
), judged AS (
    SELECT best.step, best.level AS best, now.now, now.least, start, best.lr AS lr_before, now.lr,
        best.norm AS norm_before, now.norm AS norm_now, now.least - best.level AS rise, now.n,
        GREATEST(best.spread, (SELECT MEDIAN(spread) FROM blocks)) AS spread
    FROM best, now, first
), terms AS (
    SELECT ARG_MIN(weights_high, ABS(reweighted.step - judged.step)) AS weights_before, ARG_MAX(weights_low, reweighted.step) AS weights_now
    FROM reweighted, judged
), classes AS (
    -- A cross-entropy over more classes, as negatives are that a queue collects, is higher for the same answers.
    SELECT ARG_MIN(c.wide, ABS(c.step - judged.step)) AS classes_before, ARG_MAX(c.wide, c.step) AS classes
    FROM (SELECT step, MAX(classes) AS wide FROM python.loss_functions WHERE function = 'cross_entropy' AND classes > 1 GROUP BY step) c, judged
), other_way AS (
    SELECT ARG_MIN(was, first_new) AS nodes_before, ARG_MAX(became, first_new) AS nodes FROM rewritten, judged WHERE first_new > judged.step
)
-- `info` until an optimizer was looked at since: before that, a training of another optimizer may have begun.
SELECT COALESCE(adversarial.compete, CASE WHEN turns.yes THEN 'two trainings take turns, each with an optimizer of its own: their losses are not one series' END) AS unknown,
    step AS best_step, (SELECT MAX(blocks.step) FROM blocks, calm WHERE level <= best + LEAST(0.1 * rise, GREATEST($sigmas * calm.spread, $share * (start - best), $relative * ABS(best)))) AS step, best, now, start, 3 * $block AS recent, $block AS block, rise / NULLIF(spread, 0) AS rise_sigmas,
    CASE WHEN norm_before IS NOT NULL THEN norm_now END AS norm_now,
    CASE WHEN norm_now IS NOT NULL THEN norm_before END AS norm_before, lr, lr_before, CASE WHEN weights_now > 1.25 * weights_before THEN weights_now END AS weights_now, weights_before, nodes, nodes_before, CASE WHEN classes > 1.25 * classes_before THEN classes END AS classes, classes_before,
    CASE WHEN moving.yes OR adversarial.contrasted OR nodes <> nodes_before OR COALESCE(classes > 1.25 * classes_before, false) OR COALESCE(weights_now > 1.25 * weights_before, false) OR (SELECT MAX(step) FROM python.optimizers) <= judged.step + $block THEN 'info' ELSE 'alarm' END AS severity
FROM judged, adversarial, moving, turns, terms, classes, other_way
WHERE n = 3 AND rise > $sigmas * spread
    AND rise > GREATEST($share * (start - best), $relative * ABS(best))
    -- A loss far below 0 is a difference or a density: towards 0 again it has lost nothing unless it is above 0, and above where it began.
    AND (best >= -$share * ABS(start) OR now > GREATEST(start, 0) + $share * (GREATEST(start, 0) - best))
UNION ALL BY NAME
SELECT format('{} steps with a loss, {} are needed', COUNT(*), 5 * $block) AS unknown FROM seen HAVING COUNT(*) < 5 * $block
