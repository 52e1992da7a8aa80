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
-- false_positives = "an eps of 0.01 or more on purpose, after recipes for RMSprop; rates of models whose scale makes up for it (`info`); adversarial training, which sometimes has both below 0.9 (left out: only the order of the two is judged)"
-- explains = ["learning-rate-too-high", "gradient-exploding-layer", "gradients-exploding", "oscillation", "divergence", "loss-spike", "plateau", "slow-decrease"]
-- [parameters.forgets]
-- value = 0.95
-- unit = "beta"
-- source = "practice: beta2 is 0.95 to 0.999; the average of the squares must not forget sooner than that of the gradients"
-- [parameters.eps]
-- value = 0.001
-- unit = "eps"
-- source = "practice: 1e-8 to 1e-4 in Adam and its kin; a value of 0.01 or 0.1 is what weight decays are"
-- [parameters.floor]
-- value = 0.9
-- unit = "ratio of the second moments"
-- source = "ours: eps then sets nearly all updates, which are those of a gradient descent with the rate lr / eps"
-- [parameters.tiny]
-- value = 1e-6
-- unit = "learning rate"
-- source = "practice: Adam takes 1e-5 (fine-tuning) to 1e-2, 1e-7 and less only at the ends of schedules"
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
), numbers AS (
    SELECT name, TRY_CAST(betas[1] AS DOUBLE) AS beta1, TRY_CAST(betas[2] AS DOUBLE) AS beta2 FROM pairs WHERE len(betas) = 2
)
SELECT NULL AS unknown, 0 AS step, 'betas' AS subject, format('Adam''s betas are in the wrong order: a momentum of {:.4g} over squares that are forgotten at {:.4g}', beta1, beta2) AS fact,
    format('{}: ({:.4g}, {:.4g}), where the first is usually 0.9 and the second 0.999; so an update is not bounded by the learning rate', MIN(name), beta1, beta2) AS evidence
FROM numbers WHERE beta1 > beta2 AND beta2 < $forgets GROUP BY beta1, beta2
UNION ALL BY NAME
SELECT NULL AS unknown, MIN(step) AS step, 'eps' AS subject, format('{}''s eps is {:.3g} and outweighs the root of the second moment in {:.0f} % of the values: it sets the updates, which are far smaller than the rate says', ANY_VALUE(optimizer), eps, 100 * MAX(floor)) AS fact,
    format('usual are 1e-8 to 1e-4; in {} samples the adaptive part counted for nearly nothing. A weight decay passed as eps looks like this', MAX(n)) AS evidence, 'notice' AS severity
FROM states WHERE eps >= $eps AND floor >= $floor AND n >= 3 GROUP BY eps
UNION ALL BY NAME
SELECT NULL AS unknown, used.step, 'rate' AS subject, format('the learning rate is so {} for {} that few trainings take it: {:.3g} at its highest', CASE WHEN highest < $tiny THEN 'low' ELSE 'high' END, optimizer, highest) AS fact,
    format('usual are 1e-5 to 1e-2; {:.3g} was set when the optimizer was made', base) AS evidence, 'info' AS severity
FROM rates, used WHERE optimizer IN ('Adam', 'AdamW', 'NAdam', 'RAdam', 'Adamax') AND steps >= 50 AND base > 0 AND highest > 0
    AND (highest < $tiny AND base < $tiny OR highest > $huge)
UNION ALL BY NAME
SELECT 'no optimizer with betas is known' AS unknown FROM pairs HAVING COUNT(*) = 0 AND NOT EXISTS (SELECT 1 FROM states)
