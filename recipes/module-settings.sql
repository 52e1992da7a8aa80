-- title = "implausible module setting"
-- severity = "notice"
-- symptoms = ["loss", "gradients"]
-- order = 140
-- scope = "rank"
-- needs = "the modules of the model"
-- what = "{fact}"
-- why = [
--   "{evidence}",
--   "modules: {modules}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT module, class, training, p, eps, momentum, estimated FROM python.modules WHERE p IS NOT NULL OR class LIKE '%Norm%' ORDER BY module\"",
-- ]
-- false_positives = "batches of one image on purpose, with statistics over its pixels; statistics frozen on purpose after a load that this process did not see"
-- explains = ["gradients-vanishing", "plateau", "slow-decrease", "train-validation-gap"]
-- [parameters.dropout]
-- value = 0.9
-- unit = "ratio"
-- source = "practice: 0.1 to 0.5, 0.8 at most; at 0.9 and above it is probably a keep probability"
-- [parameters.slowest]
-- value = 0.0005
-- unit = "weight of a new batch"
-- source = "practice: 0.1, at least 0.001 in published models; 0.0005 needs 2,000 batches to forget the first estimate"
-- [parameters.fastest]
-- value = 0.9
-- unit = "weight of a new batch"
-- source = "practice: 0.9 and 0.99 are weights of the old statistics, the convention of other libraries"
-- [parameters.eps]
-- value = 0.01
-- unit = "eps"
-- source = "practice: 1e-12 to 1e-3 in published models (1e-3 in MobileNet and EfficientNet); 0.01 to 0.99 are momentum values"
-- [parameters.steps]
-- value = 20
-- unit = "steps"
-- source = "ours"
WITH latest AS (
    SELECT module, ARG_MAX(class, t_ns) AS class, ARG_MAX(p, t_ns) AS p, ARG_MAX(eps, t_ns) AS eps, ARG_MAX(training, t_ns) AS training, ARG_MAX(momentum, t_ns) AS momentum,
        ARG_MAX(estimated, t_ns) AS estimated, ARG_MAX(trainable, t_ns) AS trainable, MAX(step) AS step FROM python.modules GROUP BY module
), steps AS (
    SELECT COUNT(*) AS n, AVG(CAST(samples = micro_steps AS INTEGER)) AS singles, BOOL_AND(COALESCE(training_mode, true)) AS training
    FROM (SELECT * FROM python.steps WHERE samples IS NOT NULL AND micro_steps > 0 ORDER BY step DESC LIMIT 100)
), facts AS (
    SELECT 'dropout' AS kind, module, step, p AS value FROM latest WHERE class LIKE '%Dropout%' AND p >= $dropout AND training
    UNION ALL SELECT 'single', module, latest.step, n FROM latest, steps WHERE class LIKE 'BatchNorm%' AND latest.training AND n >= $steps AND singles > 0.95
    UNION ALL SELECT 'slow', module, step, momentum FROM latest WHERE class LIKE '%BatchNorm%' AND momentum > 0 AND momentum < $slowest AND training
    UNION ALL SELECT 'fast', module, step, momentum FROM latest WHERE class LIKE '%BatchNorm%' AND momentum >= $fastest AND momentum < 1 AND training
    UNION ALL SELECT 'eps', module, step, eps FROM latest WHERE regexp_matches(class, 'Norm') AND eps >= $eps
    UNION ALL SELECT 'untrained', module, latest.step, NULL FROM latest WHERE class LIKE '%BatchNorm%' AND NOT training AND NOT estimated AND trainable > 0
        AND (SELECT BOOL_AND(training_mode) FROM (SELECT training_mode FROM python.steps WHERE training_mode IS NOT NULL ORDER BY step DESC LIMIT $steps))
)
SELECT NULL AS unknown, kind AS subject, MIN(step) AS step, COUNT(*) AS n, ARRAY_TO_STRING(LIST(module ORDER BY module)[:6], ', ') || CASE WHEN COUNT(*) > 6 THEN format(' and {} more', COUNT(*) - 6) ELSE '' END AS modules,
    CASE kind WHEN 'dropout' THEN format('dropout drops {:.0f} % of the values ({})', 100 * MAX(value), MIN(module))
        WHEN 'single' THEN format('BatchNorm normalizes over batches of one sample ({})', MIN(module))
        WHEN 'slow' THEN format('momentum {:.1g} of {}: its running statistics hardly move, and are wrong in evaluation', MIN(value), MIN(module))
        WHEN 'fast' THEN format('momentum {:.2g} of {}: its running statistics are little more than those of the last batch', MAX(value), MIN(module))
        WHEN 'eps' THEN format('eps of {} is {:.2g}: it is added to each variance, so the outputs are not normalized', MIN(module), MAX(value))
        ELSE format('BatchNorm is in eval mode during training, with running statistics that were never estimated ({})', MIN(module)) END AS fact,
    CASE kind WHEN 'dropout' THEN format('`p` of nn.Dropout is the probability to drop; {:.2g} to keep would be p={:.2g}', MAX(value), 1 - MAX(value))
        WHEN 'single' THEN format('each of the last {:.0f} steps had one sample per forward: the statistics are those of that sample alone, and evaluation uses others', MAX(value))
        WHEN 'slow' THEN format('in torch, momentum is the weight of the new batch: it takes {:.0f} batches to forget the first estimate; 0.1 is usual', 1 / MIN(value))
        WHEN 'fast' THEN 'in torch, momentum is the weight of the new batch, in other libraries that of the old statistics; 0.1 is usual'
        WHEN 'eps' THEN '1e-5 is usual, 1e-3 at most; the second argument of torch''s BatchNorm is eps, and the third the momentum'
        ELSE 'it normalizes with its initial mean 0 and variance 1; the model itself is in train mode, these layers are not' END AS evidence
FROM facts GROUP BY kind
UNION ALL BY NAME
SELECT 'the modules of the model are not known yet' AS unknown FROM latest HAVING COUNT(*) = 0
