-- title = "outputs do not depend on the input"
-- severity = "notice"
-- symptoms = ["loss", "gradients"]
-- order = 268
-- scope = "rank"
-- needs = "an audit in a forked child process, about ten seconds after the start; the model must be on the CPU, neither compiled nor sharded"
-- what = "{model} returns the same for every input: its outputs do not depend on the input"
-- why = [
--   "seen at step {step}: the samples of a batch were swapped with each other, in train and eval mode, and every output stayed bitwise the same",
--   "dead units, zero weights or a skipped part have this effect; this check alone does not show the cause",
-- ]
-- next = [
--   "probe {endpoint} watch --activations",
--   "probe {endpoint} diagnose gradients",
--   "probe {endpoint} checkpoint before-restart.pt",
-- ]
-- false_positives = "a model whose zero-initialized last layer has not learned yet (the newest audit counts)"
-- explains = ["plateau", "slow-decrease", "gradients-vanishing"]
-- effect = true
SELECT NULL AS unknown, model AS subject, model, step FROM (
    SELECT *, MAX(step) OVER (PARTITION BY model) AS newest FROM python.dependence WHERE refused IS NULL AND question = 'input'
) WHERE subject = 'all arguments' AND effect = 0 AND step = newest
UNION ALL BY NAME
SELECT COALESCE('the dependence of the outputs could not be measured: ' || ANY_VALUE(refused ORDER BY t_ns DESC), 'the dependence of the outputs has not been audited yet') AS unknown
FROM python.dependence HAVING COUNT(*) FILTER (refused IS NULL) = 0
