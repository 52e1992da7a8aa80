-- title = "freezing has no effect"
-- severity = "notice"
-- symptoms = ["loss"]
-- order = 217
-- scope = "rank"
-- needs = "the modules and parameters of the model, recorded once they are known"
-- what = "{attribute} = False was set on {names}, which has no effect: {n} parameters that should be frozen are trained"
-- why = [
--   "{hint}",
--   "parameters: {examples}; {elements:,} elements, all in an optimizer and with a gradient",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT param, requires_grad, optimizer FROM python.parameters ORDER BY place\"",
--   "probe {endpoint} checkpoint before-restart.pt",
--   "probe {endpoint} stop",
-- ]
-- false_positives = "a module attribute named requires_grad that has another meaning"
WITH parameters AS (
    SELECT param, ARG_MAX(place, t_ns) AS place, ARG_MAX(module, t_ns) AS module, ARG_MAX(numel, t_ns) AS numel, ARG_MAX(requires_grad, t_ns) AS requires_grad,
        ARG_MAX((optimizer, 0), t_ns)[1] AS optimizer, ARG_MAX((misspelt, 0), t_ns)[1] AS misspelt, MAX(step) AS step FROM python.parameters GROUP BY param
), modules AS (
    SELECT module, ARG_MAX((requires_grad, 0), t_ns)[1] AS flag FROM python.modules GROUP BY module
), trained AS (
    SELECT * FROM parameters WHERE requires_grad AND optimizer IS NOT NULL
), found AS (
    SELECT 'requires_grad' AS attribute, m.module AS named, t.* FROM modules m JOIN trained t ON m.flag = false AND (m.module = '' OR t.module = m.module OR starts_with(t.module, m.module || '.'))
    UNION ALL SELECT misspelt, param, * FROM trained WHERE misspelt IS NOT NULL
)
SELECT NULL AS unknown, attribute AS subject, attribute, COUNT(DISTINCT param) AS n, SUM(DISTINCT numel) AS elements, MIN(step) AS step,
    array_to_string(list(DISTINCT CASE WHEN named = '' THEN 'the model' ELSE named END)[:6], ', ') AS names, array_to_string(list(DISTINCT param)[:4], ', ') AS examples,
    CASE WHEN attribute = 'requires_grad' THEN 'requires_grad is an attribute of parameters and has no meaning on a module; call module.requires_grad_(False)' ELSE 'the attribute of a parameter is called requires_grad' END AS hint
FROM found GROUP BY attribute
UNION ALL BY NAME
SELECT 'the parameters are not known yet' AS unknown FROM parameters HAVING COUNT(*) = 0
