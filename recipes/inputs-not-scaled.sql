-- title = "inputs are not scaled"
-- severity = "notice"
-- symptoms = ["loss", "gradients", "data"]
-- order = 128
-- scope = "rank"
-- needs = "the model's inputs from a few sampled steps"
-- what = "{fact}"
-- why = [
--   "{evidence}",
--   "input {name} of {module}, {shape} ({dtype}): mean {mean:.3g}, standard deviation {std:.3g}; in all of the last {n} sampled steps, from step {step} to {last}",
--   "loss: {loss_first:.4g} at first, {loss_now:.4g} now",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, module, name, shape, mean, std, min, max FROM python.model_inputs WHERE module <> 'batch' ORDER BY step DESC LIMIT 10\"",
-- ]
-- false_positives = "a model that scales its inputs itself, other than by a normalization in its first layer; synthetic inputs for benchmarks; measurements without spatial order, passed as images; a threshold at the brightest pixels on purpose; `info` if the loss has fallen by half anyway, or beside another input that is scaled (hours, places)"
-- explains = ["labels-contradict", "samples-alike", "evaluation-seen", "gradients-exploding", "gradients-vanishing", "gradient-shifted", "layer-not-learning", "dead-units", "plateau", "slow-decrease", "output-constant", "evaluation-inputs", "train-validation-gap"]
-- [parameters.least]
-- value = 5
-- unit = "sampled steps"
-- source = "ours"
-- [parameters.large]
-- value = 50.0
-- unit = "root mean square"
-- source = "practice: weights are initialized for inputs of about 1; bytes of images are about 100"
-- [parameters.narrow]
-- value = 0.05
-- unit = "largest minus smallest value"
-- source = "practice: images scaled to 0..1 or -1..1 span 1 or 2; divided by 255 a second time, they span less than 0.01"
-- [parameters.noise_std]
-- value = 2.0
-- unit = "standard deviation"
-- source = "practice: images are scaled to 0..1 or standardized to a deviation of 1, and so is the input of a diffusion model"
-- [parameters.neighbours]
-- value = 0.15
-- unit = "correlation of neighbouring pixels"
-- source = "practice: above 0.9 in photographs; measured: 0.4 in small images of digits, 0.03 after adding noise of equal size"
-- [parameters.bright]
-- value = 1.5
-- unit = "times"
-- source = "ours: with fewer bytes between 128 and 254, a threshold in the middle looks the same as integer division"
-- [parameters.begun]
-- value = 20.0
-- unit = "nats"
-- source = "chance is the logarithm of the number of classes, 11 for 50,000; a first loss above this comes from outputs as large as their inputs"
WITH first AS (
    SELECT COALESCE(BOOL_OR(m.class LIKE '%Norm%' OR m.class LIKE '%Embedding%'), false) AS scales FROM python.parameters p JOIN python.modules m USING (module) WHERE p.place = 0
), seen AS (
    SELECT * FROM python.model_inputs
    WHERE module <> 'batch' AND NOT COALESCE(gradless, false) AND dtype IN ('float32', 'float16', 'bfloat16', 'float64') AND looked_at >= 32 AND len(CAST(shape AS BIGINT[])) >= 2 AND isfinite(std) AND max > min
    QUALIFY ROW_NUMBER() OVER (PARTITION BY module, name ORDER BY step DESC) <= 6
), inputs AS (
    SELECT module, name, COUNT(*) AS n, MIN(step) AS step, MAX(step) AS last, ARG_MAX(shape, step) AS shape, ANY_VALUE(dtype) AS dtype, MEDIAN(mean) AS mean, MEDIAN(std) AS std,
        MIN(SQRT(mean * mean + std * std)) AS size, MAX(max - min) AS width, MIN(std) AS least_std, CASE WHEN COUNT(neighbour_r) = COUNT(*) THEN MAX(neighbour_r) END AS near, MAX(max) AS highest, MIN(min) AS lowest FROM seen GROUP BY module, name HAVING COUNT(*) >= $least
), constant AS (
    SELECT module, COUNT(DISTINCT step) AS n, MIN(step) AS step, MAX(step) AS last, ARG_MAX(name, looked_at) AS name, ARG_MAX(shape, looked_at) AS shape, ARG_MAX(dtype, looked_at) AS dtype, MIN(mean) AS mean, 0.0 AS std
    FROM (SELECT * FROM python.model_inputs WHERE module <> 'batch' AND NOT COALESCE(gradless, false) QUALIFY DENSE_RANK() OVER (PARTITION BY module ORDER BY step DESC) <= 6) GROUP BY module
    HAVING COUNT(DISTINCT step) >= $least AND MIN(min) = MAX(max) AND COUNT(*) = COUNT(min) AND MAX(looked_at) >= 32
), bytes AS (
    SELECT ARG_MAX(number, t_ns) FILTER (name LIKE '%.bytes_at_255') AS brightest, ARG_MAX(number, t_ns) FILTER (name LIKE '%.bytes_from_128') AS bright FROM probe.facts WHERE kind = 'hyperparameter' AND number IS NOT NULL
), rounded AS (
    -- Of two values: how often the upper one comes. Dividing bytes as whole numbers leaves those of 255, a threshold many more.
    SELECT module, name, COUNT(*) AS n, MIN(step) AS step, MAX(step) AS last, ARG_MAX(shape, step) AS shape, ANY_VALUE(dtype) AS dtype, MEDIAN(mean) AS mean, MEDIAN(std) AS std, MIN(min) AS low, MAX(max) AS high, AVG((mean - min) / (max - min)) AS upper
    FROM seen WHERE len(CAST(shape AS BIGINT[])) >= 3 GROUP BY module, name HAVING COUNT(*) >= $least AND MIN(ends_ratio) = 1 AND MIN(min) = MAX(min) AND MIN(max) = MAX(max)
), losses AS (
    SELECT MEDIAN(loss) FILTER (i <= 20) AS loss_first, MEDIAN(loss) FILTER (i > k - 20) AS loss_now, MAX(loss) FILTER (i <= 3) AS loss_begun
    FROM (SELECT loss, ROW_NUMBER() OVER (ORDER BY step) AS i, COUNT(*) OVER () AS k FROM python.steps WHERE isfinite(loss))
), inflated AS (
    SELECT COALESCE(ANY_VALUE(loss_begun) > $begun AND EXISTS (SELECT 1 FROM python.loss_functions WHERE function IN ('cross_entropy', 'binary_cross_entropy_with_logits')), false) AS yes FROM losses
)
SELECT NULL AS unknown, module || ' ' || name AS subject, inputs.*, losses.*,
    CASE WHEN size > $large THEN format('the inputs are not scaled: values from {:.3g} to {:.3g}, where a network expects about 1', lowest, highest)
        ELSE format('the inputs are almost constant: all values lie within {:.2g} around {:.3g}, as if they were scaled twice', width, mean) END AS fact,
    CASE WHEN size > $large THEN 'the first layer''s outputs and gradients are larger by the same factor: subtract the mean and divide by the standard deviation'
        ELSE 'the inputs contain almost nothing to tell the samples apart: look for a second division' END AS evidence,
    -- A loss that only fell from where inputs of this size put it says nothing about what is learned.
    -- Large numbers beside an input that is scaled may be hours or places, which the model turns into angles itself.
    CASE WHEN loss_first > 0 AND loss_now < 0.5 * loss_first AND NOT (size > $large AND inflated.yes)
        OR size > $large AND EXISTS (SELECT 1 FROM inputs o WHERE o.module = inputs.module AND o.name <> inputs.name AND o.size <= $large) THEN 'info' ELSE 'notice' END AS severity
FROM inputs, losses, first, inflated
WHERE NOT scales AND (size > $large AND NOT (highest <= 0 AND lowest < -1000) OR width < $narrow)
UNION ALL BY NAME
SELECT NULL AS unknown, module || ' ' || name AS subject, inputs.*, losses.*, format('the inputs are drowned in noise: neighbouring pixels are almost uncorrelated (correlation {:.2f}), with values from {:.3g} to {:.3g}', near, lowest, highest) AS fact,
    format('images scaled for a network have a standard deviation of about 1, not {:.3g}, and neighbours that resemble each other: noise in grey levels (of 255) on images between 0 and 1 looks like this', std) AS evidence,
    CASE WHEN loss_first > 0 AND loss_now < 0.5 * loss_first THEN 'info' ELSE 'notice' END AS severity
FROM inputs, losses WHERE near < $neighbours AND least_std > $noise_std
UNION ALL BY NAME
SELECT NULL AS unknown, module AS subject, constant.*, losses.*, format('the input is constant: every value of every sample is {:.4g}', mean) AS fact,
    'nothing tells the samples apart, so the model can only learn what they have in common: check the code that builds the input' AS evidence, 'notice' AS severity
FROM constant, losses
UNION ALL BY NAME
SELECT NULL AS unknown, module || ' ' || name AS subject, rounded.*, losses.*, format('the inputs are rounded to two values, {:.3g} and {:.3g}: bytes are divided as integers, so that all values below 255 become 0', low, high) AS fact,
    format('{:.1f} % of the values are the upper one; in the data set {:.1f} % of the bytes are 255, and {:.1f} % are 128 or more: the others became {:.3g}. Convert to float before dividing by 255 (/ instead of //)', 100 * upper, 100 * brightest, 100 * bright, low) AS evidence, 'notice' AS severity
FROM rounded, bytes, losses WHERE bright >= $bright * brightest AND brightest > 0 AND upper < SQRT(brightest * bright) AND upper > 0.25 * brightest
UNION ALL BY NAME
SELECT format('the inputs were sampled on {} steps, {} are needed', COUNT(DISTINCT step), $least) AS unknown FROM python.model_inputs HAVING COUNT(DISTINCT step) < $least
