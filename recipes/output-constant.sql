-- title = "outputs do not depend on the input"
-- severity = "notice"
-- symptoms = ["loss", "gradients"]
-- order = 268
-- scope = "rank"
-- needs = "an audit in a forked child process, about ten seconds after the start; the model must be on the CPU, neither compiled nor sharded"
-- what = "whatever {model} is given, it returns the same: its outputs do not depend on the input"
-- why = [
--   "seen at step {step}: the samples of a batch were exchanged with one another, in training and in evaluation mode, and every output stayed the same bit by bit",
--   "units that are 0 for every input, weights that are 0, or a part that is skipped have this effect; what made them so is not shown by this alone",
-- ]
-- next = [
--   "probe {endpoint} watch --activations",
--   "probe {endpoint} diagnose gradients",
--   "probe {endpoint} checkpoint before-restart.pt",
-- ]
-- false_positives = "a model whose last layer starts at 0 and has not learned yet: the newest audit counts"
-- explains = ["plateau", "slow-decrease", "gradients-vanishing"]
SELECT NULL AS unknown, model AS subject, model, step FROM (
    SELECT *, MAX(step) OVER (PARTITION BY model) AS newest FROM python.dependence WHERE refused IS NULL AND question = 'input'
) WHERE subject = 'all arguments' AND effect = 0 AND step = newest
UNION ALL BY NAME
SELECT COALESCE('the dependence of the outputs could not be measured: ' || ANY_VALUE(refused ORDER BY t_ns DESC), 'no audit of what the outputs depend on has been made yet') AS unknown
FROM python.dependence HAVING COUNT(*) FILTER (refused IS NULL) = 0
