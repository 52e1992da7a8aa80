-- title = "left on from debugging"
-- severity = "notice"
-- symptoms = ["slow", "memory"]
-- order = 526
-- scope = "rank"
-- needs = "gradients of a few sampled steps, and the settings of autograd"
-- what = "{fact}"
-- why = [
--   "{evidence}",
--   "{cost}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, param, optimizer, differentiable, graph_unused FROM python.updates ORDER BY step DESC LIMIT 10\"",
--   "probe {endpoint} query \"SELECT name, value FROM probe.facts WHERE name IN ('autograd.anomaly_mode', 'CUDA_LAUNCH_BLOCKING')\"",
-- ]
-- false_positives = "estimates of a Hessian between backward and step that keep the graph (retain_graph=True); optimizers of second order are left out (only torch's own are judged), and gradients that something went through; a NaN that is being looked for (`info` in the first steps)"
-- explains = ["low-mfu", "host-memory-growth", "device-memory-growth"]
-- [parameters.least]
-- value = 4
-- unit = "steps looked at"
-- source = "ours"
-- [parameters.steps]
-- value = 300
-- unit = "steps"
-- source = "ours: a search for a NaN is mostly over by then"
WITH looks AS (
    SELECT step, BOOL_AND(differentiable AND graph_unused) AS unused, COUNT(*) AS parameters, ANY_VALUE(optimizer) AS optimizer FROM python.updates
    WHERE differentiable IS NOT NULL AND optimizer IS NOT NULL AND at_step = 'present' AND (graph_unused IS NOT NULL OR NOT differentiable) GROUP BY step QUALIFY ROW_NUMBER() OVER (ORDER BY step DESC) <= 8
), graphs AS (
    SELECT COUNT(*) AS n, BOOL_AND(unused) AS unused, MIN(step) AS step, MAX(step) AS last, MAX(parameters) AS parameters, ANY_VALUE(optimizer) AS optimizer FROM looks
), anomaly AS (
    SELECT COUNT(DISTINCT value) = 1 AND ANY_VALUE(value) = 'True' AS on_all FROM probe.facts WHERE name = 'autograd.anomaly_mode'
), steps AS (
    SELECT COUNT(*) AS n, MIN(step) AS step FROM python.steps
)
SELECT NULL AS unknown, 'create_graph' AS subject, step, 'notice' AS severity, 'backward is called with create_graph=True, though nothing differentiates the gradients' AS fact,
    format('the gradients of all {} parameters looked at had a graph of their own in all of the last {} samples, from step {} to {}, and it was still whole after the step of {}', parameters, n, step, last, optimizer) AS evidence,
    'each backward records a graph of its own, which takes time and memory and lives until the gradients are cleared: gradient penalties and Hessians need it, a plain step does not' AS cost
FROM graphs WHERE n >= $least AND unused
UNION ALL BY NAME
SELECT NULL AS unknown, 'anomaly mode' AS subject, step, CASE WHEN n >= $steps THEN 'notice' ELSE 'info' END AS severity, 'autograd''s anomaly detection is on: torch.autograd.set_detect_anomaly(True)' AS fact,
    format('it was on whenever it was looked at; {} steps are known', n) AS evidence, 'each operation of a forward keeps a traceback, and each result of a backward is checked for NaN: steps take up to several times as long' AS cost
FROM anomaly, steps WHERE on_all
UNION ALL BY NAME
SELECT NULL AS unknown, 'CUDA_LAUNCH_BLOCKING' AS subject, step, CASE WHEN n >= $steps THEN 'notice' ELSE 'info' END AS severity, 'every kernel is waited for: CUDA_LAUNCH_BLOCKING is set' AS fact,
    format('CUDA_LAUNCH_BLOCKING={} in the environment of a job that uses {}', e.value, h.value) AS evidence, 'the host waits for each kernel to end before it launches the next one' AS cost
FROM probe.facts e, probe.facts h, steps WHERE e.kind = 'environment' AND e.name = 'CUDA_LAUNCH_BLOCKING' AND e.value NOT IN ('0', '') AND h.kind = 'hardware' AND h.name = 'device_type'
UNION ALL BY NAME
SELECT format('gradients were sampled on {} steps, {} are needed', n, $least) AS unknown FROM graphs WHERE n < $least
