-- title = "frozen layers whose statistics move"
-- severity = "notice"
-- symptoms = ["loss"]
-- order = 216
-- scope = "rank"
-- needs = "the list of modules, recorded once the model and its optimizer are known"
-- what = "{n} frozen batch normalizations are in train mode, so their running statistics go on moving: {examples}"
-- why = [
--   "their weights have had requires_grad=False {since}, and `training` is True: each batch is normalized by its own mean and variance, and changes the stored ones",
--   "{frozen} of the model's {all_layers} batch normalizations are frozen; what the frozen layers compute in an evaluation is not what they compute in training",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT module, class, training, trainable FROM python.modules WHERE class LIKE '%BatchNorm%' ORDER BY module\"",
--   "probe {endpoint} eval --at-step \"[m.eval() for m in model.modules() if 'BatchNorm' in type(m).__name__ and m.weight is not None and not m.weight.requires_grad]\"",
-- ]
-- false_positives = "statistics that are meant to adapt to new data while the weights stay"
-- [parameters.least]
-- value = 50
-- unit = "steps"
-- source = "ours: a discriminator is frozen for a part of each step only"
WITH changes AS (
    SELECT *, LAG(trainable) OVER (PARTITION BY module ORDER BY t_ns) AS before FROM python.modules
), latest AS (
    SELECT module, ARG_MAX(class, t_ns) AS class, ARG_MAX(training, t_ns) AS training, ARG_MAX(parameters, t_ns) AS parameters,
        ARG_MAX(trainable, t_ns) AS trainable, MAX(trainable) AS most, ARG_MAX(estimated, t_ns) AS estimated,
        COUNT(*) FILTER (trainable = 0 AND before > 0) AS freezes, COALESCE(MAX(step) FILTER (trainable = 0 AND before > 0), MIN(step)) AS step
    FROM changes GROUP BY module
), held AS (
    -- By an optimizer that still steps: that of an earlier training may be alive.
    SELECT DISTINCT module FROM (SELECT module, optimizer, optimizers FROM python.parameters QUALIFY ROW_NUMBER() OVER (PARTITION BY param ORDER BY t_ns DESC) = 1)
    WHERE optimizer IS NOT NULL AND COALESCE(optimizers, 1) > 0
), norms AS (
    -- A discriminator that is frozen for one part of each step is trainable in other rows, and its optimizer holds it.
    SELECT *, parameters > 0 AND trainable = 0 AND (most = 0 OR (
        freezes = 1 AND module NOT IN (SELECT module FROM held) AND (SELECT MAX(step) FROM python.steps) >= step + $least)) AS frozen
    FROM latest one WHERE class LIKE '%BatchNorm%' AND class NOT LIKE 'Frozen%'
        -- The average of another part of the model (a target, a momentum encoder) normalizes as that part does.
        AND NOT (trainable = 0 AND EXISTS (SELECT 1 FROM latest other WHERE other.trainable > 0 AND other.class = one.class AND other.parameters = one.parameters
            AND (ends_with(other.module, '.' || one.module) OR ends_with(one.module, '.' || other.module)
                OR (other.module LIKE '%.%' AND regexp_replace(other.module, '^[^.]+', '') = regexp_replace(one.module, '^[^.]+', '')))))
), trained AS (
    SELECT COUNT(*) FILTER (requires_grad AND optimizer IS NOT NULL) > 0 AS any_trained FROM python.parameters
)
SELECT NULL AS unknown, ARG_MIN(module, module) FILTER (frozen AND training) AS subject, ARG_MIN(module, module) FILTER (frozen AND training) AS module,
    COUNT(*) FILTER (frozen AND training) AS n, COUNT(*) FILTER (frozen) AS frozen, COUNT(*) AS all_layers,
    CASE WHEN MIN(freezes) FILTER (frozen AND training) = 0 THEN 'in the whole run' ELSE format('since step {}', MIN(step) FILTER (frozen AND training)) END AS since,
    array_to_string(list(module ORDER BY module) FILTER (frozen AND training)[:4], ', ') AS examples, MIN(step) FILTER (frozen AND training) AS step
FROM norms, trained WHERE any_trained HAVING COUNT(*) FILTER (frozen AND training AND estimated) > 0
UNION ALL BY NAME
SELECT 'the modules are not known yet' AS unknown FROM latest HAVING COUNT(*) = 0
