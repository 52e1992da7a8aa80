-- title = "inputs and targets do not match"
-- severity = "notice"
-- symptoms = ["loss", "data"]
-- order = 129
-- scope = "rank"
-- needs = "inputs of the first module and targets saved by the loss function, from the same few steps"
-- what = "{fact}"
-- why = [
--   "{evidence}",
--   "in all of the last {n} steps in which both were sampled, from step {step} to {last}; loss: {loss_first:.4g} at first, {loss_now:.4g} now",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, function, shape, same_ratio, next_ratio, column_r, input_column, sees_later FROM python.loss_functions WHERE same_ratio IS NOT NULL OR column_r IS NOT NULL ORDER BY step DESC LIMIT 10\"",
--   "probe {endpoint} checkpoint before-restart.pt",
--   "probe {endpoint} stop",
-- ]
-- false_positives = "a model whose only input is the targets and that shifts them itself (`info` until the loss shows that it copies them); a token autoencoder with a bottleneck; a model that reads the whole sequence on purpose although it predicts next tokens; a separate head for the token after the next, if no head predicts the next one"
-- explains = ["gradients-vanishing", "train-validation-gap", "plateau"]
-- [parameters.least]
-- value = 3
-- unit = "sampled steps"
-- source = "ours"
-- [parameters.share]
-- value = 0.98
-- unit = "ratio of the targets"
-- source = "ours: nearly all; shifted text agrees with itself by chance at a tenth of its positions"
-- [parameters.r]
-- value = 0.999999
-- unit = "correlation"
-- source = "ours: equal except for scale and float32 rounding"
-- [parameters.copied]
-- value = 0.2
-- unit = "ratio of the first loss"
-- source = "ours: a model that can copy its target soon reaches a loss near zero; if it does not, it may shift its input itself"
WITH seen AS (
    SELECT * FROM python.loss_functions WHERE same_ratio IS NOT NULL OR column_r IS NOT NULL QUALIFY ROW_NUMBER() OVER (PARTITION BY function, layer ORDER BY step DESC) <= 8
), judged AS (
    SELECT function, layer, COUNT(*) AS n, MIN(step) AS step, MAX(step) AS last, MIN(same_ratio) AS same, MIN(next_ratio) AS next, MIN(second_ratio) AS second, MIN(column_r) AS r, MIN(input_column) AS input_column, MAX(input_column) AS other_column,
        COUNT(sees_later) AS told, BOOL_AND(sees_later) AS later FROM seen GROUP BY ALL HAVING COUNT(*) >= $least
), losses AS (
    SELECT MEDIAN(loss) FILTER (i <= 20) AS loss_first, MEDIAN(loss) FILTER (i > k - 20) AS loss_now
    FROM (SELECT loss, ROW_NUMBER() OVER (ORDER BY step) AS i, COUNT(*) OVER () AS k FROM python.steps WHERE isfinite(loss))
), facts AS (
    SELECT 'tokens' AS subject, 'the targets are the input itself, not shifted by one: each token is to be predicted from itself' AS fact,
        format('{:.1f} % of the targets are the token at their own place of the input, {:.1f} % the next one', 100 * same, 100 * next) AS evidence, * FROM judged WHERE same >= $share AND next < $share
    UNION ALL BY NAME
    SELECT 'shift' AS subject, 'the targets are shifted twice: each token is to predict the token after the next' AS fact,
        format('{:.1f} % of the targets are two positions on in the input, {:.1f} % the next token; data that are already shifted need no second shift in the model or its loss', 100 * second, 100 * next) AS evidence, * FROM judged
    WHERE second >= $share AND next < $share AND same < $share AND NOT EXISTS (SELECT 1 FROM judged j WHERE j.next >= $share)
    UNION ALL BY NAME
    SELECT 'attention' AS subject, 'the future is seen: no causal mask is in force, and each position attends to the token that it is to predict' AS fact,
        format('{:.1f} % of the targets are the next token of the input, and every sampled attention lets a position see later ones', 100 * next) AS evidence, * FROM judged WHERE next >= $share AND told = n AND later
    UNION ALL BY NAME
    SELECT 'column ' || input_column AS subject, format('the target is part of the input: it is the same as column {} except for its scale', input_column) AS fact,
        format('their correlation over the samples of a batch is {:.7f}', r) AS evidence, * FROM judged WHERE r >= $r AND input_column = other_column
)
SELECT NULL AS unknown, facts.* REPLACE (CASE WHEN open THEN fact || ', unless the model shifts its input' ELSE fact END AS fact), losses.*, CASE WHEN open THEN 'info' ELSE 'notice' END AS severity
FROM facts, losses, LATERAL (SELECT subject = 'tokens' AND NOT COALESCE(loss_now < $copied * loss_first, false) AS open)
UNION ALL BY NAME
SELECT format('inputs and targets were compared on {} steps, {} are needed', COUNT(DISTINCT step), $least) AS unknown FROM seen HAVING COUNT(DISTINCT step) < $least
