-- title = "no gradient reaches a module"
-- severity = "notice"
-- symptoms = ["gradients", "loss"]
-- order = 206
-- scope = "rank"
-- needs = "the autograd graphs of the losses and the gradients, from a few sampled steps, and recorded module calls"
-- what = "no gradient reaches {module}, although its forward runs in every recorded step: it is cut off from the loss (detach(), no_grad, .data or .item() after it)"
-- why = [
--   "in the last {n} sampled steps none of its {params} sampled parameters was in the graph of a loss or had a gradient; {others} other parameters had one",
--   "they are in an optimizer and require a gradient: {examples}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, param, in_graph, after_backward FROM python.updates ORDER BY step DESC, place LIMIT 24\"",
--   "probe {endpoint} checkpoint before-restart.pt",
--   "probe {endpoint} stop",
-- ]
-- false_positives = "a part that is trained later or only in some steps; the last of several blocks, whose second output nothing reads (`info`)"
-- explains = ["layer-not-learning"]
-- [parameters.least]
-- value = 3
-- unit = "sampled steps"
-- source = "ours"
WITH steps AS (
    SELECT DISTINCT step FROM python.updates ORDER BY step DESC LIMIT 8
), thawed AS (
    SELECT param, ARG_MAX(requires_grad, t_ns) AS trains, MAX(t_ns) AS t_ns FROM python.parameters GROUP BY param
), seen AS (
    -- Since the parameter trains: a part may be thawed in mid-run.
    SELECT u.* FROM python.updates u JOIN steps USING (step) LEFT JOIN thawed USING (param) WHERE NOT COALESCE(u.t_ns < thawed.t_ns, false)
), params AS (
    SELECT param, ANY_VALUE(place) AS place, COUNT(DISTINCT step) AS n, MIN(step) AS step, BOOL_OR(in_graph) AS reached,
        BOOL_OR(after_backward IN ('present', 'zero') OR at_step IN ('present', 'zero')) AS gradient, COUNT(in_graph) AS walked
    FROM seen WHERE optimizer IS NOT NULL AND param IS NOT NULL GROUP BY param
), called AS (
    -- Not after the last of these steps: a part that another phase of the training began to call had no reason to have a gradient before.
    SELECT DISTINCT module FROM python.torch_trace WHERE stage = 'forward' AND step BETWEEN (SELECT MIN(step) - 1000 FROM steps) AND (SELECT MAX(step) FROM steps)
), cut AS (
    SELECT p.*, regexp_replace(param, '\.[^.]*$', '') AS owner FROM params p
    WHERE n >= $least AND walked >= n AND NOT reached AND NOT gradient AND param NOT IN (SELECT param FROM thawed WHERE NOT trains)
), alive AS (
    SELECT param FROM params WHERE gradient OR reached
    UNION SELECT param FROM python.gradients WHERE norm > 0 AND step >= (SELECT MIN(step) FROM steps)
    -- One of the same name, made after the optimizer: see parameters-forgotten.
    UNION SELECT param FROM seen WHERE optimizer IS NULL AND COALESCE(in_graph, after_backward = 'present')
), found AS (
    -- The outermost module of which no parameter is reached; where a module has one that is, it is not cut off.
    SELECT *, CASE WHEN EXISTS (SELECT 1 FROM alive WHERE starts_with(alive.param, split_part(owner, '.', 1) || '.')) THEN owner ELSE split_part(owner, '.', 1) END AS module
    FROM cut WHERE EXISTS (SELECT 1 FROM called WHERE called.module = owner) AND NOT EXISTS (SELECT 1 FROM alive WHERE starts_with(alive.param, owner || '.'))
), kinds AS (
    -- The last of several parts of one kind, all earlier ones of which get a gradient: a block whose second output has no reader after it.
    SELECT regexp_replace(param, '[0-9]+', '#', 'g') AS kind, MAX(place) FILTER (gradient OR reached) AS last, COUNT(*) FILTER (NOT (gradient OR reached)) AS cut FROM params GROUP BY kind
), others AS (
    SELECT COUNT(*) FILTER (gradient) AS others FROM params
)
SELECT NULL AS unknown, module, module AS subject,
    CASE WHEN BOOL_AND(EXISTS (SELECT 1 FROM kinds WHERE kind = regexp_replace(param, '[0-9]+', '#', 'g') AND last < place AND cut = 1)) THEN 'info' ELSE 'notice' END AS severity, COUNT(*) AS params, MAX(n) AS n, MIN(step) AS step, ANY_VALUE(others) AS others,
    array_to_string(list(param ORDER BY place)[:4], ', ') AS examples
FROM found, others WHERE others > 0 GROUP BY module
UNION ALL BY NAME
SELECT format('updates of {} steps were sampled, {} are needed', COUNT(*), $least) AS unknown FROM steps HAVING COUNT(*) < $least
