-- title = "initial weights are too large"
-- severity = "notice"
-- symptoms = ["loss", "gradients"]
-- order = 143
-- scope = "rank"
-- needs = "sampled weight values and the loss from the first steps, and the parameter shapes"
-- what = "the weights are initialized far too large: {param} has values of about {rms:.3g}, but its {fan_in:.0f} inputs call for about {usual:.2g} ({gain:.0f} times){others}"
-- why = [
--   "{loss}",
--   "{looked_at} elements sampled in step {step}: {examples}",
--   "layers are usually initialized with a standard deviation of 0.6 to 1.4 / sqrt(inputs)",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT u.step, u.param, u.weight_rms, p.shape FROM python.updates u JOIN python.parameters p USING (param) WHERE u.step < 16 ORDER BY u.step, u.place LIMIT 24\"",
--   "probe {endpoint} query \"SELECT step, loss FROM python.steps ORDER BY step LIMIT 10\"",
-- ]
-- false_positives = "weights loaded from another run; Fourier feature layers: `info` unless the first loss is far above that of guessing"
-- explains = ["gradients-exploding", "gradient-exploding-layer", "saturated-units", "loss-spike", "no-warm-up", "slow-decrease", "output-constant"]
-- [parameters.first]
-- value = 16
-- unit = "steps"
-- source = "ours: later, training itself has changed them"
-- [parameters.times]
-- value = 4.0
-- unit = "times 1 / sqrt(inputs)"
-- source = "practice: 0.58 (torch's default) to 1.41 (He); four is about seven times torch's default, and more than trained networks reach"
-- [parameters.absurd]
-- value = 50.0
-- unit = "times 1 / sqrt(inputs)"
-- source = "ours: from here on it is worth an `info` on its own"
-- [parameters.worse]
-- value = 1.5
-- unit = "times the loss of guessing"
-- source = "ours: a network with small outputs starts at 1"
WITH first AS (
    -- Two models may use one name: `1.weight` of a part that is called by itself, and of the whole. Their places differ.
    SELECT param, place, ARG_MIN(weight_rms, step) AS rms, MIN(step) AS step, ANY_VALUE(looked_at) AS looked_at FROM python.updates
    WHERE step <= $first AND weight_rms IS NOT NULL AND optimizer IS NOT NULL AND param IS NOT NULL GROUP BY param, place
), listed AS (
    SELECT param, place, ARG_MAX(shape, t_ns) AS shape, ARG_MAX(numel, t_ns) AS numel, ARG_MAX(module, t_ns) AS module FROM python.parameters GROUP BY param, place
), kinds AS (
    SELECT module, ARG_MAX(class, t_ns) AS class FROM python.modules GROUP BY module
), gains AS (
    SELECT f.*, numel / TRY_CAST(regexp_extract(shape, '^\[(\d+), ', 1) AS DOUBLE) AS fan_in FROM first f JOIN listed l ON l.param = f.param AND l.place IS NOT DISTINCT FROM f.place JOIN kinds USING (module)
    WHERE regexp_matches(class, '(^|[a-z])(Linear|Conv[123]d)') AND regexp_matches(shape, '^\[\d+, ') AND looked_at >= 16
), large AS (
    SELECT *, rms * sqrt(fan_in) AS gain FROM gains WHERE fan_in >= 8
), chance AS (
    SELECT MAX(classes)::DOUBLE AS classes, MAX(COALESCE(entropy, ln(classes))) AS nats FROM python.loss_functions
    WHERE function = 'cross_entropy' AND reduction = 'mean' AND classes > 1 AND step <= 200
), start AS (
    SELECT MEDIAN(loss) AS loss FROM (SELECT loss FROM python.steps WHERE step <= 3 AND isfinite(loss) ORDER BY step LIMIT 3)
), counted AS (
    SELECT ARG_MAX(param, gain) AS param, MAX(gain) AS gain, ARG_MAX(rms, gain) AS rms, ARG_MAX(fan_in, gain) AS fan_in, COUNT(*) - 1 AS more, MIN(step) AS step, ARG_MAX(looked_at, gain) AS looked_at,
        array_to_string(list(format('{} {:.2g}', param, rms) ORDER BY gain DESC)[:4], ', ') AS examples FROM large WHERE gain >= $times HAVING COUNT(*) > 0
)
SELECT NULL AS unknown, c.param, c.param AS subject, gain, rms, fan_in, 1 / sqrt(fan_in) AS usual, step, looked_at, examples, CASE WHEN far THEN 'notice' ELSE 'info' END AS severity,
    CASE WHEN more > 1 THEN format(', and so have {} other matrices', more) WHEN more = 1 THEN ', and so has another matrix' ELSE '' END AS others,
    CASE WHEN far THEN format('the first loss is {:.3g}, {:.1f} times that of guessing among {:.0f} classes ({:.3g})', loss, loss / ln(classes), classes, ln(classes)) END AS loss
FROM (SELECT counted.*, start.loss, classes, COALESCE(start.loss > $worse * ln(classes), false) AS far FROM counted, start, chance) c WHERE far OR gain >= $absurd
UNION ALL BY NAME
SELECT 'no weights were sampled in the first steps' AS unknown WHERE NOT EXISTS (SELECT 1 FROM first)
