-- title = "model copy without buffers"
-- severity = "notice"
-- symptoms = ["loss"]
-- order = 216
-- scope = "rank"
-- needs = "the modules of the models that are called, with batch-norm running statistics in host memory"
-- what = "{module}, in a copy of the model, runs with running statistics that were never estimated, while those of {original} were: the copy contains the weights but not the buffers"
-- why = [
--   "{n} {class} layers of the copy are in eval mode with mean 0 and variance 1, their initial values",
--   "average or copy model.buffers() too (torch.optim.swa_utils.AveragedModel: use_buffers=True, or update_bn at the end)",
-- ]
-- next = ["probe {endpoint} query \"SELECT module, class, training, estimated FROM python.modules WHERE estimated IS NOT NULL ORDER BY module\""]
-- false_positives = "a randomly initialized copy used as a fixed target on purpose"
-- explains = ["train-validation-gap", "validation-rising"]
WITH latest AS (
    SELECT module, ARG_MAX(class, t_ns) AS class, ARG_MAX(training, t_ns) AS training, ARG_MAX(estimated, t_ns) AS estimated, MAX(step) AS step FROM python.modules WHERE estimated IS NOT NULL GROUP BY module
), pairs AS (
    SELECT copy.module, copy.class, original.module AS original, copy.step FROM latest copy JOIN latest original
        ON NOT copy.estimated AND NOT copy.training AND original.estimated AND copy.class = original.class AND ends_with(copy.module, '.' || original.module)
)
SELECT NULL AS unknown, MIN(module) AS subject, MIN(module) AS module, ARG_MIN(original, module) AS original, ANY_VALUE(class) AS class, COUNT(*) AS n, MIN(step) AS step FROM pairs HAVING COUNT(*) > 0
