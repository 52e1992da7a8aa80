-- title = "optimizer state is reset again and again"
-- severity = "notice"
-- symptoms = ["loss", "gradients"]
-- order = 218
-- scope = "rank"
-- needs = "several samples of an optimizer whose state counts steps (Adam and its relatives); other optimizers must have been created while probe recorded"
-- what = "{fact}"
-- why = [
--   "{evidence}",
--   "the optimizer is created inside the loop, or its state is cleared there",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, optimizer, param_group, state_steps, momentum_norm FROM python.optimizers ORDER BY t_ns DESC LIMIT 20\"",
--   "probe {endpoint} backtrace --locals",
-- ]
-- false_positives = "an intended optimizer restart, such as a new one for each task or stage (`info` where the first loss with each new one is far above those before: the data are others; and where weights are loaded as often, as for each client of federated averaging)"
-- explains = ["slow-decrease", "oscillation", "loss-spike"]
-- [parameters.least]
-- value = 4
-- unit = "pairs of samples"
-- source = "ours: one restart may be a resumed run or a new stage"
-- [parameters.share]
-- value = 0.3
-- unit = "ratio of the pairs"
-- source = "ours: with one restart per epoch, random samples find a lower count than before in half of the cases"
-- [parameters.young]
-- value = 8
-- unit = "steps"
-- source = "ours: samples that are closer together, or older states of the same age, prove nothing"
-- [parameters.horizons]
-- value = 3.0
-- unit = "times 1 / (1 - momentum) steps"
-- source = "ours: after three of them momentum has 95 % of its level; what starts anew less often loses little"
-- [parameters.jump]
-- value = 1.5
-- unit = "ratio of losses"
-- source = "ours: batches of one data set scatter less in the median of several restarts"
-- [parameters.after]
-- value = 4.0
-- unit = "ratio of losses"
-- source = "ours: a first step without moments may raise the loss as well, by less"
WITH looks AS (
    SELECT optimizer, param_group, parameters, step, state_steps, made_step, COUNT(*) OVER (PARTITION BY optimizer, param_group, parameters, step) AS twins,
        COUNT(DISTINCT (optimizer, parameters)) OVER (PARTITION BY step, param_group) AS beside
    FROM python.optimizers WHERE state_steps IS NOT NULL AND step IS NOT NULL
), pairs AS (
    SELECT *, LAG(step) OVER w AS before, LAG(state_steps) OVER w AS state_before,
        -- A new optimizer whose parameters had none before is that of another model.
        made_step IS NOT DISTINCT FROM LAG(made_step) OVER w OR EXISTS (SELECT 1 FROM probe.facts WHERE name = 'optimizer.remade.times') AS same FROM looks
    WINDOW w AS (PARTITION BY optimizer, param_group, parameters ORDER BY step)
), judged AS (
    SELECT *, state_steps - state_before AS counted, step - before AS steps,
        same AND (state_steps < state_before OR (state_steps = state_before AND state_steps < $young AND beside = 1)) AS anew
    FROM pairs WHERE before IS NOT NULL AND step - before >= $young
), counted AS (
    -- An optimizer counts no more steps than have passed. Where the count grew by more, several of one size take turns (a population).
    SELECT optimizer, param_group, COUNT(*) AS n, COUNT(*) FILTER (anew) AS anew, MEDIAN(counted) AS counted, MEDIAN(steps) AS steps,
        MIN(step) FILTER (anew) AS step, MAX(step) FILTER (anew) AS seen, ARG_MAX(state_steps, step) FILTER (anew) AS state_steps,
        ARG_MAX(before, step) FILTER (anew) AS before, ARG_MAX(state_before, step) FILTER (anew) AS state_before,
        MAX(state_steps) AS oldest, MAX(twins) AS twins, BOOL_OR(counted > steps) AS several
    FROM judged GROUP BY ALL
), models AS (
    -- Models that follow each other in one process (folds, a sweep) have an optimizer each, and should.
    SELECT COUNT(*) AS followed FROM (SELECT MIN(step) AS first, LAG(MAX(step)) OVER (ORDER BY number) AS before FROM python.weights GROUP BY number) WHERE first > before
), newest AS (
    SELECT counted.* FROM counted, models WHERE n >= $least AND anew - followed >= $share * n AND anew - followed >= $least AND twins = 1 AND NOT several
), remade AS (
    SELECT ARG_MAX(number, t_ns) FILTER (name = 'optimizer.remade.times') AS times, MIN(number) FILTER (name = 'optimizer.remade.from') AS first, MAX(number) FILTER (name = 'optimizer.remade.until') AS until,
        COALESCE(MAX(value) FILTER (name = 'optimizer'), 'optimizer') AS optimizer, MAX(number) FILTER (name = 'optimizer.momentum') AS momentum
    FROM probe.facts WHERE kind = 'hyperparameter' HAVING COUNT(*) FILTER (name = 'optimizer.remade.times') > 0
), often AS (
    SELECT *, GREATEST(1, (until - first) / GREATEST(times - 1, 1)) AS every FROM remade
), reloaded AS (
    -- Weights are loaded about as often as an optimizer is made: each new one begins with other weights, as in federated averaging.
    SELECT COALESCE((SELECT MAX(number) FROM probe.facts WHERE name = 'loaded.later') BETWEEN 0.8 * MAX(times) AND 1.5 * MAX(times), false) AS other_weights FROM remade
), jumps AS (
    -- The first loss with a new optimizer, before its first step: where it is far above those before, the data are others.
    -- What is computed between two tasks may stand there instead; then the next loss, after one step, tells, if it is higher still.
    SELECT COALESCE(MEDIAN(GREATEST(first, second / $after) / level) > $jump AND COUNT(*) >= $least, false) AS other_data FROM (
        SELECT made_step, MAX(loss) FILTER (step = made_step) AS first, MAX(loss) FILTER (step = made_step + 1) AS second, MEDIAN(loss) FILTER (step < made_step) AS level
        FROM (SELECT DISTINCT made_step FROM python.optimizers WHERE made_step > 20) JOIN python.steps ON step BETWEEN made_step - 20 AND made_step + 1 AND isfinite(loss) GROUP BY made_step
    ) WHERE level > 0 AND first IS NOT NULL
)
SELECT NULL AS unknown, newest.*, CASE WHEN other_data OR other_weights THEN 'info' ELSE 'notice' END AS severity,
    format('the state of {} (momentum, second moments) is reset again and again: in {} of {} samples its step count was no higher than in the one before, and it never passed {}', optimizer, anew, n, oldest) AS fact,
    format('at step {} its state had seen {} steps, at step {} {}', seen, state_steps, before, state_before) AS evidence
FROM newest, jumps, reloaded WHERE param_group = (SELECT MIN(param_group) FROM newest)
UNION ALL BY NAME
SELECT NULL AS unknown, optimizer, first AS step, CASE WHEN other_data OR other_weights THEN 'info' WHEN optimizer <> 'LBFGS' AND optimizer NOT IN ('SGD', 'optimizer') OR momentum > 0 AND every < $horizons / (1 - momentum) THEN 'notice' ELSE 'info' END AS severity,
    format('a new {} for the same parameters is created again and again, {:.0f} times between steps {:.0f} and {:.0f}: {}', optimizer, times, first, until,
        CASE WHEN momentum > 0 THEN format('its momentum of {:.3g} starts from zero each time', momentum) WHEN optimizer = 'SGD' THEN 'without momentum it has no state to lose' ELSE 'its state starts empty each time' END) AS fact,
    format('once in {:.0f} steps; a scheduler or gradient scaler created with the first one does not affect the later ones', every) AS evidence
FROM often, jumps, reloaded WHERE times >= $least AND NOT EXISTS (SELECT 1 FROM newest)
UNION ALL BY NAME
SELECT 'the optimizer state was sampled too rarely' AS unknown
WHERE NOT EXISTS (SELECT 1 FROM counted WHERE n >= $least) AND NOT EXISTS (SELECT 1 FROM remade WHERE times >= $least)
UNION ALL BY NAME
SELECT 'several optimizers of one class and size take turns: their samples cannot be told apart' AS unknown
WHERE EXISTS (SELECT 1 FROM counted WHERE several AND twins = 1) AND NOT EXISTS (SELECT 1 FROM newest) AND NOT EXISTS (SELECT 1 FROM often WHERE times >= $least)
