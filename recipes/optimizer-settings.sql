-- title = "optimizer setting out of all proportion"
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
-- false_positives = "adversarial training, which sometimes has both below 0.9 (left out: only the order of the two is judged)"
-- explains = ["learning-rate-too-high", "gradient-exploding-layer", "gradients-exploding", "oscillation", "divergence", "loss-spike", "plateau", "slow-decrease"]
-- [parameters.forgets]
-- value = 0.95
-- unit = "beta"
-- source = "practice: beta2 is 0.95 to 0.999; the average of the squares must not forget sooner than that of the gradients"
WITH pairs AS (
    SELECT name, ARG_MAX(value, t_ns) AS value, regexp_extract_all(ARG_MAX(value, t_ns), '[0-9.]+(?:e-?[0-9]+)?') AS betas FROM probe.facts
    WHERE kind = 'hyperparameter' AND regexp_matches(name, '^optimizer[0-9]*([.]group[0-9]+)?[.]betas$') GROUP BY name
), numbers AS (
    SELECT name, TRY_CAST(betas[1] AS DOUBLE) AS beta1, TRY_CAST(betas[2] AS DOUBLE) AS beta2 FROM pairs WHERE len(betas) = 2
)
SELECT NULL AS unknown, 0 AS step, 'betas' AS subject, format('Adam''s betas are in the wrong order: a momentum of {:.4g} over squares that are forgotten at {:.4g}', beta1, beta2) AS fact,
    format('{}: ({:.4g}, {:.4g}), where the first is usually 0.9 and the second 0.999; so an update is not bounded by the learning rate', MIN(name), beta1, beta2) AS evidence
FROM numbers WHERE beta1 > beta2 AND beta2 < $forgets GROUP BY beta1, beta2
UNION ALL BY NAME
SELECT 'no optimizer with betas is known' AS unknown FROM pairs HAVING COUNT(*) = 0
