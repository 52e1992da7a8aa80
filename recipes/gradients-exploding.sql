-- title = "gradients explode"
-- severity = "notice"
-- symptoms = ["gradients", "loss", "nan"]
-- order = 230
-- scope = "rank"
-- needs = "the total gradient norm of many steps, from the job's own clip_grad_norm_ or from sampled steps"
-- deepen = "gradients"
-- what = "gradient norm {norm:.3g} at step {step}, {times:.0f} times the usual {usual:.3g}; {outcome}"
-- why = [
--   "usual: {usual:.3g} (median of the {known} norms before); highest: {highest:.3g}",
--   "the last {later_n} norms: {later:.3g} (median)",
--   "largest share at step {seen_at}: {param}, norm {param_norm:.3g}",
--   "learning rate {lr:.3g}; loss {loss:.4g} at that step",
-- ]
-- next = [
--   "probe {endpoint} checkpoint exploding.pt",
--   "probe {endpoint} clip --max-norm {clip:.3g}",
--   "probe {endpoint} query \"SELECT param, norm, abs_max, update_ratio FROM python.gradients WHERE step = (SELECT MAX(step) FROM python.gradients) ORDER BY norm DESC LIMIT 10\"",
-- ]
-- false_positives = "one hard batch after which the loss is back to normal (`info`); other data, or another task, from that step on (`info`, while the norm comes back); a loss summed over batches of very different sizes; reinforcement learning (`info` without a DataLoader and without classes, while losses are finite); a loss that is the difference of what a network gives for two inputs, whose level means nothing (`info`, while losses are finite)"
-- explains = ["divergence", "loss-spike", "loss-nan", "amp-overflow", "output-constant"]
-- dated = true
-- effect = true
-- uses = ["trainings", "adversarial", "moving"]
-- [parameters.times]
-- value = 10.0
-- unit = "times the median before"
-- source = "practice: 10 times the norm before (LLM training guides), 5 sigma, or absolute limits of 10, 100 and 1000, which disagree and depend on the model; a limit relative to the run was chosen"
-- [parameters.window]
-- value = 128
-- unit = "norms"
-- source = "OLMo: 128 steps"
-- [parameters.least]
-- value = 12
-- unit = "norms"
-- source = "ours"
-- [parameters.beyond]
-- value = 3.0
-- unit = "times the highest before"
-- source = "ours: norms of small batches have heavy tails"
-- [parameters.fallen]
-- value = 0.1
-- unit = "ratio of what the loss has fallen by"
-- source = "ours, as in loss-spike: a loss that rises by less than a tenth of its fall so far did not suffer"
-- [parameters.kept]
-- value = 0.01
-- unit = "ratio of what the loss has fallen by"
-- source = "ours: with a norm that stays high, a loss that rises by less is the noise of a training that has converged"
-- [parameters.again]
-- value = 3
-- unit = "jumps"
-- source = "ours: from three jumps on, that the loss recovers from each does not make it well"
-- [parameters.horizon]
-- value = 2000
-- unit = "steps"
-- source = "ours: an explosion that went back to normal is over after this; a norm that stays high is reported while the loss suffers"
-- [zone]
-- of = "grad_norm"
-- words = "up to {times:.3g} times the median and {beyond:.3g} times the highest of the {window} norms before"
-- sql = '''
-- WITH norms AS (
--     SELECT t_ns // 1000000 AS ms, grad_norm, begun, ROW_NUMBER() OVER (PARTITION BY begun ORDER BY step) AS i
--     FROM python.steps s ASOF JOIN trainings t ON s.rank = t.rank AND s.step >= t.begun WHERE s.rank = $rank AND isfinite(grad_norm) AND grad_norm > 0
-- ), firsts AS (
--     SELECT MIN(ms) AS ms, ARG_MIN(begun, ms) AS begun, ARG_MIN(i, ms) AS i FROM norms WHERE ms >= $from_ms AND ms < $to_ms GROUP BY (ms - $from_ms) // $width_ms
-- ), before AS (
--     SELECT now.ms, COUNT(grad_norm) AS known, MEDIAN(grad_norm) AS usual, MAX(grad_norm) AS highest
--     FROM (SELECT ms, begun, i, UNNEST(RANGE(1, $window + 1)) AS back FROM firsts) now LEFT JOIN norms ON norms.begun = now.begun AND norms.i = now.i - back GROUP BY now.ms
-- )
-- SELECT ms, NULL AS low, CASE WHEN known >= $least THEN GREATEST($times * usual, $beyond * highest) END AS high FROM before
-- '''
WITH sure AS (
    -- The last step of which the optimizer is known: after it, a training of another optimizer may have begun.
    SELECT COALESCE(MAX(step), 9e18::BIGINT) AS last FROM python.optimizers
), seen AS (
    SELECT step, grad_norm, lr, loss FROM python.steps
    WHERE isfinite(grad_norm) AND grad_norm > 0 AND step >= (SELECT MAX(begun) FROM trainings)
), before AS (
    SELECT *, COUNT(*) OVER w AS known, MEDIAN(grad_norm) OVER w AS usual, MAX(grad_norm) OVER w AS highest
    FROM seen WINDOW w AS (ORDER BY step ROWS BETWEEN $window PRECEDING AND 1 PRECEDING)
), high AS (
    SELECT *, step - LAG(step) OVER (ORDER BY step) AS gap FROM before WHERE known >= $least AND grad_norm > $times * usual
), later AS (
    SELECT MEDIAN(grad_norm) AS later, COUNT(*) AS later_n FROM (SELECT grad_norm FROM seen, sure ORDER BY step <= sure.last DESC, step DESC LIMIT 5)
), starts AS (
    SELECT high.*, later > 0.5 * $times * usual AS holds, high.step < (SELECT MAX(step) FROM python.steps) - $horizon AS old
    FROM high, later WHERE (gap IS NULL OR gap > 100) AND grad_norm > $beyond * highest
), start AS (
    -- The first that still holds, or else the latest. What began long ago holds only while the loss is no better than before it.
    SELECT * FROM starts WHERE NOT (old AND holds) OR (
        SELECT MEDIAN(loss) FILTER (s.step > last - 50) >= MEDIAN(loss) FILTER (s.step BETWEEN starts.step - 50 AND starts.step - 1)
        FROM python.steps s, (SELECT MAX(step) AS last FROM python.steps WHERE isfinite(loss)) WHERE isfinite(s.loss))
    ORDER BY holds DESC, CASE WHEN holds THEN step ELSE -step END LIMIT 1
), grown AS (
    SELECT step, usual FROM before WHERE known >= $least AND step > (SELECT MAX(step) FROM python.steps) - $horizon ORDER BY step LIMIT 1
), slowly AS (
    SELECT before.* FROM before, grown, later
    WHERE NOT EXISTS (SELECT 1 FROM start) AND later > $times * grown.usual
        AND before.step >= grown.step AND before.grad_norm > $times * grown.usual ORDER BY before.step LIMIT 1
), found AS (
    SELECT * EXCLUDE (gap, holds) FROM start UNION ALL BY NAME SELECT * REPLACE ((SELECT usual FROM grown) AS usual) FROM slowly
), losses AS (
    SELECT s.step, s.loss, found.step AS start, later > 0.5 * $times * found.usual AS holds FROM python.steps s, found, later, sure WHERE s.loss IS NOT NULL AND (s.step <= sure.last OR found.step > sure.last)
), around AS (
    -- Medians of the loss before the jump, in it and after it; `first`: of the training's first steps.
    SELECT ANY_VALUE(holds) AS holds, COALESCE(BOOL_OR(step >= start AND NOT isfinite(loss)), false) AS nonfinite, MAX(step) > ANY_VALUE(start) + 20 AS long_ago,
        (SELECT MEDIAN(loss) FROM (SELECT loss FROM python.steps WHERE isfinite(loss) AND step >= (SELECT MAX(begun) FROM trainings) ORDER BY step LIMIT 10)) AS first,
        MEDIAN(loss) FILTER (step BETWEEN start - 50 AND start - 1) AS loss_before, QUANTILE_CONT(loss, 0.9) FILTER (step BETWEEN start - 50 AND start - 1) AS high_before,
        MAX(loss) FILTER (step BETWEEN start - 50 AND start - 2) AS highest_before, MEDIAN(loss) FILTER (step = start - 1) AS loss_last,
        MEDIAN(loss) FILTER (step = start) AS loss_then, MEDIAN(loss) FILTER (step BETWEEN start + 1 AND start + 3) AS loss_next, MEDIAN(loss) FILTER (step BETWEEN start + 1 AND start + 10) AS loss_after,
        MEDIAN(loss) FILTER (step > last - 50) AS loss_now, MEDIAN(loss) FILTER (step > GREATEST(last - 50, start + 10)) AS loss_since
    FROM losses, (SELECT MAX(step) AS last FROM losses)
), harm AS (
    -- NULL where losses are not known: then nothing is taken for harmless. A loss that is not finite has suffered.
    SELECT CASE WHEN nonfinite THEN true
        WHEN holds THEN loss_now >= loss_before + $kept * GREATEST(first - loss_before, 0)
        -- A batch that is hard has a large loss and a large gradient itself: what counts is whether those after it suffer.
        ELSE loss_after > high_before + $fallen * GREATEST(first - loss_before, 0) END AS suffered,
        -- A loss that is as high from one step to the next, before the large gradient has moved anything, and stays about there: the
        -- data or the task are others since.
        COALESCE(NOT holds AND loss_then - loss_before >= 0.9 * (loss_after - loss_before) AND loss_next - loss_before >= 0.8 * (loss_then - loss_before) AND loss_last <= highest_before, false) AS shifted,
        -- A jump that the loss has got over is past, as a loss-spike is; jumps that come again and again are not.
        COALESCE(NOT holds AND long_ago AND (SELECT COUNT(*) < $again FROM starts) AND loss_since <= high_before, false) AS recovered,
        NOT nonfinite AS finite
    FROM around
), worst AS (
    SELECT step AS seen_at, param, norm AS param_norm FROM python.gradients
    WHERE step >= (SELECT MIN(step) FROM found) AND isfinite(norm) QUALIFY ROW_NUMBER() OVER (ORDER BY step, norm DESC) = 1
)
SELECT CASE WHEN adversarial.yes THEN 'several optimizers have their own backward: their gradients affect each other''s networks' END AS unknown,
    step, grad_norm AS norm, grad_norm / usual AS times, usual, known, highest, later, later_n, lr, loss, seen_at, param, param_norm,
    CASE WHEN suffered THEN 2 * usual END AS clip, COALESCE(old AND NOT later > 0.5 * $times * usual, false) AS over,
    concat(CASE WHEN later > 0.5 * $times * usual THEN 'still high' ELSE 'back to normal' END, CASE WHEN NOT suffered THEN ', and the loss did not suffer' WHEN recovered THEN ', and the loss was higher after it and has recovered' WHEN shifted THEN ', and the loss was as high before that step: its data or its task are others since' END) AS outcome,
    CASE WHEN NOT suffered OR ((recovered OR shifted) AND finite) OR found.step > sure.last OR ((moving.yes OR adversarial.contrasted) AND finite) THEN 'info' WHEN later > 0.5 * $times * usual THEN 'alarm' ELSE 'notice' END AS severity
FROM found CROSS JOIN later CROSS JOIN adversarial CROSS JOIN harm CROSS JOIN moving CROSS JOIN sure LEFT JOIN worst ON true
UNION ALL BY NAME
SELECT format('{} gradient norms, {} are needed', COUNT(*), $least + 1) AS unknown FROM seen HAVING COUNT(*) <= $least
