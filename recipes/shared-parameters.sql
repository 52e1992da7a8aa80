-- title = "several optimizers step the same parameters"
-- severity = "info"
-- symptoms = ["loss", "gradients"]
-- order = 211
-- scope = "rank"
-- needs = "the list of parameters, recorded once the model and its optimizers are known"
-- what = "{n} parameters are in {optimizers} optimizers, each of which steps them: {examples}"
-- why = [
--   "{elements:,} elements; the gradient of one loss changes what another optimizer trains, or an update is applied twice",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT param, optimizer, optimizers FROM python.parameters WHERE optimizers > 1 ORDER BY place\"",
-- ]
-- false_positives = "a part trained by two losses in turn on purpose, such as the encoder of an adversarial autoencoder; probe cannot distinguish the two cases"
-- explains = ["steps-and-backwards"]
WITH latest AS (
    SELECT param, ARG_MAX(place, t_ns) AS place, ARG_MAX(numel, t_ns) AS numel, ARG_MAX((optimizers, 0), t_ns)[1] AS optimizers, ARG_MAX(requires_grad, t_ns) AS requires_grad, MAX(step) AS step FROM python.parameters GROUP BY param
)
SELECT NULL AS unknown, COUNT(*) AS n, MAX(optimizers) AS optimizers, SUM(numel) AS elements, MIN(step) AS step, array_to_string(list(param ORDER BY place)[:4], ', ') AS examples
FROM latest WHERE optimizers > 1 AND requires_grad HAVING COUNT(*) > 0
UNION ALL BY NAME
SELECT 'the parameters are not known yet' AS unknown FROM latest HAVING COUNT(*) = 0
