-- title = "loss spike"
-- severity = "notice"
-- symptoms = ["loss", "data", "nan"]
-- order = 10
-- scope = "rank"
-- needs = "a loss recorded at backward(), and earlier steps to compare with"
-- what = "loss jumped to {loss:.4g} at step {step}, {sigmas_above:.0f} times the usual spread above {usual:.4g}; {outcome}"
-- why = [
--   "before it: {usual:.4g} +- {spread:.2g} (median and spread of {known} steps); at step {step}: {loss:.4g}",
--   "since then: {later:.4g} (median of the last {later_steps} steps)",
--   "gradient norm at step {step}: {grad_norm:.3g}, usual {usual_norm:.3g}",
--   "learning rate went from {lr_before:.3g} to {lr:.3g} at that step",
--   "each sample of the model's input was {was} before, and is {became} since: a higher loss is expected",
--   "{spikes} such jumps since step {oldest}",
--   "the loss is computed in another way since: its graph has {nodes} nodes, and had {nodes_before}",
--   "two trainings take turns, each with an optimizer of its own: the steps after this one may have {turn}",
--   "the last ones came every {every:.0f} steps: something that the program changes by its steps, such as a curriculum",
-- ]
-- next = [
--   "probe {endpoint} checkpoint spike.pt",
--   "probe {endpoint} query \"SELECT step, micro_step, loader, shapes, samples FROM python.batches WHERE step BETWEEN {step} - 1 AND {step}\"",
--   "probe {endpoint} query \"SELECT step, param, norm, update_ratio FROM python.gradients WHERE step >= {step} - 20 ORDER BY norm DESC LIMIT 10\"",
--   "probe {endpoint} spike-guard --threshold 5",
-- ]
-- false_positives = "a hard batch, or any other jump from which the loss recovers, or may recover yet (`info`); a harder part of the data (`info` if the shape of the model's inputs changed); loss terms switched on later (`info` if the size of the loss's graph changed then); a training that another one takes turns with (`info`); reinforcement learning (`info` without a DataLoader and without classes); a difference of what a network gives for two inputs (`info`)"
-- dated = true
-- effect = true
-- uses = ["trainings", "adversarial", "moving", "turns", "rewritten"]
-- [parameters.sigmas]
-- value = 6.0
-- unit = "times the spread"
-- source = "OLMo: 6 standard deviations over 128 steps; LLM training guides say 2 (alarm at 5), others 10 times the moving average, ByteRobust 5 times. 2 fires on every noisy run. The spread is 1.4826 times the median absolute deviation, which the spike itself does not widen"
-- [parameters.window]
-- value = 128
-- unit = "steps"
-- source = "OLMo: 128 steps"
-- [parameters.enough]
-- value = 40
-- unit = "steps"
-- source = "practice: 50 steps of history before judging; 40 here, since medians need fewer"
-- [parameters.beyond]
-- value = 3.5
-- unit = "times the previous highest 2 %"
-- source = "ours: heavy-tailed losses of small batches exceed 6 sigma on their own, but rarely exceed their own maximum by this much"
-- [parameters.patience]
-- value = 50
-- unit = "steps"
-- source = "practice: 10 steps to recover; 50 here, since Adam's second moment keeps a spike for longer"
-- [parameters.settling]
-- value = 30.0
-- unit = "s"
-- source = "ours: while a jump is this recent and not yet past `patience`, nobody can tell whether it recovers (`info`)"
-- [parameters.recovered]
-- value = 0.1
-- unit = "ratio above the level before"
-- source = "practice: recovered when below 1.1 times the mean before"
-- [parameters.fallen]
-- value = 0.1
-- unit = "ratio of what the loss has fallen by"
-- source = "ours: once the scatter is almost zero, every ripple is many times the usual; a spike that undoes less than a tenth of the fall so far does no harm"
-- [parameters.unseen]
-- value = 200
-- unit = "steps"
-- source = "ours: while the graph of the loss has not been looked at since the jump, which takes about a hundred steps, it may be another one (`info`)"
-- [parameters.horizon]
-- value = 2000
-- unit = "steps"
-- source = "ours: a spike that recovered is over after this; one that did not recover stays reported"
-- [zone]
-- of = "loss"
-- words = "up to {sigmas:.3g} times the spread above the median of the {window} losses before, or as far as those rise anyway"
-- sql = '''
-- WITH losses AS (
--     SELECT t_ns // 1000000 AS ms, loss, begun, ROW_NUMBER() OVER (PARTITION BY begun ORDER BY step) AS i
--     FROM python.steps s ASOF JOIN trainings t ON s.rank = t.rank AND s.step >= t.begun WHERE s.rank = $rank AND isfinite(loss)
-- ), firsts AS (
--     SELECT MIN(ms) AS ms, ARG_MIN(begun, ms) AS begun, ARG_MIN(i, ms) AS i FROM losses WHERE ms >= $from_ms AND ms < $to_ms GROUP BY (ms - $from_ms) // $width_ms
-- ), before AS (
--     SELECT now.ms, now.begun, COUNT(loss) AS known, MEDIAN(loss) AS usual, 1.4826 * MAD(loss) AS spread, QUANTILE_CONT(loss, 0.98) AS highest
--     FROM (SELECT ms, begun, i, UNNEST(RANGE(1, $window + 1)) AS back FROM firsts) now LEFT JOIN losses ON losses.begun = now.begun AND losses.i = now.i - back GROUP BY now.ms, now.begun
-- )
-- SELECT ms, NULL AS low, CASE WHEN known >= $enough THEN usual + GREATEST($sigmas * GREATEST(spread, 0.002 * ABS(usual)), $beyond * (highest - usual), $fallen * (first - usual)) END AS high
-- FROM before JOIN (SELECT begun, MEDIAN(loss) AS first FROM losses WHERE i <= 10 GROUP BY begun) USING (begun)
-- '''
WITH seen AS (
    SELECT step, t_ns, loss, grad_norm, lr, LAG(lr) OVER (ORDER BY step) AS lr_before, LEAD(loss) OVER (ORDER BY step) AS following FROM python.steps
    WHERE isfinite(loss) AND step >= (SELECT MAX(begun) FROM trainings)
), before AS (
    SELECT *, COUNT(*) OVER w AS known, MEDIAN(loss) OVER w AS usual, 1.4826 * MAD(loss) OVER w AS spread,
        QUANTILE_CONT(loss, 0.98) OVER w AS highest
    FROM seen WINDOW w AS (ORDER BY step ROWS BETWEEN $window PRECEDING AND 1 PRECEDING)
), high AS (
    SELECT *, step - LAG(step) OVER (ORDER BY step) AS gap FROM before
    WHERE known >= $enough AND loss - usual > $sigmas * GREATEST(spread, 0.002 * ABS(usual))
        AND loss - usual > $beyond * (highest - usual)
        AND loss - usual > $fallen * GREATEST((SELECT MEDIAN(loss) FROM (SELECT loss FROM seen ORDER BY step LIMIT 10)) - usual, 0)
), starts AS (
    SELECT * FROM high WHERE gap IS NULL OR gap > 50
), spike AS (
    SELECT *, GREATEST(usual + $recovered * ABS(usual), usual + 3 * spread) AS level FROM starts ORDER BY step DESC LIMIT 1
), shapes AS (
    -- Of the model's input, but for the first dimension: batches differ in size.
    SELECT regexp_replace(shape, '^\[[0-9]+,? ?', '[') AS shape, i.step < spike.step AS earlier, ROW_NUMBER() OVER (PARTITION BY i.step < spike.step ORDER BY ABS(i.step - spike.step)) AS near
    FROM python.model_inputs i, spike WHERE NOT COALESCE(gradless, false) AND module <> 'batch' AND name = (SELECT MIN(name) FROM python.model_inputs WHERE module <> 'batch')
), inputs AS (
    -- A curriculum, or larger pictures: one shape before, another one since. Where the shape went up before and has not been looked at since, it may have again.
    SELECT MIN(shape) FILTER (earlier AND near <= 3) AS was, MIN(shape) FILTER (NOT earlier AND near <= 3) AS became,
        COALESCE(MIN(shape) FILTER (earlier AND near <= 3) = MAX(shape) FILTER (earlier AND near <= 3)
            AND CASE WHEN COUNT(*) FILTER (NOT earlier) = 0 THEN COUNT(DISTINCT shape) > 1
                ELSE MIN(shape) FILTER (NOT earlier AND near <= 3) = MAX(shape) FILTER (NOT earlier AND near <= 3)
                    AND MIN(shape) FILTER (NOT earlier AND near <= 3) <> MIN(shape) FILTER (earlier AND near <= 3) END, false) AS other FROM shapes
), other_way AS (
    SELECT ANY_VALUE(was) AS was_nodes, ANY_VALUE(became) AS became_nodes,
        COALESCE((SELECT MAX(g.step) < MAX(spike.step) FROM python.graphs g, spike), false) AS unseen FROM rewritten, spike WHERE spike.step > last_old AND spike.step <= first_new
), rhythm AS (
    -- Jumps at equal distances are made by the program: the horizon of a forecast that grows, a restart.
    SELECT COALESCE(COUNT(gap) >= 2 AND MAX(gap) <= 1.02 * MIN(gap), false) AS even, MEDIAN(gap) AS every
    FROM (SELECT step, step - LAG(step) OVER (ORDER BY step) AS gap FROM starts ORDER BY step DESC LIMIT 3)
), later AS (
    SELECT MEDIAN(loss) AS later, COUNT(*) AS later_steps FROM (
        SELECT loss FROM seen WHERE step > (SELECT step FROM spike) ORDER BY step DESC LIMIT 20)
), after AS (
    SELECT COUNT(*) AS steps, (MAX(t_ns) - (SELECT t_ns FROM spike)) / 1e9 AS seconds FROM seen WHERE step > (SELECT step FROM spike)
), blocks AS (
    SELECT MEDIAN(loss) AS level FROM seen WHERE step > (SELECT step FROM spike) GROUP BY step // 20
), judged AS (
    -- A loss that is back at the next step was that of a hard batch: the weights are not worse.
    SELECT spike.*, later, later_steps, after.steps AS passed, COALESCE(after.steps < $patience AND after.seconds < $settling, false) AS settling, COALESCE(following <= level, false) AS one_batch,
        (SELECT MEDIAN(grad_norm) FROM seen WHERE step < spike.step) AS usual_norm,
        (SELECT COUNT(*) FROM starts) AS spikes,
        later_steps >= 5 AND later <= level OR after.steps > $horizon AND EXISTS (SELECT 1 FROM blocks WHERE blocks.level <= spike.level) AS recovered
    FROM spike, later, after
)
-- `info` until an optimizer was looked at since: before that, a training of another optimizer may have begun.
SELECT NULL AS unknown, step, loss, usual, spread, known, grad_norm,
    CASE WHEN grad_norm IS NOT NULL THEN usual_norm END AS usual_norm, later, later_steps,
    CASE WHEN lr_before <> lr THEN lr_before END AS lr_before, lr, spikes, (SELECT MIN(step) FROM seen) AS oldest, recovered AND passed > $horizon AS over,
    (loss - usual) / GREATEST(spread, 0.002 * ABS(usual)) AS sigmas_above,
    CASE WHEN recovered AND one_batch THEN 'the next step was back at the usual loss' WHEN recovered THEN 'it recovered' WHEN passed < $patience THEN 'not recovered yet'
        ELSE format('not recovered after {} steps', passed) END AS outcome,
    CASE WHEN inputs.other THEN was END AS was, CASE WHEN inputs.other THEN became END AS became,
    became_nodes AS nodes, was_nodes AS nodes_before, CASE WHEN rhythm.even THEN every END AS every, CASE WHEN turns.yes THEN 'another loss' END AS turn,
    CASE WHEN recovered OR settling OR moving.yes OR adversarial.contrasted OR turns.yes OR inputs.other OR rhythm.even OR became_nodes IS NOT NULL OR unseen AND passed < $unseen OR (SELECT MAX(step) FROM python.optimizers) < judged.step THEN 'info'
        WHEN passed < $patience THEN 'notice' ELSE 'alarm' END AS severity
FROM judged, moving, adversarial, turns, inputs, rhythm, other_way
UNION ALL BY NAME
SELECT format('{} steps with a loss, {} are needed', COUNT(*), $enough + 1) AS unknown FROM seen
HAVING COUNT(*) <= $enough
