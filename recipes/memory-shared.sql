-- title = "two parameters share the same memory"
-- severity = "notice"
-- symptoms = ["loss", "gradients"]
-- order = 212
-- scope = "rank"
-- needs = "the list of parameters, recorded once the model and its optimizers are known"
-- what = "{param} and {other} share the same memory as two parameters: each step writes the same {numel:,} numbers twice{more}"
-- why = [
--   "both are in {optimizer}, each with its own gradient and state: each update uses only part of the gradient, and weight decay is applied twice",
--   "tie weights by assigning the parameter itself (head.weight = embedding.weight), which gives one parameter with the whole gradient; assigning .data only shares the memory, until .to(), copy.deepcopy() or load_state_dict(assign=True) separates them",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT param, shape, optimizer, same_memory FROM python.parameters WHERE same_memory IS NOT NULL ORDER BY place\"",
--   "probe {endpoint} checkpoint before-restart.pt",
-- ]
-- false_positives = "none known: parameters of sharded and flattened models are different parts of one buffer, and tied ones are one parameter"
WITH latest AS (
    SELECT param, ARG_MAX((same_memory, ''), t_ns)[1] AS other, ARG_MAX((optimizer, ''), t_ns)[1] AS optimizer, ARG_MAX(requires_grad, t_ns) AS requires_grad, ARG_MAX(numel, t_ns) AS numel, ARG_MAX(place, t_ns) AS place, MAX(step) AS step FROM python.parameters GROUP BY param
), pairs AS (
    SELECT l.*, COUNT(*) OVER () AS n FROM latest l JOIN latest o ON o.param = l.other
    WHERE l.optimizer IS NOT NULL AND o.optimizer IS NOT NULL AND l.requires_grad AND o.requires_grad
)
SELECT NULL AS unknown, param AS subject, param, other, optimizer, numel, step, CASE WHEN n > 1 THEN format(', and {} more such pairs', n - 1) ELSE '' END AS more
FROM pairs QUALIFY ROW_NUMBER() OVER (ORDER BY place) = 1
UNION ALL BY NAME
SELECT 'the parameters are not known yet' AS unknown FROM latest HAVING COUNT(*) = 0
