-- title = "frozen layers whose statistics move"
-- severity = "notice"
-- symptoms = ["loss"]
-- order = 216
-- scope = "rank"
-- needs = "the list of modules, recorded once the model and its optimizer are known"
-- what = "{n} frozen batch normalizations are in train mode, so their running statistics go on moving: {examples}"
-- why = [
--   "their weights have had requires_grad=False in the whole run, and `training` is True: each batch is normalized by its own mean and variance, and changes the stored ones",
--   "{frozen} of the model's {all_layers} batch normalizations are frozen; what the frozen layers compute in an evaluation is not what they compute in training",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT module, class, training, trainable FROM python.modules WHERE class LIKE '%BatchNorm%' ORDER BY module\"",
--   "probe {endpoint} eval --at-step \"[m.eval() for m in model.modules() if 'BatchNorm' in type(m).__name__ and m.weight is not None and not m.weight.requires_grad]\"",
-- ]
-- false_positives = "statistics that are meant to adapt to new data while the weights stay"
WITH latest AS (
    SELECT module, ARG_MAX(class, t_ns) AS class, ARG_MAX(training, t_ns) AS training, ARG_MAX(parameters, t_ns) AS parameters,
        MAX(trainable) AS trainable, ARG_MAX(estimated, t_ns) AS estimated, MIN(step) AS step
    FROM python.modules GROUP BY module
), norms AS (
    -- A discriminator that is frozen for one part of each step is trainable in other rows.
    SELECT *, parameters > 0 AND trainable = 0 AS frozen FROM latest WHERE class LIKE '%BatchNorm%' AND class NOT LIKE 'Frozen%'
), trained AS (
    SELECT COUNT(*) FILTER (requires_grad AND optimizer IS NOT NULL) > 0 AS any_trained FROM python.parameters
)
SELECT NULL AS unknown, ARG_MIN(module, module) FILTER (frozen AND training) AS subject, ARG_MIN(module, module) FILTER (frozen AND training) AS module,
    COUNT(*) FILTER (frozen AND training) AS n, COUNT(*) FILTER (frozen) AS frozen, COUNT(*) AS all_layers,
    array_to_string(list(module ORDER BY module) FILTER (frozen AND training)[:4], ', ') AS examples, MIN(step) FILTER (frozen AND training) AS step
FROM norms, trained WHERE any_trained HAVING COUNT(*) FILTER (frozen AND training AND estimated) > 0
UNION ALL BY NAME
SELECT 'the modules are not known yet' AS unknown FROM latest HAVING COUNT(*) = 0
