-- title = "implausible optimizer setting"
-- severity = "notice"
-- symptoms = ["loss", "gradients"]
-- order = 144
-- scope = "rank"
-- needs = "the settings of the optimizer"
-- what = "{fact}"
-- why = [
--   "{evidence}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT name, value FROM probe.facts WHERE name LIKE 'optimizer%' ORDER BY name\"",
-- ]
-- false_positives = "an eps of 0.01 or more on purpose, as in published RMSprop recipes; a momentum of 0.995 or more late in a long schedule (Sutskever et al. 2013); unusual rates that the model's scale compensates for (`info`); adversarial training, sometimes with both betas below 0.9 (left out: only their order is judged)"
-- explains = ["weight-decay", "no-warm-up", "output-constant", "learning-rate-too-high", "gradient-exploding-layer", "gradients-exploding", "oscillation", "divergence", "loss-spike", "plateau", "slow-decrease"]
-- [parameters.forgets]
-- value = 0.95
-- unit = "beta"
-- source = "practice: beta2 is 0.95 to 0.999; the average of the squares must not forget sooner than that of the gradients"
-- [parameters.momentum]
-- value = 0.995
-- unit = "momentum"
-- source = "practice: 0.9, at most 0.99; 0.999 is the second of Adam's betas"
-- [parameters.hardly]
-- value = 0.1
-- unit = "momentum, alpha or rho"
-- source = "practice: 0, or 0.5 to 0.99; smaller values remember almost nothing, and 1e-5 to 1e-2 are typical weight decays"
-- [parameters.eps]
-- value = 0.001
-- unit = "eps"
-- source = "practice: 1e-8 to 1e-4 in Adam and its relatives; 0.01 and 0.1 are typical weight decays"
-- [parameters.floor]
-- value = 0.9
-- unit = "ratio of the second moments"
-- source = "ours: eps then determines nearly all updates, which become plain gradient descent with rate lr / eps"
-- [parameters.tiny]
-- value = 1e-6
-- unit = "learning rate"
-- source = "practice: Adam uses 1e-5 (fine-tuning) to 1e-2; 1e-7 and less only at the end of a schedule"
-- [parameters.huge]
-- value = 0.1
-- unit = "learning rate"
-- source = "practice: as above"
WITH states AS (
    SELECT optimizer, param_group, MAX(eps) AS eps, MEDIAN(eps_floor_ratio) AS floor, COUNT(*) AS n, MIN(step) AS step FROM python.optimizers
    WHERE regexp_matches(optimizer, 'Adam|AdamW|NAdam|RAdam|Lamb|LAMB') AND eps_floor_ratio IS NOT NULL GROUP BY ALL
), rates AS (
    SELECT MAX(value) FILTER (name = 'optimizer') AS optimizer, MAX(number) FILTER (name = 'optimizer.lr') AS base FROM probe.facts WHERE kind = 'hyperparameter'
), used AS (
    SELECT MAX(lr) AS highest, COUNT(*) AS steps, MIN(step) AS step FROM python.steps WHERE lr IS NOT NULL
), pairs AS (
    SELECT name, ARG_MAX(value, t_ns) AS value, regexp_extract_all(ARG_MAX(value, t_ns), '[0-9.]+(?:e-?[0-9]+)?') AS betas FROM probe.facts
    WHERE kind = 'hyperparameter' AND regexp_matches(name, '^optimizer[0-9]*([.]group[0-9]+)?[.]betas$') GROUP BY name
), settings AS (
    SELECT regexp_extract(name, '^(optimizer[0-9]*)', 1) AS place, regexp_extract(name, '^(optimizer[0-9]*([.]group[0-9]+)?)', 1) AS name, regexp_extract(name, '([a-z_]+)$', 1) AS setting,
        ARG_MAX(value, t_ns) AS value, regexp_extract_all(ARG_MAX(value, t_ns), '[0-9.]+(?:e-?[0-9]+)?') AS parts
    FROM probe.facts WHERE kind = 'hyperparameter' AND regexp_matches(name, '^optimizer[0-9]*([.]group[0-9]+)?[.](lr|betas|momentum|dampening|alpha|rho|eps|weight_decay|maximize)$') GROUP BY ALL
), kinds AS (
    SELECT name AS place, ARG_MAX(value, t_ns) AS optimizer FROM probe.facts WHERE kind = 'hyperparameter' AND regexp_matches(name, '^optimizer[0-9]*$') GROUP BY name
), groups AS (
    SELECT settings.name, ANY_VALUE(optimizer) AS optimizer, MAX(TRY_CAST(value AS DOUBLE)) FILTER (setting = 'momentum') AS momentum, MAX(TRY_CAST(value AS DOUBLE)) FILTER (setting = 'dampening') AS dampening, MAX(TRY_CAST(value AS DOUBLE)) FILTER (setting = 'weight_decay') AS weight_decay,
        MAX(TRY_CAST(parts[1] AS DOUBLE)) FILTER (setting = 'betas') AS beta1, MAX(TRY_CAST(parts[2] AS DOUBLE)) FILTER (setting = 'betas') AS beta2,
        MAX(TRY_CAST(value AS DOUBLE)) FILTER (setting = 'alpha') AS alpha, MAX(TRY_CAST(value AS DOUBLE)) FILTER (setting = 'rho') AS rho, MAX(TRY_CAST(value AS DOUBLE)) FILTER (setting = 'eps') AS eps,
        MAX(TRY_CAST(value AS DOUBLE)) FILTER (setting = 'lr') AS lr, BOOL_OR(setting = 'maximize' AND value = 'True') AS maximize
    FROM settings JOIN kinds USING (place) GROUP BY settings.name
), usual AS (
    -- From the papers and torch's defaults, widened to what published trainings take.
    SELECT * FROM (VALUES
        ('SGD', 'lr', 1e-6, 10.0, 'with a mean loss, 0.001 to 1 is usual, in word-level language models up to 20'), ('SGD', 'momentum', 0.0, 0.99, 'default 0, mostly 0.9'),
        ('RMSprop', 'alpha', 0.8, 0.9999, 'default 0.99'), ('RMSprop', 'lr', 1e-7, 0.1, 'default 0.01'), ('RMSprop', 'eps', 1e-16, 1.0, 'default 1e-8; 1e-3 to 1 in published recipes'),
        ('Adagrad', 'lr', 1e-5, 1.0, 'default 0.01'), ('Adadelta', 'lr', 1e-3, 10.0, 'default 1: it finds its own scale'), ('Adadelta', 'rho', 0.8, 0.9999, 'default 0.9'),
        ('Lion', 'lr', 1e-8, 0.01, 'a third to a tenth of AdamW''s'),
        ('Adam', 'beta1', 0.0, 0.99, 'default 0.9, 0 to 0.5 in adversarial training'), ('AdamW', 'beta1', 0.0, 0.99, 'default 0.9'), ('NAdam', 'beta1', 0.0, 0.99, 'default 0.9'), ('RAdam', 'beta1', 0.0, 0.99, 'default 0.9'), ('Adamax', 'beta1', 0.0, 0.99, 'default 0.9'),
        ('Adam', 'beta2', 0.8, 0.99999, 'default 0.999'), ('AdamW', 'beta2', 0.8, 0.99999, 'default 0.999'), ('NAdam', 'beta2', 0.8, 0.99999, 'default 0.999'), ('RAdam', 'beta2', 0.8, 0.99999, 'default 0.999'), ('Adamax', 'beta2', 0.8, 0.99999, 'default 0.999'),
        ('Adam', 'eps', 1e-16, 0.001, 'default 1e-8; 0 makes NaN where a gradient is 0'), ('AdamW', 'eps', 1e-16, 0.001, 'default 1e-8; 0 makes NaN where a gradient is 0'), ('NAdam', 'eps', 1e-16, 0.001, 'default 1e-8'), ('RAdam', 'eps', 1e-16, 0.001, 'default 1e-8')
    ) t(optimizer, setting, low, high, source)
), numbers AS (
    SELECT name, TRY_CAST(betas[1] AS DOUBLE) AS beta1, TRY_CAST(betas[2] AS DOUBLE) AS beta2 FROM pairs WHERE len(betas) = 2
)
SELECT NULL AS unknown, 0 AS step, 'momentum' AS subject, format('{}''s momentum is {:.4g}: a step sums about the last {:.0f} gradients, and moves as with a rate {:.0f} times as high', optimizer, momentum, 1 / (1 - momentum), 1 / (1 - momentum)) AS fact,
    format('{}: without momentum, a rate of {:.3g} would move as far; 0.9 to 0.99 is usual, and accumulated momentum takes as many steps to fade', name, lr / (1 - momentum)) AS evidence, 'notice' AS severity
FROM groups WHERE optimizer IN ('SGD', 'RMSprop') AND momentum >= $momentum AND momentum < 1 AND COALESCE(dampening, 0) < 0.5
UNION ALL BY NAME
SELECT NULL AS unknown, 0 AS step, name || '.' || setting AS subject, format('{}''s {} is {:.4g}, where {:.3g} to {:.3g} are usual', optimizer, setting, value, low, high) AS fact,
    format('{}.{}; {}', name, setting, source) AS evidence, 'info' AS severity
FROM (UNPIVOT (SELECT * REPLACE (CASE WHEN momentum < $momentum OR COALESCE(dampening, 0) >= 0.5 THEN momentum END AS momentum, CASE WHEN alpha >= $hardly OR alpha <= 0 THEN alpha END AS alpha, CASE WHEN rho >= $hardly OR rho <= 0 THEN rho END AS rho) FROM groups) ON momentum, beta1, beta2, alpha, rho, eps, lr INTO NAME setting VALUE value) JOIN usual USING (optimizer, setting)
WHERE value < low OR value > high
UNION ALL BY NAME
SELECT NULL AS unknown, 0 AS step, setting AS subject, format('{}''s {} is {:.4g}: hardly any, as if a weight decay had been passed in its place', optimizer, setting, value) AS fact,
    format('{}: {}; {}. Positional arguments easily end up in the wrong setting', name, source, place) AS evidence, 'notice' AS severity
FROM (UNPIVOT (SELECT name, optimizer, momentum, alpha, rho FROM groups) ON momentum, alpha, rho INTO NAME setting VALUE value)
JOIN (VALUES ('SGD', 'momentum', 'usual is none, or 0.9', 'SGD''s third argument is the momentum, its weight_decay the fifth'), ('RMSprop', 'momentum', 'usual is none, or 0.9', 'RMSprop''s fifth argument is the weight_decay, its momentum the sixth'),
    ('RMSprop', 'alpha', '0.99 is usual; it sets over how many steps squared gradients are averaged', 'RMSprop''s third argument is alpha, its weight_decay the fifth'), ('Adadelta', 'rho', '0.9 is usual; it sets over how many steps squared gradients are averaged', 'Adadelta''s third argument is rho, its weight_decay the fifth')
    ) t(optimizer, setting, source, place) USING (optimizer, setting)
WHERE value > 0 AND value < $hardly
UNION ALL BY NAME
SELECT NULL AS unknown, 0 AS step, name || '.dampening' AS subject, format('SGD''s dampening is {:.4g}, with a momentum of {:.4g} and without weight decay: as if a weight decay had been passed in its place', dampening, momentum) AS fact,
    format('{}: SGD''s fourth argument is the dampening, its weight_decay the fifth', name) AS evidence, 'info' AS severity
FROM groups WHERE optimizer = 'SGD' AND dampening > 0 AND dampening < $hardly AND COALESCE(weight_decay, 0) = 0
UNION ALL BY NAME
SELECT NULL AS unknown, 0 AS step, name || '.maximize' AS subject, format('{} maximizes its loss (maximize=True)', optimizer) AS fact, 'correct for a reward, but a loss grows' AS evidence, 'info' AS severity
FROM groups WHERE maximize
UNION ALL BY NAME
SELECT NULL AS unknown, 0 AS step, 'betas' AS subject, format('Adam''s betas are in the wrong order: a momentum of {:.4g} over squares that are forgotten at {:.4g}', beta1, beta2) AS fact,
    format('{}: ({:.4g}, {:.4g}), but the first is usually 0.9 and the second 0.999; an update is then not bounded by the learning rate', MIN(name), beta1, beta2) AS evidence
FROM numbers WHERE beta1 > beta2 AND beta2 < $forgets GROUP BY beta1, beta2
UNION ALL BY NAME
SELECT NULL AS unknown, MIN(step) AS step, 'eps' AS subject, format('{}''s eps is {:.3g} and outweighs the root of the second moment in {:.0f} % of the values: it determines the updates, which are far smaller than the rate suggests', ANY_VALUE(optimizer), eps, 100 * MAX(floor)) AS fact,
    format('1e-8 to 1e-4 is usual; in {} samples the adaptive part had almost no effect. A weight decay passed as eps looks like this', MAX(n)) AS evidence, 'notice' AS severity
FROM states WHERE eps >= $eps AND floor >= $floor AND n >= 3 GROUP BY eps
UNION ALL BY NAME
SELECT NULL AS unknown, used.step, 'rate' AS subject, format('the learning rate is so {} for {} that few runs use it: {:.3g} at its highest', CASE WHEN highest < $tiny THEN 'low' ELSE 'high' END, optimizer, highest) AS fact,
    format('1e-5 to 1e-2 is usual; {:.3g} was set when the optimizer was created', base) AS evidence, 'info' AS severity
FROM rates, used WHERE optimizer IN ('Adam', 'AdamW', 'NAdam', 'RAdam', 'Adamax') AND steps >= 50 AND base > 0 AND highest > 0
    AND (highest < $tiny AND base < $tiny OR highest > $huge)
UNION ALL BY NAME
SELECT 'the settings of the optimizer are not known yet' AS unknown FROM groups HAVING COUNT(*) = 0 AND NOT EXISTS (SELECT 1 FROM states) AND NOT EXISTS (SELECT 1 FROM pairs)
