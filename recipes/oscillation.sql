-- title = "loss oscillates"
-- severity = "notice"
-- symptoms = ["loss"]
-- order = 40
-- scope = "rank"
-- needs = "a loss recorded at backward(), over a few hundred steps"
-- what = "loss swings up and down every {period} steps, by {swing_ratio:.0%} of its level, since step {step} or earlier"
-- why = [
--   "over the last {n} steps, detrended: autocorrelation {peak:.2f} at {period} steps, {trough:.2f} at half a period",
--   "it swings between {low:.4g} and {high:.4g} (5 % and 95 % of the steps)",
--   "learning rate {lr:.3g}, momentum {momentum:.2g}",
--   "update ratio {update_ratio:.2g} (median over parameters)",
-- ]
-- next = [
--   "probe {endpoint} diagnose loss",
--   "probe {endpoint} query \"SELECT step, loss, lr, grad_norm FROM python.steps ORDER BY step DESC LIMIT 4 * {period}\"",
--   "probe {endpoint} checkpoint oscillating.pt",
-- ]
-- false_positives = "a cyclic learning rate; data in a fixed order (`info` if the loss repeats with each pass more exactly than with each swing, for passes of up to 1,000 steps; and without a DataLoader for periods of more than 20 steps); alternating data sets; several passes over each rollout (`info` if the training rests as often, to collect new data); a loss that crosses zero, as that of a policy does (`info`)"
-- effect = true
-- uses = ["trainings", "adversarial"]
-- [parameters.window]
-- value = 400
-- unit = "steps"
-- source = "ours"
-- [parameters.longest]
-- value = 100
-- unit = "steps"
-- source = "ours: at least four full periods"
-- [parameters.peak]
-- value = 0.5
-- unit = "correlation"
-- source = "ours: white noise reaches 0.15 over 400 steps. Practice counts turning points of the loss (30 % of steps), but pure noise turns in two thirds of the steps"
-- [parameters.trough]
-- value = -0.4
-- unit = "correlation"
-- source = "ours: repeating data have the peak but not the trough"
-- [parameters.swing]
-- value = 0.2
-- unit = "ratio of the level"
-- source = "practice: very noisy when the deviation is 0.2 of the mean"
-- [parameters.known]
-- value = 20
-- unit = "steps"
-- source = "ours: a rate that is too high swings within a few steps; a longer period may be that of the data"
-- [parameters.pass]
-- value = 1000
-- unit = "steps"
-- source = "ours: the longest pass over the data that is looked for, half of the steps that are read for it"
-- [parameters.nearer]
-- value = 0.1
-- unit = "correlation"
-- source = "ours: pieces of one text repeated with r = 0.96 from pass to pass and 0.71 from swing to swing; a swing of the weights is most alike to the next one"
-- [parameters.rare]
-- value = 0.01
-- unit = "ratio of the steps"
-- source = "ours: a loss that is below zero now and then has no level"
WITH lately AS (
    SELECT step, loss, lr FROM python.steps WHERE isfinite(loss) ORDER BY step DESC LIMIT $window
), level AS (
    SELECT step, loss, lr, ROW_NUMBER() OVER (ORDER BY step) AS i,
        loss - AVG(loss) OVER (ORDER BY step ROWS BETWEEN $longest // 2 PRECEDING AND $longest // 2 FOLLOWING) AS x
    FROM lately
), series AS (
    SELECT list(LEAST(GREATEST(x, low), high) ORDER BY i) AS xs, COUNT(*) AS n
    FROM level, (SELECT QUANTILE_CONT(x, 0.01) AS low, QUANTILE_CONT(x, 0.99) AS high FROM level)
), lags AS (
    SELECT lag, list_dot_product(xs[: n - lag], xs[lag + 1 :]) / NULLIF(list_dot_product(xs, xs), 0) * n / (n - lag) AS r
    FROM series, range(1, $longest + 1) t(lag) WHERE n > 2 * $longest
), period AS (
    SELECT p.lag AS period, p.r AS peak, MIN(t.r) AS trough FROM lags p, (SELECT MAX(r) AS highest FROM lags WHERE lag >= 2)
    JOIN lags t ON t.lag BETWEEN FLOOR(p.lag * 0.45) AND CEIL(p.lag * 0.55)
    WHERE p.lag >= 2 AND p.r >= GREATEST($peak, 0.9 * highest) GROUP BY p.lag, p.r HAVING MIN(t.r) <= $trough ORDER BY p.lag LIMIT 1
), longer AS (
    -- The same over more steps, for lags beyond the swings: how far the loss repeats with each pass over the data.
    SELECT list(loss - usual ORDER BY step) AS xs, COUNT(*) AS n FROM (
        SELECT step, loss, AVG(loss) OVER (ORDER BY step ROWS BETWEEN $longest // 2 PRECEDING AND $longest // 2 FOLLOWING) AS usual
        FROM python.steps, period WHERE isfinite(loss) ORDER BY step DESC LIMIT 2 * $pass)
), passes AS (
    SELECT COALESCE(MAX(list_dot_product(xs[: n - lag], xs[lag + 1 :]) / NULLIF(list_dot_product(xs, xs), 0) * n / (n - lag)), -1) AS alike
    FROM longer, range($longest + 1, $pass + 1) t(lag) WHERE n >= 2 * lag
), size AS (
    SELECT QUANTILE_CONT(loss, 0.05) AS low, QUANTILE_CONT(loss, 0.95) AS high, MIN(step) AS step, COUNT(*) AS n,
        QUANTILE_CONT(x, 0.95) - QUANTILE_CONT(x, 0.05) AS swing, MEDIAN(loss) AS middle, ARG_MAX(lr, step) AS lr,
        MAX(lr) > 1.5 * MIN(lr) AS cyclic,
        -- Without a loader it is not known how many steps a pass over the data has.
        COALESCE((SELECT COUNT(samples) > 0 FROM python.steps WHERE step >= (SELECT MIN(step) FROM lately)), false) AS loaded
    FROM level
), signs AS (
    SELECT COALESCE(AVG(CASE WHEN loss < 0 THEN 1 ELSE 0 END) BETWEEN $rare AND 1 - $rare, false) AS mixed FROM python.steps WHERE isfinite(loss)
), groups AS (
    SELECT step, optimizer, param_group, parameters, COUNT(*) OVER (PARTITION BY step, param_group) AS beside
    FROM python.optimizers WHERE step >= (SELECT MAX(begun) FROM trainings)
), stepped AS (
    -- What was stepped at each step that was looked at: all groups of an optimizer, and of several that step together.
    SELECT rivals, MIN(step) AS first, MAX(step) AS last FROM (
        SELECT step, list(DISTINCT (optimizer, param_group, parameters) ORDER BY (optimizer, param_group, parameters)) AS rivals FROM groups GROUP BY step) GROUP BY rivals
), rivals AS (
    SELECT GREATEST((SELECT MAX(beside) FROM groups), COUNT(*)) AS n
    FROM stepped a WHERE EXISTS (SELECT 1 FROM stepped b WHERE a.rivals <> b.rivals AND a.first < b.last AND b.first < a.last)
), rests AS (
    -- Steps that took far longer than most: new data are collected before them.
    SELECT MEDIAN(apart) AS every, COUNT(apart) AS n FROM (
        SELECT step - LAG(step) OVER (ORDER BY step) AS apart
        FROM python.steps, (SELECT MEDIAN(wall_s) AS usual FROM python.steps JOIN lately USING (step)), (SELECT MIN(step) AS first FROM lately)
        WHERE step >= first AND wall_s > 3 * usual)
), details AS (
    SELECT (SELECT ARG_MAX(momentum, t_ns) FROM python.optimizers) AS momentum,
        (SELECT MEDIAN(update_ratio) FROM python.gradients
            WHERE numel >= 16 AND step > (SELECT MAX(step) FROM python.gradients) - 500) AS update_ratio
)
SELECT CASE WHEN rivals.n > 1 THEN format('{} optimizers take turns: their losses may differ from step to step', rivals.n) END AS unknown, size.step, period, peak, trough, size.n, low, high, swing / NULLIF(ABS(middle), 0) AS swing_ratio, lr, momentum, update_ratio,
    CASE WHEN rests.n >= 3 AND rests.every BETWEEN 0.8 * period AND 1.25 * period OR NOT loaded AND period > $known
        -- A loss that repeats with each pass swings with the data.
        OR passes.alike > peak + $nearer
        -- A loss that is now above and now below zero has no level of which the swing is a part: that of a policy follows its episodes.
        OR signs.mixed OR adversarial.contrasted THEN 'info' ELSE 'notice' END AS severity
FROM period, size, details, rivals, rests, signs, adversarial, passes
WHERE size.n >= $window AND swing >= $swing * ABS(middle) AND NOT cyclic
UNION ALL BY NAME
SELECT format('{} steps with a loss, {} are needed', n, $window) AS unknown FROM size WHERE n < $window
